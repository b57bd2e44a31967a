"""Features of regions: a backbone's map of the picture, pooled over each box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from calligram.features.images.backbones import Backbone, pixel_input
from calligram.features.images.pixels import PixelInput
from calligram.features.regions.proposers import Floats, Setting
from calligram.features.transformers_models import quiet_transformers

# ROI-align: what a map of a picture says about boxes in it (He et al., 2017), differentiable in map and boxes.
#
# Bilinear interpolation is a product of one weight per axis, so that the mean over a box's sample points is a
# product of
# two small matrices: no point is ever looked up.


def roi_align(grid: Tensor, boxes: Tensor, bins: int = 7, samples: int = 2) -> Tensor:
    """Each box as a map of ``bins`` x ``bins``: (N, R, D, bins, bins).

    A bin's value is the mean over ``samples`` x ``samples`` points, evenly spread in it; at each point the map is
    interpolated between the centres of its cells, and beyond the outermost centres it stays constant.

    Args:
        grid: (N, D, h, w), dividing each picture evenly.
        boxes: (N, R, 4) in shares of the picture's width and height.
    """
    across = axis_weights(boxes[..., 0], boxes[..., 2], grid.shape[3], bins, samples)
    down = axis_weights(boxes[..., 1], boxes[..., 3], grid.shape[2], bins, samples)
    images, channels, height, width = grid.shape
    # Rows first, for all channels at once, then columns: left to itself, einsum takes thirty times as long.
    rows = down.to(grid.dtype).flatten(1, 2) @ grid.transpose(1, 2).reshape(images, height, channels * width)
    rows = rows.reshape(images, -1, bins, channels, width).transpose(2, 3)
    return rows @ across.to(grid.dtype).transpose(2, 3).unsqueeze(2)


def roi_pool(grid: Tensor, boxes: Tensor, points: int = 14) -> Tensor:
    """The mean of the map over ``points`` x ``points`` places in each box: (N, R, D).

    Equal to the mean of ``roi_align`` over its bins where ``points`` is bins times samples, for a fraction of the work.
    """
    across = axis_weights(boxes[..., 0], boxes[..., 2], grid.shape[3], 1, points)  # (N, R, 1, w)
    down = axis_weights(boxes[..., 1], boxes[..., 3], grid.shape[2], 1, points)  # (N, R, 1, h)
    weights = (down.transpose(2, 3) * across).flatten(2)  # (N, R, h w)
    return weights.to(grid.dtype) @ grid.flatten(2).transpose(1, 2)


def axis_weights(start: Tensor, end: Tensor, cells: int, bins: int, samples: int) -> Tensor:
    """Weight of each cell in each bin along one axis: (..., bins, cells), rows sum to one.

    Args:
        start: (...) edge of the box as a share of the picture's side.
        end: (...) its far edge.
    """
    share = (torch.arange(bins * samples, device=start.device, dtype=start.dtype) + 0.5) / (bins * samples)
    points = start.unsqueeze(-1) + (end - start).unsqueeze(-1) * share
    place = (points * cells - 0.5).clamp(0, cells - 1)
    centres = torch.arange(cells, device=start.device, dtype=start.dtype)
    tent = (1 - (place.unsqueeze(-1) - centres).abs()).clamp(min=0)
    return tent.reshape(*start.shape, bins, samples, cells).mean(-2)


Halves = NDArray[np.float16]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class RegionPooling:
    """A frozen backbone, the pixels it takes, and where it runs."""

    backbone: Backbone
    pixels: PixelInput
    device: torch.device

    @classmethod
    def load(cls, name: str, size: int | None = None, device: torch.device | str = "cpu") -> RegionPooling:
        """From a folder or a hub name; ``size`` is the side the picture is squashed to, the backbone's own if None.

        The whole picture is kept, so that every box has its place on the map.
        """
        with quiet_transformers():
            backbone = Backbone.load(name)
        return cls(backbone.eval().to(device), pixel_input(name, size, "squash"), torch.device(device))

    @property
    def dim(self) -> int:
        """Numbers of a region."""
        return self.backbone.dim

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The weights and the pixels they see."""
        numbers = " ".join(f"{v:g}" for v in (*self.pixels.mean, *self.pixels.std))
        return {"network": self.backbone.fingerprint, "size": self.pixels.size, "mean and std": numbers}

    def shares(self, image: Image.Image, boxes: Floats) -> Floats:
        """Boxes in shares of the picture's sides."""
        return relative_boxes(image, boxes)

    @torch.inference_mode()
    def __call__(self, pixels: Sequence[Pixels], shares: Sequence[Floats], top: int) -> Halves:
        """Pooled features of N pictures with up to ``top`` boxes each: (N, top, D), zero where there is no box."""
        boxes, real = pad_boxes(shares, top)
        batch = self.pixels.finish(torch.from_numpy(np.stack(pixels)).to(self.device))
        pooled = roi_pool(self.backbone(batch).grid, torch.from_numpy(boxes).to(self.device))
        limit = float(np.finfo(np.float16).max)
        halves: Halves = pooled.clamp(-limit, limit).to(torch.float16).cpu().numpy()
        return np.where(real, halves, np.float16(0))


def relative_boxes(image: Image.Image, boxes: Floats) -> Floats:
    """Boxes in shares of the picture's sides."""
    return np.divide(boxes, np.tile(np.array(image.size, dtype=np.float32), 2), dtype=np.float32)


def pad_boxes(shares: Sequence[Floats], top: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Boxes of N pictures in one array (N, top, 4), and which of them are real (N, top, 1)."""
    boxes = np.zeros((len(shares), top, 4), dtype=np.float32)
    real = np.zeros((len(shares), top, 1), dtype=bool)
    for row, of_image in enumerate(shares):
        boxes[row, : len(of_image)] = of_image
        real[row, : len(of_image)] = True
    return boxes, real


# The pixels inside boxes as features: no network, for pictures drawn so plainly that a small one can read them.


@dataclass(frozen=True)
class RegionCrops:
    """Every box and what is just around it brought to ``bins`` x ``bins`` pixels, whatever its shape.

    What is around tells a whole thing from a part of one, which looks the same inside.
    """

    backbone: ClassVar[None] = None

    pixels: PixelInput
    bins: int = 8
    margin: float = 0.25
    """share of the box's sides that is seen beyond each"""

    @property
    def dim(self) -> int:
        """Numbers of a region."""
        return 3 * self.bins**2

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The pixels and how many are kept."""
        return {"network": "none", "bins": self.bins, "margin": self.margin, "pixels": str(asdict(self.pixels))}

    def shares(self, image: Image.Image, boxes: Floats) -> Floats:
        """Boxes in shares of the picture's sides."""
        return relative_boxes(image, boxes)

    @torch.inference_mode()
    def __call__(self, pixels: Sequence[Pixels], shares: Sequence[Floats], top: int) -> Halves:
        """N pictures with up to ``top`` boxes each: (N, top, D), zero where there is no box."""
        boxes, real = pad_boxes(shares, top)
        beyond = self.margin * (boxes[..., 2:] - boxes[..., :2])
        boxes = np.concatenate([boxes[..., :2] - beyond, boxes[..., 2:] + beyond], axis=-1)
        batch = self.pixels.finish(torch.from_numpy(np.stack(pixels))).contiguous()
        cut = roi_align(batch, torch.from_numpy(boxes), self.bins, 2).flatten(2)
        return np.where(real, cut.to(torch.float16).numpy(), np.float16(0))
