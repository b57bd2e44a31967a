"""Pieces that matchers are built from."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from calligram.models.reading import PackedRead, PaddedRead, Read


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut; the first may halve the image."""

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
        """(N, C_in, H, W) -> (N, C, H / stride, W / stride)."""
        return torch.relu(self.body(images) + self.shortcut(images))


class SmallCNN(nn.Module):
    """A small residual network for training from scratch: a stem and a block for every further entry of ``channels``.

    The stem and every block halve the image. The last map is pooled by its maximum and its mean: what is there counts
    wherever it stands, so that few pictures suffice to learn it.
    """

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels[0], 5, 2, 2, bias=False), nn.BatchNorm2d(channels[0]), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(*(ResidualBlock(before, after, 2) for before, after in pairwise(channels)))
        self.dim = 2 * channels[-1]

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, dim)."""
        cells = self.blocks(self.stem(images))
        return torch.cat([cells.amax((2, 3)), cells.mean((2, 3))], dim=1)


class RecurrentText(nn.Module):
    """Word table and GRU or LSTM; a text's vector is the last state (vse++), or the mean or maximum over its words.

    With ``hidden`` other than ``dim`` a linear map follows.
    """

    def __init__(
        self,
        words: int,
        word_dim: int,
        hidden: int,
        dim: int,
        *,
        bidirectional: bool,
        pooling: str,
        dropout: float,
        cell: str = "gru",
    ) -> None:
        """Args:
        cell: gru or lstm; its weights are named by it.
        """
        super().__init__()
        if cell not in ("gru", "lstm"):
            raise ValueError(f"cell must be gru or lstm, got {cell!r}")
        if pooling not in ("last", "mean", "max"):
            raise ValueError(f"pooling must be last, mean or max, got {pooling!r}")
        self.words = nn.Embedding(words, word_dim, padding_idx=0)
        # Departs from vse++'s +-0.1: words that start further apart are told apart much sooner.
        nn.init.normal_(self.words.weight, std=0.5)
        self.dropout = nn.Dropout(dropout)
        kind = nn.GRU if cell == "gru" else nn.LSTM
        self.add_module(cell, kind(word_dim, hidden, batch_first=True, bidirectional=bidirectional))
        self.cell = cell
        self.project = nn.Identity() if hidden == dim else nn.Linear(hidden, dim)
        self.pooling = pooling

    @property
    def recurrent(self) -> nn.GRU | nn.LSTM:
        """What reads the words."""
        return self.get_submodule(self.cell)  # type: ignore[return-value]

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Word numbers (N, W) and their mask -> (N, dim); both directions are averaged."""
        return self.project(self._pooled(words, mask))  # type: ignore[no-any-return]

    def states(self, words: Tensor, mask: Tensor) -> Tensor:
        """The same of each word, (N, W, dim), zero where there is none."""
        return self.project(self._read(words, mask).states) * mask.unsqueeze(-1)  # type: ignore[no-any-return]

    def _pooled(self, words: Tensor, mask: Tensor) -> Tensor:
        read = self._read(words, mask)
        if self.pooling == "last":
            return read.last
        states = read.states
        lengths, real = mask.sum(1).clamp(min=1), mask.unsqueeze(-1)
        if self.pooling == "max":
            return states.masked_fill(~real, -torch.inf).amax(1)
        return (states * real).sum(1) / lengths.unsqueeze(1)

    def _read(self, words: Tensor, mask: Tensor) -> Read:
        vectors, lengths = self.dropout(self.words(words)), mask.sum(1, keepdim=True).clamp(min=1)
        # An accelerator takes longer to unpack words, one copy for each place, than to read padding.
        kind = PaddedRead if vectors.is_cuda else PackedRead
        return kind(self.recurrent, vectors, lengths)
