"""Words for regions: their class, colour and size, joined into pseudo-sentences (a3vse, Secs. 3 and 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image

from calligram.data.boxes import area
from calligram.data.collection import Collection
from calligram.data.revision import images_with_proposals
from calligram.errors import UserError, command
from calligram.features.regions.proposers import Floats, limit_side
from calligram.text import tokenise

Ints = NDArray[np.int64]
Attributes = Literal["none", "colour", "all"]

ANNOTATED_SOURCE = "truth"
"""source of regions that were annotated by people or by a scene generator"""
SOURCE_SETTING = "pseudo.region_source"
"""setting that error messages refer to"""
COLOUR_PROTOTYPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "black": ((0, 0, 0), (30, 30, 32)),
    "grey": ((85, 85, 85), (128, 128, 128), (175, 175, 175)),
    "white": ((255, 255, 255), (232, 232, 232)),
    "red": ((200, 20, 25), (140, 20, 25), (230, 60, 50)),
    "orange": ((250, 130, 15), (225, 105, 25)),
    "yellow": ((250, 225, 40), (215, 190, 45), (245, 235, 130)),
    "green": ((20, 130, 40), (95, 165, 60), (55, 80, 30), (130, 205, 90), (25, 60, 30)),
    "blue": ((20, 50, 165), (60, 120, 210), (135, 185, 235), (25, 35, 85)),
    "purple": ((110, 40, 140), (150, 100, 190)),
    "pink": ((245, 130, 170), (245, 185, 200), (220, 60, 130)),
    "brown": ((110, 65, 35), (145, 95, 60), (65, 42, 25)),
    "tan": ((210, 180, 140), (190, 155, 115)),
}
"""sRGB values of typical shades of each colour"""
COLOUR_NAMES = tuple(COLOUR_PROTOTYPES)
SIZE_LIMITS = ((0.05, "small"), (0.3, "medium"), (1.0, "large"))
"""maximum share of the image area for each size word"""

_COLOUR_MAP_SIDE_PIXELS = 160
_CHANNEL_BITS = 5
_RGB_TO_LMS = ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
          (0.0883024619, 0.2817188376, 0.6299787005))  # fmt: skip
_LMS_TO_OKLAB = ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
             (0.0259040371, 0.7827717662, -0.8086757660))  # fmt: skip


@dataclass(frozen=True)
class PseudoSentences:
    """Builds a sentence s = [s_1 || s_2 || ...] from regions, s_k = [attribute_k class_k] (a3vse, Sec. 4.3)."""

    min_score: float = 0.3
    """minimum score of a region"""
    max_regions: int = 10
    """maximum number of regions, highest score first"""
    repeats: bool = False
    """keep equal words of several regions; otherwise each "attribute class" occurs once"""
    attributes: Attributes = "colour"
    """attribute words before the class of a region"""

    def build(self, labels: Sequence[str], attributes: Sequence[str], scores: Sequence[float]) -> str:
        """Return the regions of one image as "attribute class attribute class ...", sorted by score.

        Regions without a class are left out. Regions without a score (NaN) have score 1.
        """
        known_scores = [1.0 if np.isnan(score) else float(score) for score in scores]
        order = sorted(range(len(labels)), key=lambda region: -known_scores[region])
        phrases = [
            " ".join([*self._attribute_words(attributes[region]), *tokenise(labels[region])])
            for region in order
            if labels[region] and known_scores[region] >= self.min_score
        ]
        return " ".join((phrases if self.repeats else list(dict.fromkeys(phrases)))[: self.max_regions])

    def _attribute_words(self, attribute: str) -> list[str]:
        words = tokenise(attribute)
        if self.attributes == "all":
            return words
        return [word for word in words if word in COLOUR_NAMES] if self.attributes == "colour" else []


def region_sentences(collection: Collection, images: Ints, source: str, sentences: PseudoSentences) -> list[str]:
    """Return the pseudo-sentence of each image from regions of one source; empty if no region has a high score.

    Args:
        source: name of the regions; empty for the only regions with classes of a detector.

    Raises:
        UserError: when the collection has no such regions, they have no classes, or several sources are possible.
    """
    regions = _regions_of_source(collection, source or _only_source(collection))
    images = np.asarray(images, dtype=np.int64)
    image_of, labels = regions["image"].to_numpy(), regions["label"].to_pylist()
    attributes, scores = regions["attribute"].to_pylist(), pc.fill_null(regions["score"], np.nan).to_numpy()
    order = np.argsort(image_of, kind="stable")
    starts, ends = (np.searchsorted(image_of[order], images, side=side) for side in ("left", "right"))
    found = []
    for start, end in zip(starts, ends, strict=True):
        rows = order[start:end].tolist()
        words = [labels[r] or "" for r in rows], [attributes[r] or "" for r in rows]
        found.append(sentences.build(*words, [scores[r] for r in rows]))
    return found


def _only_source(collection: Collection) -> str:
    """Return the only source with classes, without the annotated regions, which are no machine output."""
    found = _sources(collection, classes=True)
    others = [name for name in found if name != ANNOTATED_SOURCE]
    if len(others) == 1:
        return others[0]
    if others:
        raise UserError(
            f"collection {collection.folder} has several regions with classes ({', '.join(others)}); choose one "
            f"with --set {SOURCE_SETTING}={others[0]}"
        )
    present = ", ".join(_sources(collection)) or "none"
    raise UserError(
        f"collection {collection.folder} has no regions with classes of a detector (it has: {present}); find some with "
        + command("calligram", "regions", collection.folder, "--proposals", "FILE.onnx")
        + (
            f", or use the annotated ones with --set {SOURCE_SETTING}={ANNOTATED_SOURCE}"
            if ANNOTATED_SOURCE in found
            else ""
        )
    )


def _sources(collection: Collection, *, classes: bool = False) -> list[str]:
    """Return the names of the collection's regions, or only of those with classes; annotated ones come last."""
    table = collection.table("regions")
    if classes:
        table = table.filter(_has_class(table))
    names = (str(name) for name in pc.unique(table.column("source")).to_pylist() if name)
    return sorted(names, key=lambda name: (name == ANNOTATED_SOURCE, name))


def _has_class(regions: pa.Table) -> pa.ChunkedArray:
    return pc.greater(pc.utf8_length(pc.fill_null(regions.column("label"), "")), 0)


def _regions_of_source(collection: Collection, source: str) -> pa.Table:
    """Return image, class, attribute and score of the regions of a source."""
    table = collection.table("regions")
    chosen = table.filter(pc.fill_null(pc.equal(table.column("source"), source), False))
    with_classes = _sources(collection, classes=True)
    choose = f"choose others with --set {SOURCE_SETTING}={with_classes[0]}, or " if with_classes else ""
    if not len(chosen) and not len(images_with_proposals(collection, source)):
        present = ", ".join(_sources(collection)) or "none"
        raise UserError(
            f"collection {collection.folder} has no regions '{source}' (it has: {present}); {choose}find some with "
            + command("calligram", "regions", collection.folder, "--proposals", "DETECTOR", "--name", source)
        )
    if len(chosen) and source not in with_classes:
        raise UserError(
            f"the regions '{source}' have no classes; {choose}find regions of a detector, such as a YOLOX "
            "file: " + command("calligram", "regions", collection.folder, "--proposals", "FILE.onnx")
        )
    return chosen.select(["image", "label", "attribute", "score"])


def region_attributes(image: Image.Image, boxes: Floats) -> tuple[str, ...]:
    """Return size and colour of each box, such as ``small red``."""
    colours = colour_names(image, boxes)
    return tuple(f"{size} {colour}" for size, colour in zip(size_names(image, boxes), colours, strict=True))


def size_names(image: Image.Image, boxes: Floats) -> tuple[str, ...]:
    """Return the size word of each box, by the share of the image area that it covers."""
    limits = np.array([limit for limit, _ in SIZE_LIMITS[:-1]])
    level = np.searchsorted(limits, area(boxes) / (image.width * image.height), side="right")
    return tuple(SIZE_LIMITS[number][1] for number in level)


def colour_names(image: Image.Image, boxes: Floats) -> tuple[str, ...]:
    """Return the most frequent colour in the centre of each box: half of its width by half of its height."""
    small, factor = limit_side(image, _COLOUR_MAP_SIDE_PIXELS)
    colours = _colour_indices(np.asarray(small))
    height, width = colours.shape
    inset = (boxes[:, 2:] - boxes[:, :2]) / 4
    start = np.floor((boxes[:, :2] + inset) / factor).astype(np.int64)
    start = np.clip(start, 0, (width - 1, height - 1))
    end = np.clip(np.ceil((boxes[:, 2:] - inset) / factor).astype(np.int64), start + 1, (width, height))
    # Integral images: the count of a colour in any rectangle is a combination of four sums.
    sums = np.zeros((height + 1, width + 1, len(COLOUR_NAMES)), dtype=np.int32)
    sums[1:, 1:] = (
        (colours[..., None] == np.arange(len(COLOUR_NAMES))).cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32)
    )
    (x0, y0), (x1, y1) = start.T, end.T
    counts = sums[y1, x1] - sums[y0, x1] - sums[y1, x0] + sums[y0, x0]
    return tuple(COLOUR_NAMES[i] for i in counts.argmax(axis=1))


def _colour_indices(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the index in ``COLOUR_NAMES`` of each pixel (H, W, 3)."""
    red, green, blue = (pixels[..., c].astype(np.int64) >> (8 - _CHANNEL_BITS) for c in range(3))
    return np.asarray(_colour_index_table()[(red << 2 * _CHANNEL_BITS) + (green << _CHANNEL_BITS) + blue])


@lru_cache
def _colour_index_table() -> NDArray[np.uint8]:
    """Return the colour index of the nearest prototype for every colour with five bits per channel."""
    levels = (np.arange(1 << _CHANNEL_BITS) + 0.5) * (256 / (1 << _CHANNEL_BITS))
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(-1, 3)
    prototypes = oklab(np.array([rgb for name in COLOUR_NAMES for rgb in COLOUR_PROTOTYPES[name]], dtype=np.float64))
    index = np.array([i for i, name in enumerate(COLOUR_NAMES) for _ in COLOUR_PROTOTYPES[name]], dtype=np.uint8)
    distance = ((oklab(colours)[:, None] - prototypes[None]) ** 2).sum(axis=-1)
    return np.asarray(index[distance.argmin(axis=1)])


def oklab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert sRGB (..., 3) in 0..255 to Oklab, a perceptually uniform colour space (Ottosson, 2020).

    >>> oklab(np.array([255.0, 255.0, 255.0])).round(3).tolist()[0]
    1.0
    """
    share = rgb / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return np.asarray(np.cbrt(linear @ np.array(_RGB_TO_LMS).T) @ np.array(_LMS_TO_OKLAB).T)
