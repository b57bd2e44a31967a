"""A library opened for reading, at its last commit."""

from __future__ import annotations

import heapq
import json
import os
import threading
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from calligram.data.pictures import PictureError
from calligram.errors import UserError
from calligram.models.matcher import Encoded, stack
from calligram.search.filters import columns
from calligram.search.filters.columns import ColumnKind, ColumnValue
from calligram.search.filters.parser import Condition, holds
from calligram.search.library.manifest import MANIFEST, Manifest, check_address, read_manifest
from calligram.search.library.tables import Tables, open_indexes
from calligram.search.library.video import frame_time, read_frame
from calligram.search.library.word_lists import KeywordHit
from calligram.search.vectors.index import Index
from calligram.text import composed, keywords

FACETS = ("year", "camera", "folder", "split", "source")
"""columns whose values are counted"""
MAX_FACET_VALUES = 200
"""values of a facet that are counted, the most frequent ones"""


@dataclass(frozen=True)
class Item:
    """An item of the library: a picture with its metadata and captions."""

    id: str
    path: Path | None
    """None for a picture within a shard, and where there are only features"""
    name: str
    folder: str
    """relative to the source"""
    width: int
    height: int
    metadata: Mapping[str, ColumnValue] = field(repr=False)
    """all its columns"""
    captions: tuple[str, ...] = ()
    gone: bool = False
    """the file was missing when its source was last indexed"""
    hash: str = ""
    """of the content of its file"""

    @property
    def frame_time(self) -> float | None:
        """The second of a frame in its video, which is the file at ``path``; None for a picture."""
        return None if self.path is None else frame_time(self.path.name, self.name)


class LibraryCaption(NamedTuple):
    """A caption of the library and its items."""

    id: str
    text: str
    items: tuple[str, ...]


class StoredPicture(NamedTuple):
    """The file of an item."""

    id: str
    path: Path | None
    """None for a picture within a shard, and where there are only features"""
    name: str
    width: int
    height: int
    bytes: int
    hash: str
    """of its content"""


class Library:
    """A library at one commit. It never changes, and many threads may read it."""

    def __init__(self, folder: Path, manifest: Manifest, stamp: tuple[int, int], memory: int | None = None) -> None:
        """Use ``Library.open``."""
        self.folder, self.manifest, self._stamp, self._memory = folder, manifest, stamp, memory
        inside = folder / str(manifest.generation)
        self._tables = Tables.open(inside / "tables", manifest.versions, manifest.files)
        self.images, self.captions = open_indexes(inside, manifest, memory=memory)
        self._roots = {source.number: source.root for source in manifest.sources}
        self._stats_lock = threading.Lock()

    images: Index
    captions: Index

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, index: str | None = None, memory: int | None = None) -> Library:
        """Open the library in ``folder`` for reading.

        Args:
            folder: of the library.
            index: address of its vectors, if they are not in its folder. It must be given, because a library of
                somebody else could name any server.
            memory: bytes of mapped vectors that stay in the memory of this process; by default 1 GiB for each index.

        Raises:
            UserError: when there is none, its format is newer or older, or its vectors are at another address.
        """
        path = Path(folder)
        for _ in range(3):
            stamp = _stamp(path)
            try:
                return cls._checked(path, index, stamp, memory)
            except UserError:
                if _stamp(path) == stamp:  # else a commit came between reading the manifest and opening its tables
                    raise
        return cls._checked(path, index, _stamp(path), memory)

    @classmethod
    def _checked(cls, path: Path, index: str | None, stamp: tuple[int, int], memory: int | None) -> Library:
        manifest = read_manifest(path)
        check_address(path, manifest, index)
        return cls(path, manifest, stamp, memory)

    def refreshed(self) -> Library:
        """This library, or a new one if there was a commit since it was opened."""
        if _stamp(self.folder) == self._stamp:
            return self
        return Library.open(self.folder, index=self.manifest.index, memory=self._memory)

    def __len__(self) -> int:
        return int(self.manifest.counts.get("items", 0))

    @property
    def kinds(self) -> Mapping[str, ColumnKind]:
        """The columns for conditions."""
        return self.manifest.kinds

    def item(self, id: str) -> Item:
        """One item."""
        return self.items([id])[0]

    def items(self, ids: Sequence[str]) -> list[Item]:
        """Items in the order of ``ids``.

        Raises:
            UserError: for an unknown id.
        """
        found = {item.id: item for item in self.known_items(ids)}
        return [found[_known(id, found)] for id in ids]

    def known_items(self, ids: Sequence[str]) -> list[Item]:
        """Items in no order; unknown ids are skipped."""
        return [self._item(row) for row in self._tables.take("items", list(dict.fromkeys(ids))).to_pylist()]

    def captions_and_metadata(self, ids: Sequence[str]) -> tuple[list[tuple[str, ...]], list[dict[str, ColumnValue]]]:
        """Captions of known items, and the columns that came from their files and their source.

        Many items are read several times as fast as by ``items``.
        """
        wanted = self._tables.take("items", list(dict.fromkeys(ids)), ("id", "captions", "metadata")).to_pylist()
        rows = {row["id"]: row for row in wanted}
        return (
            [tuple(rows[id]["captions"] or ()) for id in ids],
            [json.loads(rows[id]["metadata"]) for id in ids],
        )

    def paths(self, ids: Sequence[str]) -> dict[str, Path | None]:
        """Paths of items that are files of their own, None for other items; unknown ids are skipped."""
        rows = self._tables.take("items", list(dict.fromkeys(ids)), ("id", "source", "file", "offset")).to_pylist()
        return {row["id"]: self._path(row) for row in rows}

    def names(self, ids: Sequence[str]) -> dict[str, str]:
        """File names of items, or their ids in a collection; unknown ids are skipped."""
        rows = self._tables.take("items", list(dict.fromkeys(ids)), ("id", "name")).to_pylist()
        return {row["id"]: row["name"] for row in rows}

    def _path(self, row: Mapping[str, Any]) -> Path | None:
        return Path(self._roots[row["source"]], row["file"]) if row["file"] is not None and row["offset"] < 0 else None

    def _item(self, row: Mapping[str, Any]) -> Item:
        root, path = self._roots[row["source"]], self._path(row)
        about = columns.row_of(row, root)
        size = int(row["width"] or 0), int(row["height"] or 0)
        captions, gone, content = tuple(row["captions"] or ()), row["state"] != "present", row["hash"] or ""
        return Item(row["id"], path, row["name"], row["folder"], *size, about, captions, gone, content)

    def thumbnail(self, id: str) -> bytes:
        """The thumbnail of an item, a JPEG."""
        rows = self._tables.take("thumbnails", [id]).column("jpeg").to_pylist()
        if not rows:
            self.item(id)
            raise UserError(f"item {id} has no picture, only features")
        return bytes(rows[0])

    def thumbnails(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Thumbnails of items; unknown items, and items that are only features, are skipped."""
        rows = self._tables.take("thumbnails", list(dict.fromkeys(ids)))
        return dict(zip(rows.column("id").to_pylist(), rows.column("jpeg").to_pylist(), strict=True))

    def picture(self, id: str) -> bytes:
        """The bytes of an item's picture, read from its source.

        Raises:
            UserError: for an unknown item, and when its file cannot be read.
        """
        rows = self._tables.take("items", [id], ["source", "key", "file", "offset", "bytes"]).to_pylist()
        row = next(iter(rows), None)
        if row is None:
            raise _no_item(id)
        if row["file"] is None:
            raise UserError(f"item {id} has no picture, only features")
        file = Path(self._roots[row["source"]], row["file"])
        try:
            if (seconds := frame_time(row["file"], row["key"])) is not None:
                return read_frame(file, seconds)
            with file.open("rb") as stream:
                if row["offset"] < 0:
                    return stream.read()
                stream.seek(row["offset"])
                return stream.read(row["bytes"])
        except (OSError, PictureError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"the picture of item {id} cannot be read: {reason}: {file}") from error

    def parts(self, ids: Sequence[str]) -> Encoded:
        """The reranker's encodings of items, in the order of ``ids``."""
        if self.manifest.reranker is None:
            raise UserError(f"{self.folder} has no reranker; index it with --reranker RUN")
        rows = self._tables.take("parts", list(dict.fromkeys(ids)))
        places = {id: place for place, id in enumerate(rows.column("id").to_pylist())}
        return encodings(rows, [places[_known(id, places)] for id in ids])

    def caption(self, id: str) -> LibraryCaption:
        """One caption."""
        return self.texts([id])[0]

    def texts(self, ids: Sequence[str]) -> list[LibraryCaption]:
        """Captions in the order of ``ids``.

        Raises:
            UserError: for an unknown id.
        """
        rows = self._tables.take("captions", list(dict.fromkeys(ids))).to_pylist()
        found = {row["id"]: LibraryCaption(row["id"], row["text"], tuple(row["items"])) for row in rows}
        if missing := next((id for id in ids if id not in found), None):
            raise UserError(f"{self.folder} has no caption '{missing}'")
        return [found[id] for id in ids]

    def full_text(
        self, query: str, k: int, where: Condition | None = None, within: Container[str] | None = None
    ) -> list[KeywordHit]:
        """The k items whose captions and paths match any of the words best, by BM25; of ``within``, or of all."""
        words = " ".join(keywords(composed(query)))
        if not words or k < 1:
            return []
        limit = k if where is None and within is None else 4 * k
        while True:
            found = self._tables.keyword_search(words, limit)
            kept = [hit for hit in found if within is None or hit.id in within]
            kept = kept if where is None else self._satisfying(kept, where)
            if len(kept) >= k or len(found) < limit:
                return kept[:k]
            limit *= 4

    @property
    def keywords_in_memory(self) -> bool:
        """Whether ``full_text`` takes about a millisecond, because this process has asked often enough."""
        return self._tables.keywords_in_memory

    def _satisfying(self, found: Sequence[KeywordHit], where: Condition) -> list[KeywordHit]:
        about = {item.id: item.metadata for item in self.known_items([f.id for f in found])}
        return [f for f in found if f.id in about and holds(where, about[f.id])]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """The columns of every item, with ``id`` and ``state``, also of items whose file is gone."""
        wanted = ["id", "state", "key", "source", "folder", "name", "bytes", "width", "height", "metadata"]
        for batch in self._tables.column("items", wanted):
            for row in batch.to_pylist():
                yield {"id": row["id"], "state": row["state"], **columns.row_of(row, self._roots[row["source"]])}

    def present_pictures(self) -> Iterator[StoredPicture]:
        """The files of all present items."""
        wanted = ("id", "source", "file", "offset", "name", "width", "height", "bytes", "hash")
        for batch in self._tables.column("items", wanted, "state = 'present'"):
            for row in batch.to_pylist():
                size = int(row["width"] or 0), int(row["height"] or 0)
                yield StoredPicture(row["id"], self._path(row), row["name"], *size, int(row["bytes"] or 0), row["hash"])

    def sample(self, count: int) -> list[str]:
        """Ids of at most ``count`` present items: always the same, and in effect random, because ids are hashes."""
        batches = self._tables.column("items", ("id",), "state = 'present'")
        return heapq.nsmallest(count, (id for batch in batches for id in batch.column("id").to_pylist()))

    def problems(self) -> list[tuple[str, str]]:
        """Files that could not be indexed, and the reasons."""
        batches = self._tables.column("problems", ["source", "key", "reason"])
        rows = [row for batch in batches for row in batch.to_pylist()]
        return sorted((os.path.join(self._roots[row["source"]], row["key"]), row["reason"]) for row in rows)

    def stats(self) -> Mapping[str, object]:
        """Counts, matchers, size on disk, and the frequencies of the values of some columns."""
        with self._stats_lock:  # so that threads do not compute it at the same time
            return self._stats

    @cached_property
    def _stats(self) -> dict[str, object]:
        manifest = self.manifest
        return {
            **{name: manifest.counts.get(name, 0) for name in ("items", "captions", "gone", "problems")},
            "dim": manifest.dim,
            "recall": self.images.recall,
            "matcher": manifest.matcher.source,
            "reranker": manifest.reranker.source if manifest.reranker else None,
            "localizer": manifest.localizer.source if manifest.localizer else None,
            "sources": [source.root for source in manifest.sources],
            "bytes": sum(f.stat().st_size for f in _files(self.folder)),
            "facets": self._facets(),
        }

    def _facets(self) -> dict[str, dict[ColumnValue, int]]:
        counters: dict[str, Counter[ColumnValue]] = {name: Counter() for name in FACETS if name in self.kinds}
        for row in self.rows():
            if row["state"] == "present":
                for name, counter in counters.items():
                    if row.get(name) not in (None, ""):
                        counter[row[name]] += 1
        return {name: dict(most_frequent(counter, MAX_FACET_VALUES)) for name, counter in counters.items() if counter}


def most_frequent(counter: Counter[ColumnValue], count: int) -> list[tuple[ColumnValue, int]]:
    """The most frequent values with their numbers; equally frequent ones are ordered by value, not by table row."""
    return heapq.nsmallest(count, counter.items(), key=lambda entry: (-entry[1], str(entry[0])))


def _known(id: str, known: Mapping[str, object]) -> str:
    if id not in known:
        raise _no_item(id)
    return id


def _no_item(id: str) -> UserError:
    return UserError(
        f"the library has no item '{id}'; use an id of a search result, and search again if the library has changed"
    )


def _stamp(folder: Path) -> tuple[int, int]:
    try:
        about = (folder / MANIFEST).stat()
    except OSError:
        return (0, 0)
    return about.st_ino, about.st_mtime_ns


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            if (file := Path(place, name)).is_file():
                yield file


# Encodings of the reranker, from rows of the table ``parts``.


def encodings(rows: pa.Table, order: Sequence[int]) -> Encoded:
    """Rows of the table ``parts`` in the given order, converted from float16 to float32.

    The images of one matcher mostly have the same number of parts. They are then read as one array from the table's
    memory, in a third of the time of reading image by image.
    """
    counts = rows.column("count").to_numpy()
    if len(set(counts.tolist())) > 1:
        return stack([encodings(rows.slice(place, 1), [0]) for place in order])
    chosen = np.asarray(order, dtype=np.int64)
    vectors = torch.from_numpy(_binary_column(rows, "vector", np.dtype(np.float32))[chosen])
    if not len(counts) or not counts[0]:
        return Encoded(vectors)
    shape = (len(counts), int(counts[0]), -1)
    parts = _binary_column(rows, "parts", np.dtype(np.float16)).reshape(shape)
    mask = _binary_column(rows, "mask", np.dtype(np.bool_))
    return Encoded(vectors, torch.from_numpy(parts[chosen]).float(), torch.from_numpy(mask[chosen]))


def _binary_column(rows: pa.Table, name: str, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """A binary column whose values have the same length, as (N, numbers)."""
    pieces = []
    for chunk in rows.column(name).chunks:
        if len(chunk):
            _, offsets, data = chunk.buffers()
            ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
            pieces.append(np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].view(dtype).reshape(len(chunk), -1))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty((0, 0), dtype)
