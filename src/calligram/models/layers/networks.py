"""Networks that several matchers and towers use: projection heads, text towers over states, and recurrent outputs."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from torch import Tensor, nn

from calligram.features.texts.text_encoder import TextEncoder

HeadKind = Literal["linear", "paper", "release"]
"""projection to the joint space: one FC layer, or a ``ProjectionHead`` of dual-path"""
POOLINGS = ("mean", "cls", "max")
"""how the states of an encoder become one vector"""


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


# States of a recurrent network over padded words.


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
