"""What every method of proposing regions is: a function from a picture to boxes, best first."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from calligram.data.boxes import clip, iou
from calligram.errors import UserError, unknown
from calligram.lazy import Catalog

Floats = NDArray[np.float32]
Setting = str | int | float


@dataclass(frozen=True)
class Proposals:
    """Regions of one picture, best first."""

    boxes: Floats
    """(R, 4) in pixels of the picture"""
    scores: Floats | None = None
    """(R,) higher is better; None where the method only ranks"""
    labels: tuple[str, ...] | None = None
    """class of each region, where the method names it"""

    def best(self, top: int, image: Image.Image) -> Proposals:
        """The first ``top`` boxes that show at least a pixel, cut to the picture."""
        boxes = clip(self.boxes.reshape(-1, 4), *image.size).astype(np.float32)
        keep = np.flatnonzero((boxes[:, 2] - boxes[:, 0] >= 1) & (boxes[:, 3] - boxes[:, 1] >= 1))[:top]
        return Proposals(
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

    def __call__(self, image: Image.Image) -> Proposals:
        """Regions of an RGB picture."""
        ...


def limit_side(image: Image.Image, side: int) -> tuple[Image.Image, float]:
    """The picture with its longer side at most ``side``, and by how much it was divided."""
    factor = max(1.0, max(image.size) / side)
    if factor == 1.0:
        return image, 1.0
    size = (max(1, round(image.width / factor)), max(1, round(image.height / factor)))
    return image.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0), factor


def xywh_to_xyxy(boxes: object) -> Floats:
    """OpenCV's ``x, y, width, height`` as ``x0, y0, x1, y1``; it gives an empty tuple where there are none."""
    found = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
    return np.concatenate([found[:, :2], found[:, :2] + found[:, 2:]], axis=1)


# Sliding windows of several sizes and shapes: what any other method has to beat.

WINDOW_SIDES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.18)
"""share of the picture's side, the largest windows first"""
WINDOW_ASPECT_RATIOS = (1.0, 0.5, 2.0)
"""width by height, in shares of the picture's own"""


@dataclass(frozen=True)
class SlidingWindows:
    """The same windows for every picture, in shares of its sides."""

    most: int = 200
    step: float = 0.5
    """distance of neighbours in shares of the window's side"""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All fields."""
        return {"method": "grid", **asdict(self)}

    def __call__(self, image: Image.Image) -> Proposals:
        """Windows from large to small, those in the middle first."""
        return Proposals(relative_windows(self.step)[: self.most] * np.tile(np.array(image.size, dtype=np.float32), 2))


@lru_cache
def relative_windows(step: float) -> Floats:
    """All windows (R, 4) in shares of the picture."""
    levels = []
    for side in WINDOW_SIDES:
        level = [
            _windows_of_size(min(side * shape**0.5, 1.0), min(side / shape**0.5, 1.0), step)
            for shape in WINDOW_ASPECT_RATIOS
        ]
        windows = np.concatenate(level)
        centre = np.abs((windows[:, :2] + windows[:, 2:]) / 2 - 0.5).max(axis=1)
        levels.append(windows[np.argsort(centre, kind="stable")])
    joined = np.concatenate(levels).round(4)
    _, first = np.unique(joined, axis=0, return_index=True)
    return joined[np.sort(first)].astype(np.float32)


def _windows_of_size(width: float, height: float, step: float) -> Floats:
    """Windows of one size, spread evenly from edge to edge."""

    def starts(side: float) -> Floats:
        count = 1 + int(np.ceil((1 - side) / (side * step) - 1e-9))
        return (
            np.linspace(0, 1 - side, count, dtype=np.float32) if count > 1 else np.array([(1 - side) / 2], np.float32)
        )

    x, y = (grid.ravel() for grid in np.meshgrid(starts(width), starts(height)))
    return np.stack([x, y, x + width, y + height], axis=1)


# Non-maximum suppression: of boxes that overlap much, the best.

Ints = NDArray[np.int64]


def non_maximum_suppression(boxes: Floats, scores: Floats, threshold: float, classes: Ints | None = None) -> Ints:
    """Indices of the boxes that no better kept box overlaps by more than ``threshold``, best first.

    Equal scores keep their order. With ``classes`` only boxes of the same class suppress each other.
    """
    order = np.argsort(-scores, kind="stable").astype(np.int64)
    ranked = boxes[order].astype(np.float32)
    rivals = iou(ranked, ranked) > threshold
    if classes is not None:
        rivals &= classes[order][:, None] == classes[order][None, :]
    alive = np.ones(len(order), dtype=bool)
    for place in range(len(order)):
        if alive[place]:
            alive[place + 1 :] &= ~rivals[place, place + 1 :]
    return order[alive]


# Every way to propose regions, by the name the command line takes.

PROPOSERS: Mapping[str, Callable[[int], Proposer]] = Catalog(
    {
        "edgeboxes": "calligram.features.regions.opencv_proposals:EdgeBoxes",
        "selective": "calligram.features.regions.opencv_proposals:SelectiveSearch",
        "grid": "calligram.features.regions.proposers:SlidingWindows",
    }
)


def load_proposer(name: str, top: int, device: torch.device | str = "cpu") -> Proposer:
    """A method of ``PROPOSALS``, or a detector by its ONNX file, folder or hub name."""
    from calligram.features.regions.detectors import Detector, YoloX

    if top < 1:
        raise UserError(f"top must be at least 1, got {top}")
    if name in PROPOSERS:
        return PROPOSERS[name](top)
    if name.endswith(".onnx"):
        return YoloX.load(Path(name), top)
    if "/" in name or Path(name).is_dir():
        return Detector.load(name, top, device)
    raise unknown("proposals", name, {*PROPOSERS, "FILE.onnx", "folder or hub name of a detector"})


def source_name(name: str) -> str:
    """What regions of these proposals are called in a collection.

    >>> source_name("edgeboxes"), source_name("models/yolox_nano.onnx"), source_name("facebook/detr-resnet-50")
    ('edgeboxes', 'yolox_nano', 'detr-resnet-50')
    """
    plain = re.sub(r"[^\w.-]+", "-", Path(name.removesuffix(".onnx")).name)
    return plain.strip(".-") or "detector"
