"""BERT-like encoders as the text branch of a matcher, trained or with their states given."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calligram.features.text_encoder import TextEncoder
from calligram.models.matcher import Encoded

POOLINGS = ("mean", "cls", "max")


class PooledText(nn.Module):
    """The states of a frozen encoder, pooled and mapped linearly."""

    def __init__(self, state_dim: int, dim: int, pooling: str = "mean", dropout: float = 0.0) -> None:
        """Args:
        dropout: share of the pooled vector's entries set to zero in training.
        """
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be mean, cls or max, got {pooling!r}")
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(state_dim, dim)
        self.pooling = pooling

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """States (N, W, state_dim) and their mask -> (N, dim)."""
        return self.project(self.dropout(pooled(states, mask, self.pooling)))  # type: ignore[no-any-return]

    def encode(self, states: Tensor, mask: Tensor) -> Encoded:
        """The same with the pieces as parts (N, W, dim), in the space of the vectors."""
        return Encoded(self(states, mask), self.project(self.dropout(states)), mask)


class BertText(nn.Module):
    """A transformer over pieces of words and a linear map; a text's vector is the mean over its pieces by default.

    Built without trained weights: ``encoder.load_state_dict`` takes those of ``TextEncoder.load``.
    """

    def __init__(self, description: str, dim: int, pooling: str = "mean", dropout: float = 0.0) -> None:
        """Args:
        description: the architecture, as ``TextEncoder.description`` gives it.
        dropout: of the pooled vector; the encoder keeps its own dropout.
        """
        super().__init__()
        self.encoder = TextEncoder.from_description(description)
        self.pool = PooledText(self.encoder.dim, dim, pooling, dropout)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Numbers of pieces (N, W) and their mask -> (N, dim)."""
        return self.pool(self.encoder(words, mask), mask)  # type: ignore[no-any-return]

    def encode(self, words: Tensor, mask: Tensor) -> Encoded:
        """The same with the pieces as parts (N, W, dim), in the space of the vectors."""
        return self.pool.encode(self.encoder(words, mask), mask)


def pooled(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """One vector (N, D) of states (N, W, D): the first, or the mean or maximum over real ones."""
    if pooling == "cls":
        return states[:, 0]
    real = mask.unsqueeze(-1)
    if pooling == "max":
        return states.masked_fill(~real, -torch.inf).amax(1)
    return (states * real).sum(1) / real.sum(1).clamp(min=1)
