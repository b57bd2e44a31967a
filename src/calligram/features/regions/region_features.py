"""Features of regions: the feature map of a backbone pooled over each box, or the pixels of each box.

``roi_align`` and ``roi_pool`` (He et al., 2017) are differentiable in the feature map and in the boxes. Bilinear
interpolation is a product of one weight for each axis. The mean over the sample points of a box is therefore a product
of two small matrices, without a lookup of single points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.data.boxes import iou
from calligram.data.pictures import worker_threads
from calligram.features.images.backbones import Backbone, pixel_input
from calligram.features.images.pixels import PixelInput
from calligram.features.regions.detectors import YoloX, class_names
from calligram.features.regions.proposers import Floats, Setting
from calligram.features.transformers_models import quiet_transformers

Halves = NDArray[np.float16]
Pixels = NDArray[np.uint8]

CLASS_WEIGHT = 10.0
"""factor of the class scores of a detector, which are at most 1, next to features of a backbone"""


def roi_align(grid: Tensor, boxes: Tensor, bins: int = 7, samples: int = 2) -> Tensor:
    """Pool a feature map over each box into ``bins`` x ``bins`` values: (N, R, D, bins, bins).

    The value of a bin is the mean over ``samples`` x ``samples`` evenly spaced points. At each point, the map is
    interpolated between the centres of its cells. Beyond the outermost centres, it is constant.

    Args:
        grid: (N, D, h, w); its cells divide each image evenly.
        boxes: (N, R, 4) in relative coordinates.
    """
    across = axis_weights(boxes[..., 0], boxes[..., 2], grid.shape[3], bins, samples)
    down = axis_weights(boxes[..., 1], boxes[..., 3], grid.shape[2], bins, samples)
    images, channels, height, width = grid.shape
    # Rows first, for all channels at once, then columns: a single einsum takes thirty times as long.
    rows = down.to(grid.dtype).flatten(1, 2) @ grid.transpose(1, 2).reshape(images, height, channels * width)
    rows = rows.reshape(images, -1, bins, channels, width).transpose(2, 3)
    return rows @ across.to(grid.dtype).transpose(2, 3).unsqueeze(2)


def roi_pool(grid: Tensor, boxes: Tensor, points: int = 14) -> Tensor:
    """Mean of the feature map over ``points`` x ``points`` points in each box: (N, R, D).

    Equal to the mean of ``roi_align`` over its bins if ``points`` is bins times samples, but much faster.
    """
    across = axis_weights(boxes[..., 0], boxes[..., 2], grid.shape[3], 1, points)  # (N, R, 1, w)
    down = axis_weights(boxes[..., 1], boxes[..., 3], grid.shape[2], 1, points)  # (N, R, 1, h)
    weights = (down.transpose(2, 3) * across).flatten(2)  # (N, R, h w)
    return weights.to(grid.dtype) @ grid.flatten(2).transpose(1, 2)


def axis_weights(start: Tensor, end: Tensor, cells: int, bins: int, samples: int) -> Tensor:
    """Weight of each cell in each bin along one axis: (..., bins, cells); rows sum to one.

    Args:
        start: (...) first edge of the box in relative coordinates.
        end: (...) opposite edge of the box.
    """
    position = (torch.arange(bins * samples, device=start.device, dtype=start.dtype) + 0.5) / (bins * samples)
    points = start.unsqueeze(-1) + (end - start).unsqueeze(-1) * position
    coordinate = (points * cells - 0.5).clamp(0, cells - 1)
    centres = torch.arange(cells, device=start.device, dtype=start.dtype)
    tent = (1 - (coordinate.unsqueeze(-1) - centres).abs()).clamp(min=0)
    return tent.reshape(*start.shape, bins, samples, cells).mean(-2)


@dataclass(frozen=True)
class RegionPooling:
    """Region features from a frozen backbone: the mean of its feature map over each box.

    With a detector, the class scores of the detections that overlap the box follow.
    """

    backbone: Backbone
    pixels: PixelInput
    device: torch.device
    detector: YoloX | None = None

    @classmethod
    def load(
        cls, name: str, size: int | None = None, device: torch.device | str = "cpu", detector: str = ""
    ) -> RegionPooling:
        """Load the backbone from a folder or by a hub name.

        The whole image is squashed to a square, so that every box lies on the feature map.

        Args:
            size: side of the square in pixels; None for the default of the backbone.
            detector: file of a YOLOX detector; empty for none.
        """
        with quiet_transformers():
            backbone = Backbone.load(name)
        found = YoloX.load(Path(detector)) if detector else None
        return cls(backbone.eval().to(device), pixel_input(name, size, "squash"), torch.device(device), found)

    @property
    def dim(self) -> int:
        """Dimension of a region's features."""
        return self.backbone.dim + (self.detector.class_count if self.detector else 0)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The weights and the pixel input; collections store them, so the keys must not change."""
        numbers = " ".join(f"{v:g}" for v in (*self.pixels.mean, *self.pixels.std))
        own: dict[str, Setting] = {"network": self.backbone.fingerprint, "size": self.pixels.size}
        own["mean and std"] = numbers
        if self.detector:
            own |= {"detector": self.detector.digest, "class weight": CLASS_WEIGHT}
        return own

    @torch.inference_mode()
    def __call__(self, pixels: Sequence[Pixels], boxes: Sequence[Floats], top: int) -> Halves:
        """Pool features of up to ``top`` relative boxes in each of N images: (N, top, D), zero without a box."""
        padded, real = pad_boxes(boxes, top)
        batch = self.pixels.finish(torch.from_numpy(np.stack(pixels)).to(self.device))
        pooled = roi_pool(self.backbone(batch).grid, torch.from_numpy(padded).to(self.device))
        limit = float(np.finfo(np.float16).max)
        halves: Halves = pooled.clamp(-limit, limit).to(torch.float16).cpu().numpy()
        if self.detector:
            with worker_threads() as pool:
                scores = list(pool.map(self._class_scores, pixels, padded))
            halves = np.concatenate([halves, (CLASS_WEIGHT * np.stack(scores)).astype(np.float16)], axis=2)
        return np.where(real, halves, np.float16(0))

    def _class_scores(self, pixels: Pixels, boxes: Floats) -> Floats:
        """For each relative box (R, 4) and each class, the highest product of IoU and score of a detection: (R, C)."""
        assert self.detector is not None
        image = Image.fromarray(pixels.transpose(1, 2, 0))
        found = self.detector(image)
        assert found.scores is not None
        assert found.labels is not None
        overlap = iou(boxes, relative_boxes(image, found.boxes)) * found.scores
        names, scores = np.array(found.labels), np.zeros((len(boxes), self.detector.class_count), dtype=np.float32)
        for number, name in enumerate(class_names(self.detector.class_count)):
            if (mine := names == name).any():
                scores[:, number] = overlap[:, mine].max(axis=1)
        return scores


def relative_boxes(image: Image.Image, boxes: Floats) -> Floats:
    """Divide boxes in pixels by the width and height of the image."""
    return np.divide(boxes, np.tile(np.array(image.size, dtype=np.float32), 2), dtype=np.float32)


def pad_boxes(boxes: Sequence[Floats], top: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the boxes of N images in one array (N, top, 4), and the mask of real boxes (N, top, 1)."""
    padded = np.zeros((len(boxes), top, 4), dtype=np.float32)
    real = np.zeros((len(boxes), top, 1), dtype=bool)
    for row, image_boxes in enumerate(boxes):
        padded[row, : len(image_boxes)] = image_boxes
        real[row, : len(image_boxes)] = True
    return padded, real


@dataclass(frozen=True)
class RegionCrops:
    """Region features without a network, for simple drawings: each box resampled to ``bins`` x ``bins`` pixels.

    A margin around the box is included: it distinguishes an object from a part of an object, which looks the same
    inside the box.
    """

    backbone: ClassVar[None] = None

    pixels: PixelInput
    bins: int = 8
    margin: float = 0.25
    """width of the margin on each side, relative to the sides of the box"""

    @property
    def dim(self) -> int:
        """Dimension of a region's features."""
        return 3 * self.bins**2

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The pixel input and the sampling; collections store them, so the keys must not change."""
        return {"network": "none", "bins": self.bins, "margin": self.margin, "pixels": str(asdict(self.pixels))}

    @torch.inference_mode()
    def __call__(self, pixels: Sequence[Pixels], boxes: Sequence[Floats], top: int) -> Halves:
        """Resample up to ``top`` relative boxes in each of N images: (N, top, D), zero without a box."""
        padded, real = pad_boxes(boxes, top)
        margin = self.margin * (padded[..., 2:] - padded[..., :2])
        widened = np.concatenate([padded[..., :2] - margin, padded[..., 2:] + margin], axis=-1)
        batch = self.pixels.finish(torch.from_numpy(np.stack(pixels))).contiguous()
        crops = roi_align(batch, torch.from_numpy(widened), self.bins, 2).flatten(2)
        return np.where(real, crops.to(torch.float16).numpy(), np.float16(0))
