"""Phrase grounding in a collection: phrases with the boxes that they refer to, and boxes grouped by image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calligram.data.boxes import union_box
from calligram.data.collection import Collection
from calligram.data.pairing import Texts, Visuals
from calligram.data.write_tables import BOX_COLUMNS

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

REGION_SOURCE_OF_FEATURES = {"regions": "bottom-up"}
"""region source of a feature array, where the two names differ"""


@dataclass(frozen=True)
class ImageBoxes:
    """Boxes and the image row of each box. Proposals are in the order of their rank."""

    boxes: Floats
    """(N, 4)"""
    images: Ints
    """(N,) image row of each box"""

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def _order(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.images, kind="stable")
        return order, self.images[order]

    def rows_of_image(self, image: int) -> Ints:
        """Positions of the boxes of an image, in order."""
        order, images = self._order
        start, end = np.searchsorted(images, [image, image + 1])
        return order[start:end]


@dataclass(frozen=True)
class GroundedPhrases:
    """Phrases with regions: one entry for each pair of phrase and image."""

    phrases: Ints
    """(P,) rows of the table ``phrases``"""
    chains: Ints
    """(P,) coreference chain of each phrase; phrases with the same regions in an image share a chain"""
    chain_boxes: ImageBoxes
    """(C,) the smallest box around all regions of each chain"""

    def __len__(self) -> int:
        return len(self.phrases)

    @property
    def targets(self) -> ImageBoxes:
        """The target box and the image of each phrase: (P,)."""
        return ImageBoxes(self.chain_boxes.boxes[self.chains], self.chain_boxes.images[self.chains])


def grounded_phrases(collection: Collection, images: Ints, source: str = "truth") -> GroundedPhrases:
    """All phrases with a region in ``images``, in the order of the images; phrases without a region are left out.

    This is the protocol of phrase localization (pl-clc): the target of a phrase with several boxes, such as a group of
    people, is the smallest box around all of them.
    """
    of_source = regions_of_source(collection, source)
    of_image, boxes = collection.numbers("regions", "image"), region_boxes(collection)
    region, phrase = collection.numbers("groundings", "region"), collection.numbers("groundings", "phrase")
    used = of_source[region] & np.isin(of_image[region], images)
    regions_of_phrase: dict[tuple[int, int], list[int]] = {}
    for r, p in zip(region[used].tolist(), phrase[used].tolist(), strict=True):
        regions_of_phrase.setdefault((int(of_image[r]), p), []).append(r)
    keys = sorted(regions_of_phrase)
    chains: dict[tuple[int, tuple[int, ...]], int] = {}
    chain_of = [
        chains.setdefault((image, tuple(sorted(regions_of_phrase[image, p]))), len(chains)) for image, p in keys
    ]
    enclosing = np.array([union_box(boxes[list(rows)]) for _, rows in chains], dtype=np.float32).reshape(-1, 4)
    return GroundedPhrases(
        np.array([p for _, p in keys], dtype=np.int64),
        np.array(chain_of, dtype=np.int64),
        ImageBoxes(enclosing, np.array([image for image, _ in chains], dtype=np.int64)),
    )


def boxes_of_source(collection: Collection, images: Ints, source: str) -> ImageBoxes:
    """Each region of a source once, regardless of the number of phrases that refer to it."""
    of_image = collection.numbers("regions", "image")
    chosen = np.isin(of_image, images) & regions_of_source(collection, source)
    return ImageBoxes(region_boxes(collection)[chosen], of_image[chosen])


def feature_boxes(collection: Collection, name: str, image: int) -> Floats:
    """The boxes of an image that the features of an array were computed from, in order: (R, 4).

    The result is empty for features without boxes, such as those of SCAN's release.
    """
    if not collection.has("regions"):
        return np.zeros((0, 4), dtype=np.float32)
    table = collection.table("regions")
    found = table.filter(pc.equal(table.column("image"), image))
    found = found.filter(pc.equal(found.column("source"), REGION_SOURCE_OF_FEATURES.get(name, name)))
    return np.stack([found.column(axis).to_numpy() for axis in BOX_COLUMNS], axis=1).astype(np.float32)


def regions_of_source(collection: Collection, source: str) -> NDArray[np.bool_]:
    """Whether each row of the table ``regions`` has this source."""
    return np.array([s == source for s in collection.column("regions", "source")], dtype=bool)


def region_boxes(collection: Collection) -> Floats:
    """The boxes of all regions: (N, 4)."""
    table = collection.table("regions")
    return np.stack([table.column(axis).to_numpy() for axis in BOX_COLUMNS], axis=1).astype(np.float32)


def phrase_texts(collection: Collection, phrases: Ints) -> Texts:
    """These rows of the table ``phrases`` as texts."""
    part = collection.table("phrases").take(pa.array(phrases))
    return Texts(tuple(part.column("id").to_pylist()), tuple(part.column("text").to_pylist()))


def box_visuals(collection: Collection, boxes: ImageBoxes) -> Visuals:
    """Boxes as visual items: each item is the crop of a box."""
    names = collection.table("images").column("id").take(pa.array(boxes.images)).to_pylist()
    ids = tuple(f"{name}/{number}" for number, name in enumerate(names))
    return Visuals(ids, collection.pictures, boxes.images, boxes.boxes)
