"""Towers of matchers with parts: images as regions or grid cells, texts as words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from calligram.features.images.backbones import Backbone, grid_cells
from calligram.features.images.stored_input import real_parts
from calligram.features.texts.text_encoder import TextEncoder
from calligram.models.layers.networks import PaddedRecurrentText, RecurrentText
from calligram.models.matcher import Encoded

POOLINGS = ("mean", "cls", "max")
"""how the states of a text become one vector"""


@dataclass(frozen=True)
class PartSettings:
    """Settings of both towers; the defaults are those of scan and bfan."""

    vocabulary: int
    """number of words, including special words"""
    dim: int = 1024
    """size of the joint space"""
    image: Literal["features", "backbone"] = "features"
    """stored features of regions or cells, or the cells of a trained backbone"""
    backbone: str = ""
    """architecture of the backbone, from ``Backbone.description``"""
    feature_dim: int = 2048
    """size of stored features"""
    text: Literal["gru", "bert", "states"] = "gru"
    """word embeddings with a GRU, a trained BERT-like encoder, or a linear map of a frozen encoder's states"""
    encoder: str = ""
    """architecture of the text encoder, from ``TextEncoder.description``"""
    state_dim: int = 0
    """size of the states of the frozen encoder"""
    word_dim: int = 300
    hidden: int = 1024
    """size of the GRU's state"""
    bidirectional: bool = True
    """two directions, whose states are averaged"""
    dropout: float = 0.0
    """share of word embedding entries, or of encoder states, set to zero in training"""


def image_tower(settings: PartSettings) -> tuple[nn.Module, nn.Linear]:
    """The image network, and the linear map of each part (Xavier-uniform, zero bias)."""
    network: nn.Module = nn.Identity()
    size = settings.feature_dim
    if settings.image == "backbone":
        backbone = Backbone.from_description(settings.backbone)
        network, size = backbone, backbone.dim
    project = nn.Linear(size, settings.dim)
    nn.init.xavier_uniform_(project.weight)
    nn.init.zeros_(project.bias)
    return network, project


def image_parts(branch: nn.Module, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Features of the parts (N, R, D) and their mask.

    Args:
        images: features (N, R, D), all zero for padding; vectors (N, D), one part each; or pixels (N, 3, H, W) for a
            backbone, or (N, 2, 3, H, W) with their mirror images. Features may replace pixels: the output of the
            backbone, precomputed while it is frozen.
    """
    if images.ndim > 3:
        images = grid_cells(branch, images)
        mask = torch.ones(images.shape[:2], dtype=torch.bool, device=images.device) if mask is None else mask
    if images.ndim == 2:
        images = images.unsqueeze(1)
    return images, real_parts(images) if mask is None else mask


def text_tower(
    settings: PartSettings, pooling: str = "mean", cell: str = "gru"
) -> RecurrentText | BertText | PooledText:
    """The text network.

    Args:
        cell: gru or lstm, if there are word embeddings.
    """
    if settings.text == "states":
        return PooledText(settings.state_dim, settings.dim, pooling, settings.dropout)
    if settings.text == "bert":
        return BertText(settings.encoder, settings.dim, pooling, settings.dropout)
    return RecurrentText(
        settings.vocabulary, settings.word_dim, settings.hidden, settings.dim, bidirectional=settings.bidirectional,
        pooling=pooling, dropout=settings.dropout, cell=cell,
    )  # fmt: skip


def text_parts(branch: nn.Module, texts: Tensor, mask: Tensor) -> Tensor:
    """Words or word pieces (N, W, dim) of word indices (N, W) or states (N, W, D)."""
    if isinstance(branch, RecurrentText | PaddedRecurrentText):
        return branch.states(texts, mask)
    assert isinstance(branch, BertText | PooledText)
    parts = branch.encode(texts, mask).parts
    assert parts is not None
    return parts


class PooledText(nn.Module):
    """Pooled states of a frozen encoder, with a linear map."""

    def __init__(self, state_dim: int, dim: int, pooling: str = "mean", dropout: float = 0.0) -> None:
        """Args:
        dropout: share of entries of the pooled vector set to zero in training.
        """
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be mean, cls or max, got {pooling!r}")
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(state_dim, dim)
        self.pooling = pooling

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Map states (N, W, state_dim) and their mask to (N, dim)."""
        return self.project(self.dropout(pool_states(states, mask, self.pooling)))  # type: ignore[no-any-return]

    def encode(self, states: Tensor, mask: Tensor) -> Encoded:
        """Return vectors, and word pieces as parts (N, W, dim) in the same space."""
        return Encoded(self(states, mask), self.project(self.dropout(states)), mask)


class BertText(nn.Module):
    """A BERT-like transformer over word pieces and a linear map; the text vector is the mean over pieces by default.

    The weights are random: load trained ones into ``encoder`` from ``TextEncoder.load``.
    """

    def __init__(self, description: str, dim: int, pooling: str = "mean", dropout: float = 0.0) -> None:
        """Args:
        description: architecture, from ``TextEncoder.description``.
        dropout: dropout of the pooled vector; the encoder has its own dropout.
        """
        super().__init__()
        self.encoder = TextEncoder.from_description(description)
        self.pool = PooledText(self.encoder.dim, dim, pooling, dropout)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Map word piece indices (N, W) and their mask to (N, dim)."""
        return self.pool(self.encoder(words, mask), mask)  # type: ignore[no-any-return]

    def encode(self, words: Tensor, mask: Tensor) -> Encoded:
        """Return vectors, and word pieces as parts (N, W, dim) in the same space."""
        return self.pool.encode(self.encoder(words, mask), mask)


def pool_states(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Pool states (N, W, D) to (N, D): the first state, or the mean or maximum over real ones."""
    if pooling == "cls":
        return states[:, 0]
    real = mask.unsqueeze(-1)
    if pooling == "max":
        return states.masked_fill(~real, -torch.inf).amax(1)
    return (states * real).sum(1) / real.sum(1).clamp(min=1)
