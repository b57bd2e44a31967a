"""Region proposals of OpenCV: EdgeBoxes (Zitnick and Dollár, 2014), selective search (Uijlings et al., 2013)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    """Boxes scored by the contours that lie completely inside them (Zitnick and Dollár, 2014).

    The values are those of the phrase localization release (pl-clc). The edges differ: they are thinned Sobel edges,
    because the structured edges of the paper need a model file that is not distributed.
    """

    max_boxes: int = 200
    alpha: float = 0.65
    """overlap of neighbouring windows of the search"""
    beta: float = 0.65
    """IoU threshold of the non-maximum suppression; 1 for none"""
    min_score: float = 0.01
    max_side: int = 500
    """longer side of the downscaled image in pixels"""
    method: str = "edgeboxes"
    """name in the catalogue of methods"""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All fields, by the keys that collections store."""
        scoring: dict[str, Setting] = {"step": self.alpha, "overlap": self.beta, "least": self.min_score}
        return {"method": self.method, "most": self.max_boxes, **scoring, "side": self.max_side}

    def __call__(self, image: Image.Image) -> Proposals:
        """Return boxes with their scores."""
        small, factor = limit_side(image, self.max_side)
        edges, direction = thin_edges(np.asarray(small))
        search = opencv().ximgproc.createEdgeBoxes(
            alpha=self.alpha, beta=self.beta, minScore=self.min_score, maxBoxes=self.max_boxes
        )
        boxes, scores = search.getBoundingBoxes(edges, direction)
        return Proposals(xywh_to_xyxy(boxes) * factor, np.asarray(scores, dtype=np.float32).reshape(-1))


def dense_edge_boxes(max_boxes: int = 400) -> EdgeBoxes:
    """EdgeBoxes for training phrases: closer windows and no suppression, so that many boxes match a truth region.

    Suppression at an IoU of 0.65 leaves hardly more than one box above the 0.7 of a positive (two-branch, Sec. 4.1).
    Mean number of positives of a truth region in 200 training images of Flickr8k: 0.8 in the 200 boxes of
    ``edgeboxes``, 4.9 without suppression, 10.1 in 400 boxes of this method. The paper has 9.7 (Sec. 4.5).
    """
    return EdgeBoxes(max_boxes, alpha=0.75, beta=1.0, method="edgeboxes-dense")


def thin_edges(pixels: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Return strength in 0..1 and normal direction in 0..pi of the edges of an RGB image (H, W, 3).

    Edges are one pixel wide, as EdgeBoxes expects them: on broad edges its grouping takes minutes. The image is blurred
    first, so that contours are stronger than texture; blur and thresholds were chosen on the dev split of Flickr8k. The
    gradient of a pixel is the gradient of its strongest channel.
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


@dataclass(frozen=True)
class SelectiveSearch:
    """Boxes of regions that grow by merging similar neighbours (Uijlings et al., 2013), in our own order.

    OpenCV orders the boxes by the depth of the merge times a random number that cannot be seeded, which puts small
    boxes first. The boxes themselves are always the same. Here, boxes that differ from each other come first, and
    large boxes tend to come before small ones.
    """

    max_boxes: int = 200
    mode: Literal["fast", "quality"] = "fast"
    max_side: int = 320
    """longer side of the downscaled image in pixels; the time grows with its square"""
    max_iou: float = 0.65
    """boxes that overlap an earlier box by more than this come last"""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All fields, by the keys that collections store."""
        values: dict[str, Setting] = {"mode": self.mode, "side": self.max_side, "overlap": self.max_iou}
        return {"method": "selective", "most": self.max_boxes, **values}

    def __call__(self, image: Image.Image) -> Proposals:
        """Return boxes without scores."""
        small, factor = limit_side(image, self.max_side)
        search = opencv().ximgproc.segmentation.createSelectiveSearchSegmentation()
        search.setBaseImage(np.ascontiguousarray(np.asarray(small)[..., ::-1]))
        if self.mode == "fast":
            search.switchToSelectiveSearchFast()
        else:
            search.switchToSelectiveSearchQuality()
        boxes = np.unique(xywh_to_xyxy(search.process()), axis=0)
        return Proposals(boxes[self._order(boxes)[: self.max_boxes]] * np.float32(factor))

    def _order(self, boxes: Floats) -> NDArray[np.int64]:
        # The side times a random number, as the paper does with the depth of a merge: not all small boxes come last.
        random = np.random.default_rng(0).random(len(boxes), dtype=np.float32)
        rank = (np.sqrt(area(boxes)) * random).astype(np.float32)
        first = non_maximum_suppression(boxes, rank, self.max_iou)
        rest = np.setdiff1d(np.arange(len(boxes)), first)
        return np.concatenate([first, rest[np.argsort(-rank[rest], kind="stable")]])
