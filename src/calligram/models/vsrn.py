"""VSRN: regions that reason about each other, read one after the other into one vector."""

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
    """Both sides, and what is between regions and the image's vector; the release's sizes are 2048."""

    bidirectional: bool = False
    layers: int = 4
    """steps of reasoning"""
    norm: Literal["regions", "features"] = "regions"
    """the axis along which regions get length one: over an image's regions as in the release, or each region's own"""
    norm_before: bool = True
    """also before the reasoning: the release on MS-COCO, not on Flickr30K"""
    batch_norm: bool = False
    """of the image's vector: the release on Flickr30K, not on MS-COCO"""
    reader: Literal["gru", "mean"] = "gru"
    """what makes regions one vector: vsrn's GRU over them as they stand; or, ours, their mean, for the cells of a grid,
    which have no order of importance to be read in"""


class RegionReasoning(nn.Module):
    """A step of reasoning: V* = V + BN(W (R g(V))), R = theta(V)' phi(V) / N without a softmax (vsrn).

    Batch normalisation starts at zero, so the step starts as the identity. Regions that only fill up are left out of
    sums and statistics.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.theta, self.phi, self.values, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, regions: Tensor, real: Tensor, places: Tensor) -> Tensor:
        """(N, R, D) -> (N, R, D).

        Args:
            real: (N, R) which regions there are.
            places: their numbers among N * R.
        """
        affinity = self.theta(regions) @ self.phi(regions).mT / real.sum(1).clamp(min=1)[:, None, None]
        seen = affinity.masked_fill(~real.unsqueeze(1), 0.0) @ self.values(regions)
        change = self.norm(self.out(seen.flatten(0, 1)[places]))
        return regions + torch.zeros_like(seen.flatten(0, 1)).index_copy(0, places, change.to(seen.dtype)).view_as(seen)


class VSRN(EmbeddingMatcher):
    """Cosine of an image's vector, from regions after reasoning and a GRU over them, and a text's last state (vsrn).

    In training the regions after reasoning are given as parts, for the objective that writes captions from them.
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
        """Features (N, R, D) in the order a detector gave them, or pixels (N, 3, H, W) for a backbone."""
        features, real = image_parts(self.image, images, mask)
        # Real regions first, so that the state after the last of them is the image's.
        order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)
        real = real.gather(1, order)
        regions = self.project(features.gather(1, order.unsqueeze(-1).expand_as(features))) * real.unsqueeze(-1)
        if self.settings.norm_before:
            regions = self._at_length_one(regions)
        places = real.flatten().nonzero().squeeze(1)
        for step in self.reasoning:
            regions = step(regions, real, places)
        regions = self._at_length_one(regions)
        vectors = self.norm(self._read(regions * real.unsqueeze(-1), real.sum(1, keepdim=True)))
        return Encoded(vectors, regions, real) if self.training else Encoded(vectors)

    def _read(self, regions: Tensor, count: Tensor) -> Tensor:
        """One vector of the real regions, which come first and of which there are so many (N, 1)."""
        if self.settings.reader == "mean":
            return regions.sum(1) / count.clamp(min=1)
        states, _ = self.reader(regions)
        return state_at(states, (count - 1).clamp(min=0))

    def _at_length_one(self, regions: Tensor) -> Tensor:
        return nn.functional.normalize(regions, dim=1 if self.settings.norm == "regions" else 2, eps=1e-8)

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Word numbers (N, W), or states (N, W, D)."""
        mask = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device) if mask is None else mask
        return Encoded(self.text(texts, mask))
