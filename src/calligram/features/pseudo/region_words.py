"""What machines say of images: words of their regions, joined into pseudo-sentences (a3vse, Secs. 3 and 4.3)."""

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
from calligram.features.texts.vocabulary import tokenise

# Colour and size of a region, in words, measured from its pixels.

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
COLOUR_NAMES = tuple(COLOUR_PROTOTYPES)
SIZE_LIMITS = ((0.05, "small"), (0.3, "medium"), (1.0, "large"))
"""largest share of the picture that a word covers"""

_COLOUR_MAP_SIDE_PIXELS = 160
_CHANNEL_BITS = 5

_RGB_TO_LMS = ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
          (0.0883024619, 0.2817188376, 0.6299787005))  # fmt: skip
_LMS_TO_OKLAB = ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
             (0.0259040371, 0.7827717662, -0.8086757660))  # fmt: skip


def region_attributes(image: Image.Image, boxes: Floats) -> tuple[str, ...]:
    """Size and colour of each box, such as ``small red``."""
    colours = colour_names(image, boxes)
    return tuple(f"{size} {colour}" for size, colour in zip(size_names(image, boxes), colours, strict=True))


def size_names(image: Image.Image, boxes: Floats) -> tuple[str, ...]:
    """Size by the share of the picture that a box covers."""
    limits = np.array([limit for limit, _ in SIZE_LIMITS[:-1]])
    place = np.searchsorted(limits, area(boxes) / (image.width * image.height), side="right")
    return tuple(SIZE_LIMITS[p][1] for p in place)


def colour_names(image: Image.Image, boxes: Floats) -> tuple[str, ...]:
    """The colour that most pixels in the middle of each box have: half of its width by half of its height."""
    small, factor = limit_side(image, _COLOUR_MAP_SIDE_PIXELS)
    named = _colour_indices(np.asarray(small))
    height, width = named.shape
    inset = (boxes[:, 2:] - boxes[:, :2]) / 4
    start = np.floor((boxes[:, :2] + inset) / factor).astype(np.int64)
    start = np.clip(start, 0, (width - 1, height - 1))
    end = np.clip(np.ceil((boxes[:, 2:] - inset) / factor).astype(np.int64), start + 1, (width, height))
    # Counts of every name in any rectangle come from four values of the sums from the corner.
    sums = np.zeros((height + 1, width + 1, len(COLOUR_NAMES)), dtype=np.int32)
    sums[1:, 1:] = (
        (named[..., None] == np.arange(len(COLOUR_NAMES))).cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32)
    )
    (x0, y0), (x1, y1) = start.T, end.T
    counts = sums[y1, x1] - sums[y0, x1] - sums[y1, x0] + sums[y0, x0]
    return tuple(COLOUR_NAMES[i] for i in counts.argmax(axis=1))


def _colour_indices(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Number of the colour name of each pixel (H, W, 3)."""
    red, green, blue = (pixels[..., c].astype(np.int64) >> (8 - _CHANNEL_BITS) for c in range(3))
    return np.asarray(_colour_index_table()[(red << 2 * _CHANNEL_BITS) + (green << _CHANNEL_BITS) + blue])


@lru_cache
def _colour_index_table() -> NDArray[np.uint8]:
    """The nearest prototype's name for every colour of five bits a channel."""
    levels = (np.arange(1 << _CHANNEL_BITS) + 0.5) * (256 / (1 << _CHANNEL_BITS))
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(-1, 3)
    known = oklab(np.array([rgb for name in COLOUR_NAMES for rgb in COLOUR_PROTOTYPES[name]], dtype=np.float64))
    name = np.array([i for i, name in enumerate(COLOUR_NAMES) for _ in COLOUR_PROTOTYPES[name]], dtype=np.uint8)
    distance = ((oklab(colours)[:, None] - known[None]) ** 2).sum(axis=-1)
    return np.asarray(name[distance.argmin(axis=1)])


def oklab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """SRGB (..., 3) in 0..255 to Oklab, where equal distances look about equally far (Ottosson, 2020).

    >>> oklab(np.array([255.0, 255.0, 255.0])).round(3).tolist()[0]
    1.0
    """
    share = rgb / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return np.asarray(np.cbrt(linear @ np.array(_RGB_TO_LMS).T) @ np.array(_LMS_TO_OKLAB).T)


Ints = NDArray[np.int64]
Attributes = Literal["none", "colour", "all"]
ANNOTATED_SOURCE = "truth"
"""source of regions that people drew, or a generator"""
SOURCE_SETTING = "pseudo.source"
"""what messages advise to set"""


@dataclass(frozen=True)
class PseudoSentences:
    """How words of regions become a sentence s = [s_1 || s_2 || ...], s_k = [attribute_k class_k] (a3vse, Sec. 4.3)."""

    least: float = 0.3
    """smallest score of a region that is spoken of"""
    most: int = 10
    """regions that are spoken of, the most certain first"""
    repeats: bool = False
    """say the same words of several regions; else once"""
    attributes: Attributes = "colour"
    """which words stand before a region's class"""

    def of(self, labels: Sequence[str], attributes: Sequence[str], scores: Sequence[float]) -> str:
        """One image's regions as "attribute class attribute class ...", sorted by score.

        Regions without a class say nothing, and those without a score count as certain.
        """
        certain = [1.0 if np.isnan(score) else float(score) for score in scores]
        order = sorted(range(len(labels)), key=lambda place: -certain[place])
        said = [
            " ".join([*self._before(attributes[place]), *tokenise(labels[place])])
            for place in order
            if labels[place] and certain[place] >= self.least
        ]
        return " ".join((said if self.repeats else list(dict.fromkeys(said)))[: self.most])

    def _before(self, attribute: str) -> list[str]:
        words = tokenise(attribute)
        if self.attributes == "all":
            return words
        return [word for word in words if word in COLOUR_NAMES] if self.attributes == "colour" else []


def region_sentences(collection: Collection, images: Ints, source: str, how: PseudoSentences) -> list[str]:
    """The pseudo-sentence of each of these images, from regions of one source; empty where nothing is certain enough.

    Args:
        source: name of the regions; empty for the only ones that a detector gave classes.

    Raises:
        UserError: when the collection has no such regions, they have no classes, or several might be meant.
    """
    regions = _regions_of(collection, source or _only_source(collection))
    images = np.asarray(images, dtype=np.int64)
    at, labels = regions["image"].to_numpy(), regions["label"].to_pylist()
    attributes, scores = regions["attribute"].to_pylist(), pc.fill_null(regions["score"], np.nan).to_numpy()
    order = np.argsort(at, kind="stable")
    starts, ends = (np.searchsorted(at[order], images, side=side) for side in ("left", "right"))
    found = []
    for start, end in zip(starts, ends, strict=True):
        rows = order[start:end].tolist()
        found.append(
            how.of([labels[r] or "" for r in rows], [attributes[r] or "" for r in rows], [scores[r] for r in rows])
        )
    return found


def _only_source(collection: Collection) -> str:
    """The one source with classes beside the annotated regions, which no machine said."""
    found = _sources(collection, classes=True)
    others = [name for name in found if name != ANNOTATED_SOURCE]
    if len(others) == 1:
        return others[0]
    if others:
        raise UserError(
            f"collection {collection.folder} has several regions with classes ({', '.join(others)}); say whose are "
            f"meant with --set {SOURCE_SETTING}={others[0]}"
        )
    there = ", ".join(_sources(collection)) or "none"
    raise UserError(
        f"collection {collection.folder} has no regions that a detector gave classes ({there} there); find some with "
        + command("calligram", "regions", collection.folder, "--proposals", "FILE.onnx")
        + (
            f", or take the annotated ones with --set {SOURCE_SETTING}={ANNOTATED_SOURCE}"
            if ANNOTATED_SOURCE in found
            else ""
        )
    )


def _sources(collection: Collection, *, classes: bool = False) -> list[str]:
    """Names of the collection's regions, or of those among them that have classes; annotated ones come last."""
    table = collection.table("regions")
    if classes:
        table = table.filter(_has_class(table))
    names = (str(name) for name in pc.unique(table.column("source")).to_pylist() if name)
    return sorted(names, key=lambda name: (name == ANNOTATED_SOURCE, name))


def _has_class(regions: pa.Table) -> pa.ChunkedArray:
    return pc.greater(pc.utf8_length(pc.fill_null(regions.column("label"), "")), 0)


def _regions_of(collection: Collection, source: str) -> pa.Table:
    """Image, class, attribute and score of a source's regions."""
    table = collection.table("regions")
    chosen = table.filter(pc.fill_null(pc.equal(table.column("source"), source), False))
    named = _sources(collection, classes=True)
    choose = f"take others with --set {SOURCE_SETTING}={named[0]}, or " if named else ""
    if not len(chosen) and not len(images_with_proposals(collection, source)):
        there = ", ".join(_sources(collection)) or "none"
        raise UserError(
            f"collection {collection.folder} has no regions '{source}' ({there} there); {choose}find some with "
            + command("calligram", "regions", collection.folder, "--proposals", "DETECTOR", "--name", source)
        )
    if len(chosen) and source not in named:
        raise UserError(
            f"the regions '{source}' have no classes to speak of; {choose}find those of a detector, such as a YOLOX "
            "file: " + command("calligram", "regions", collection.folder, "--proposals", "FILE.onnx")
        )
    return chosen.select(["image", "label", "attribute", "score"])
