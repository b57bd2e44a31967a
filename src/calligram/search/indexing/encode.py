"""Read, decode and encode the pictures of a source into rows with everything that a library stores of them."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor

from calligram.data.pictures import (
    SCAN_MARKER,
    PictureError,
    core_share,
    decode_with_size,
    exif_columns,
    map_in_order,
    segments,
    worker_threads,
)
from calligram.device import half_networks_on, use_half_networks
from calligram.errors import UserError
from calligram.features.images.resize import least_side
from calligram.files import content_hash
from calligram.models.catalog import StoredMatcher
from calligram.models.matcher import Encoded
from calligram.progress import Track, silent
from calligram.search.indexing.sources import PictureSource, ScannedPicture
from calligram.search.library.matchers import LibraryMatchers

THUMBNAIL_PIXELS = 320
"""approximate length of the longer side"""
MIN_REDUCED_SHARE = 0.9
"""the picture reduced for the matcher becomes the thumbnail if it has at least this share of its width and height"""
JPEG_QUALITY = 80
MAX_COPIED_BYTES = 48_000
"""a small picture with more bytes is compressed again"""
JFIF_MARKER, ADOBE_MARKER, COMMENT_MARKER = 0xE0, 0xEE, 0xFE
FRAME_MARKERS = frozenset((0xC0, 0xC1, 0xC2))
ENCODED_ROW = pa.schema(
    {
        **{"key": pa.string(), "bytes": pa.int64(), "mtime": pa.int64(), "hash": pa.string(), "problem": pa.string()},
        **{"width": pa.int32(), "height": pa.int32(), "facts": pa.string(), "jpeg": pa.binary()},
        **{
            "vector": pa.binary(),
            "rerank": pa.binary(),
            "parts": pa.binary(),
            "count": pa.int32(),
            "mask": pa.binary(),
            "precision": pa.string(),
        },
    }
)
"""a row has a problem, or encodings, or neither where the library has its content already; ``precision`` is ``bf16`` if
a network ran in bfloat16"""
CONTENT_HASH_BYTES = 16
BATCH_PICTURES = 64
CPU_BATCH_PICTURES = 16
"""on a CPU, where each core encodes its own batch: with small ones all cores end at the same time"""
PREPARED_BATCHES = 3
"""batches that are prepared before they are encoded"""
TASK_PICTURES = 16
"""pictures that a thread prepares in one task; one task a picture would cost as much as reading it"""
MAX_PARALLEL_PICTURES = 256
"""pictures that are encoded at the same time on a CPU; each needs memory"""

NetworkPrecision = Literal["auto", "fp32"]
"""of transformers that encode pictures and captions: auto is bfloat16 on devices that multiply such matrices faster"""
Prepared = Tensor | Image.Image
Row = dict[str, Any]


def refuse_unknown_precision(precision: object) -> None:
    """Refuse what is neither a ``NetworkPrecision`` nor None."""
    if precision not in (None, "auto", "fp32"):
        raise UserError(f"precision must be auto or fp32, or None for as before, got {precision!r}")


def wants_half_networks(precision: NetworkPrecision | None, before: Sequence[str]) -> bool:
    """Whether pictures may be encoded in bfloat16.

    Args:
        precision: as the user chose; None for the precision of the pictures that are encoded already.
        before: precisions of these, empty if there are none.
    """
    return precision == "auto" or (precision is None and tuple(before) != ("fp32",))


class ImageEncoder:
    """The image tower of a matcher: prepares pictures in any thread and encodes them in batches."""

    def __init__(self, stored: StoredMatcher, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.matcher = stored.to(self.device).matcher.eval()
        self._input = stored.inputs.images

    @property
    def feature(self) -> str | None:
        """Name of the stored features that it reads instead of pictures."""
        return self._input.stored_name

    @property
    def least_side(self) -> int:
        """Least length of the sides of a decoded picture; 0 where the whole picture is needed."""
        pixels = self._input.pixel_input
        return 0 if pixels is None or self.feature is not None else least_side(pixels.size)

    def reduced(self, image: Image.Image) -> Image.Image | None:
        """The smaller picture that ``prepare`` resizes from, which others can use too; None where there is none."""
        pixels = self._input.pixel_input
        found = image if pixels is None else pixels.reduce(image)
        return found if found is not image else None

    def prepare(
        self,
        image: Image.Image | None,
        source: PictureSource,
        picture: ScannedPicture,
        reduced: Image.Image | None = None,
    ) -> Prepared:
        """Do what can be done for one picture by itself, such as resizing.

        Args:
            image: the decoded picture; None where there are only features.
            source: of the picture.
            picture: of the scan.
            reduced: the result of ``reduced``, if it is at hand.
        """
        if self.feature is not None:
            return torch.from_numpy(source.features(self.feature, picture))
        if image is None:
            raise PictureError("there is no picture, only features")
        pixels = self._input.pixel_input
        return image if pixels is None else torch.from_numpy(pixels.resize(image, reduced))

    @torch.no_grad()
    def encode(self, prepared: Sequence[Prepared]) -> Encoded:
        """Encode a batch; the result is on the CPU, in float32."""
        given = self._input.finish(self._batch(prepared).to(self.device))
        found = self.matcher.encode_images(given)
        parts = None if found.parts is None else found.parts.float().cpu()
        return Encoded(found.vectors.float().cpu(), parts, None if found.mask is None else found.mask.cpu())

    def _batch(self, prepared: Sequence[Prepared]) -> Tensor:
        if isinstance(prepared[0], Tensor):
            rows = torch.stack([row for row in prepared if isinstance(row, Tensor)])
            return self._input.run_network(rows.to(self.device))
        return self._input.images([image for image in prepared if isinstance(image, Image.Image)])


@dataclass
class DecodedPicture:
    """A picture that is ready to be encoded, or needs no encoding."""

    row: Row
    prepared: tuple[Prepared, ...] = field(default=())
    """for the matcher, and for the reranker where it is another; empty where nothing is to be encoded"""


@dataclass(frozen=True)
class PictureEncoder:
    """Reads, decodes and encodes pictures; it does not depend on a library."""

    source: PictureSource
    encoder: ImageEncoder
    reranker: ImageEncoder | None
    batch: int = field(default_factory=lambda: BATCH_PICTURES)
    half: bool = field(default_factory=half_networks_on)
    """whether the threads that encode use half networks: as the thread that makes this"""

    @classmethod
    def of(cls, models: LibraryMatchers, source: PictureSource, device: torch.device | str) -> PictureEncoder:
        """An encoder with the matchers of a library on a device."""
        encoder = ImageEncoder(models.matcher, device)
        if models.reranker is None or models.reranker is models.matcher:
            return cls(source, encoder, encoder if models.reranker is not None else None)
        return cls(source, encoder, ImageEncoder(models.reranker, device))

    def run(self, pictures: Sequence[ScannedPicture], known: Container[str], track: Track = silent) -> Iterator[Row]:
        """Rows as in ``ENCODED_ROW``; the next pictures are prepared and encoded meanwhile.

        Args:
            pictures: of the scan.
            known: content hashes that need not be encoded.
            track: shows progress.
        """
        # On a CPU each core encodes whole batches: torch would split each operation over all cores, and wait for those
        # that are decoding.
        parallel, size = 1, self.batch
        if self.encoder.device.type == "cpu":
            parallel = core_share()
            size = max(1, min(size, CPU_BATCH_PICTURES, MAX_PARALLEL_PICTURES // parallel))
        with worker_threads() as pool:
            tasks = [pictures[start : start + TASK_PICTURES] for start in range(0, len(pictures), TASK_PICTURES)]
            ahead = max(2 * parallel, PREPARED_BATCHES * self.batch // TASK_PICTURES)
            decoded = map_in_order(pool, lambda task: [self._decode(picture, known) for picture in task], tasks, ahead)
            batches = self._batches((picture for task in decoded for picture in task), size)
            encoded = map_in_order(pool, lambda b: b[0] + self._encode(b[1]), batches, parallel)
            # Progress counts encoded pictures: when the last one is read, the slowest batches are still running.
            yield from track((row for rows in encoded for row in rows), "indexing pictures", len(pictures))

    def _batches(
        self, pictures: Iterable[DecodedPicture], size: int
    ) -> Iterator[tuple[list[Row], list[DecodedPicture]]]:
        """Rows that are complete, and pictures to encode together."""
        done: list[Row] = []
        waiting: list[DecodedPicture] = []
        for picture in pictures:
            if picture.prepared:
                waiting.append(picture)
            else:
                done.append(picture.row)
            if len(waiting) == size or len(done) >= 16 * self.batch:
                yield done, waiting
                done, waiting = [], []
        if done or waiting:
            yield done, waiting

    def _decode(self, picture: ScannedPicture, known: Container[str]) -> DecodedPicture:
        row: Row = {"key": picture.key, "bytes": picture.size, "mtime": picture.mtime}
        try:
            data = self.source.read(picture)
            row["hash"] = self._hash(data, picture)
            if row["hash"] in known:
                return DecodedPicture(row)
            return self._prepare(row, data, picture)
        except PictureError as error:
            return DecodedPicture({**row, "problem": str(error)})

    def _hash(self, data: bytes | None, picture: ScannedPicture) -> str:
        """Hash of the file's bytes and of the stored features that are read in place of the picture."""
        names = {e.feature for e in (self.encoder, self.reranker) if e is not None and e.feature is not None}
        try:
            stored = b"".join(self.source.features(name, picture).tobytes() for name in sorted(names))
        except UserError as error:
            raise PictureError(str(error)) from error
        return content_hash((data or b"") + stored, CONTENT_HASH_BYTES)

    def _prepare(self, row: Row, data: bytes | None, picture: ScannedPicture) -> DecodedPicture:
        encoders = (self.encoder,) if self.reranker in (None, self.encoder) else (self.encoder, self.reranker)
        sides = [encoder.least_side for encoder in encoders]
        side = max(*sides, 3 * THUMBNAIL_PIXELS // 4) if all(sides) else 0
        image, size = (None, (0, 0)) if data is None else decode_with_size(data, side)
        reduced = [None if image is None else encoder.reduced(image) for encoder in encoders]
        prepared = (e.prepare(image, self.source, picture, r) for e, r in zip(encoders, reduced, strict=True))
        found = DecodedPicture(row, tuple(prepared))
        if data is not None and image is not None:
            row |= {"width": size[0], "height": size[1]}
            row["jpeg"] = thumbnail(image, data if image.size == size else b"", reduced[0])
            row["facts"] = json.dumps(exif_columns(data))
        return found

    def _encode(self, pictures: Sequence[DecodedPicture]) -> list[Row]:
        if not pictures:
            return []
        with use_half_networks(self.half) as half:
            encoded = self.encoder.encode([picture.prepared[0] for picture in pictures])
            for picture, vector in zip(pictures, encoded.vectors, strict=True):
                picture.row["vector"] = as_bytes(vector)
            if self.reranker is not None:
                if self.reranker is not self.encoder:
                    encoded = self.reranker.encode([picture.prepared[1] for picture in pictures])
                _add_parts(pictures, encoded)
        for picture in pictures:
            picture.row["precision"] = "bf16" if half.used else "fp32"
        return [_checked(picture.row) for picture in pictures]


def _add_parts(pictures: Sequence[DecodedPicture], encoded: Encoded) -> None:
    for number, picture in enumerate(pictures):
        picture.row |= {"rerank": as_bytes(encoded.vectors[number]), "count": 0, "parts": b"", "mask": b""}
        if encoded.parts is not None:
            parts = encoded.parts[number]
            mask = encoded.mask[number].numpy() if encoded.mask is not None else np.ones(len(parts), dtype=np.bool_)
            picture.row |= {"count": len(parts), "parts": as_bytes(parts, np.float16), "mask": mask.tobytes()}


def _checked(row: Row) -> Row:
    """The row, or a problem where its vector is zero or not finite: one picture must not stop the run."""
    vector = np.frombuffer(row["vector"], dtype=np.float32)
    if np.isfinite(vector).all() and vector.any():
        return row
    kept = {name: row[name] for name in ("key", "bytes", "mtime", "hash")}
    return {**kept, "problem": "the matcher gives no usable vector for it (zero or not finite)"}


def as_bytes(values: Tensor, dtype: type[np.generic] = np.float32) -> bytes:
    """Numbers as a table stores them."""
    return values.numpy().astype(dtype).tobytes()


def row_batches(rows: Iterable[Row], count: int, seconds: float) -> Iterator[list[Row]]:
    """Collect rows until there are so many, or so much time has passed."""
    batch: list[Row] = []
    since = time.monotonic()
    for row in rows:
        batch.append(row)
        if len(batch) == count or time.monotonic() - since > seconds:
            yield batch
            batch, since = [], time.monotonic()
    if batch:
        yield batch


def thumbnail(image: Image.Image, data: bytes = b"", reduced: Image.Image | None = None) -> bytes:
    """A JPEG thumbnail of an upright RGB image, without metadata.

    The picture is reduced by an integer factor, which takes a fifth of the time of other factors. The longer side has
    from 3/4 to 3/2 of ``THUMBNAIL_PIXELS`` pixels, or fewer where the picture has fewer.

    Args:
        image: the decoded picture.
        data: bytes of its file; a small JPEG without metadata is its own thumbnail.
        reduced: a smaller version of the picture, perhaps with another factor in each direction; it is used where it
            is large enough, which saves most of the work.
    """
    factor = round(max(image.size) / THUMBNAIL_PIXELS)
    if factor > 1:
        image = _from_reduced(image.size, reduced) or image.reduce(factor)
    elif len(data) <= MAX_COPIED_BYTES and is_plain_jpeg(data):
        return data
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=JPEG_QUALITY, exif=b"", comment=b"")
    return stream.getvalue()


def _from_reduced(size: tuple[int, int], reduced: Image.Image | None) -> Image.Image | None:
    """A thumbnail of a picture of this size, from a smaller version; None where that one is too small."""
    wanted = tuple(max(1, round(side * THUMBNAIL_PIXELS / max(size))) for side in size)
    if reduced is None or any(has < MIN_REDUCED_SHARE * side for has, side in zip(reduced.size, wanted, strict=True)):
        return None
    factor = round(max(reduced.size) / THUMBNAIL_PIXELS)
    if reduced.width * size[1] == reduced.height * size[0]:
        return reduced.reduce(factor) if factor > 1 else reduced
    return reduced.resize((wanted[0], wanted[1]), Image.Resampling.BILINEAR)


def is_plain_jpeg(data: bytes) -> bool:
    """Whether a file is a grey or colour JPEG without EXIF data, colour profile and comment."""
    for marker, place in segments(data):
        if marker == SCAN_MARKER:
            return True
        extra = JFIF_MARKER <= marker < 0xF0 and marker not in (JFIF_MARKER, ADOBE_MARKER)
        if extra or marker == COMMENT_MARKER or (marker in FRAME_MARKERS and data[place + 9] not in (1, 3)):
            return False
    return False
