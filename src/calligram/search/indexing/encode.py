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
from PIL import Image
from torch import Tensor

from calligram.data.pictures import PictureError, decode
from calligram.errors import UserError
from calligram.features.images.backbones import BackboneInput
from calligram.features.images.pixels import PixelInput
from calligram.features.images.stored_input import StoredInput
from calligram.features.store import content_key
from calligram.models.load import StoredMatcher
from calligram.models.matcher import Encoded
from calligram.progress import Track, silent, track_parts
from calligram.search.indexing.exif import facts
from calligram.search.indexing.sources import PictureSource, ScannedPicture
from calligram.search.indexing.thumbnails import thumbnail

# A matcher's image side at work: what is done for each picture by itself, and what for many at once.

Prepared = Tensor | Image.Image


class ImageEncoder:
    """Prepares pictures in any thread and encodes them in batches."""

    def __init__(self, stored: StoredMatcher, device: torch.device | str = "cpu") -> None:
        self.stored, self.device = stored, torch.device(device)
        self.matcher = stored.to(self.device).matcher.eval()
        self._input = stored.inputs.images

    @property
    def feature(self) -> str | None:
        """Name of the stored features it reads instead of pictures."""
        return self._input.name if isinstance(self._input, StoredInput) else None

    def reduced(self, image: Image.Image) -> Image.Image | None:
        """What ``prepare`` makes of the whole picture on its way, for others to use; None if nothing."""
        pixels = self._input.pixels if isinstance(self._input, BackboneInput) else self._input
        found = pixels.reduce(image) if isinstance(pixels, PixelInput) else image
        return found if found is not image else None

    def prepare(
        self,
        image: Image.Image | None,
        source: PictureSource,
        entry: ScannedPicture,
        reduced: Image.Image | None = None,
    ) -> Prepared:
        """What is done for one picture alone; a large one becomes small here.

        Args:
            reduced: what ``reduced`` gave for it, if that is at hand.
        """
        if self.feature is not None:
            return torch.from_numpy(source.features(self.feature, entry))
        if image is None:
            raise PictureError("there is no picture, only features")
        if isinstance(self._input, PixelInput):
            return torch.from_numpy(self._input.resize(image, reduced))
        if isinstance(self._input, BackboneInput):
            return torch.from_numpy(self._input.pixels.resize(image, reduced))
        return image

    @torch.no_grad()
    def encode(self, prepared: Sequence[Prepared]) -> Encoded:
        """Encode a batch; encodings are on the host, in float32."""
        given = self._input.finish(self._batch(prepared).to(self.device))
        found = self.matcher.encode_images(given)
        parts = None if found.parts is None else found.parts.float().cpu()
        return Encoded(found.vectors.float().cpu(), parts, None if found.mask is None else found.mask.cpu())

    def _batch(self, prepared: Sequence[Prepared]) -> Tensor:
        if isinstance(prepared[0], Tensor):
            rows = torch.stack([row for row in prepared if isinstance(row, Tensor)])
            return self._input.features(rows.to(self.device)) if isinstance(self._input, BackboneInput) else rows
        return self._input.images([image for image in prepared if isinstance(image, Image.Image)])

    @torch.no_grad()
    def dim(self) -> int:
        """Size of the vectors, found by encoding a text."""
        words, mask = self.stored.inputs.texts.texts(["a"])
        return int(self.matcher.encode_texts(words.to(self.device), mask.to(self.device)).vectors.shape[1])


def as_bytes(values: Tensor, kind: type[np.generic] = np.float32) -> bytes:
    """Numbers as a table stores them."""
    return values.numpy().astype(kind).tobytes()


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
class DecodedPicture:
    """A picture after the part that is done for it alone."""

    row: Row
    prepared: tuple[Prepared, ...] = field(default=())


@dataclass(frozen=True)
class PictureEncoder:
    """Reads, decodes and encodes pictures; it knows nothing of libraries."""

    source: PictureSource
    encoder: ImageEncoder
    reranker: ImageEncoder | None
    batch: int = BATCH

    def run(
        self, entries: Sequence[ScannedPicture], known: Container[str], track: Track = silent
    ) -> Iterator[list[Row]]:
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

    def _batches(self, coming: Iterable[DecodedPicture]) -> Iterator[tuple[list[Row], list[DecodedPicture]]]:
        """Rows that are complete, and pictures that are to be encoded together."""
        done: list[Row] = []
        waiting: list[DecodedPicture] = []
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

    def _look(self, entry: ScannedPicture, known: Container[str]) -> DecodedPicture:
        row: Row = {"key": entry.key, "bytes": entry.size, "mtime": entry.mtime}
        try:
            data = self.source.read(entry)
            row["hash"] = self._hash(data, entry)
            if row["hash"] in known:
                return DecodedPicture(row)
            return self._prepare(row, data, entry)
        except PictureError as error:
            return DecodedPicture({**row, "problem": str(error)})

    def _hash(self, data: bytes | None, entry: ScannedPicture) -> str:
        """Of the picture, and of the features that are read in its place."""
        names = {e.feature for e in (self.encoder, self.reranker) if e is not None and e.feature is not None}
        try:
            stored = b"".join(self.source.features(name, entry).tobytes() for name in sorted(names))
        except UserError as error:
            raise PictureError(str(error)) from error
        return content_key((data or b"") + stored)

    def _prepare(self, row: Row, data: bytes | None, entry: ScannedPicture) -> DecodedPicture:
        image = None if data is None else decode(data)
        encoders = (self.encoder,) if self.reranker in (None, self.encoder) else (self.encoder, self.reranker)
        reduced = [None if image is None else encoder.reduced(image) for encoder in encoders]
        prepared = (e.prepare(image, self.source, entry, r) for e, r in zip(encoders, reduced, strict=True))
        seen = DecodedPicture(row, tuple(prepared))
        if data is not None and image is not None:
            row |= {"width": image.width, "height": image.height, "jpeg": thumbnail(image, data, reduced[0])}
            row["facts"] = json.dumps(facts(data))
        return seen

    def _encoded(self, seen: Sequence[DecodedPicture]) -> list[Row]:
        if not seen:
            return []
        encoded = self.encoder.encode([s.prepared[0] for s in seen])
        for s, vector in zip(seen, encoded.vectors, strict=True):
            s.row["vector"] = as_bytes(vector)
        if self.reranker is not None:
            own = self.reranker is not self.encoder
            _add_parts(seen, self.reranker.encode([s.prepared[1] for s in seen]) if own else encoded)
        return [_checked(s.row) for s in seen]


def _add_parts(seen: Sequence[DecodedPicture], encoded: Encoded) -> None:
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
