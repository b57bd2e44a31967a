"""What every method of proposing regions is: a function from a picture to boxes, best first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.data.boxes import clip

Floats = NDArray[np.float32]
Setting = str | int | float


@dataclass(frozen=True)
class Found:
    """Regions of one picture, best first."""

    boxes: Floats
    """(R, 4) in pixels of the picture"""
    scores: Floats | None = None
    """(R,) higher is better; None where the method only ranks"""
    labels: tuple[str, ...] | None = None
    """class of each region, where the method names it"""

    def best(self, top: int, image: Image.Image) -> Found:
        """The first ``top`` boxes that show at least a pixel, cut to the picture."""
        boxes = clip(self.boxes.reshape(-1, 4), *image.size).astype(np.float32)
        keep = np.flatnonzero((boxes[:, 2] - boxes[:, 0] >= 1) & (boxes[:, 3] - boxes[:, 1] >= 1))[:top]
        return Found(
            boxes[keep],
            None if self.scores is None else self.scores[keep].astype(np.float32),
            None if self.labels is None else tuple(self.labels[i] for i in keep),
        )


class Proposer(Protocol):
    """Finds regions. Called from several threads at once."""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Everything that decides what is found; regions stored under other settings are found again."""
        ...

    def __call__(self, image: Image.Image) -> Found:
        """Regions of an RGB picture."""
        ...


def shrunk(image: Image.Image, side: int) -> tuple[Image.Image, float]:
    """The picture with its longer side at most ``side``, and by how much it was divided."""
    factor = max(1.0, max(image.size) / side)
    if factor == 1.0:
        return image, 1.0
    size = (max(1, round(image.width / factor)), max(1, round(image.height / factor)))
    return image.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0), factor


def from_corner_and_size(boxes: object) -> Floats:
    """OpenCV's ``x, y, width, height`` as ``x0, y0, x1, y1``; it gives an empty tuple where there are none."""
    found = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
    return np.concatenate([found[:, :2], found[:, :2] + found[:, 2:]], axis=1)
