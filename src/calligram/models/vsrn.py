"""VSRN: graph reasoning between regions, then a GRU over the regions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from calligram.models.layers.networks import state_at
from calligram.models.layers.towers import TwoTowerSettings, image_tower, joint_projection, text_tower
from calligram.models.matcher import EmbeddingMatcher, Encoded


@dataclass(frozen=True)
class VSRNSettings(TwoTowerSettings):
    """Settings of both towers, the reasoning and the pooling; the release's sizes are 2048."""

    regions = True

    layers: Annotated[int, "number of reasoning layers", (0, 100), "rare"] = 4
    norm: Annotated[
        Literal["regions", "features"],
        "axis over which values are L2-normalised: over the regions of an image (the release), or over features",
        "rare",
    ] = "regions"
    norm_before: Annotated[bool, "also normalize before reasoning; only on MS-COCO in the release", "rare"] = True
    batch_norm: Annotated[bool, "batch normalization of the image vector; only on Flickr30K in the release", "rare"] = (
        False
    )
    reader: Annotated[
        Literal["gru", "mean"],
        "pooling of regions into a vector: GRU as in vsrn, or mean for cells without an order",
        "rare",
    ] = "gru"


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch normalization of regions (N, R, D) by the statistics of the real ones.

    It equals ``nn.BatchNorm1d`` over the real regions. To select them, their number would have to be read, which waits
    for a GPU and cannot be captured in a CUDA graph.
    """

    def forward(self, regions: Tensor, real: Tensor) -> Tensor:  # type: ignore[override]
        """Normalise regions; ``real`` (N, R) is True for real ones, and the others become values without a meaning."""
        mean, variance = self.running_mean, self.running_var
        assert mean is not None
        assert variance is not None
        values = regions.to(torch.promote_types(regions.dtype, mean.dtype))
        if self.training:
            weights = real.unsqueeze(-1).to(values.dtype)
            count = weights.sum().clamp(min=1)
            own = (values * weights).sum((0, 1)) / count
            spread = ((values - own).square() * weights).sum((0, 1)) / count
            self._track(own.detach(), spread.detach() * count / (count - 1).clamp(min=1))
            mean, variance = own, spread
        scale = self.weight * (variance + self.eps).rsqrt()
        return ((values - mean) * scale + self.bias).to(regions.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        tracked = {"running_mean": mean, "running_var": variance}
        for name, value in tracked.items():
            getattr(self, name).lerp_(value, self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


class RegionReasoning(nn.Module):
    """One reasoning step: V* = V + BN(W (R g(V))), R = theta(V)' phi(V) / N without a softmax (vsrn).

    The weight of the batch norm starts at zero, so the step starts as the identity. Padding is excluded from sums and
    statistics.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.theta, self.phi, self.values, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = MaskedBatchNorm(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, regions: Tensor, real: Tensor) -> Tensor:
        """Map (N, R, D) to (N, R, D); ``real`` (N, R) is True for real regions."""
        affinity = self.theta(regions) @ self.phi(regions).mT / real.sum(1).clamp(min=1)[:, None, None]
        messages = affinity.masked_fill(~real.unsqueeze(1), 0.0) @ self.values(regions)
        change: Tensor = self.norm(self.out(messages), real)
        return regions + change.masked_fill(~real.unsqueeze(-1), 0.0)


class VSRN(EmbeddingMatcher):
    """Cosine of an image vector, from reasoning and a GRU over regions, and a text vector (vsrn).

    The text vector of the paper is the last state of a GRU: ``text.pooling`` is ``last``. In training the regions after
    reasoning are returned as parts, for the caption decoder.
    """

    settings: VSRNSettings

    def __init__(self, settings: VSRNSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image = image_tower(settings.image)
        self.project = joint_projection(self.image.size, settings.dim)
        self.reasoning = nn.ModuleList(RegionReasoning(settings.dim) for _ in range(settings.layers))
        if settings.reader == "gru":
            self.reader = nn.GRU(settings.dim, settings.dim, batch_first=True)
        self.norm = nn.BatchNorm1d(settings.dim) if settings.batch_norm else nn.Identity()
        self.text = text_tower(settings.text, settings.dim)

    @property
    def part_size(self) -> int:
        """Size of the regions."""
        return self.settings.dim

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode features (N, R, D) in the order of the detector, or pixels (N, 3, H, W)."""
        features, real = self.image.parts(images, mask)
        # Real regions first, so that the last real state is the image vector.
        order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)
        real = real.gather(1, order)
        regions = self.project(features.gather(1, order.unsqueeze(-1).expand_as(features))) * real.unsqueeze(-1)
        if self.settings.norm_before:
            regions = self._normalise(regions)
        for step in self.reasoning:
            regions = step(regions, real)
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
        """Encode word indices (N, W), states (N, W, D) or vectors (N, D)."""
        return Encoded(self.text.vectors(texts, mask))
