"""Features of regions: a backbone's map of the picture, pooled over each box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from calligram.features.architectures import quiet
from calligram.features.backbones import Backbone, pixel_input
from calligram.features.pixels import PixelInput
from calligram.features.regions.proposer import Floats, Setting
from calligram.features.roi import roi_pool

Halves = NDArray[np.float16]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Pooling:
    """A frozen backbone, the pixels it takes, and where it runs."""

    backbone: Backbone
    pixels: PixelInput
    device: torch.device

    @classmethod
    def load(cls, name: str, size: int | None = None, device: torch.device | str = "cpu") -> Pooling:
        """From a folder or a hub name; ``size`` is the side the picture is squashed to, the backbone's own if None.

        The whole picture is kept, so that every box has its place on the map.
        """
        with quiet():
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
        return in_shares(image, boxes)

    @torch.inference_mode()
    def __call__(self, pixels: Sequence[Pixels], shares: Sequence[Floats], top: int) -> Halves:
        """Pooled features of N pictures with up to ``top`` boxes each: (N, top, D), zero where there is no box."""
        boxes, real = padded(shares, top)
        batch = self.pixels.finish(torch.from_numpy(np.stack(pixels)).to(self.device))
        pooled = roi_pool(self.backbone(batch).grid, torch.from_numpy(boxes).to(self.device))
        limit = float(np.finfo(np.float16).max)
        halves: Halves = pooled.clamp(-limit, limit).to(torch.float16).cpu().numpy()
        return np.where(real, halves, np.float16(0))


def in_shares(image: Image.Image, boxes: Floats) -> Floats:
    """Boxes in shares of the picture's sides."""
    return np.divide(boxes, np.tile(np.array(image.size, dtype=np.float32), 2), dtype=np.float32)


def padded(shares: Sequence[Floats], top: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Boxes of N pictures in one array (N, top, 4), and which of them are real (N, top, 1)."""
    boxes = np.zeros((len(shares), top, 4), dtype=np.float32)
    real = np.zeros((len(shares), top, 1), dtype=bool)
    for row, of_image in enumerate(shares):
        boxes[row, : len(of_image)] = of_image
        real[row, : len(of_image)] = True
    return boxes, real
