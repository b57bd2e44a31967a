"""The pixels inside boxes as features: no network, for pictures drawn so plainly that a small one can read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
import torch
from PIL import Image

from calligram.features.pixels import PixelInput
from calligram.features.regions.pooling import Halves, Pixels, in_shares, padded
from calligram.features.regions.proposer import Floats, Setting
from calligram.features.roi import roi_align


@dataclass(frozen=True)
class Crops:
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
        return in_shares(image, boxes)

    @torch.inference_mode()
    def __call__(self, pixels: Sequence[Pixels], shares: Sequence[Floats], top: int) -> Halves:
        """N pictures with up to ``top`` boxes each: (N, top, D), zero where there is no box."""
        boxes, real = padded(shares, top)
        beyond = self.margin * (boxes[..., 2:] - boxes[..., :2])
        boxes = np.concatenate([boxes[..., :2] - beyond, boxes[..., 2:] + beyond], axis=-1)
        batch = self.pixels.finish(torch.from_numpy(np.stack(pixels))).contiguous()
        cut = roi_align(batch, torch.from_numpy(boxes), self.bins, 2).flatten(2)
        return np.where(real, cut.to(torch.float16).numpy(), np.float16(0))
