"""VSRN: graph reasoning between regions, then a GRU over the regions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from calligram.models.layers.networks import state_at
from calligram.models.layers.part_towers import PartSettings, image_parts, image_tower, text_tower
from calligram.models.matcher import EmbeddingMatcher, Encoded


@dataclass(frozen=True)
class VSRNSettings(PartSettings):
    """Settings of both towers, the reasoning and the pooling; the release's sizes are 2048."""

    bidirectional: bool = False
    layers: int = 4
    """number of reasoning steps"""
    norm: Literal["regions", "features"] = "regions"
    """axis of the L2 normalisation of regions: over the regions of an image as in the release, or over the features of
    each region"""
    norm_before: bool = True
    """whether regions are normalised also before the reasoning: yes in the release on MS-COCO, no on Flickr30K"""
    batch_norm: bool = False
    """whether the image vector has batch norm: yes in the release on Flickr30K, no on MS-COCO"""
    reader: Literal["gru", "mean"] = "gru"
    """how regions become one vector: a GRU over the regions in their order (vsrn), or their mean. The mean is not in
    the paper; it suits the cells of a grid, which have no order of importance"""


class RegionReasoning(nn.Module):
    """One reasoning step: V* = V + BN(W (R g(V))), R = theta(V)' phi(V) / N without a softmax (vsrn).

    The weight of the batch norm starts at zero, so the step starts as the identity. Padding is excluded from sums and
    statistics.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.theta, self.phi, self.values, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, regions: Tensor, real: Tensor, positions: Tensor) -> Tensor:
        """Map (N, R, D) to (N, R, D).

        Args:
            real: (N, R) True for real regions.
            positions: indices of the real regions in the flattened N * R.
        """
        affinity = self.theta(regions) @ self.phi(regions).mT / real.sum(1).clamp(min=1)[:, None, None]
        messages = affinity.masked_fill(~real.unsqueeze(1), 0.0) @ self.values(regions)
        change = self.norm(self.out(messages.flatten(0, 1)[positions]))
        return regions + torch.zeros_like(messages.flatten(0, 1)).index_copy(
            0, positions, change.to(messages.dtype)
        ).view_as(messages)


class VSRN(EmbeddingMatcher):
    """Cosine of an image vector, from reasoning and a GRU over regions, and the last state of a text (vsrn).

    In training the regions after reasoning are returned as parts, for the caption decoder.
    """

    settings: VSRNSettings

    def __init__(self, settings: VSRNSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image, self.project = image_tower(settings)
        self.reasoning = nn.ModuleList(RegionReasoning(settings.dim) for _ in range(settings.layers))
        if settings.reader == "gru":
            self.reader = nn.GRU(settings.dim, settings.dim, batch_first=True)
        self.norm = nn.BatchNorm1d(settings.dim) if settings.batch_norm else nn.Identity()
        self.text = text_tower(settings, "last" if settings.text == "gru" else "mean")

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode features (N, R, D) in the order of the detector, or pixels (N, 3, H, W) for a backbone."""
        features, real = image_parts(self.image, images, mask)
        # Real regions first, so that the last real state is the image vector.
        order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)
        real = real.gather(1, order)
        regions = self.project(features.gather(1, order.unsqueeze(-1).expand_as(features))) * real.unsqueeze(-1)
        if self.settings.norm_before:
            regions = self._normalise(regions)
        positions = real.flatten().nonzero().squeeze(1)
        for step in self.reasoning:
            regions = step(regions, real, positions)
        regions = self._normalise(regions)
        vectors = self.norm(self._pool(regions * real.unsqueeze(-1), real.sum(1, keepdim=True)))
        return Encoded(vectors, regions, real) if self.training else Encoded(vectors)

    def _pool(self, regions: Tensor, count: Tensor) -> Tensor:
        """Pool the real regions, which come first, to one vector per image; ``count`` (N, 1) is their number."""
        if self.settings.reader == "mean":
            return regions.sum(1) / count.clamp(min=1)
        states, _ = self.reader(regions)
        return state_at(states, (count - 1).clamp(min=0))

    def _normalise(self, regions: Tensor) -> Tensor:
        return nn.functional.normalize(regions, dim=1 if self.settings.norm == "regions" else 2, eps=1e-8)

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode word indices (N, W), or states (N, W, D)."""
        mask = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device) if mask is None else mask
        return Encoded(self.text(texts, mask))
