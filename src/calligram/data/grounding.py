"""Which words of a collection speak of which boxes: phrases with their regions, and boxes by image."""

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
"""feature arrays that are called otherwise than the regions they are of"""


@dataclass(frozen=True)
class ImageBoxes:
    """Boxes and the row of each one's image, in the order of their rank where they are proposals."""

    boxes: Floats
    """(N, 4)"""
    images: Ints
    """(N,)"""

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def _order(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.images, kind="stable")
        return order, self.images[order]

    def rows_of_image(self, image: int) -> Ints:
        """Places of an image's boxes, in their order."""
        order, images = self._order
        start, end = np.searchsorted(images, [image, image + 1])
        return order[start:end]


@dataclass(frozen=True)
class GroundedPhrases:
    """Phrases that are seen in images: one entry for each phrase and image."""

    phrases: Ints
    """(P,) rows of the table ``phrases``"""
    chains: Ints
    """(P,) place of each one's chain: phrases that speak of the same regions of an image share one"""
    chain_boxes: ImageBoxes
    """(C,) for each chain the smallest box around all its regions"""

    def __len__(self) -> int:
        return len(self.phrases)

    @property
    def targets(self) -> ImageBoxes:
        """The box and the image of each phrase: (P,)."""
        return ImageBoxes(self.chain_boxes.boxes[self.chains], self.chain_boxes.images[self.chains])


def grounded_phrases(collection: Collection, images: Ints, source: str = "truth") -> GroundedPhrases:
    """Every phrase with a region in ``images``, in order of images; phrases without a region are left out.

    That is the protocol of phrase localization (pl-clc): a phrase for several people has several boxes and is found by
    one around them all.
    """
    of_source = regions_of_source(collection, source)
    of_image, boxes = collection.numbers("regions", "image"), region_boxes(collection)
    region, phrase = collection.numbers("groundings", "region"), collection.numbers("groundings", "phrase")
    used = of_source[region] & np.isin(of_image[region], images)
    spoken: dict[tuple[int, int], list[int]] = {}
    for r, p in zip(region[used].tolist(), phrase[used].tolist(), strict=True):
        spoken.setdefault((int(of_image[r]), p), []).append(r)
    keys = sorted(spoken)
    chains: dict[tuple[int, tuple[int, ...]], int] = {}
    chain_of = [chains.setdefault((image, tuple(sorted(spoken[image, p]))), len(chains)) for image, p in keys]
    enclosing = np.array([union_box(boxes[list(rows)]) for _, rows in chains], dtype=np.float32).reshape(-1, 4)
    return GroundedPhrases(
        np.array([p for _, p in keys], dtype=np.int64),
        np.array(chain_of, dtype=np.int64),
        ImageBoxes(enclosing, np.array([image for image, _ in chains], dtype=np.int64)),
    )


def boxes_of_source(collection: Collection, images: Ints, source: str) -> ImageBoxes:
    """Every region of a source by itself, once, however many phrases speak of it."""
    of_image = collection.numbers("regions", "image")
    chosen = np.isin(of_image, images) & regions_of_source(collection, source)
    return ImageBoxes(region_boxes(collection)[chosen], of_image[chosen])


def feature_boxes(collection: Collection, name: str, image: int) -> Floats:
    """The boxes of an image that the rows of a feature array were pooled from, in their order: (R, 4).

    None of them where the features came without boxes, as those of scan's release did.
    """
    if not collection.has("regions"):
        return np.zeros((0, 4), dtype=np.float32)
    table = collection.table("regions")
    found = table.filter(pc.equal(table.column("image"), image))
    found = found.filter(pc.equal(found.column("source"), REGION_SOURCE_OF_FEATURES.get(name, name)))
    return np.stack([found.column(axis).to_numpy() for axis in BOX_COLUMNS], axis=1).astype(np.float32)


def regions_of_source(collection: Collection, source: str) -> NDArray[np.bool_]:
    """Which rows of the table ``regions`` are of this source."""
    return np.array([s == source for s in collection.column("regions", "source")], dtype=bool)


def region_boxes(collection: Collection) -> Floats:
    """The boxes of all regions: (N, 4)."""
    table = collection.table("regions")
    return np.stack([table.column(axis).to_numpy() for axis in BOX_COLUMNS], axis=1).astype(np.float32)


def phrase_texts(collection: Collection, phrases: Ints) -> Texts:
    """These rows of the table ``phrases`` as texts."""
    part = collection.table("phrases").take(pa.array(phrases))
    return Texts(tuple(part.column("id").to_pylist()), tuple(part.column("text").to_pylist()))


def box_visuals(collection: Collection, places: ImageBoxes) -> Visuals:
    """Boxes as visual items: what is inside each."""
    names = collection.table("images").column("id").take(pa.array(places.images)).to_pylist()
    ids = tuple(f"{name}/{number}" for number, name in enumerate(names))
    return Visuals(ids, collection.pictures, places.images, places.boxes)
