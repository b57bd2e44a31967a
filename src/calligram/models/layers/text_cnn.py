"""Convolutions over words: a deep residual network with the design of image networks (dual-path, Sec. III-B), and
n-gram filters (mmca, Eqs. 6 and 7).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from calligram.features.texts.vocabulary import PAD, SPECIAL_WORDS
from calligram.models.layers.networks import ProjectionHead, TextTower, real_words

BLOCKS_BY_DEPTH: dict[str, tuple[int, ...]] = {"50": (3, 4, 6, 3), "152": (3, 8, 36, 3)}
"""residual blocks per group, by the number of layers of the network"""
NGRAM_SIZES = (1, 2, 3)
"""words of the n-gram filters"""


@dataclass(frozen=True)
class TextCNNSettings:
    """Architecture; the defaults are the paper's (dual-path, Secs. III-B and VI-B) and its release's."""

    words: int
    """number of words, including special words"""
    word_dim: int = 300
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    """residual blocks of each group; channels double from group to group"""
    width: int = 64
    """inner channels of the first group's blocks; their output has four times as many"""
    length: int = 32
    """number of word positions; longer texts are truncated"""
    align: Literal["shift", "left"] = "shift"
    """first word position in training: random (shift), or the first (left)"""
    shifts: int = 1
    """outside training: number of start positions, around the middle one, whose vectors are averaged; 0 for all"""
    pooling: Literal["max", "mean"] = "max"
    """pooling over all positions; the release takes the maximum, the paper says average"""
    dropout: float = 0.0
    """share of word embedding entries set to zero in training"""

    @property
    def description(self) -> str:
        """All settings as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_description(cls, description: str) -> TextCNNSettings:
        """Read the output of ``description``."""
        content = json.loads(description)
        return cls(**{**content, "blocks": tuple(content["blocks"])})


class TextBlock(nn.Module):
    """1 x 1, 1 x 2 and 1 x 1 convolutions with batch norm and a shortcut (dual-path, Fig. 3, and its release).

    Each position depends on itself and the previous one, so the length is kept. The first block of a group may halve
    it.
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

    def forward(self, positions: Tensor) -> Tensor:
        """Map (N, C_in, 1, L) to (N, C, 1, L / stride), rounded up."""
        inner = torch.relu(self.reduce(positions))
        inner = torch.relu(self.pair(F.pad(inner, (1, 0))))
        return torch.relu(self.expand(inner) + self.shortcut(positions))


class TextCNN(TextTower):
    """Word embeddings, residual blocks, pooling and a head (dual-path, Eq. 3).

    A sentence is placed on a fixed number of positions, with zeros around it (Eq. 2). In training its start is random
    (position shift). Start, end and unknown words are left out, as the paper discards words that are not in its
    dictionary. As in the release, batch norm follows the embeddings, the two middle groups halve the length, and
    outside training the vectors of several shifts are averaged before the comparison.

    Parts are the positions of the last feature map, which the head projects as it projects the vector. Outside
    training they come from the middle start position alone.
    """

    def __init__(self, settings: TextCNNSettings, dim: int | None, head: str = "paper") -> None:
        """Args:
        dim: dimension of vectors and parts; None for the channels of the last block, without a head.
        """
        super().__init__()
        if not settings.blocks or min(settings.blocks) < 1:
            raise ValueError(f"every group must have at least one block, got {settings.blocks}")
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
        self.size = self.state_size = channels if dim is None else dim
        self.head: nn.Module = nn.Identity()
        if dim is not None:
            self.head = nn.Linear(channels, dim) if head == "linear" else ProjectionHead(channels, dim, head, layers=1)

    def vectors(self, texts: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map word indices (N, W) and their mask to (N, size)."""
        kept, spare = self._kept_words(texts, mask)
        if self.training or self.settings.align == "left" or self.settings.shifts == 1:
            return self._from_positions(self._place_once(texts, kept, spare))
        return self._mean_over_shifts(texts, kept, spare)

    def states(self, texts: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Positions of the last feature map after the head, (N, P, size), and the mask of positions that cover words.

        A text without a kept word has one part, its first position.
        """
        positions = self._place_once(texts, *self._kept_words(texts, mask))
        cells = self._feature_map(positions).transpose(1, 2)
        parts = self.head(cells.flatten(0, 1)).view(*cells.shape[:2], self.size)
        real = _covered(positions != PAD, cells.shape[1])
        real[:, 0] |= ~real.any(1)
        return parts, real

    def _kept_words(self, words: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mask of the words that are not special, and the number of free positions."""
        kept = real_words(words, mask) & (words >= len(SPECIAL_WORDS))
        return kept, (self.settings.length - kept.sum(1)).clamp(min=0)

    def _place_once(self, words: Tensor, kept: Tensor, spare: Tensor) -> Tensor:
        """Words at one start position (N, L): random in training, else the middle one."""
        shifted = spare // 2
        if self.training:
            shifted = (torch.rand(len(words), device=words.device) * (spare + 1)).long()
        return place_words(words, kept, self._begin(shifted, spare), self.settings.length)

    def _begin(self, shifted: Tensor, spare: Tensor) -> Tensor:
        return torch.minimum(shifted, spare) if self.settings.align == "shift" else torch.zeros_like(spare)

    def _mean_over_shifts(self, words: Tensor, kept: Tensor, spare: Tensor) -> Tensor:
        """Mean over the start positions; short texts have more of them than long ones."""
        count = self.settings.length + 1 if self.settings.shifts == 0 else self.settings.shifts
        total, turns = torch.zeros((), device=words.device), torch.zeros(words.shape[0], 1, device=words.device)
        first = ((spare + 1 - count) // 2).clamp(min=0)
        for turn in range(count):
            begin = first + turn
            there = (begin <= spare).unsqueeze(1)
            vectors = self._from_positions(
                place_words(words, kept, torch.minimum(begin, spare), self.settings.length)
            )  # fmt: skip
            total = total + vectors.float() * there
            turns = turns + there
        return total / turns

    def _from_positions(self, positions: Tensor) -> Tensor:
        """Map word indices at all positions (N, L), zero for none, to (N, size)."""
        cells = self._feature_map(positions)
        return self.head(cells.amax(2) if self.settings.pooling == "max" else cells.mean(2))  # type: ignore[no-any-return]

    def _feature_map(self, positions: Tensor) -> Tensor:
        """Map word indices at all positions (N, L) to (N, channels, P)."""
        vectors = self.words(positions) * (positions != PAD).unsqueeze(-1)
        grid = self.norm(self.dropout(vectors).transpose(1, 2).unsqueeze(2))
        return self.blocks(grid.contiguous(memory_format=torch.channels_last)).squeeze(2)  # type: ignore[no-any-return]


def _covered(words: Tensor, count: int) -> Tensor:
    """Mask (N, count) of the cells of a feature map whose own positions have a word, from the mask of words (N, L).

    A block sees a position and the one before it, so the cell of position p is p / stride, rounded up.
    """
    length = words.shape[1]
    stride = -(-length // count)
    cell = ((torch.arange(length, device=words.device) + stride - 1) // stride).clamp(max=count - 1)
    return torch.zeros(len(words), count, device=words.device).index_add(1, cell, words.float()) > 0


def place_words(words: Tensor, kept: Tensor, begin: Tensor, length: int) -> Tensor:
    """Place the kept words one after the other from position ``begin`` (N,) on: (N, length), zeros elsewhere.

    This is the code T of dual-path, Eq. 2, as word indices: row i of T has its one in column l_i.
    """
    position = kept.cumsum(1) - 1 + begin.unsqueeze(1)
    # Words that do not fit or are not kept go to an extra last position, which is removed.
    position = torch.where(kept & (position < length), position, length)
    out = words.new_full((words.shape[0], length + 1), PAD).scatter(1, position, words)
    return out[:, :length]


class NgramText(nn.Module):
    """Uni-, bi- and trigram filters with ReLU, their maximum over a text's words, and a linear map (mmca, Eqs. 6, 7).

    An n-gram starts at each word and may reach beyond the last word, where there are zeros: Eq. 6 has as many positions
    as words, and so a text of one word has a bigram. ReLU and bias come after the maximum, which does not change the
    result. Eq. 7 prints layer norm where the text says length one; here vectors are not normalised, and are compared by
    cosine.

    The response of a filter to an n-gram is the sum of its responses to the words. One matrix product computes all of
    them, so n-grams are never copied.
    """

    def __init__(self, dim_in: int, filters: int, dim: int) -> None:
        super().__init__()
        self.windows = nn.ModuleList(nn.Linear(size * dim_in, filters) for size in NGRAM_SIZES)
        self.project = nn.Linear(len(NGRAM_SIZES) * filters, dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Map words (..., W, D_in) and their mask, or a mask (..., W) to be repeated, to (..., dim)."""
        absent, size = ~mask.unsqueeze(-1), words.shape[-1]
        weights = [piece for layer in self.windows for piece in torch.split(layer.weight, size, 1)]  # type: ignore[arg-type]
        responses = F.linear(words.masked_fill(absent, 0.0), torch.cat(weights))
        if torch.compiler.is_compiling():
            found = best_ngrams_compiled(responses, absent)
        elif torch.is_grad_enabled() and responses.requires_grad:
            found = BestNgrams.apply(responses, absent)  # type: ignore[no-untyped-call]
        else:
            found = torch.cat([sums.amax(-2) for sums in _ngram_sums(responses, absent)], -1)
        return self.project_best(found)

    def project_best(self, found: Tensor) -> Tensor:
        """Map the largest responses (..., 3 F) to (..., dim)."""
        # A text without words has responses of minus infinity, which ReLU maps to zero.
        biases = torch.cat([layer.bias for layer in self.windows])  # type: ignore[misc]
        return self.project(torch.relu(found + biases))  # type: ignore[no-any-return]


def _split_by_ngram(responses: Tensor) -> list[list[Tensor]]:
    """Split (..., W, 6 F) by n-gram size, then by the word within the n-gram: (..., W, F) each."""
    pieces = iter(torch.split(responses, responses.shape[-1] // sum(NGRAM_SIZES), -1))
    return [[next(pieces) for _ in range(count)] for count in NGRAM_SIZES]


def _ngram_sums(responses: Tensor, absent: Tensor) -> list[Tensor]:
    """Responses to the n-grams that start at each word (..., W, F); minus infinity for padding."""
    found = []
    for first, *others in _split_by_ngram(responses):
        total = first.masked_fill(absent, -torch.inf)
        for by, other in enumerate(others, 1):
            total[..., :-by, :] += other[..., by:, :]
        found.append(total)
    return found


def best_ngrams_compiled(responses: Tensor, absent: Tensor) -> Tensor:
    """The output of ``BestNgrams`` from operations whose gradients the compiler knows, without in-place changes."""
    found = []
    for first, *others in _split_by_ngram(responses):
        for by, other in enumerate(others, 1):
            first = first + F.pad(other[..., by:, :], (0, 0, 0, min(by, other.shape[-2])))
        total = first.masked_fill(absent, -torch.inf)
        found.append(total.max(-2).values if torch.is_grad_enabled() else total.amax(-2))
    return torch.cat(found, -1)


class BestNgrams(Function):
    """Largest response of each filter over all n-grams of a text.

    The gradient is written directly to the words of one n-gram, the first of equals. Automatic differentiation would
    pass over all responses several times.
    """

    @staticmethod
    def forward(ctx: Any, responses: Tensor, absent: Tensor) -> Tensor:
        """Args:
            responses: (..., W, 6 F) responses of each filter's weights to single words: F unigrams, the first and
                second word of F bigrams, and the three words of F trigrams.
            absent: (..., W, 1) True for padding; may be broadcast.

        Returns:
            (..., 3 F).
        """
        found = [sums.max(-2) for sums in _ngram_sums(responses, absent)]
        ctx.save_for_backward(*(positions for _, positions in found))
        ctx.shape = responses.shape
        return torch.cat([best for best, _ in found], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_best: Tensor) -> tuple[Tensor, None]:
        """Gradient at the words of the best n-gram; none beyond the last word."""
        of_responses, last = of_best.new_zeros(ctx.shape), ctx.shape[-2] - 1
        gradients = torch.split(of_best, of_best.shape[-1] // len(NGRAM_SIZES), -1)
        for pieces, positions, gradient in zip(
            _split_by_ngram(of_responses), ctx.saved_tensors, gradients, strict=True
        ):
            for by, piece in enumerate(pieces):
                there = gradient.masked_fill(positions > last - by, 0.0) if by else gradient
                piece.scatter_(-2, (positions + by).clamp_(max=last).unsqueeze(-2), there.unsqueeze(-2))
        return of_responses, None
