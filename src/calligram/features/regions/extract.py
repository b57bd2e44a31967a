"""Regions for the images of a collection: found in threads, pooled in batches, finished chunk by chunk."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.pictures import PictureError
from calligram.data.revision import NewRegions, images_with_proposals, proposal_record, store_regions
from calligram.data.write_tables import BOX_COLUMNS, REGION_TYPES
from calligram.errors import UserError
from calligram.features.pseudo.region_words import region_attributes
from calligram.features.regions.proposers import Floats, Proposals, Proposer
from calligram.features.regions.region_features import Pixels, RegionPooling
from calligram.progress import Track, silent

# Finished parts of a run over a collection, each a file that is there whole or not at all.

Ints = NDArray[np.int64]
SCRATCH_FOLDER = ".regions"
_READ_ERRORS = (zipfile.BadZipFile, ValueError, OSError, KeyError, EOFError)


@dataclass(frozen=True)
class RegionChunk:
    """What was found in some images; the regions of all of them stand one after the other."""

    images: Ints
    """(I,) row of each image"""
    counts: Ints
    """(I,) regions of each"""
    boxes: NDArray[np.float32]
    """(R, 4)"""
    scores: NDArray[np.float32]
    """(R,) NaN where the method gives none"""
    labels: NDArray[np.str_]
    """(R,) empty where the method gives none"""
    attributes: NDArray[np.str_]
    """(R,)"""
    features: NDArray[np.float16]
    """(I, top, D); (I, 0, 0) without a backbone"""
    seconds: NDArray[np.float64]
    """time it took, a single number"""

    def save(self, folder: Path) -> None:
        """Write under the next free number; a process that dies here leaves only a ``.part`` file."""
        number = 1 + max((int(f.stem) for f in folder.glob("*.npz")), default=-1)
        partial = folder / f"{number:06d}.part"
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **asdict(self))
        os.replace(partial, folder / f"{number:06d}.npz")


def read_chunks(folder: Path) -> Iterator[RegionChunk]:
    """The finished chunks, one in memory at a time."""
    for file in sorted(folder.glob("*.npz")):
        with np.load(file, allow_pickle=False) as content:
            chunk = RegionChunk(**{name: content[name] for name in content.files})
        yield chunk


def finished_images(folder: Path, stored: Ints) -> Ints:
    """Rows of the images in finished chunks.

    Damaged chunks are removed, so that their images are done again, and so are those whose images are ``stored`` in
    the collection: their run died between storing and cleaning up.
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


@contextmanager
def scratch_folder(collection: Path, source: str, key: str) -> Iterator[Path]:
    """The folder for the chunks of one source under one key, held by one process at a time.

    Left as it is when the work fails; removed when it succeeds, with those of other keys.

    Raises:
        UserError: when another process holds it.
    """
    folder = collection / SCRATCH_FOLDER / f"{source}@{key}"
    folder.mkdir(parents=True, exist_ok=True)
    with (collection / SCRATCH_FOLDER / f"{source}.lock").open("w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # no such locks on this system
        except OSError as error:
            raise UserError(f"another process is looking for the regions '{source}' in {collection}") from error
        yield folder
        for finished in (collection / SCRATCH_FOLDER).glob(f"{source}@*"):
            shutil.rmtree(finished, ignore_errors=True)


# Finished chunks as rows and one feature array for the collection.


def join_chunks(folder: Path, collection: Collection, source: str, settings: Mapping[str, Any]) -> NewRegions:
    """All chunks in ``folder`` together; their features are copied into one file beside them, chunk by chunk."""
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
    """One chunk's regions as rows of the table."""
    image = np.repeat(chunk.images, chunk.counts)
    within = np.concatenate([np.arange(n) for n in chunk.counts]) if len(chunk.counts) else image
    names = ids.take(pa.array(image)).to_pylist()
    columns = {
        "id": [f"{name}/{source}/{number}" for name, number in zip(names, within, strict=True)],
        "image": image,
        **{axis: chunk.boxes[:, place] for place, axis in enumerate(BOX_COLUMNS)},
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
    """The features of all chunks in one ``.npy`` file that can be memory-mapped."""
    file = folder / "joined.npy"
    target = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=(images, *shape))
    start = 0
    for chunk in read_chunks(folder):
        target[start : start + len(chunk.images)] = chunk.features
        start += len(chunk.images)
    target.flush()
    del target
    return file


CHUNK_IMAGES = 32
"""images whose regions are written at once; a kill loses at most this many, and those under way"""

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class ExtractionTask:
    """What is looked for in every image."""

    proposer: Proposer
    source: str
    """what the regions, and the features where there is a backbone, are called in the collection"""
    top: int = 36
    pooling: RegionPooling | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the outcome, as the manifest keeps it."""
        pooled = dict(self.pooling.settings) if self.pooling else None
        return {"proposals": dict(self.proposer.settings), "top": self.top, "features": pooled}


@dataclass(frozen=True)
class ExtractionReport:
    """What a run did."""

    images: int
    regions: int
    bad: list[str]
    """why some images could not be read; the next run tries them again"""
    earlier: int
    """images that had these regions already"""
    seconds: float
    """time of all new images, earlier runs that were stopped included"""
    collection: Collection
    """as it is now"""

    @property
    def seconds_each(self) -> float:
        """Time an image took."""
        return self.seconds / max(self.images, 1)


@dataclass(frozen=True)
class ImageRegions:
    """One image with its regions."""

    row: int
    found: Proposals
    words: tuple[str, ...]
    pixels: Pixels | None
    """for the backbone"""
    shares: Floats | None


def add_regions(
    collection: Collection, task: ExtractionTask, split: str = "all", track: Track = silent
) -> ExtractionReport:
    """Find regions in the images of a split that have none by these settings yet, and store them in the collection.

    A run that was killed goes on after its last finished chunk. Regions of the same source by other settings are
    replaced.

    Raises:
        UserError: when the source's name is taken, or another process is at the same work.
    """
    known, wanted = proposal_record(collection, task.source), collection.images_in(split)
    fresh = known is None or known["settings"] != task.settings
    stored = np.zeros(0, dtype=np.int64) if fresh else images_with_proposals(collection, task.source)
    rows = np.setdiff1d(wanted, stored)
    key = hashlib.blake2b(json.dumps(task.settings, sort_keys=True).encode(), digest_size=6).hexdigest()
    with scratch_folder(collection.folder, task.source, key) as folder:
        todo = np.setdiff1d(rows, finished_images(folder, stored))
        bad = _extract_chunks(collection, task, todo, folder, track)
        new = join_chunks(folder, collection, task.source, task.settings)
        if len(new.images):
            collection = store_regions(collection.folder, new)
    return ExtractionReport(len(new.images), len(new.rows), bad, len(wanted) - len(rows), new.seconds, collection)


def _extract_chunks(collection: Collection, task: ExtractionTask, rows: Ints, folder: Path, track: Track) -> list[str]:
    """Go through images and save chunks; what was wrong with those that could not be read."""
    bad: list[str] = []
    held: list[ImageRegions] = []
    began = time.perf_counter()
    pictures = collection.pictures  # built here: threads share it

    def look(row: int) -> ImageRegions | str:
        try:
            image = pictures.open(row)
        except PictureError as error:
            return str(error)
        found = task.proposer(image).best(task.top, image)
        pixels = task.pooling.pixels.resize(image) if task.pooling else None
        shares = task.pooling.shares(image, found.boxes) if task.pooling else None
        return ImageRegions(row, found, region_attributes(image, found.boxes), pixels, shares)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for seen in track(prefetch_map(pool, look, rows.tolist(), CHUNK_IMAGES), f"regions ({task.source})", len(rows)):
            if isinstance(seen, str):
                bad.append(seen)
                continue
            held.append(seen)
            if len(held) == CHUNK_IMAGES:
                _build_chunk(held, task, began).save(folder)
                held, began = [], time.perf_counter()
    if held:
        _build_chunk(held, task, began).save(folder)
    return bad


def prefetch_map(
    pool: ThreadPoolExecutor, work: Callable[[Item], Made], items: Iterable[Item], distance: int
) -> Iterator[Made]:
    """Results in order, with at most ``distance`` items begun before they are asked for."""
    begun: deque[Future[Made]] = deque()
    try:
        for item in items:
            begun.append(pool.submit(work, item))
            if len(begun) > distance:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()


def _build_chunk(seen: list[ImageRegions], task: ExtractionTask, began: float) -> RegionChunk:
    """Images together, their regions pooled in one go."""
    founds = [s.found for s in seen]
    features = np.zeros((len(seen), 0, 0), dtype=np.float16)
    if task.pooling is not None:
        pixels = [s.pixels for s in seen if s.pixels is not None]
        features = task.pooling(pixels, [s.shares for s in seen if s.shares is not None], task.top)
    return RegionChunk(
        np.array([s.row for s in seen], dtype=np.int64),
        np.array([len(f.boxes) for f in founds], dtype=np.int64),
        np.concatenate([f.boxes for f in founds]),
        np.concatenate([_scores(f) for f in founds]),
        np.array([text for f in founds for text in f.labels or [""] * len(f.boxes)], dtype=np.str_),
        np.array([word for s in seen for word in s.words], dtype=np.str_),
        features,
        np.array(time.perf_counter() - began),
    )


def _scores(found: Proposals) -> Floats:
    return np.full(len(found.boxes), np.nan, dtype=np.float32) if found.scores is None else found.scores
