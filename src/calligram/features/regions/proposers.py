"""Region proposals: the interface of all methods, sliding windows, and the catalogue of methods by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
Ints = NDArray[np.int64]
Setting = str | int | float

WINDOW_SIDES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.18)
"""sides of sliding windows relative to the image, largest first"""
WINDOW_ASPECT_RATIOS = (1.0, 0.5, 2.0)
"""width divided by height, both relative to the image"""


@dataclass(frozen=True)
class Proposals:
    """Regions of one image, best first."""

    boxes: Floats
    """(R, 4) in pixels of the image"""
    scores: Floats | None = None
    """(R,) higher is better; None if the method gives only a ranking"""
    labels: tuple[str, ...] | None = None
    """class of each region; None if the method gives no classes"""

    def keep_top(self, top: int, image: Image.Image) -> Proposals:
        """Clip boxes to the image and return the first ``top`` that cover at least one pixel."""
        boxes = clip(self.boxes.reshape(-1, 4), *image.size).astype(np.float32)
        keep = np.flatnonzero((boxes[:, 2] - boxes[:, 0] >= 1) & (boxes[:, 3] - boxes[:, 1] >= 1))[:top]
        return Proposals(
            boxes[keep],
            None if self.scores is None else self.scores[keep].astype(np.float32),
            None if self.labels is None else tuple(self.labels[i] for i in keep),
        )


class Proposer(Protocol):
    """A method that proposes regions. It is called from several threads at the same time."""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Everything that the result depends on; regions stored with other settings are computed again.

        Collections store these settings, so their keys must not change.
        """
        ...

    def __call__(self, image: Image.Image) -> Proposals:
        """Propose regions of an RGB image."""
        ...


PROPOSERS: Mapping[str, Callable[[int], Proposer]] = Catalog(
    {
        "edgeboxes": "calligram.features.regions.opencv_proposals:EdgeBoxes",
        "edgeboxes-dense": "calligram.features.regions.opencv_proposals:dense_edge_boxes",
        "selective": "calligram.features.regions.opencv_proposals:SelectiveSearch",
        "grid": "calligram.features.regions.proposers:SlidingWindows",
    }
)
"""methods by the name that the command line accepts"""


def load_proposer(name: str, top: int, device: torch.device | str = "cpu") -> Proposer:
    """Return a method of ``PROPOSERS``, or a detector from an ONNX file, a folder or a hub name.

    Several names, joined with ``+``, are the union of these methods.
    """
    from calligram.features.regions.detectors import Detector, YoloX

    if top < 1:
        raise UserError(f"top must be at least 1, got {top}")
    if name in PROPOSERS:
        return PROPOSERS[name](top)
    if len(parts := split_names(name)) > 1:
        return ProposalUnion(tuple(load_proposer(part, top, device) for part in parts), top)
    if name.endswith(".onnx"):
        return YoloX.load(Path(name), top)
    if "/" in name or Path(name).is_dir():
        return Detector.load(name, top, device)
    raise unknown("proposals", name, {*PROPOSERS, "FILE.onnx", "folder or hub name of a detector"})


def source_name(name: str) -> str:
    """Return the name of these proposals in a collection.

    >>> source_name("edgeboxes"), source_name("models/yolox_nano.onnx"), source_name("facebook/detr-resnet-50")
    ('edgeboxes', 'yolox_nano', 'detr-resnet-50')
    >>> source_name("edgeboxes+models/yolox_nano.onnx")
    'edgeboxes+yolox_nano'
    """
    if len(parts := split_names(name)) > 1:
        return "+".join(map(source_name, parts))
    plain = re.sub(r"[^\w.-]+", "-", Path(name.removesuffix(".onnx")).name)
    return plain.strip(".-") or "detector"


def split_names(name: str) -> list[str]:
    """Return the methods of a union, or the name itself. The name of an existing file or folder may contain ``+``."""
    return [name] if Path(name).exists() else name.split("+")


@dataclass(frozen=True)
class ProposalUnion:
    """Boxes of several methods: the first of each method, then the second of each, and so on.

    A box that nearly equals an earlier box is left out. There are no scores, because those of different methods cannot
    be compared.
    """

    methods: tuple[Proposer, ...]
    max_boxes: int = 200
    """boxes of each method"""
    max_iou: float = 0.9
    """largest IoU of a box with an earlier box"""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The settings of all methods, by the keys that collections store."""
        numbered = enumerate((method.settings for method in self.methods), 1)
        own = {f"{key} {number}": value for number, settings in numbered for key, value in settings.items()}
        return {"method": "union", "most": self.max_boxes, "overlap": self.max_iou, **own}

    def __call__(self, image: Image.Image) -> Proposals:
        """Return boxes, with the class where a method gives one."""
        # Dense EdgeBoxes gives many thousand boxes, too many for the overlaps of all pairs.
        found = [method(image).keep_top(self.max_boxes, image) for method in self.methods]
        boxes = np.concatenate([each.boxes for each in found])
        rank = np.concatenate([np.arange(len(each.boxes)) for each in found])
        kept = non_maximum_suppression(boxes, -rank.astype(np.float32), self.max_iou)
        labels = [label for each in found for label in each.labels or [""] * len(each.boxes)]
        return Proposals(boxes[kept], None, tuple(labels[i] for i in kept) if any(labels) else None)


@dataclass(frozen=True)
class SlidingWindows:
    """Windows of several sizes and shapes, the same for every image: the baseline of the other methods."""

    max_boxes: int = 200
    step: float = 0.5
    """distance between neighbouring windows, relative to the side of the window"""

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All fields, by the keys that collections store."""
        return {"method": "grid", "most": self.max_boxes, "step": self.step}

    def __call__(self, image: Image.Image) -> Proposals:
        """Return windows from large to small; within a size, central windows first."""
        size = np.tile(np.array(image.size, dtype=np.float32), 2)
        return Proposals(relative_windows(self.step)[: self.max_boxes] * size)


@lru_cache
def relative_windows(step: float) -> Floats:
    """Return all windows (R, 4) in relative coordinates."""
    levels = []
    for side in WINDOW_SIDES:
        level = [
            _windows_of_size(min(side * ratio**0.5, 1.0), min(side / ratio**0.5, 1.0), step)
            for ratio in WINDOW_ASPECT_RATIOS
        ]
        windows = np.concatenate(level)
        centre = np.abs((windows[:, :2] + windows[:, 2:]) / 2 - 0.5).max(axis=1)
        levels.append(windows[np.argsort(centre, kind="stable")])
    joined = np.concatenate(levels).round(4)
    _, first = np.unique(joined, axis=0, return_index=True)
    return joined[np.sort(first)].astype(np.float32)


def _windows_of_size(width: float, height: float, step: float) -> Floats:
    """Return windows of one size, evenly spaced from edge to edge."""

    def starts(side: float) -> Floats:
        count = 1 + int(np.ceil((1 - side) / (side * step) - 1e-9))
        return (
            np.linspace(0, 1 - side, count, dtype=np.float32) if count > 1 else np.array([(1 - side) / 2], np.float32)
        )

    x, y = (grid.ravel() for grid in np.meshgrid(starts(width), starts(height)))
    return np.stack([x, y, x + width, y + height], axis=1)


def non_maximum_suppression(boxes: Floats, scores: Floats, threshold: float, classes: Ints | None = None) -> Ints:
    """Return indices of the boxes whose IoU with every better kept box is at most ``threshold``, best first.

    Boxes with equal scores keep their order. With ``classes``, only boxes of the same class suppress each other.
    """
    order = np.argsort(-scores, kind="stable").astype(np.int64)
    ranked = boxes[order].astype(np.float32)
    overlaps = iou(ranked, ranked) > threshold
    if classes is not None:
        overlaps &= classes[order][:, None] == classes[order][None, :]
    kept = np.ones(len(order), dtype=bool)
    for rank in range(len(order)):
        if kept[rank]:
            kept[rank + 1 :] &= ~overlaps[rank, rank + 1 :]
    return order[kept]


def limit_side(image: Image.Image, max_side: int) -> tuple[Image.Image, float]:
    """Downscale an image so that its longer side is at most ``max_side``; return it and the factor."""
    factor = max(1.0, max(image.size) / max_side)
    if factor == 1.0:
        return image, 1.0
    size = (max(1, round(image.width / factor)), max(1, round(image.height / factor)))
    return image.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0), factor


def xywh_to_xyxy(boxes: object) -> Floats:
    """Convert OpenCV's ``x, y, width, height`` to ``x0, y0, x1, y1``; no boxes are an empty tuple in OpenCV."""
    found = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
    return np.concatenate([found[:, :2], found[:, :2] + found[:, 2:]], axis=1)
