"""A deep residual network over words, as those over pixels (dual-path, Sec. III-B)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calligram.features.texts.vocabulary import PAD, SPECIAL_WORDS
from calligram.models.layers.networks import ProjectionHead

BLOCKS_BY_DEPTH: dict[str, tuple[int, ...]] = {"50": (3, 4, 6, 3), "152": (3, 8, 36, 3)}
"""blocks of the residual networks of that many layers"""


@dataclass(frozen=True)
class TextCNNSettings:
    """Shape of the network; the defaults are the paper's (dual-path, Secs. III-B and VI-B) and its release's."""

    words: int
    """number of words, special ones included"""
    word_dim: int = 300
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    """residual blocks of each group; channels double from group to group"""
    width: int = 64
    """channels between the narrow layers of the first group's blocks; its output has four times as many"""
    length: int = 32
    """places for words; further words are cut off"""
    align: Literal["shift", "left"] = "shift"
    """in training, words begin at a random place, or at the first"""
    shifts: int = 1
    """outside training: how many places to begin at, around the middle one, are averaged; 0 for all there are"""
    pooling: Literal["max", "mean"] = "max"
    """over all places; the release takes the maximum, where the paper says average"""
    dropout: float = 0.0
    """share of word-vector entries set to zero in training"""

    @property
    def description(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_description(cls, description: str) -> TextCNNSettings:
        """The inverse of ``description``."""
        content = json.loads(description)
        return cls(**{**content, "blocks": tuple(content["blocks"])})


class TextBlock(nn.Module):
    """1 x 1, 1 x 2 and 1 x 1 convolutions with batch norm and a shortcut (dual-path, Fig. 3, and its release).

    A place sees itself and the one before it, so the length is kept; the first block of a group may halve it.
    """

    def __init__(self, channels_in: int, inner: int, channels: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(channels_in, inner, 1, bias=False), nn.BatchNorm2d(inner))
        self.pair = nn.Sequential(
            nn.Conv2d(inner, inner, (1, 2), (1, stride), bias=False), nn.BatchNorm2d(inner)
        )  # fmt: skip
        self.expand = nn.Sequential(nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, (1, stride), bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, places: Tensor) -> Tensor:
        """(N, C_in, 1, L) -> (N, C, 1, L / stride), halves rounded up."""
        inner = torch.relu(self.reduce(places))
        inner = torch.relu(self.pair(F.pad(inner, (1, 0))))
        return torch.relu(self.expand(inner) + self.shortcut(places))


class TextCNN(nn.Module):
    """Word table, residual blocks, pooling and a head (dual-path, Eq. 3).

    A sentence is laid out over a fixed number of places, zeros around it (Eq. 2); where it begins is drawn in training
    (position shift). Start, end and unknown words are left out, as the paper discards words its dictionary lacks. As in
    the release, batch norm follows the word table, the two middle groups halve the length, and outside training the
    vectors of several shifts are averaged before they are compared.
    """

    def __init__(self, settings: TextCNNSettings, dim: int, head: str = "paper") -> None:
        super().__init__()
        if not settings.blocks or min(settings.blocks) < 1:
            raise ValueError(f"every group needs at least one block, got {settings.blocks}")
        self.settings = settings
        self.words = nn.Embedding(settings.words, settings.word_dim, padding_idx=PAD)
        nn.init.normal_(self.words.weight, std=0.5)
        self.dropout = nn.Dropout(settings.dropout)
        self.norm = nn.BatchNorm2d(settings.word_dim)
        blocks: list[nn.Module] = []
        channels = settings.word_dim
        for group, count in enumerate(settings.blocks):
            inner = settings.width * 2**group
            for number in range(count):
                stride = 2 if number == 0 and group in (1, 2) else 1
                blocks.append(TextBlock(channels, inner, 4 * inner, stride))
                channels = 4 * inner
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, dim) if head == "linear" else ProjectionHead(channels, dim, head, layers=1)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Word numbers (N, W) and their mask -> (N, dim)."""
        kept = mask & (words >= len(SPECIAL_WORDS))
        spare = (self.settings.length - kept.sum(1)).clamp(min=0)
        if self.training:
            drawn = torch.rand(len(words), device=words.device) * (spare + 1)
            return self._from_places(place_words(words, kept, self._begin(drawn.long(), spare), self.settings.length))
        if self.settings.align == "left" or self.settings.shifts == 1:
            return self._from_places(place_words(words, kept, self._begin(spare // 2, spare), self.settings.length))
        return self._over_shifts(words, kept, spare)

    def _begin(self, shifted: Tensor, spare: Tensor) -> Tensor:
        return torch.minimum(shifted, spare) if self.settings.align == "shift" else torch.zeros_like(spare)

    def _over_shifts(self, words: Tensor, kept: Tensor, spare: Tensor) -> Tensor:
        """The mean over the places to begin at; short texts have more of them than long ones."""
        count = self.settings.length + 1 if self.settings.shifts == 0 else self.settings.shifts
        total, turns = torch.zeros((), device=words.device), torch.zeros(words.shape[0], 1, device=words.device)
        first = ((spare + 1 - count) // 2).clamp(min=0)
        for turn in range(count):
            begin = first + turn
            there = (begin <= spare).unsqueeze(1)
            vectors = self._from_places(
                place_words(words, kept, torch.minimum(begin, spare), self.settings.length)
            )  # fmt: skip
            total = total + vectors.float() * there
            turns = turns + there
        return total / turns

    def _from_places(self, places: Tensor) -> Tensor:
        """Word numbers at all places (N, L), zero where there is none -> (N, dim)."""
        vectors = self.words(places) * (places != PAD).unsqueeze(-1)
        grid = self.norm(self.dropout(vectors).transpose(1, 2).unsqueeze(2))
        seen = self.blocks(grid.contiguous(memory_format=torch.channels_last)).squeeze(2)
        pooled = seen.amax(2) if self.settings.pooling == "max" else seen.mean(2)
        return self.head(pooled)  # type: ignore[no-any-return]


def place_words(words: Tensor, kept: Tensor, begin: Tensor, length: int) -> Tensor:
    """The words that are kept, one after the other from place ``begin`` (N,) on: (N, length), zeros elsewhere.

    This is the code T of dual-path, Eq. 2, by word numbers: row i of T has its one in column l_i.
    """
    place = kept.cumsum(1) - 1 + begin.unsqueeze(1)
    # What does not fit, or is not kept, goes to a last place that is cut off.
    place = torch.where(kept & (place < length), place, length)
    out = words.new_full((words.shape[0], length + 1), PAD).scatter(1, place, words)
    return out[:, :length]
