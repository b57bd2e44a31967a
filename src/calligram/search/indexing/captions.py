"""Captions: encode new ones, and update or remove the others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calligram.progress import Track, silent
from calligram.search.filters import columns
from calligram.search.indexing.diff import LibraryState, short_hash
from calligram.search.indexing.sources import PictureSource
from calligram.search.indexing.writer import LibraryWriter
from calligram.search.library.matchers import MatcherEncoder

log = logging.getLogger(__name__)

COMMIT_CAPTIONS = 4096
"""captions that are encoded and committed together"""


class SourceCaptionRow(NamedTuple):
    """A caption of the source with at least one present item."""

    id: str
    key: str
    text: str
    items: tuple[str, ...]


def take_captions(
    writer: LibraryWriter,
    encoder: MatcherEncoder,
    source: PictureSource,
    state: LibraryState,
    dirty: set[str],
    track: Track = silent,
) -> Counter[str]:
    """Add new captions, encode changed ones again, and remove captions without a picture.

    Args:
        writer: of the library.
        encoder: of the library's matcher.
        source: of the captions.
        state: of the library.
        dirty: ids of items whose columns changed; conditions on their captions use the same columns.
        track: shows progress.
    """
    known = _known(writer, state.number)
    wanted = _wanted(source, state)
    encode = [w for w in wanted if w.id not in known or known[w.id][0] != w.text]
    moved = [w for w in wanted if w.id in known and known[w.id][0] == w.text]
    moved = [w for w in moved if known[w.id][1] != w.items or w.items[0] in dirty]
    extra = sorted(known.keys() - {w.id for w in wanted})
    left: list[SourceCaptionRow] = []
    for start in track(range(0, len(encode), COMMIT_CAPTIONS), "encoding captions", -(-len(encode) // COMMIT_CAPTIONS)):
        left += _encode(writer, encoder, encode[start : start + COMMIT_CAPTIONS], state.number)
        writer.commit()
    if left:
        log.warning(
            "%d captions are left out because the matcher knows none of their words, such as '%s'",
            len(left), left[0].text[:60],
        )  # fmt: skip
    if moved:
        writer.tables.put("captions", [_row(w, state.number) for w in moved])
        writer.captions.update([w.id for w in moved], caption_columns(writer, [w.items[0] for w in moved]))
    remove_captions(writer, extra)
    taken = len(encode) - len(left)
    return Counter({"captions": taken, "captions moved": len(moved), "captions removed": len(extra)})


def remove_captions(writer: LibraryWriter, ids: Sequence[str]) -> None:
    """Delete captions."""
    if ids:
        writer.tables.drop("captions", ids)
        writer.captions.remove(ids)


def _known(writer: LibraryWriter, number: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Text and items of each caption of a source, by id."""
    found = {}
    for batch in writer.tables.column("captions", ("id", "text", "items"), f"source = {number}"):
        for row in batch.to_pylist():
            found[row["id"]] = row["text"], tuple(row["items"])
    return found


def _wanted(source: PictureSource, state: LibraryState) -> list[SourceCaptionRow]:
    """The captions of the source with at least one present picture."""
    there = {key: known.id for key, known in state.items.items() if known.present}
    wanted = []
    for caption in source.captions():
        items = tuple(there[key] for key in caption.pictures if key in there)
        if items:
            id = short_hash(f"caption {state.number}/{caption.key}")
            wanted.append(SourceCaptionRow(id, caption.key, caption.text, items))
    return wanted


def _encode(
    writer: LibraryWriter, encoder: MatcherEncoder, wanted: Sequence[SourceCaptionRow], number: int
) -> list[SourceCaptionRow]:
    """Encode and add captions; returns the captions without a usable vector."""
    vectors = encoder.text_vectors([w.text for w in wanted])
    usable = np.asarray(np.isfinite(vectors).all(axis=1) & vectors.any(axis=1))
    kept = [w for w, fine in zip(wanted, usable, strict=True) if fine]
    writer.tables.put("captions", [_row(w, number) for w in kept])
    if kept:
        writer.captions.add([w.id for w in kept], vectors[usable], caption_columns(writer, [w.items[0] for w in kept]))
    return [w for w, fine in zip(wanted, usable, strict=True) if not fine]


def _row(wanted: SourceCaptionRow, number: int) -> Mapping[str, Any]:
    return {"id": wanted.id, "source": number, "key": wanted.key, "text": wanted.text, "items": list(wanted.items)}


def caption_columns(writer: LibraryWriter, first: Sequence[str]) -> Any:
    """The columns of captions, which are those of their first picture.

    Args:
        writer: of the library.
        first: id of each caption's first picture.
    """
    rows = writer.tables.take("items", sorted(set(first))).to_pylist()
    roots = {source.number: source.root for source in writer.manifest.sources}
    about = {row["id"]: columns.row_of(row, roots[row["source"]]) for row in rows}
    return columns.table_of([about[id] for id in first], writer.kinds)
