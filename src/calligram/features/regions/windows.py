"""Sliding windows of several sizes and shapes: what any other method has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from calligram.features.regions.proposer import Floats, Found, Setting

SIDES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.18)
"""share of the picture's side, the largest windows first"""
SHAPES = (1.0, 0.5, 2.0)
"""width by height, in shares of the picture's own"""


@dataclass(frozen=True)
class Windows:
    """The same windows for every picture, in shares of its sides."""

    most: int = 200
    step: float = 0.5
    """distance of neighbours in shares of the window's side"""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All fields."""
        return {"method": "grid", **asdict(self)}

    def __call__(self, image: Image.Image) -> Found:
        """Windows from large to small, those in the middle first."""
        return Found(window_shares(self.step)[: self.most] * np.tile(np.array(image.size, dtype=np.float32), 2))


@lru_cache
def window_shares(step: float) -> Floats:
    """All windows (R, 4) in shares of the picture."""
    levels = []
    for side in SIDES:
        level = [_level(min(side * shape**0.5, 1.0), min(side / shape**0.5, 1.0), step) for shape in SHAPES]
        windows = np.concatenate(level)
        centre = np.abs((windows[:, :2] + windows[:, 2:]) / 2 - 0.5).max(axis=1)
        levels.append(windows[np.argsort(centre, kind="stable")])
    joined = np.concatenate(levels).round(4)
    _, first = np.unique(joined, axis=0, return_index=True)
    return joined[np.sort(first)].astype(np.float32)


def _level(width: float, height: float, step: float) -> Floats:
    """Windows of one size, spread evenly from edge to edge."""

    def starts(side: float) -> Floats:
        count = 1 + int(np.ceil((1 - side) / (side * step) - 1e-9))
        return (
            np.linspace(0, 1 - side, count, dtype=np.float32) if count > 1 else np.array([(1 - side) / 2], np.float32)
        )

    x, y = (grid.ravel() for grid in np.meshgrid(starts(width), starts(height)))
    return np.stack([x, y, x + width, y + height], axis=1)
