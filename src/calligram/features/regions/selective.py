"""Selective search: regions that grow by merging the most similar neighbours (Uijlings et al., 2013)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from PIL import Image

from calligram.data.boxes import area
from calligram.features.regions.extras import opencv
from calligram.features.regions.proposer import Found, Setting, from_corner_and_size, shrunk


@dataclass(frozen=True)
class SelectiveSearch:
    """Boxes of every merge."""

    most: int = 200
    mode: Literal["fast", "quality"] = "fast"
    side: int = 500
    """longer side the picture is brought to"""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All fields."""
        return {"method": "selective", **asdict(self)}

    def __call__(self, image: Image.Image) -> Found:
        """Boxes, the largest first and then by chance.

        OpenCV orders by the depth of the merge times a random number that cannot be seeded; the boxes themselves are
        always the same.
        """
        small, factor = shrunk(image, self.side)
        search = opencv().ximgproc.segmentation.createSelectiveSearchSegmentation()
        search.setBaseImage(np.ascontiguousarray(np.asarray(small)[..., ::-1]))
        if self.mode == "fast":
            search.switchToSelectiveSearchFast()
        else:
            search.switchToSelectiveSearchQuality()
        boxes = np.unique(from_corner_and_size(search.process()), axis=0)
        chance = np.random.default_rng(0).random(len(boxes))
        order = np.argsort(-area(boxes) * chance, kind="stable")[: self.most]
        return Found(boxes[order] * np.float32(factor))
