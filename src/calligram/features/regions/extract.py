"""Extraction of regions for the images of a collection: proposals, colour and size words, features.

Images are processed in threads and stored in chunks, so that an interrupted run continues after its last chunk.
"""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from calligram.data.collection import Collection
from calligram.data.pictures import PictureError, map_in_order, worker_threads
from calligram.data.revision import NewRegions, images_with_proposals, proposal_record, store_regions
from calligram.data.write_tables import BOX_COLUMNS, REGION_TYPES
from calligram.errors import UserError
from calligram.features.pseudo.region_words import region_attributes
from calligram.features.regions.proposers import Floats, Proposals, Proposer
from calligram.features.regions.region_features import Pixels, RegionPooling, relative_boxes
from calligram.features.regions.stored_boxes import StoredBoxes
from calligram.files import lock_holder, named_disk_errors, replace_file, reserve_space, text_hash, try_lock
from calligram.progress import Track, silent

Ints = NDArray[np.int64]

CHUNK_IMAGES = 32
"""images in one chunk file; a kill loses at most one chunk and the images in progress"""
SCRATCH_FOLDER = ".regions"
_READ_ERRORS = (zipfile.BadZipFile, ValueError, OSError, KeyError, EOFError)


@dataclass(frozen=True)
class ExtractionTask:
    """The proposals and features to compute for every image."""

    proposer: Proposer | StoredBoxes
    """a method, or boxes that it found before"""
    source: str
    """name of the regions, and of their features, in the collection"""
    top: int = 36
    pooling: RegionPooling | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that the result depends on, as the manifest stores it."""
        pooled = dict(self.pooling.settings) if self.pooling else None
        return {"proposals": dict(self.proposer.settings), "top": self.top, "features": pooled}

    def proposals(self, row: int, image: Image.Image) -> Proposals:
        """Return the boxes of an image, which is in this row of the collection."""
        found = self.proposer.proposals(row) if isinstance(self.proposer, StoredBoxes) else self.proposer(image)
        return found.keep_top(self.top, image)


@dataclass(frozen=True)
class ExtractionReport:
    """Result of a run."""

    images: int
    regions: int
    bad: list[str]
    """reasons why images could not be read; the next run tries these images again"""
    earlier: int
    """images that had these regions before the run"""
    seconds: float
    """time for all new images, including interrupted runs"""
    collection: Collection
    """the collection with the new regions"""

    @property
    def seconds_each(self) -> float:
        """Mean time for an image."""
        return self.seconds / max(self.images, 1)


@dataclass(frozen=True)
class RegionChunk:
    """Regions of some images, one image after the other. The field names are the keys of the chunk file."""

    images: Ints
    """(I,) row of each image"""
    counts: Ints
    """(I,) number of regions of each image"""
    boxes: NDArray[np.float32]
    """(R, 4)"""
    scores: NDArray[np.float32]
    """(R,) NaN if the method gives no scores"""
    labels: NDArray[np.str_]
    """(R,) empty if the method gives no classes"""
    attributes: NDArray[np.str_]
    """(R,)"""
    features: NDArray[np.float16]
    """(I, top, D); (I, 0, 0) without a backbone"""
    seconds: NDArray[np.float64]
    """() processing time of the chunk"""

    def save(self, folder: Path) -> None:
        """Write under the next free number; a process that dies here leaves no chunk."""
        number = 1 + max((int(f.stem) for f in folder.glob("*.npz")), default=-1)
        with replace_file(folder / f"{number:06d}.npz") as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **asdict(self))


@dataclass(frozen=True)
class ImageRegions:
    """One image with its regions."""

    row: int
    proposals: Proposals
    attributes: tuple[str, ...]
    pixels: Pixels | None
    """input of the backbone"""
    relative_boxes: Floats | None


def add_regions(
    collection: Collection, task: ExtractionTask, split: str = "all", track: Track = silent
) -> ExtractionReport:
    """Find regions in the images of a split that have none with these settings, and store them in the collection.

    An interrupted run continues after its last chunk. Regions of the same source with other settings are replaced.
    Stored boxes have the settings of the method that found them, so their features can be added later, and the
    collection is the same as if both had been computed together.

    Raises:
        UserError: when the name of the source is in use, or another process does the same work.
    """
    known, wanted = proposal_record(collection, task.source), collection.images_in(split)
    if isinstance(task.proposer, StoredBoxes):
        wanted = np.intersect1d(wanted, task.proposer.rows)
    fresh = known is None or known["settings"] != task.settings
    stored = np.zeros(0, dtype=np.int64) if fresh else images_with_proposals(collection, task.source)
    rows = np.setdiff1d(wanted, stored)
    key = text_hash(json.dumps(task.settings, sort_keys=True), 6)
    with scratch_folder(collection.folder, task.source, key) as folder:
        todo = np.setdiff1d(rows, finished_images(folder, stored))
        bad = _extract_chunks(collection, task, todo, folder, track)
        new = join_chunks(folder, collection, task.source, task.settings)
        if isinstance(task.proposer, StoredBoxes):
            new = replace(new, seconds=new.seconds + task.proposer.seconds_each * len(new.images))
        if len(new.images):
            collection = store_regions(collection.folder, new)
    return ExtractionReport(len(new.images), len(new.rows), bad, len(wanted) - len(rows), new.seconds, collection)


@contextmanager
def scratch_folder(collection: Path, source: str, key: str) -> Iterator[Path]:
    """Lock and return the folder for the chunks of one source with one settings key.

    The folder stays if the work fails. If the work succeeds, it is removed with the folders of other keys.

    Raises:
        UserError: when another process holds the lock.
    """
    folder = collection / SCRATCH_FOLDER / f"{source}@{key}"
    folder.mkdir(parents=True, exist_ok=True)
    lock = collection / SCRATCH_FOLDER / f"{source}.lock"
    with try_lock(lock) as locked:
        if not locked:
            raise UserError(f"{lock_holder(lock)} is looking for the regions '{source}' in {collection}")
        yield folder
        for finished in (collection / SCRATCH_FOLDER).glob(f"{source}@*"):
            shutil.rmtree(finished, ignore_errors=True)


def finished_images(folder: Path, stored: Ints) -> Ints:
    """Return the rows of the images in finished chunks.

    Two kinds of chunks are removed: damaged chunks, so that their images are processed again, and chunks whose images
    are ``stored`` in the collection, because their run died between storing and cleaning up.
    """
    done: list[int] = []
    for file in sorted(folder.glob("*.npz")):
        try:
            with np.load(file, allow_pickle=False) as content:
                images = content["images"]
        except _READ_ERRORS:
            file.unlink()
            continue
        if np.isin(images, stored).all():
            file.unlink()
        else:
            done += images.tolist()
    return np.array(done, dtype=np.int64)


def _extract_chunks(collection: Collection, task: ExtractionTask, rows: Ints, folder: Path, track: Track) -> list[str]:
    """Process images and save chunks; return the reasons why images could not be read."""
    bad: list[str] = []
    pending: list[ImageRegions] = []
    began = time.perf_counter()
    pictures = collection.pictures  # opened here, because threads share it

    def process(row: int) -> ImageRegions | str:
        try:
            image = pictures.open(row)
        except PictureError as error:
            return str(error)
        proposals = task.proposals(row, image)
        pixels = task.pooling.pixels.resize(image) if task.pooling else None
        boxes = relative_boxes(image, proposals.boxes) if task.pooling else None
        return ImageRegions(row, proposals, region_attributes(image, proposals.boxes), pixels, boxes)

    with worker_threads() as pool:
        processed = map_in_order(pool, process, rows.tolist(), CHUNK_IMAGES)
        for result in track(processed, f"regions ({task.source})", len(rows)):
            if isinstance(result, str):
                bad.append(result)
                continue
            pending.append(result)
            if len(pending) == CHUNK_IMAGES:
                _build_chunk(pending, task, began).save(folder)
                pending, began = [], time.perf_counter()
    if pending:
        _build_chunk(pending, task, began).save(folder)
    return bad


def _build_chunk(images: list[ImageRegions], task: ExtractionTask, began: float) -> RegionChunk:
    """Pool the regions of these images in one batch and join them into a chunk."""
    proposals = [image.proposals for image in images]
    features = np.zeros((len(images), 0, 0), dtype=np.float16)
    if task.pooling is not None:
        pixels = [image.pixels for image in images if image.pixels is not None]
        boxes = [image.relative_boxes for image in images if image.relative_boxes is not None]
        features = task.pooling(pixels, boxes, task.top)
    return RegionChunk(
        np.array([image.row for image in images], dtype=np.int64),
        np.array([len(p.boxes) for p in proposals], dtype=np.int64),
        np.concatenate([p.boxes for p in proposals]),
        np.concatenate([_scores(p) for p in proposals]),
        np.array([label for p in proposals for label in p.labels or [""] * len(p.boxes)], dtype=np.str_),
        np.array([attribute for image in images for attribute in image.attributes], dtype=np.str_),
        features,
        np.array(time.perf_counter() - began),
    )


def _scores(proposals: Proposals) -> Floats:
    if proposals.scores is None:
        return np.full(len(proposals.boxes), np.nan, dtype=np.float32)
    return proposals.scores


def read_chunks(folder: Path) -> Iterator[RegionChunk]:
    """Yield the finished chunks, one in memory at a time."""
    for file in sorted(folder.glob("*.npz")):
        with np.load(file, allow_pickle=False) as content:
            chunk = RegionChunk(**{name: content[name] for name in content.files})
        yield chunk


def join_chunks(folder: Path, collection: Collection, source: str, settings: Mapping[str, Any]) -> NewRegions:
    """Join all chunks of a folder; their features are copied into one file in the folder, chunk by chunk."""
    ids = collection.table("images").column("id")
    empty = pa.table({name: pa.array([], kind) for name, kind in REGION_TYPES.items()})
    tables, images, counts, seconds = [empty], [], [], 0.0
    shape: tuple[int, ...] = ()
    for chunk in read_chunks(folder):
        tables.append(_region_table(chunk, ids, source))
        images.append(chunk.images)
        counts.append(chunk.counts)
        seconds += float(chunk.seconds)
        shape = chunk.features.shape[1:]
    return NewRegions(
        source,
        settings,
        pa.concat_tables(tables),
        np.concatenate(images) if images else np.zeros(0, dtype=np.int64),
        np.concatenate(counts) if counts else np.zeros(0, dtype=np.int64),
        _join_features(folder, sum(map(len, images)), shape) if np.prod(shape) and images else None,
        seconds,
    )


def _region_table(chunk: RegionChunk, ids: pa.ChunkedArray, source: str) -> pa.Table:
    """Return the regions of a chunk as rows of the collection's table."""
    image = np.repeat(chunk.images, chunk.counts)
    within = np.concatenate([np.arange(n) for n in chunk.counts]) if len(chunk.counts) else image
    names = ids.take(pa.array(image)).to_pylist()
    columns = {
        "id": [f"{name}/{source}/{number}" for name, number in zip(names, within, strict=True)],
        "image": image,
        **{axis: chunk.boxes[:, number] for number, axis in enumerate(BOX_COLUMNS)},
        "source": [source] * len(image),
        "label": _or_null(chunk.labels),
        "attribute": _or_null(chunk.attributes),
        "score": pa.array(chunk.scores, from_pandas=True),
        "identity": [None] * len(image),
    }
    return pa.table({name: pa.array(columns[name]).cast(kind) for name, kind in REGION_TYPES.items()})


def _or_null(texts: NDArray[np.str_]) -> list[str | None]:
    return [str(text) or None for text in texts]


def _join_features(folder: Path, images: int, shape: tuple[int, ...]) -> Path:
    """Write the features of all chunks into one ``.npy`` file that can be memory-mapped."""
    file = folder / "joined.npy"
    target = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=(images, *shape))
    with named_disk_errors(file), file.open("rb+") as stream:
        reserve_space(stream.fileno(), file.stat().st_size)
    start = 0
    for chunk in read_chunks(folder):
        target[start : start + len(chunk.images)] = chunk.features
        start += len(chunk.images)
    target.flush()
    del target
    return file
