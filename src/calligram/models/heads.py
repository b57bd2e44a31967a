"""What follows a network's pooled features: from them to the joint space."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

HeadKind = Literal["linear", "paper", "release"]


class Head(nn.Module):
    """FC, batch norm, ReLU, FC (dual-path, Sec. III-A); or as its release has it, with batch norm after the last FC.

    The release trains with the ReLU that follows the last batch norm and tests with what comes before it; its text
    branch has a single FC layer. Sizes between are the joint space's, as in the paper.
    """

    def __init__(self, features: int, dim: int, kind: str, *, layers: int = 2) -> None:
        """Args:
        layers: FC layers of the release's head.
        """
        super().__init__()
        if kind not in ("paper", "release"):
            raise ValueError(f"a head is paper or release, got {kind!r}")
        self.kind = kind
        if kind == "paper":
            self.layers = nn.Sequential(
                nn.Linear(features, dim), nn.BatchNorm1d(dim), nn.ReLU(inplace=True), nn.Linear(dim, dim)
            )
            return
        made: list[nn.Module] = []
        for number in range(layers):
            made += [nn.Linear(dim if number else features, dim, bias=False), nn.BatchNorm1d(dim)]
            made += [nn.ReLU(inplace=True)] if number + 1 < layers else []
        self.layers = nn.Sequential(*made)

    def forward(self, features: Tensor) -> Tensor:
        """(N, features) -> (N, dim)."""
        vectors: Tensor = self.layers(features)
        return torch.relu(vectors) if self.kind == "release" and self.training else vectors
