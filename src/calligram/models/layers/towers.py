"""Image towers and text towers: their architectures, and how a tower is built from one.

Every tower has ``vectors(x, mask)``, (N, D), and ``parts(x, mask)``, (N, K, D) with a mask (N, K). So any tower works
with any matcher. Image towers return their own features, of dimension ``size``; the matcher projects them to the joint
space. Text towers project to the joint space themselves, or keep their own dimension when ``dim`` is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor, nn

from calligram.device import GRAPH_DEVICE_TYPE
from calligram.features.images.backbones import Backbone, cells_over_views
from calligram.features.images.pixels import mean_over_views
from calligram.features.images.stored_input import feature_parts, feature_vectors
from calligram.models.layers.networks import (
    BertText,
    HeadKind,
    PaddedOutput,
    PooledText,
    TextTower,
    TextVectors,
    average_directions,
    real_words,
    reverse_words,
    state_at,
)
from calligram.models.layers.text_cnn import TextCNN, TextCNNSettings


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

    regions: ClassVar[bool] = False
    """whether the matcher takes several parts of an image, such as the cells of a backbone's grid"""
    reranks: ClassVar[bool] = False
    """whether the matcher may score pairs by more than the cosine of vectors"""
    scores_vectors: ClassVar[bool] = True
    """whether the score depends on the vectors"""

    image: ImageArchitecture = field(default_factory=ImageArchitecture)
    text: TextArchitecture = field(default_factory=TextArchitecture)
    dim: int = 1024
    """dimension of the joint space"""

    def with_towers(self, image: ImageArchitecture, text: TextArchitecture, dim: int) -> Self:
        """Return these settings with two towers and the dimension of the joint space."""
        return replace(self, image=image, text=text, dim=dim)


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


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut; the stride may halve the image."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.AvgPool2d(stride, stride, ceil_mode=True) if stride > 1 else nn.Identity(),
                nn.Conv2d(channels_in, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, C_in, H, W) to (N, C, H / stride, W / stride)."""
        return torch.relu(self.body(images) + self.shortcut(images))


class SmallCNN(nn.Module):
    """A small residual network for training from scratch: a stem, then one block for each further entry of
    ``channels``.

    The stem and every block halve the image. The vector is the maximum and the mean over all cells, so that an object
    counts at any position, and few images are enough to learn it. A part is one cell and the mean over all cells. So
    vectors and parts have the same size, and the maximum over the parts is the vector.
    """

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels[0], 5, 2, 2, bias=False), nn.BatchNorm2d(channels[0]), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(*(ResidualBlock(before, after, 2) for before, after in pairwise(channels)))
        self.size = 2 * channels[-1]

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, 3, H, W) to the feature map (N, size / 2, h, w)."""
        return self.blocks(self.stem(images))  # type: ignore[no-any-return]

    def vectors(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Vectors (N, size) of pixels (N, 3, H, W), or the mean over their views (N, V, 3, H, W)."""
        if images.ndim < 4:
            return feature_vectors(images, mask)
        return mean_over_views(self._pool, images)

    def parts(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Parts (N, h w, size) of pixels, or of an image with its mirror image, and their mask."""
        if images.ndim < 4:
            return feature_parts(images, mask)
        cells = cells_over_views(self, images)
        found = torch.cat([cells, cells.mean(1, keepdim=True).expand_as(cells)], dim=2)
        return found, found.new_ones(found.shape[:2], dtype=torch.bool) if mask is None else mask

    def _pool(self, images: Tensor) -> Tensor:
        cells = self(images)
        return torch.cat([cells.amax((2, 3)), cells.mean((2, 3))], dim=1)


class RecurrentText(TextTower):
    """Word embeddings and a GRU or LSTM; the text vector is the last state (vse++), or the mean or maximum of the
    states. Parts are the states of the words.

    A linear map follows if ``hidden`` and ``dim`` differ. States are given after that map.
    """

    def __init__(
        self,
        words: int,
        word_dim: int,
        hidden: int,
        dim: int | None,
        *,
        bidirectional: bool,
        pooling: str,
        dropout: float,
        cell: str = "gru",
    ) -> None:
        """Args:
        dim: dimension of vectors and parts; None for ``hidden``.
        cell: gru or lstm; the names of the weights begin with it.
        """
        super().__init__()
        if cell not in ("gru", "lstm"):
            raise ValueError(f"cell must be gru or lstm, got {cell!r}")
        if pooling not in ("last", "mean", "max"):
            raise ValueError(f"pooling must be last, mean or max, got {pooling!r}")
        self.size = self.state_size = hidden if dim is None else dim
        self.words = nn.Embedding(words, word_dim, padding_idx=0)
        # Departs from vse++'s +-0.1: with a larger initial spread, words become distinguishable much sooner.
        nn.init.normal_(self.words.weight, std=0.5)
        self.dropout = nn.Dropout(dropout)
        kind = nn.GRU if cell == "gru" else nn.LSTM
        self.add_module(cell, kind(word_dim, hidden, batch_first=True, bidirectional=bidirectional))
        self.cell = cell
        self.project = nn.Identity() if hidden == self.size else nn.Linear(hidden, self.size)
        self.pooling = pooling

    @property
    def recurrent(self) -> nn.GRU | nn.LSTM:
        """The GRU or LSTM."""
        return self.get_submodule(self.cell)  # type: ignore[return-value]

    def vectors(self, texts: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map word indices (N, W) and their mask to (N, size)."""
        mask = real_words(texts, None) if mask is None else mask
        return self.project(self._pool(texts, mask))  # type: ignore[no-any-return]

    def states(self, texts: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """State of each word, (N, W, size), zero for padding; and the mask."""
        mask = real_words(texts, mask)
        return self.project(self._run(texts, mask).states) * mask.unsqueeze(-1), mask

    def _pool(self, words: Tensor, mask: Tensor) -> Tensor:
        output = self._run(words, mask)
        if self.pooling == "last":
            return output.last
        states = output.states
        lengths, real = mask.sum(1).clamp(min=1), mask.unsqueeze(-1)
        if self.pooling == "max":
            return states.masked_fill(~real, -torch.inf).amax(1)
        return (states * real).sum(1) / lengths.unsqueeze(1)

    def _run(self, words: Tensor, mask: Tensor) -> RecurrentOutput:
        vectors, lengths = self.dropout(self.words(words)), mask.sum(1, keepdim=True).clamp(min=1)
        # On a GPU, unpacking takes one copy per position, which is slower than the recurrence over padding. It also
        # reads the lengths, so that it cannot be captured in a graph.
        output = PaddedOutput if vectors.device.type == GRAPH_DEVICE_TYPE else PackedOutput
        return output(self.recurrent, vectors, lengths)


class RecurrentOutput(Protocol):
    """Output of a recurrent network over texts, averaged over its directions."""

    @property
    def states(self) -> Tensor:
        """State of each word, (N, W, hidden); the values at padding are undefined."""

    @property
    def last(self) -> Tensor:
        """State after the last step, (N, hidden)."""


class PackedOutput:
    """Runs a recurrent network over words (N, W, D) without their padding."""

    def __init__(self, network: nn.GRU | nn.LSTM, vectors: Tensor, lengths: Tensor) -> None:
        self._network, self._positions = network, vectors.shape[1]
        packed = nn.utils.rnn.pack_padded_sequence(
            vectors, lengths.squeeze(1).cpu(), batch_first=True, enforce_sorted=False
        )
        self._packed, last = network(packed)
        self._last: Tensor = last if isinstance(network, nn.GRU) else last[0]

    @property
    def states(self) -> Tensor:
        """State of each word."""
        states: Tensor
        states, _ = nn.utils.rnn.pad_packed_sequence(self._packed, batch_first=True, total_length=self._positions)
        if not self._network.bidirectional:
            return states
        return (states[..., : self._network.hidden_size] + states[..., self._network.hidden_size :]) / 2

    @property
    def last(self) -> Tensor:
        """Mean of the last states of all directions."""
        return self._last.mean(0)


class PaddedRecurrentText(TextTower):
    """A ``RecurrentText`` without packed sequences, for evaluation in other runtimes such as ONNX.

    Each direction of the GRU or LSTM runs over all positions. For the backward direction the words of each text are
    reversed and the padding stays at the end. So the state of a real word never depends on padding.
    """

    def __init__(self, text: RecurrentText) -> None:
        super().__init__()
        self.words, self.project, self.pooling = text.words, text.project, text.pooling
        self.size = self.state_size = text.size
        suffixes = ("", "_reverse") if text.recurrent.bidirectional else ("",)
        self.directions = nn.ModuleList(_one_direction(text.recurrent, suffix) for suffix in suffixes)

    def vectors(self, texts: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map word indices (N, W) and their mask to (N, size)."""
        mask = real_words(texts, mask)
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        return self.project(self._pool(self._runs(texts, lengths), mask, lengths))  # type: ignore[no-any-return]

    def states(self, texts: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """State of each word, (N, W, size), zero for padding; and the mask."""
        mask = real_words(texts, mask)
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        return self.project(average_directions(self._runs(texts, lengths), lengths)) * mask.unsqueeze(-1), mask

    def _runs(self, words: Tensor, lengths: Tensor) -> list[Tensor]:
        """States of each direction, in the order of its steps."""
        vectors = self.words(words)
        runs = [self.directions[0](vectors)[0]]
        if len(self.directions) > 1:
            runs.append(self.directions[1](reverse_words(vectors, lengths))[0])
        return runs

    def _pool(self, runs: list[Tensor], mask: Tensor, lengths: Tensor) -> Tensor:
        if self.pooling == "last":  # of each direction, the state after the last word
            return torch.stack([state_at(states, lengths - 1) for states in runs]).mean(0)
        states = average_directions(runs, lengths)
        real = mask.unsqueeze(-1)
        if self.pooling == "max":
            return states.masked_fill(~real, -torch.inf).amax(1)
        return (states * real).sum(1) / lengths


def _one_direction(recurrent: nn.GRU | nn.LSTM, suffix: str) -> nn.GRU | nn.LSTM:
    one = type(recurrent)(recurrent.input_size, recurrent.hidden_size, batch_first=True)
    weights = {name: getattr(recurrent, f"{name}{suffix}") for name in one.state_dict()}
    one.load_state_dict(weights)
    return one
