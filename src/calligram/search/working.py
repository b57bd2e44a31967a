"""The worker: from entries of a source to rows with everything a library keeps of them."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch

from calligram.data.pictures import PictureError, decode
from calligram.errors import UserError
from calligram.features.store import content_key
from calligram.models.matcher import Encoded
from calligram.progress import Track, silent, track_parts
from calligram.search.encoders import ImageEncoder, Prepared, as_bytes
from calligram.search.metadata import facts
from calligram.search.scanning import Entry
from calligram.search.sources import Pictures
from calligram.search.thumbnails import thumbnail

WORKED = pa.schema(
    {
        **{"key": pa.string(), "bytes": pa.int64(), "mtime": pa.int64(), "hash": pa.string(), "problem": pa.string()},
        **{"width": pa.int32(), "height": pa.int32(), "facts": pa.string(), "jpeg": pa.binary()},
        **{
            "vector": pa.binary(),
            "rerank": pa.binary(),
            "parts": pa.binary(),
            "count": pa.int32(),
            "mask": pa.binary(),
        },
    }
)
"""a row has a problem, or encodings, or neither: then its content was known already"""
BATCH = 64
AHEAD = 3
"""batches that are prepared before they are encoded"""
AT_ONCE = 16
"""pictures that a thread takes at a time: handing over each by itself would take as long as reading it"""
ENCODING = 4
"""batches that are encoded at the same time, where a processor does it; each takes memory"""

Row = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Seen:
    """A picture after the part that is done for it alone."""

    row: Row
    prepared: tuple[Prepared, ...] = field(default=())


@dataclass(frozen=True)
class Worker:
    """Reads, decodes and encodes pictures; it knows nothing of libraries."""

    source: Pictures
    encoder: ImageEncoder
    reranker: ImageEncoder | None
    batch: int = BATCH

    def run(self, entries: Sequence[Entry], known: Container[str], track: Track = silent) -> Iterator[list[Row]]:
        """Rows as in ``WORKED``, a batch at a time; the next pictures are prepared while these are encoded.

        Args:
            known: contents that need not be encoded.
        """
        with working_threads(self.encoder.device) as (pool, together):
            few = [entries[start : start + AT_ONCE] for start in range(0, len(entries), AT_ONCE)]
            ahead = max(2 * together, AHEAD * self.batch // AT_ONCE)
            looked = in_order(pool, lambda part: [self._look(entry, known) for entry in part], few, ahead)
            batches = self._batches(seen for part in looked for seen in part)
            worked = in_order(pool, lambda b: b[0] + self._encoded(b[1]), batches, together)
            # Counted when encoded: when the last is read, the batches that take longest are still under way.
            yield from track_parts(track, worked, "indexing pictures", len(entries))

    def _batches(self, coming: Iterable[Seen]) -> Iterator[tuple[list[Row], list[Seen]]]:
        """Rows that are complete, and pictures that are to be encoded together."""
        done: list[Row] = []
        waiting: list[Seen] = []
        for seen in coming:
            if seen.prepared:
                waiting.append(seen)
            else:
                done.append(seen.row)
            if len(waiting) == self.batch or len(done) >= 16 * self.batch:
                yield done, waiting
                done, waiting = [], []
        if done or waiting:
            yield done, waiting

    def _look(self, entry: Entry, known: Container[str]) -> Seen:
        row: Row = {"key": entry.key, "bytes": entry.size, "mtime": entry.mtime}
        try:
            data = self.source.read(entry)
            row["hash"] = self._hash(data, entry)
            if row["hash"] in known:
                return Seen(row)
            return self._prepare(row, data, entry)
        except PictureError as error:
            return Seen({**row, "problem": str(error)})

    def _hash(self, data: bytes | None, entry: Entry) -> str:
        """Of the picture, and of the features that are read in its place."""
        names = {e.feature for e in (self.encoder, self.reranker) if e is not None and e.feature is not None}
        try:
            stored = b"".join(self.source.features(name, entry).tobytes() for name in sorted(names))
        except UserError as error:
            raise PictureError(str(error)) from error
        return content_key((data or b"") + stored)

    def _prepare(self, row: Row, data: bytes | None, entry: Entry) -> Seen:
        image = None if data is None else decode(data)
        encoders = (self.encoder,) if self.reranker in (None, self.encoder) else (self.encoder, self.reranker)
        reduced = [None if image is None else encoder.reduced(image) for encoder in encoders]
        prepared = (e.prepare(image, self.source, entry, r) for e, r in zip(encoders, reduced, strict=True))
        seen = Seen(row, tuple(prepared))
        if data is not None and image is not None:
            row |= {"width": image.width, "height": image.height, "jpeg": thumbnail(image, data, reduced[0])}
            row["facts"] = json.dumps(facts(data))
        return seen

    def _encoded(self, seen: Sequence[Seen]) -> list[Row]:
        if not seen:
            return []
        encoded = self.encoder.encode([s.prepared[0] for s in seen])
        for s, vector in zip(seen, encoded.vectors, strict=True):
            s.row["vector"] = as_bytes(vector)
        if self.reranker is not None:
            own = self.reranker is not self.encoder
            _add_parts(seen, self.reranker.encode([s.prepared[1] for s in seen]) if own else encoded)
        return [_checked(s.row) for s in seen]


def _add_parts(seen: Sequence[Seen], encoded: Encoded) -> None:
    for number, s in enumerate(seen):
        s.row |= {"rerank": as_bytes(encoded.vectors[number]), "count": 0, "parts": b"", "mask": b""}
        if encoded.parts is not None:
            parts = encoded.parts[number]
            mask = encoded.mask[number].numpy() if encoded.mask is not None else np.ones(len(parts), dtype=np.bool_)
            s.row |= {"count": len(parts), "parts": as_bytes(parts, np.float16), "mask": mask.tobytes()}


def _checked(row: Row) -> Row:
    """A vector that cannot be compared is a problem of the picture, not of the whole run."""
    vector = np.frombuffer(row["vector"], dtype=np.float32)
    if np.isfinite(vector).all() and vector.any():
        return row
    kept = {name: row[name] for name in ("key", "bytes", "mtime", "hash")}
    return {**kept, "problem": "the matcher gives no usable vector for it (zero or not finite)"}


@contextmanager
def working_threads(device: torch.device) -> Iterator[tuple[ThreadPoolExecutor, int]]:
    """Threads that prepare and encode, a core for each, and how many batches they may encode at the same time.

    Encoding on a processor would by itself spread each operation over all cores, and wait at its end for whichever
    was busy decoding: several times slower than whole batches side by side.
    """
    cores, before = os.cpu_count() or 1, torch.get_num_threads()
    together = min(cores, ENCODING) if device.type == "cpu" else 1
    each = max(1, min(before, cores // together)) if device.type == "cpu" else before
    try:
        # In torch the number belongs to the thread that sets it, and to those that begin later.
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(each,)) as pool:
            yield pool, together
    finally:
        torch.set_num_threads(before)


def in_order(pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], ahead: int) -> Iterator[R]:
    """Map in threads and in order, never more than ``ahead`` results before they are taken."""
    running: deque[Future[R]] = deque()
    try:
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) >= ahead:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()
