"""A library as a server of the Model Context Protocol, so that assistants can search it. It only reads.

The official package ``mcp`` (extra ``mcp``) speaks the protocol over standard input and output.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import calligram
from calligram.data.pictures import decode
from calligram.errors import UserError
from calligram.extras import require
from calligram.search.filters.columns import TEXT_COLUMN
from calligram.search.filters.parser import named_columns
from calligram.search.library.library import Library
from calligram.search.query.query import ItemId
from calligram.search.query.searcher import Results, Searcher
from calligram.serve.settings import (
    MAX_CONDITION_CHARACTERS,
    MAX_EXPLAINED_WORDS,
    MAX_QUERY_CHARACTERS,
    PATH_COLUMNS,
    PLACE_COLUMNS,
)
from calligram.text import whitespace_word_spans

if TYPE_CHECKING:
    from mcp.server import MCPServer

T = TypeVar("T")
MAX_ASSISTANT_HITS = 50
MAX_PICTURE_SIDE = 1024
"""longer side in pixels of a picture that an assistant looks at"""
PICTURE_QUALITY = 85
INSTRUCTIONS = (
    "Searches a library of pictures by their content. Begin with describe_library: it lists the columns for "
    "conditions. search finds pictures by a text and gives their ids; look shows a picture; similar finds pictures "
    "like one; explain shows which words of a text a picture matches. Nothing can be changed."
)


class LibraryTools:
    """What an assistant may ask of a library. Each answer is of its present state."""

    def __init__(self, searcher: Searcher, *, show_places: bool = False) -> None:
        """Args:
        searcher: of the library.
        show_places: also answer where pictures were taken.
        """
        self._searcher, self._show_places = searcher, show_places
        self._lock = threading.Lock()

    def describe_library(self) -> dict[str, Any]:
        """Describe the library: number of pictures and captions, and the columns that conditions may name."""
        library = self._current().library
        stats = library.stats()
        columns = {name: kind for name, kind in library.kinds.items() if self._shows(name)}
        facets: Any = stats["facets"]
        return {
            **{name: stats[name] for name in ("items", "captions", "gone", "problems")},
            "matcher": PurePath(str(stats["matcher"])).name,
            "columns": columns,
            "frequent_values": {name: dict(values) for name, values in facets.items() if self._shows(name)},
            "condition_examples": ["year >= 2020", "taken >= 2019-07-01 and taken < 2019-08-01", "name ~ 'dog'"],
        }

    def search(self, query: str, k: int = 10, where: str = "", all: bool = False) -> dict[str, Any]:
        """Find pictures by a text, best first.

        Args:
            query: what the pictures show, such as "two dogs on a beach".
            k: maximum number of hits, from 1 to 50.
            where: a condition on the columns of describe_library, such as "year >= 2020 and name ~ 'trip'".
            all: also give hits that are no good match.
        """
        _check_length("query", query, MAX_QUERY_CHARACTERS)
        searcher, condition = self._current(), self._condition(where)
        return self._hits(searcher, searcher.images(query, _hit_count(k), where=condition, all=all))

    def similar(self, id: str, k: int = 10, where: str = "") -> dict[str, Any]:
        """Find pictures that are similar to a picture of the library.

        Args:
            id: of a picture, as in the hits of search.
            k: maximum number of hits, from 1 to 50.
            where: a condition, as in search.
        """
        searcher, condition = self._current(), self._condition(where)
        return self._hits(searcher, searcher.images(ItemId(id), _hit_count(k), where=condition))

    def picture(self, id: str) -> tuple[dict[str, Any], bytes]:
        """What the library knows of a picture, and a JPEG of it without metadata."""
        library = self._current().library
        item = library.item(id)
        image = decode(library.picture(id))
        image.thumbnail((MAX_PICTURE_SIDE, MAX_PICTURE_SIDE))
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=PICTURE_QUALITY)
        metadata = {name: value for name, value in item.metadata.items() if self._shows(name)}
        path = None if item.path is None else str(item.path)
        about = {"id": item.id, "path": path, "name": item.name, "captions": list(item.captions), "metadata": metadata}
        return about, stream.getvalue()

    def explain(self, id: str, text: str) -> dict[str, Any]:
        """Measure how much each word of a text raises its score with a picture: the score is compared without the word.

        Args:
            id: of a picture, as in the hits of search.
            text: of 2 to 64 words.
        """
        count = len(whitespace_word_spans(text))
        if not 2 <= count <= MAX_EXPLAINED_WORDS:
            raise UserError(f"the text has {count} words; give 2 to {MAX_EXPLAINED_WORDS}")
        found = self._current().explain(id, text)
        return {"score": found.score, "words": [{"word": word.word, "weight": word.weight} for word in found.words]}

    def _current(self) -> Searcher:
        with self._lock:
            self._searcher = self._searcher.refreshed()
            return self._searcher

    def _shows(self, column: str) -> bool:
        return column not in PATH_COLUMNS and (self._show_places or column not in PLACE_COLUMNS)

    def _condition(self, where: str) -> str | None:
        _check_length("condition", where, MAX_CONDITION_CHARACTERS)
        if named_columns(where) & set(PATH_COLUMNS):
            raise UserError("conditions on absolute paths are switched off; use folder")
        if not self._show_places and named_columns(where) & set(PLACE_COLUMNS):
            raise UserError("conditions on places are switched off; the owner of the library can give --show-places")
        return where.strip() or None

    def _hits(self, searcher: Searcher, results: Results) -> dict[str, Any]:
        library: Library = searcher.library
        ids = [hit.id for hit in results.hits]
        names, (captions, metadata) = library.names(ids), library.captions_and_metadata(ids)
        hits = [
            {
                **{"id": hit.id, "score": round(hit.score, 4), "path": hit.path, "name": names[hit.id]},
                **{"captions": list(texts), TEXT_COLUMN: about.get(TEXT_COLUMN, "")},
            }
            for hit, texts, about in zip(results.hits, captions, metadata, strict=True)
        ]
        return {
            "hits": hits,
            "not_a_good_match": results.below_cutoff,
            "unknown_words": list(results.unknown_words),
        }


def _check_length(name: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise UserError(f"the {name} has {len(text):,} characters; at most {limit:,} are accepted")


def _hit_count(k: int) -> int:
    if not 1 <= k <= MAX_ASSISTANT_HITS:
        raise UserError(f"k must be from 1 to {MAX_ASSISTANT_HITS}, got {k}")
    return k


def mcp_server(tools: LibraryTools) -> MCPServer:
    """A server of the Model Context Protocol with these tools.

    Raises:
        UserError: when the package ``mcp`` is not installed.
    """
    require("mcp.server.mcpserver", extra="mcp", purpose="the server for assistants", package="mcp")
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Image
    from mcp.types import ToolAnnotations

    server = MCPServer("calligram", instructions=INSTRUCTIONS, version=calligram.__version__, log_level="WARNING")
    hints = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    tool = server.tool

    def look(id: str) -> list[Any]:
        """Look at a picture of the library: the picture, with its captions and metadata.

        Args:
            id: of a picture, as in the hits of search.
        """
        about, jpeg = tools.picture(id)
        return [about, Image(data=jpeg, format="jpeg")]

    for work in (tools.describe_library, tools.search, tools.similar, tools.explain):
        tool(annotations=hints)(_with_tool_errors(work))
    tool(annotations=hints, structured_output=False)(_with_tool_errors(look))
    return server


def _with_tool_errors(work: Callable[..., T]) -> Callable[..., T]:
    """Errors that a user can correct become errors that an assistant reads; others stay in the log of the server."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(work)
    def run(*given: Any, **named: Any) -> T:
        try:
            return work(*given, **named)
        except UserError as error:
            raise ToolError(str(error)) from error

    return run
