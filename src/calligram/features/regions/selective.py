"""Selective search: regions that grow by merging the most similar neighbours (Uijlings et al., 2013)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.data.boxes import area
from calligram.features.regions.extras import opencv
from calligram.features.regions.nms import suppress
from calligram.features.regions.proposer import Floats, Found, Setting, from_corner_and_size, shrunk


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

    def __call__(self, image: Image.Image) -> Found:
        """Boxes without scores."""
        small, factor = shrunk(image, self.side)
        search = opencv().ximgproc.segmentation.createSelectiveSearchSegmentation()
        search.setBaseImage(np.ascontiguousarray(np.asarray(small)[..., ::-1]))
        if self.mode == "fast":
            search.switchToSelectiveSearchFast()
        else:
            search.switchToSelectiveSearchQuality()
        boxes = np.unique(from_corner_and_size(search.process()), axis=0)
        return Found(boxes[self._order(boxes)[: self.most]] * np.float32(factor))

    def _order(self, boxes: Floats) -> NDArray[np.int64]:
        # Side by chance, as the paper multiplies the depth of a merge by chance: not all small boxes come last.
        chance = np.random.default_rng(0).random(len(boxes), dtype=np.float32)
        rank = (np.sqrt(area(boxes)) * chance).astype(np.float32)
        first = suppress(boxes, rank, self.overlap)
        rest = np.setdiff1d(np.arange(len(boxes)), first)
        return np.concatenate([first, rest[np.argsort(-rank[rest], kind="stable")]])
