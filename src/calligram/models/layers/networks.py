"""Networks that matchers are built from: a small CNN, projection heads, and recurrent text towers."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from calligram.features.images.backbones import cells_over_views
from calligram.features.images.pixels import mean_over_views
from calligram.features.images.stored_input import feature_parts, feature_vectors

HeadKind = Literal["linear", "paper", "release"]
"""projection to the joint space: one FC layer, or a ``ProjectionHead`` of dual-path"""


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


class ProjectionHead(nn.Module):
    """FC, batch norm, ReLU, FC (dual-path, Sec. III-A); or as its release has it, with batch norm after the last FC.

    The release trains with a ReLU after the last batch norm and tests without it. Its text tower has a single FC layer.
    Hidden sizes are the size of the joint space, as in the paper.
    """

    def __init__(self, features: int, dim: int, kind: str, *, layers: int = 2) -> None:
        """Args:
        layers: number of FC layers of the release's head.
        """
        super().__init__()
        if kind not in ("paper", "release"):
            raise ValueError(f"kind must be paper or release, got {kind!r}")
        self.kind = kind
        if kind == "paper":
            self.layers = nn.Sequential(
                nn.Linear(features, dim), nn.BatchNorm1d(dim), nn.ReLU(inplace=True), nn.Linear(dim, dim)
            )
            return
        modules: list[nn.Module] = []
        for number in range(layers):
            modules += [nn.Linear(dim if number else features, dim, bias=False), nn.BatchNorm1d(dim)]
            modules += [nn.ReLU(inplace=True)] if number + 1 < layers else []
        self.layers = nn.Sequential(*modules)

    def forward(self, features: Tensor) -> Tensor:
        """Map (N, features) to (N, dim)."""
        vectors: Tensor = self.layers(features)
        return torch.relu(vectors) if self.kind == "release" and self.training else vectors


class TextTower(nn.Module):
    """A text network with vectors and parts.

    Texts are word indices (N, W), states (N, W, D) or vectors (N, D). Without a mask, all words are real.
    """

    size: int
    """dimension of vectors and parts"""
    state_size: int
    """dimension of ``states``"""

    def vectors(self, texts: Tensor, mask: Tensor | None = None) -> Tensor:
        """Vectors (N, size)."""
        raise NotImplementedError

    def parts(self, texts: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Parts (N, K, size), and the mask (N, K) of the real ones."""
        states, mask = self.states(texts, mask)
        return self.project_states(states), mask

    def states(self, texts: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Parts before their projection, (N, K, state_size), and their mask."""
        raise NotImplementedError

    def project_states(self, states: Tensor) -> Tensor:
        """Map states (N, K, state_size) to parts (N, K, size)."""
        return states


def real_words(texts: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mask (N, W) of real words: the given one, or all."""
    return texts.new_ones(texts.shape[:2], dtype=torch.bool) if mask is None else mask


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
        return self.project(self._pool(texts, real_words(texts, mask)))  # type: ignore[no-any-return]

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
        # On a GPU, unpacking takes one copy per position, which is slower than the recurrence over padding.
        output = PaddedOutput if vectors.is_cuda else PackedOutput
        return output(self.recurrent, vectors, lengths)


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


# Outputs of a recurrent network over packed or padded words. Both give the same numbers.


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


class PaddedOutput:
    """Runs a recurrent network over words (N, W, D) and their padding.

    For the backward direction the words of each text are reversed and the padding stays at the end. So the state of a
    real word never depends on padding.
    """

    def __init__(self, network: nn.GRU | nn.LSTM, vectors: Tensor, lengths: Tensor) -> None:
        self._lengths = lengths
        self._runs = [_run_direction(network, vectors, "")]
        if network.bidirectional:
            self._runs.append(_run_direction(network, reverse_words(vectors, lengths), "_reverse"))

    @property
    def states(self) -> Tensor:
        """State of each word."""
        return average_directions(self._runs, self._lengths)

    @property
    def last(self) -> Tensor:
        """Mean of the last states of all directions."""
        return torch.stack([state_at(states, self._lengths - 1) for states in self._runs]).mean(0)


def _run_direction(network: nn.GRU | nn.LSTM, vectors: Tensor, suffix: str) -> Tensor:
    """States (N, W, hidden) of one direction."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = [getattr(network, f"{name}{suffix}") for name in names]
    start = vectors.new_zeros(1, len(vectors), network.hidden_size)
    rest = (weights, True, 1, 0.0, network.training, False, True)
    with warnings.catch_warnings():
        # PyTorch copies the weights of one direction out of their common block, which is cheap compared with the
        # recurrence.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        found = (
            torch.gru(vectors, start, *rest)
            if isinstance(network, nn.GRU)
            else torch.lstm(vectors, (start, start), *rest)
        )
    return found[0]


def average_directions(runs: list[Tensor], lengths: Tensor) -> Tensor:
    """States of the words in text order, averaged over the directions."""
    return runs[0] if len(runs) == 1 else (runs[0] + reverse_words(runs[1], lengths)) / 2


def reverse_words(states: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first ``lengths`` (N, 1) words of (N, W, D); padding stays in place."""
    positions = torch.arange(states.shape[1], device=states.device).unsqueeze(0)
    order = torch.where(positions < lengths, lengths - 1 - positions, positions)
    return states.gather(1, order.unsqueeze(-1).expand(-1, -1, states.shape[2]))


def state_at(states: Tensor, index: Tensor) -> Tensor:
    """Select one state per text from (N, W, D), by its index (N, 1)."""
    return states.gather(1, index.unsqueeze(-1).expand(-1, -1, states.shape[2])).squeeze(1)
