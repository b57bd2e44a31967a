"""Features of many boxes: read from arrays stored with a collection, or computed once and kept in its cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calligram.data.arrays import StoredFeatures
from calligram.data.grounding import BoxesInImages
from calligram.data.pairing import Visuals
from calligram.data.pictures import decode
from calligram.features.regions.crops import Crops
from calligram.features.regions.pooling import Halves, Pixels, Pooling
from calligram.features.store import FeatureStore, content_key
from calligram.progress import Track, silent

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
GEOMETRY = 5
"""numbers that say where a region is"""
PICTURES = 16
"""pictures that go through the backbone together"""
PART = 512
"""pictures whose boxes make a part of the store: what a kill can cost"""


def geometry(shares: Floats) -> Floats:
    """Corners and area of boxes (N, 4) in shares of the picture: (N, 5)."""
    area = (shares[:, 2] - shares[:, 0]) * (shares[:, 3] - shares[:, 1])
    return np.concatenate([shares, area[:, None]], axis=1).astype(np.float32)


class StoredRegionRows:
    """Proposals whose features the collection holds as (regions, D) for each image: memory-mapped."""

    def __init__(self, features: StoredFeatures, at: BoxesInImages, sizes: Ints) -> None:
        """Args:
        at: boxes sorted by image, those of an image in the order of their features.
        sizes: (images, 2) width and height of every image of the collection.
        """
        self._features, self._images = features, at.images
        self._rank = np.arange(len(at)) - np.searchsorted(at.images, at.images)
        self._geometry = geometry((at.boxes / np.tile(sizes[at.images], 2)).astype(np.float32))

    def __len__(self) -> int:
        return len(self._images)

    def take(self, rows: Ints) -> Tensor:
        """These regions' features and places in half precision: (N, D + 5)."""
        pooled = self._features.take_parts(self._images[rows], self._rank[rows])
        return torch.from_numpy(np.concatenate([pooled, self._geometry[rows].astype(np.float16)], axis=1))


class ComputedRows:
    """Regions whose features are in a store; those asked for are held in memory."""

    def __init__(self, values: Halves) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def take(self, rows: Ints) -> Tensor:
        """These regions' features and places in half precision: (N, D + 5)."""
        return torch.from_numpy(self._values[rows])


def computed_rows(pooling: Pooling | Crops, visuals: Visuals, track: Track = silent) -> ComputedRows:
    """Features of these boxes, or whole pictures, from the collection's cache; what it lacks is computed first."""
    store = FeatureStore(visuals.pictures.cache, {"regions": dict(pooling.settings), "dim": pooling.dim + GEOMETRY})
    images, place = np.unique(visuals.rows, return_inverse=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        contents = list(pool.map(lambda row: content_key(visuals.pictures.read(row)), images.tolist()))
    marks = ["whole"] * len(visuals) if visuals.boxes is None else _marks(visuals.boxes)
    keys = [f"{contents[p]}:{mark}" for p, mark in zip(place.tolist(), marks, strict=True)]
    missing = np.array([number for number, key in enumerate(keys) if key not in store], dtype=np.int64)
    waiting: list[tuple[list[str], Halves]] = []
    groups = _by_image(place, missing)
    for group, values in track(_computed(pooling, visuals, groups), "extracting regions", len(groups)):
        waiting.append(([keys[number] for number in group.tolist()], values))
        if len(waiting) == PART:
            _append(store, waiting)
    _append(store, waiting)
    return ComputedRows(store.take(keys) if keys else np.zeros((0, pooling.dim + GEOMETRY), dtype=np.float16))


def _append(store: FeatureStore, waiting: list[tuple[list[str], Halves]]) -> None:
    if waiting:
        store.append([key for keys, _ in waiting for key in keys], np.concatenate([values for _, values in waiting]))
        waiting.clear()


def _marks(boxes: Floats) -> list[str]:
    """Boxes to a hundredth of a pixel, as part of a name."""
    return [",".join(f"{v:.2f}" for v in box) for box in boxes.tolist()]


def _by_image(place: Ints, chosen: Ints) -> list[Ints]:
    """The chosen items in groups of one image each."""
    if not len(chosen):
        return []
    order = chosen[np.argsort(place[chosen], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(place[order])) + 1)


def _computed(pooling: Pooling | Crops, visuals: Visuals, groups: Sequence[Ints]) -> Iterator[tuple[Ints, Halves]]:
    """Features of groups of boxes in order; the next pictures are decoded while the network works on these."""
    chunks = [groups[i : i + PICTURES] for i in range(0, len(groups), PICTURES)]
    with ThreadPoolExecutor(os.cpu_count()) as decoders, ThreadPoolExecutor(1) as ahead:

        def look(group: Ints) -> tuple[Pixels, Floats]:
            image = decode(visuals.pictures.read(int(visuals.rows[group[0]])))
            whole = np.array([[0, 0, *image.size]], dtype=np.float32)
            boxes = whole if visuals.boxes is None else visuals.boxes[group]
            return pooling.pixels.resize(image), pooling.shares(image, boxes)

        def prepare(chunk: Sequence[Ints]) -> list[tuple[Pixels, Floats]]:
            return list(decoders.map(look, chunk))

        coming = [ahead.submit(prepare, chunk) for chunk in chunks[:1]]
        for number, chunk in enumerate(chunks):
            seen = coming.pop().result()
            if number + 1 < len(chunks):
                coming.append(ahead.submit(prepare, chunks[number + 1]))
            pooled = pooling([p for p, _ in seen], [s for _, s in seen], max(len(group) for group in chunk))
            for group, (_, shares), values in zip(chunk, seen, pooled, strict=True):
                whole = np.concatenate([values[: len(shares)], geometry(shares).astype(np.float16)], axis=1)
                # A picture that stands there twice without a box is one region.
                yield group, np.repeat(whole, len(group), axis=0) if visuals.boxes is None else whole
