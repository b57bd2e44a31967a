"""The branches of two-branch networks, and the networks that may feed them."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.text_encoder import TextEncoder
from calligram.models.layers import RecurrentText
from calligram.models.text_encoders import POOLINGS, pooled


class Branch(nn.Module):
    """FC, ReLU, dropout, ..., FC, batch norm, length one (two-branch, Sec. 3.2.1); a single layer is FC, length one.

    The linear variant keeps "only the first layers, immediately followed by L2 normalization" (Sec. 4.2), so it has
    neither ReLU nor batch norm.
    """

    def __init__(
        self, features: int, hidden: int, dim: int, *, layers: int = 2, dropout: float = 0.0, statistics: str
    ) -> None:
        """Args:
        layers: FC layers, 1 to 3; all but the last give ``hidden`` numbers.
        dropout: share of entries set to zero after every ReLU in training.
        statistics: what batch norm uses outside training: ``training``, what it saw there; or ``batch``, the mean and
            variance of what is encoded together, as the paper's tables did (footnote 3).
        """
        super().__init__()
        if not 1 <= layers <= 3:
            raise ValueError(f"a branch has 1 to 3 layers, got {layers}")
        sizes = [features, *[hidden] * (layers - 1), dim]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        self.norm = BranchNorm(dim, statistics) if layers > 1 else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        """(N, features) -> (N, dim) at length one."""
        *first, last = self.layers
        for layer in first:
            features = self.dropout(layer(features).relu())
        return F.normalize(self.norm(last(features)).float(), dim=-1, eps=1e-8)


class BranchNorm(nn.BatchNorm1d):
    """Batch norm that may go on using the statistics of the batch after training (two-branch, footnote 3).

    With ``statistics="batch"`` an item's encoding depends on what it is encoded with, so such a matcher cannot answer
    a single query; ``models.stored`` puts it back to ``training``, whose statistics are kept in either case.
    """

    def __init__(self, dim: int, statistics: str = "training") -> None:
        super().__init__(dim)
        if statistics not in ("training", "batch"):
            raise ValueError(f"statistics must be training or batch, got {statistics!r}")
        self.statistics = statistics

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, dim)."""
        if self.training or self.statistics == "training":
            return super().forward(vectors)
        if len(vectors) < 2:
            raise UserError(
                "this matcher normalises by the statistics of what is encoded together (statistics=batch), and one "
                "item has none; encode at least two, or train with statistics=training"
            )
        return F.batch_norm(vectors, None, None, self.weight, self.bias, training=True, eps=self.eps)


def rely_on_training(matcher: nn.Module) -> bool:
    """Make batch norm use what it saw in training from now on, so that an item alone is what it is among others.

    Returns:
        Whether anything was changed.
    """
    changed = [m for m in matcher.modules() if isinstance(m, BranchNorm) and m.statistics == "batch"]
    for norm in changed:
        norm.statistics = "training"
    return bool(changed)


class GivenVectors(nn.Module):
    """No network: texts are vectors already."""

    def forward(self, texts: Tensor, mask: Tensor | None) -> Tensor:
        """(N, D) as it is."""
        del mask
        return texts


class WordStates(nn.Module):
    """States of words, given or by an encoder that is trained along, pooled into one vector."""

    def __init__(self, encoder: TextEncoder | None, pooling: str) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be mean, cls or max, got {pooling!r}")
        self.encoder, self.pooling = encoder, pooling

    def forward(self, texts: Tensor, mask: Tensor) -> Tensor:
        """States (N, W, D), or numbers of pieces (N, W), and their mask -> (N, D)."""
        return pooled(texts if self.encoder is None else self.encoder(texts, mask), mask, self.pooling)


def recurrent(words: int, word_dim: int, dim: int, *, bidirectional: bool, pooling: str) -> RecurrentText:
    """A word table and a GRU whose states have ``dim`` numbers."""
    return RecurrentText(words, word_dim, dim, dim, bidirectional=bidirectional, pooling=pooling, dropout=0.0)
