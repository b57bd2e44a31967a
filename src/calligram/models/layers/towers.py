"""Image towers and text towers: their architectures, and how a tower is built from one.

Every tower has ``vectors(x, mask)``, (N, D), and ``parts(x, mask)``, (N, K, D) with a mask (N, K). So any tower works
with any matcher. Image towers return their own features, of dimension ``size``; the matcher projects them to the joint
space. Text towers project to the joint space themselves, or keep their own dimension when ``dim`` is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from calligram.features.images.backbones import Backbone
from calligram.features.images.stored_input import feature_parts, feature_vectors
from calligram.features.texts.text_encoder import TextEncoder
from calligram.models.layers.networks import HeadKind, RecurrentText, SmallCNN, TextTower, real_words
from calligram.models.layers.text_cnn import TextCNN, TextCNNSettings

POOLINGS = ("mean", "cls", "max")
"""how the states of an encoder become one vector"""


@dataclass(frozen=True)
class ImageArchitecture:
    """Architecture of an image tower, saved with a matcher."""

    kind: Literal["cnn", "features", "backbone"] = "features"
    """a small CNN on pixels, stored features, or a trained backbone"""
    feature_dim: int = 2048
    """dimension of stored features"""
    backbone: str = ""
    """architecture of the backbone, from ``Backbone.description``"""
    channels: tuple[int, ...] = (32, 64, 128, 256)
    """channels of the CNN's stem and blocks"""


@dataclass(frozen=True)
class TextArchitecture:
    """Architecture of a text tower, saved with a matcher."""

    kind: Literal["gru", "lstm", "cnn", "bert", "states", "vectors"] = "gru"
    """word embeddings with a GRU, an LSTM or a CNN; a trained BERT-like encoder; states of a frozen encoder; or fitted
    text vectors"""
    vocabulary: int = 0
    """number of words, including special words"""
    word_dim: int = 300
    """dimension of word embeddings"""
    hidden: int = 1024
    """dimension of the state of the GRU or LSTM"""
    bidirectional: bool = False
    """two directions, whose states are averaged"""
    pooling: Literal["last", "mean", "max", "cls"] = "mean"
    """how the states of a text become one vector"""
    dropout: float = 0.0
    """share of entries of word embeddings, of encoder states or of text vectors that are set to zero in training"""
    encoder: str = ""
    """architecture of the text encoder, from ``TextEncoder.description``"""
    state_dim: int = 0
    """dimension of the states of a frozen encoder, or of fitted text vectors"""
    cnn: str = ""
    """architecture of the text CNN, from ``TextCNNSettings.description``"""


@dataclass(frozen=True)
class TwoTowerSettings:
    """Settings of every matcher that is made of two towers and a score; a subclass adds the settings of its score."""

    image: ImageArchitecture = field(default_factory=ImageArchitecture)
    text: TextArchitecture = field(default_factory=TextArchitecture)
    dim: int = 1024
    """dimension of the joint space"""


def image_tower(architecture: ImageArchitecture) -> SmallCNN | Backbone | FeatureTower:
    """Build an image tower with random weights."""
    if architecture.kind == "cnn":
        return SmallCNN(architecture.channels)
    if architecture.kind == "backbone":
        return Backbone.from_description(architecture.backbone)
    if architecture.kind == "features":
        return FeatureTower(architecture.feature_dim)
    raise ValueError(f"the kind of an image tower must be cnn, features or backbone, got {architecture.kind!r}")


def text_tower(architecture: TextArchitecture, dim: int | None, head: HeadKind = "linear") -> TextTower:
    """Build a text tower with random weights.

    Args:
        dim: dimension of vectors and parts; None for the tower's own dimension, without a projection.
        head: projection of the text CNN to ``dim``.
    """
    own = architecture
    if own.kind == "cnn":
        return TextCNN(TextCNNSettings.from_description(own.cnn), dim, head)
    if own.kind == "bert":
        return BertText(own.encoder, dim, own.pooling, own.dropout)
    if own.kind == "states":
        return PooledText(own.state_dim, dim, own.pooling, own.dropout)
    if own.kind == "vectors":
        return TextVectors(own.state_dim, dim, own.dropout)
    return RecurrentText(
        own.vocabulary, own.word_dim, own.hidden, dim, bidirectional=own.bidirectional, pooling=own.pooling,
        dropout=own.dropout, cell=own.kind,
    )  # fmt: skip


def joint_projection(features: int, dim: int) -> nn.Linear:
    """Linear map to the joint space: Xavier-uniform weights, zero bias."""
    linear = nn.Linear(features, dim)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class FeatureTower(nn.Module):
    """No image network: the inputs are features (N, D) or (N, R, D), where parts of zeros are padding."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def vectors(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mean over the real parts, (N, D)."""
        return feature_vectors(images, mask)

    def parts(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The features (N, R, D), or (N, 1, D) of vectors, and the mask of the real ones."""
        return feature_parts(images, mask)


class TextVectors(TextTower):
    """No text network: the inputs are fitted vectors (N, D), with a linear map if ``dim`` is given.

    A text has one part, its vector.
    """

    def __init__(self, state_dim: int, dim: int | None = None, dropout: float = 0.0) -> None:
        """Args:
        dropout: share of entries of the vector set to zero in training.
        """
        super().__init__()
        self.size = self.state_size = state_dim if dim is None else dim
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Identity() if dim is None else nn.Linear(state_dim, dim)

    def vectors(self, texts: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map (N, D) to (N, size)."""
        del mask
        return self.project(self.dropout(texts))  # type: ignore[no-any-return]

    def states(self, texts: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The vector as the only part, (N, 1, size)."""
        vectors = self.vectors(texts, mask).unsqueeze(1)
        return vectors, vectors.new_ones(vectors.shape[:2], dtype=torch.bool)


class PooledText(TextTower):
    """Pooled states of a frozen encoder, with a linear map if ``dim`` is given; parts are word pieces."""

    def __init__(self, state_dim: int, dim: int | None, pooling: str = "mean", dropout: float = 0.0) -> None:
        """Args:
        dropout: share of entries of the pooled vector, or of the states, set to zero in training.
        """
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be mean, cls or max, got {pooling!r}")
        self.state_size, self.size = state_dim, state_dim if dim is None else dim
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Identity() if dim is None else nn.Linear(state_dim, dim)
        self.pooling = pooling

    def vectors(self, texts: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map states (N, W, state_dim) and their mask to (N, size)."""
        pooled = pool_states(texts, real_words(texts, mask), self.pooling)
        return self.project(self.dropout(pooled))  # type: ignore[no-any-return]

    def states(self, texts: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The states after dropout, and their mask."""
        return self.dropout(texts), real_words(texts, mask)

    def project_states(self, states: Tensor) -> Tensor:
        """Map each state to the space of the vectors."""
        return self.project(states)  # type: ignore[no-any-return]


class BertText(TextTower):
    """A BERT-like transformer over word pieces, then ``PooledText``; the text vector is the mean over pieces by
    default.

    The weights are random: load trained ones into ``encoder`` from ``TextEncoder.load``.
    """

    def __init__(self, description: str, dim: int | None, pooling: str = "mean", dropout: float = 0.0) -> None:
        """Args:
        description: architecture, from ``TextEncoder.description``.
        dropout: dropout of the pooled vector, or of the states; the encoder has its own dropout.
        """
        super().__init__()
        self.encoder = TextEncoder.from_description(description)
        self.pool = PooledText(self.encoder.dim, dim, pooling, dropout)
        self.state_size, self.size = self.pool.state_size, self.pool.size

    def vectors(self, texts: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map word piece indices (N, W) and their mask to (N, size)."""
        mask = real_words(texts, mask)
        return self.pool.vectors(self.encoder(texts, mask), mask)

    def states(self, texts: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The states of the encoder after dropout, and their mask."""
        mask = real_words(texts, mask)
        return self.pool.states(self.encoder(texts, mask), mask)

    def project_states(self, states: Tensor) -> Tensor:
        """Map each state to the space of the vectors."""
        return self.pool.project_states(states)


def pool_states(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Pool states (N, W, D) to (N, D): the first state, or the mean or maximum over real ones."""
    if pooling == "cls":
        return states[:, 0]
    real = mask.unsqueeze(-1)
    if pooling == "max":
        return states.masked_fill(~real, -torch.inf).amax(1)
    return (states * real).sum(1) / real.sum(1).clamp(min=1)
