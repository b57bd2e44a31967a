"""EdgeBoxes: a box is as good as the contours that lie wholly inside it (Zitnick and Dollár, 2014)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.data.boxes import area
from calligram.extras import opencv
from calligram.features.regions.proposers import (
    Floats,
    Proposals,
    Setting,
    limit_side,
    non_maximum_suppression,
    xywh_to_xyxy,
)


@dataclass(frozen=True)
class EdgeBoxes:
    """Proposals from thinned Sobel edges; the values are those of the phrase localization release (pl-clc).

    Departs from it in the edges: the learnt structured edges of the paper need a model file that nobody ships.
    """

    most: int = 200
    step: float = 0.65
    """alpha: overlap of neighbouring windows of the search"""
    overlap: float = 0.65
    """beta: threshold of the suppression"""
    least: float = 0.01
    """smallest score"""
    side: int = 500
    """longer side the picture is brought to"""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All fields."""
        return {"method": "edgeboxes", **asdict(self)}

    def __call__(self, image: Image.Image) -> Proposals:
        """Boxes with their scores."""
        small, factor = limit_side(image, self.side)
        edges, direction = thin_edges(np.asarray(small))
        search = opencv().ximgproc.createEdgeBoxes(
            alpha=self.step, beta=self.overlap, minScore=self.least, maxBoxes=self.most
        )
        boxes, scores = search.getBoundingBoxes(edges, direction)
        return Proposals(xywh_to_xyxy(boxes) * factor, np.asarray(scores, dtype=np.float32).reshape(-1))


def thin_edges(pixels: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Strength in 0..1 and direction of the normal in 0..pi of the edges of an RGB picture (H, W, 3).

    Edges are a pixel wide, as EdgeBoxes expects them: on broad ones its grouping takes minutes instead of a moment.
    The picture is blurred first, so that contours outweigh texture; blur and thresholds were chosen on Flickr8k's dev
    split. The gradient of a pixel is that of the channel in which it is strongest.
    """
    cv2 = opencv()
    smooth = cv2.GaussianBlur(pixels, (0, 0), max(pixels.shape[:2]) / 120)
    across, down = (cv2.Sobel(smooth, cv2.CV_16S, dx, 1 - dx) for dx in (1, 0))
    channel = (np.abs(across).astype(np.int32) + np.abs(down)).argmax(axis=2)[..., None]
    gx, gy = (np.ascontiguousarray(np.take_along_axis(g, channel, axis=2)[..., 0]) for g in (across, down))
    strength = np.hypot(gx.astype(np.float32), gy.astype(np.float32))
    weak, strong, full = (float(v) for v in np.quantile(strength, (0.5, 0.8, 0.98)))
    ridge = cv2.Canny(gx, gy, max(weak, 10.0), max(strong, 20.0), L2gradient=True) > 0
    strength = np.where(ridge, np.minimum(strength / max(full, 1.0), 1), 0).astype(np.float32)
    return strength, np.mod(np.arctan2(gy, gx, dtype=np.float32), np.pi).astype(np.float32)


# Selective search: regions that grow by merging the most similar neighbours (Uijlings et al., 2013).


@dataclass(frozen=True)
class SelectiveSearch:
    """Boxes of every merge, in an order of our own.

    OpenCV orders them by the depth of the merge times a random number that cannot be seeded, which puts small ones
    first; the boxes themselves are always the same. Here those that differ come first, and among these the large.
    """

    most: int = 200
    mode: Literal["fast", "quality"] = "fast"
    side: int = 320
    """longer side the picture is brought to: the time grows with its square"""
    overlap: float = 0.65
    """boxes that overlap an earlier one by more than this come after all others"""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All fields."""
        return {"method": "selective", **asdict(self)}

    def __call__(self, image: Image.Image) -> Proposals:
        """Boxes without scores."""
        small, factor = limit_side(image, self.side)
        search = opencv().ximgproc.segmentation.createSelectiveSearchSegmentation()
        search.setBaseImage(np.ascontiguousarray(np.asarray(small)[..., ::-1]))
        if self.mode == "fast":
            search.switchToSelectiveSearchFast()
        else:
            search.switchToSelectiveSearchQuality()
        boxes = np.unique(xywh_to_xyxy(search.process()), axis=0)
        return Proposals(boxes[self._order(boxes)[: self.most]] * np.float32(factor))

    def _order(self, boxes: Floats) -> NDArray[np.int64]:
        # Side by chance, as the paper multiplies the depth of a merge by chance: not all small boxes come last.
        chance = np.random.default_rng(0).random(len(boxes), dtype=np.float32)
        rank = (np.sqrt(area(boxes)) * chance).astype(np.float32)
        first = non_maximum_suppression(boxes, rank, self.overlap)
        rest = np.setdiff1d(np.arange(len(boxes)), first)
        return np.concatenate([first, rest[np.argsort(-rank[rest], kind="stable")]])
