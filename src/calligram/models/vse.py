"""VSE: an image branch and a recurrent text branch into one space (vse++)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from calligram.models.layers import RecurrentText, SmallCNN
from calligram.models.matcher import EmbeddingMatcher, Encoded


@dataclass(frozen=True)
class VSESettings:
    """Shape of both branches."""

    vocabulary: int
    """number of words, special ones included"""
    dim: int = 1024
    """size of the joint space"""
    image: Literal["cnn", "features"] = "cnn"
    """a small CNN on pixels, or a linear map of stored features"""
    feature_dim: int = 2048
    """size of stored features"""
    channels: tuple[int, ...] = (32, 64, 128, 256)
    """width of the CNN's blocks"""
    grid: int = 2
    """cells per side that the CNN's last map is pooled to"""
    word_dim: int = 300
    bidirectional: bool = False
    pooling: Literal["last", "mean", "max"] = "last"
    """how a text's states become its vector"""
    dropout: float = 0.0
    """share of word-vector entries set to zero in training"""


class VSE(EmbeddingMatcher):
    """Cosine of an image vector and a GRU's text vector.

    The linear image branch follows the release of vse++: Xavier-uniform weights, zero bias. Features with several parts
    per image are averaged first.
    """

    settings: VSESettings

    def __init__(self, settings: VSESettings) -> None:
        super().__init__()
        self.settings = settings
        self.image: nn.Module
        features = settings.feature_dim
        if settings.image == "cnn":
            self.image = SmallCNN(settings.channels, settings.grid)
            features = self.image.dim
        else:
            self.image = nn.Identity()
        self.project = nn.Linear(features, settings.dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)
        self.text = RecurrentText(
            settings.vocabulary,
            settings.word_dim,
            settings.dim,
            bidirectional=settings.bidirectional,
            pooling=settings.pooling,
            dropout=settings.dropout,
        )

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Pixels (N, 3, H, W), or features (N, D) or (N, R, D)."""
        if self.settings.image == "features" and images.ndim == 3:
            real = images.new_ones(images.shape[:2]) if mask is None else mask.to(images.dtype)
            images = (images * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
        return Encoded(self.project(self.image(images)))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Word numbers (N, W)."""
        mask = torch.ones_like(texts, dtype=torch.bool) if mask is None else mask
        return Encoded(self.text(texts, mask))
