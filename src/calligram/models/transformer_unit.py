"""One Transformer unit over parts of items, and the same unit over the stacked parts of pairs of items (mmca).

In one unit the queries, keys and values of stacked parts are those of each item, whatever it is stacked with. Of the
attention, what an item's parts make of each other is the item's own too, but for its share: with Z the sum of exp
of the logits, softmax over own and other parts is

    (Z_own attended_own + Z_other attended_other) / (Z_own + Z_other),

so for a pair it is enough to look at the other item, with one more key that stands for all of the own parts: its
logit is log Z_own, and its share of the softmax is the factor of attended_own. That key, and the mask of parts that
only fill up, are columns that queries and keys are given, so that fused attention without a mask computes it all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calligram.features.attention_kernels import unplanned
from calligram.models.own_parts import NEVER, OwnShares, WithColumns, wide


class Looking(NamedTuple):
    """N items of K parts as a unit sees them, H heads of size S; nothing here depends on what they are stacked with."""

    parts: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True where a part is real"""
    attended: Tensor
    """(N, K, H, S) what each part makes of its own item's"""
    queries: Tensor
    """(N, K, H, E) with the columns"""
    keys: Tensor
    """(N, H, K + 1, E); the last stands for the own parts of whoever looks"""
    values: Tensor
    """(N, H, K + 1, E); the column after the head's own is one for the last key, and zero for others"""


class Projected(NamedTuple):
    """N items of K parts with their queries, keys and values, to be stacked with others."""

    parts: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True where a part is real"""
    projected: Tensor
    """(N, K, 3 D) queries, with the root of their size taken off, keys and values, one after the other"""


class TransformerUnit(nn.Module):
    """Multi-head attention and two position-wise layers, each with a residual and layer norm (mmca, Eqs. 1-4).

    As printed, projections have no bias and the inner layer is as wide as the outer. Eq. 11 prints the root of d where
    Eq. 1 has d_k: it is d_k in both, the unit being "another Transformer unit". Dropout is not mentioned, and there is
    none. Matrices start as Xavier's.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"the size of parts must be a multiple of the heads, got {dim} and {heads}")
        self.heads, self.size = heads, dim // heads
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.attended_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        for layer in (self.query, self.key, self.value, self.out, self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.bias)

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        """Parts (N, K, D) and which are real -> (N, K, D), by attention to the same item's."""
        query, key, value = self._heads(self._stacked(parts)).unbind(0)
        with unplanned(parts):
            attended = F.scaled_dot_product_attention(query, key, value, _bias(mask, query.dtype), scale=1.0)
        return self.finished(parts, _joined(attended))

    def looking(self, parts: Tensor, mask: Tensor) -> Looking:
        """What is computed once for each item, whatever it is paired with."""
        stacked = self._heads(self._stacked(parts)).contiguous()  # the one copy that all of what follows reads
        query, key, value = stacked.unbind(0)
        shares, total = OwnShares.apply(query @ key.mT, _bias(mask, torch.float32))  # type: ignore[no-untyped-call]
        # As attention gives what it finds, so that nothing is moved to be merged.
        attended = (shares @ value).transpose(1, 2).contiguous()
        queries, keys, values = WithColumns.apply(stacked, total, mask)  # type: ignore[no-untyped-call]
        return Looking(parts.to(value.dtype), mask, attended, queries, keys, values)

    def found(self, who: Looking, seen: Looking) -> Tensor:
        """What the parts of ``who`` find in S other items, and the share of their own (S, N, K, H, E).

        With ``merged`` this is the unit over the stacked parts of all pairs, for the parts of one side
        (mmca, Eqs. 8-14).
        """
        items, places = who.mask.shape
        queries = who.queries.flatten(0, 1).transpose(0, 1).expand(len(seen.keys), -1, -1, -1)
        found = F.scaled_dot_product_attention(queries, seen.keys, seen.values, scale=1.0)
        return found.transpose(1, 2).view(len(seen.keys), items, places, self.heads, -1)

    def merged(self, found: Tensor, attended: Tensor, parts: Tensor) -> Tensor:
        """What ``found`` gave, with what parts (N, K, D) made of their own items, to the end: (S, N, K, D)."""
        # Split, not sliced: the gradient is then put together once instead of added up.
        others, share, _ = torch.split(found, [self.size, 1, found.shape[-1] - self.size - 1], -1)
        both = torch.addcmul(others, share, attended)
        return self.finished(parts, both.flatten(3))

    def projected(self, parts: Tensor, mask: Tensor) -> Projected:
        """What is computed once for each item that is stacked with others."""
        projected = self._stacked(parts)
        return Projected(parts.to(projected.dtype), mask, projected)

    def together(self, one: Projected, two: Projected) -> Tensor:
        """What the stacked parts of aligned pairs make of each other, heads one after the other (N, K + L, D).

        With ``finished`` this is the unit over stacked parts (mmca, Eqs. 8-14). Attention within an item is computed
        for each of its pairs: where an item is in few, that is less than to put it together from what is known of it.
        """
        with unplanned(one.parts):
            return _joined(F.scaled_dot_product_attention(*self._split(one, two), scale=1.0))

    def shares(self, one: Projected, two: Projected) -> Tensor:
        """How much each stacked part of aligned pairs looks at each, the mean over heads (N, K + L, K + L)."""
        query, key, _, bias = self._split(one, two)
        logits = wide(query @ key.mT)
        logits = logits if bias is None else logits + bias
        return torch.softmax(logits, -1).mean(1)

    def finished(self, parts: Tensor, attended: Tensor) -> Tensor:
        """Heads one after the other (..., K, D), through the output map, the residuals and the inner layers."""
        parts = _normed(self.attended_norm, parts + self.out(attended))
        return _normed(self.norm, parts + self.outer(F.relu(self.inner(parts), inplace=True)))

    def _split(self, one: Projected, two: Projected) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values of stacked parts, (N, H, K + L, S), and what is added to logits for the mask."""
        mask, heads = torch.cat([one.mask, two.mask], 1), torch.cat([one.projected, two.projected], 1)
        query, key, value = self._heads(heads).unbind(0)
        # To look costs a CPU nothing, and a mask a fifth of the attention; an accelerator would have to wait.
        hidden = None if mask.device.type == "cpu" and bool(mask.all()) else _bias(mask, query.dtype)
        return query, key, value, hidden

    def _stacked(self, parts: Tensor) -> Tensor:
        """Queries, with the root of their size taken off, keys and values, one after the other: (..., 3 D)."""
        query, key, value = self.query.weight * self.size**-0.5, self.key.weight, self.value.weight
        return F.linear(parts, torch.cat([query, key, value]))

    def _heads(self, stacked: Tensor) -> Tensor:
        """(N, K, 3 D) as (3, N, H, K, S), nothing moved."""
        return stacked.view(*stacked.shape[:2], 3, self.heads, self.size).permute(2, 0, 3, 1, 4)


def _normed(norm: nn.LayerNorm, parts: Tensor) -> Tensor:
    """Layer norm in the precision of the parts; its sums are in single precision all the same.

    Autocast would have the result in single precision too, which all that follows would read and write.
    """
    with torch.autocast(parts.device.type, enabled=False):
        weight, bias = norm.weight.to(parts.dtype), norm.bias.to(parts.dtype)
        return F.layer_norm(parts, norm.normalized_shape, weight, bias, norm.eps)


def _joined(heads: Tensor) -> Tensor:
    """(N, H, K, S) -> (N, K, H S)."""
    return heads.transpose(1, 2).flatten(2)


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, 1, 1, K) zero for real parts, and what is never looked at for others."""
    return (~mask * NEVER).to(dtype)[:, None, None]
