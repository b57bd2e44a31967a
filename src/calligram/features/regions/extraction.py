"""Regions for the images of a collection: found in threads, pooled in batches, finished chunk by chunk."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from calligram.data.collection import Collection
from calligram.data.pictures import PictureError
from calligram.data.region_writing import images_with, recorded, store_regions
from calligram.features.regions.attributes import attributes
from calligram.features.regions.chunks import Chunk, Ints, images_done, scratch
from calligram.features.regions.joining import joined
from calligram.features.regions.pooling import Pixels, Pooling
from calligram.features.regions.proposer import Floats, Found, Proposer
from calligram.progress import Track, silent

CHUNK = 32
"""images whose regions are written at once; a kill loses at most this many, and those under way"""

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Task:
    """What is looked for in every image."""

    proposer: Proposer
    source: str
    """what the regions, and the features where there is a backbone, are called in the collection"""
    top: int = 36
    pooling: Pooling | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the outcome, as the manifest keeps it."""
        pooled = dict(self.pooling.settings) if self.pooling else None
        return {"proposals": dict(self.proposer.settings), "top": self.top, "features": pooled}


@dataclass(frozen=True)
class Added:
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
class Seen:
    """One image with its regions."""

    row: int
    found: Found
    words: tuple[str, ...]
    pixels: Pixels | None
    """for the backbone"""
    shares: Floats | None


def add_regions(collection: Collection, task: Task, split: str = "all", track: Track = silent) -> Added:
    """Find regions in the images of a split that have none by these settings yet, and store them in the collection.

    A run that was killed goes on after its last finished chunk. Regions of the same source by other settings are
    replaced.

    Raises:
        UserError: when the source's name is taken, or another process is at the same work.
    """
    known, wanted = recorded(collection, task.source), collection.images_in(split)
    fresh = known is None or known["settings"] != task.settings
    stored = np.zeros(0, dtype=np.int64) if fresh else images_with(collection, task.source)
    rows = np.setdiff1d(wanted, stored)
    key = hashlib.blake2b(json.dumps(task.settings, sort_keys=True).encode(), digest_size=6).hexdigest()
    with scratch(collection.folder, task.source, key) as folder:
        todo = np.setdiff1d(rows, images_done(folder, stored))
        bad = _work(collection, task, todo, folder, track)
        new = joined(folder, collection, task.source, task.settings)
        if len(new.images):
            collection = store_regions(collection.folder, new)
    return Added(len(new.images), len(new.rows), bad, len(wanted) - len(rows), new.seconds, collection)


def _work(collection: Collection, task: Task, rows: Ints, folder: Path, track: Track) -> list[str]:
    """Go through images and save chunks; what was wrong with those that could not be read."""
    bad: list[str] = []
    held: list[Seen] = []
    began = time.perf_counter()
    pictures = collection.pictures  # built here: threads share it

    def look(row: int) -> Seen | str:
        try:
            image = pictures.open(row)
        except PictureError as error:
            return str(error)
        found = task.proposer(image).best(task.top, image)
        pixels = task.pooling.pixels.resize(image) if task.pooling else None
        shares = task.pooling.shares(image, found.boxes) if task.pooling else None
        return Seen(row, found, attributes(image, found.boxes), pixels, shares)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for seen in track(ahead(pool, look, rows.tolist(), CHUNK), f"regions ({task.source})", len(rows)):
            if isinstance(seen, str):
                bad.append(seen)
                continue
            held.append(seen)
            if len(held) == CHUNK:
                _chunk(held, task, began).save(folder)
                held, began = [], time.perf_counter()
    if held:
        _chunk(held, task, began).save(folder)
    return bad


def ahead(
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


def _chunk(seen: list[Seen], task: Task, began: float) -> Chunk:
    """Images together, their regions pooled in one go."""
    founds = [s.found for s in seen]
    features = np.zeros((len(seen), 0, 0), dtype=np.float16)
    if task.pooling is not None:
        pixels = [s.pixels for s in seen if s.pixels is not None]
        features = task.pooling(pixels, [s.shares for s in seen if s.shares is not None], task.top)
    return Chunk(
        np.array([s.row for s in seen], dtype=np.int64),
        np.array([len(f.boxes) for f in founds], dtype=np.int64),
        np.concatenate([f.boxes for f in founds]),
        np.concatenate([_scores(f) for f in founds]),
        np.array([text for f in founds for text in f.labels or [""] * len(f.boxes)], dtype=np.str_),
        np.array([word for s in seen for word in s.words], dtype=np.str_),
        features,
        np.array(time.perf_counter() - began),
    )


def _scores(found: Found) -> Floats:
    return np.full(len(found.boxes), np.nan, dtype=np.float32) if found.scores is None else found.scores
