"""The Transformer unit of mmca over the parts of one item, and over the stacked parts of a pair.

The queries, keys and values of stacked parts do not depend on the other item of the pair. The attention of an item's
parts to each other does not either, except for its weight. Let Z be the sum of exp of the logits. The softmax over own
and other parts gives

    (Z_own attended_own + Z_other attended_other) / (Z_own + Z_other).

So a pair needs only attention to the other item, with one more key that stands for all own parts. Its logit is log
Z_own, and its softmax weight is the factor of attended_own. This key, and the mask of the padding, are extra columns of
queries and keys. So one attention kernel without a mask computes everything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from calligram.device import kernel_applies, run_kernel, without_cudnn_attention
from calligram.models.matcher import at_least_float32

MASKED_LOGIT = -1e4
"""logit of padding: its exp is zero, and half precision can represent it"""
EXTRA_COLUMNS = 3
"""extra columns of queries and keys: log Z_own in two pieces, and the mask"""
ATTENTION_KERNEL = "attention of mmca"
"""name of the kernels of ``fused_pair_attention.py``"""
MAX_FUSED_PARTS, MAX_FUSED_HEAD = 128, 32
"""largest number of keys, and largest size of a head, that they take: so much fits into the shared memory of any GPU"""


class PreparedItems(NamedTuple):
    """N items of K parts, prepared for attention with any other items; H heads of size S."""

    parts: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True for real parts"""
    attended: Tensor
    """(N, K, H, S) output of the attention of each part to its own item"""
    queries: Tensor
    """(N, K, H, E) queries with the extra columns"""
    keys: Tensor
    """(N, H, K + 1, E); the last key stands for the own parts of the query's item"""
    values: Tensor
    """(N, H, K + 1, E); the first extra column is one for the last key and zero for the others"""


class AttendedItems(NamedTuple):
    """N items of K parts, prepared for the kernels of attention with any other items."""

    parts: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True for real parts"""
    projected: Tensor
    """(N, K, 3 D) queries divided by the root of their size, keys, and values, concatenated"""
    attended: Tensor
    """(N, K, D) output of the attention of each part to its own item"""
    totals: Tensor
    """(N, K, H) log Z_own in float32"""


class ProjectedItems(NamedTuple):
    """N items of K parts with their queries, keys and values, to be stacked with other items."""

    parts: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True for real parts"""
    projected: Tensor
    """(N, K, 3 D) queries divided by the root of their size, keys, and values, concatenated"""


class TransformerUnit(nn.Module):
    """Multi-head attention and two position-wise layers, each with a residual and layer norm (mmca, Eqs. 1-4).

    As printed, projections have no bias, and the inner layer has the size of the outer. Eq. 11 prints the root of d
    where Eq. 1 has d_k; here both are d_k, because the text calls it "another Transformer unit". The paper does not
    mention dropout, and there is none. Matrices are initialised with Xavier.
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
        """Map parts (N, K, D) and their mask to (N, K, D), by attention within each item."""
        projected = self._project(parts)

        def plain() -> Tensor:
            query, key, value = split_heads(projected, self.heads).unbind(0)
            with without_cudnn_attention(parts):
                bias = mask_bias(mask, query.dtype)
                return join_heads(F.scaled_dot_product_attention(query, key, value, bias, scale=1.0))

        if not self._kernel_applies(projected):
            return self.feed_forward(parts, plain())
        own = ProjectedItems(parts, mask, projected)
        return self.feed_forward(parts, run_kernel(ATTENTION_KERNEL, lambda: self._attend_fused(own)[0], plain))

    def prepare_items(self, parts: Tensor, mask: Tensor) -> PreparedItems | AttendedItems:
        """Compute once per item what all of its pairs need."""
        own = self.project_items(parts, mask)

        def plain() -> PreparedItems:
            stacked = split_heads(own.projected, self.heads).contiguous()  # one copy, read by all that follows
            query, key, value = stacked.unbind(0)
            shares, total = OwnSoftmax.apply(query @ key.mT, mask_bias(mask, torch.float32))  # type: ignore[no-untyped-call]
            # The layout of the attention output, so that merging moves no data.
            attended = (shares @ value).transpose(1, 2).contiguous()
            columns = AppendColumns.apply(stacked, total, mask)  # type: ignore[no-untyped-call]
            return PreparedItems(own.parts, mask, attended, *columns)

        def fused() -> PreparedItems | AttendedItems:
            return AttendedItems(*own, *self._attend_fused(own))

        return run_kernel(ATTENTION_KERNEL, fused, plain) if self._kernel_applies(own.projected) else plain()

    def attend(self, items: PreparedItems | AttendedItems, others: PreparedItems | AttendedItems) -> Tensor:
        """Attention of the parts of ``items`` to S others and to their own items, heads concatenated (S, N, K, D).

        With ``feed_forward`` this is the unit over the stacked parts of all pairs, for the parts of one modality (mmca,
        Eqs. 8-14).
        """

        def plain() -> Tensor:
            one, two = self._with_columns(items), self._with_columns(others)
            count, positions = one.mask.shape
            queries = one.queries.flatten(0, 1).transpose(0, 1).expand(len(two.keys), -1, -1, -1)
            found = F.scaled_dot_product_attention(queries, two.keys, two.values, scale=1.0)
            found = found.transpose(1, 2).view(len(two.keys), count, positions, self.heads, -1)
            # Split instead of slices: the backward pass then concatenates gradients instead of adding them.
            merged, share, _ = torch.split(found, [self.size, 1, found.shape[-1] - self.size - 1], -1)
            return torch.addcmul(merged, share, one.attended).flatten(3)

        if not isinstance(items, AttendedItems) or not isinstance(others, AttendedItems):
            return plain()
        given = items.projected, others.projected, others.mask, items.attended, items.totals
        return run_kernel(ATTENTION_KERNEL, lambda: _others_attention(*given), plain)

    def _with_columns(self, items: PreparedItems | AttendedItems) -> PreparedItems:
        """The same items, for the plain path."""
        if isinstance(items, PreparedItems):
            return items
        stacked, total = split_heads(items.projected, self.heads), items.totals.transpose(1, 2).unsqueeze(-1)
        columns = AppendColumns.apply(stacked, total, items.mask)  # type: ignore[no-untyped-call]
        attended = items.attended.view(*items.mask.shape, self.heads, self.size)
        return PreparedItems(items.parts, items.mask, attended, *columns)

    def _kernel_applies(self, projected: Tensor, others: int = 0) -> bool:
        """Whether kernels compute the attention: in bfloat16, with few enough keys."""
        return (
            kernel_applies(ATTENTION_KERNEL, projected)
            and projected.dtype == torch.bfloat16
            and projected.numel() > 0
            and projected.shape[1] + others <= MAX_FUSED_PARTS
            and self.size <= MAX_FUSED_HEAD
        )

    def _attend_fused(self, one: ProjectedItems, two: ProjectedItems | None = None) -> tuple[Tensor, Tensor]:
        """Attention over the stacked parts of aligned pairs, or within items; and log Z."""
        from calligram.models.layers.fused_pair_attention import StackedAttention

        projected, mask = (one.projected[:, :0], one.mask[:, :0]) if two is None else (two.projected, two.mask)
        return StackedAttention.apply(one.projected, projected, one.mask, mask, self.heads)  # type: ignore[no-any-return, no-untyped-call]

    def project_items(self, parts: Tensor, mask: Tensor) -> ProjectedItems:
        """Compute queries, keys and values once per item."""
        projected = self._project(parts)
        return ProjectedItems(parts.to(projected.dtype), mask, projected)

    def attend_stacked(self, one: ProjectedItems, two: ProjectedItems) -> Tensor:
        """Attention over the stacked parts of aligned pairs, heads concatenated (N, K + L, D).

        With ``feed_forward`` this is the unit over stacked parts (mmca, Eqs. 8-14). Attention within an item is
        computed for each of its pairs, which is cheaper than ``attend`` if the item is in few pairs.
        """

        def plain() -> Tensor:
            with without_cudnn_attention(one.parts):
                return join_heads(F.scaled_dot_product_attention(*self._split(one, two), scale=1.0))

        if not self._kernel_applies(one.projected, two.mask.shape[1]):
            return plain()
        return run_kernel(ATTENTION_KERNEL, lambda: self._attend_fused(one, two)[0], plain)

    def attention_weights(self, one: ProjectedItems, two: ProjectedItems) -> Tensor:
        """Attention weights between the stacked parts of aligned pairs, averaged over heads (N, K + L, K + L)."""
        query, key, _, bias = self._split(one, two)
        logits = at_least_float32(query @ key.mT)
        logits = logits if bias is None else logits + bias
        return torch.softmax(logits, -1).mean(1)

    def feed_forward(self, parts: Tensor, attended: Tensor) -> Tensor:
        """Apply the output projection, the residuals and the position-wise layers to concatenated heads (..., K, D)."""
        parts = _layer_norm(self.attended_norm, parts + self.out(attended))
        return _layer_norm(self.norm, parts + self.outer(F.relu(self.inner(parts), inplace=True)))

    def _split(self, one: ProjectedItems, two: ProjectedItems) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values of stacked parts (N, H, K + L, S), and the mask as a bias on the logits."""
        mask, heads = torch.cat([one.mask, two.mask], 1), torch.cat([one.projected, two.projected], 1)
        query, key, value = split_heads(heads, self.heads).unbind(0)
        # On a CPU the check is free and a mask costs a fifth of the attention; a GPU would have to wait for the check.
        hidden = None if mask.device.type == "cpu" and bool(mask.all()) else mask_bias(mask, query.dtype)
        return query, key, value, hidden

    def _project(self, parts: Tensor) -> Tensor:
        """Queries divided by the root of their size, keys, and values, concatenated: (..., 3 D)."""
        query, key, value = self.query.weight * self.size**-0.5, self.key.weight, self.value.weight
        return F.linear(parts, torch.cat([query, key, value]))


def _others_attention(*given: Tensor) -> Tensor:
    from calligram.models.layers.fused_pair_attention import OthersAttention

    return OthersAttention.apply(*given)  # type: ignore[no-any-return, no-untyped-call]


def _layer_norm(norm: nn.LayerNorm, parts: Tensor) -> Tensor:
    """Layer norm with an output in the precision of the parts; its sums are in float32.

    Under autocast the output would be float32, which makes all following operations slower.
    """
    with torch.autocast(parts.device.type, enabled=False):
        weight, bias = norm.weight.to(parts.dtype), norm.bias.to(parts.dtype)
        return F.layer_norm(parts, norm.normalized_shape, weight, bias, norm.eps)


def split_heads(projected: Tensor, heads: int) -> Tensor:
    """View projected parts (N, K, 3 D) as queries, keys and values (3, N, H, K, S)."""
    size = projected.shape[2] // 3 // heads
    return projected.view(*projected.shape[:2], 3, heads, size).permute(2, 0, 3, 1, 4)


def join_heads(heads: Tensor) -> Tensor:
    """(N, H, K, S) -> (N, K, H S)."""
    return heads.transpose(1, 2).flatten(2)


def mask_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, 1, 1, K) zero for real parts, ``MASKED_LOGIT`` for padding."""
    return (~mask * MASKED_LOGIT).to(dtype)[:, None, None]


class OwnSoftmax(Function):
    """Softmax of logits (..., K) in their precision, and the logarithm of its denominator (..., 1) in float32.

    The gradients of this function and of ``AppendColumns`` are written by hand. The same from PyTorch operations takes
    three times as many small kernels, and a GPU then mostly waits for their launch.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Args:
        bias: added to the logits, in float32; it has no gradient.
        """
        biased = logits + bias
        shares = torch.softmax(biased, -1)
        # Computed at the largest weight, where its logarithm is most precise.
        total = biased.amax(-1, keepdim=True) - shares.amax(-1, keepdim=True).log_()
        ctx.save_for_backward(shares)
        ctx.precision = logits.dtype
        return shares.to(logits.dtype), total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_shares: Tensor, of_total: Tensor) -> tuple[Tensor, None]:
        """P (g - sum P g) for the softmax, and P for the logarithm."""
        (shares,) = ctx.saved_tensors
        of_logits = torch._softmax_backward_data(of_shares.to(shares.dtype), shares, -1, shares.dtype)
        return torch.addcmul(of_logits, shares, of_total).to(ctx.precision), None


class AppendColumns(Function):
    """Append columns to queries, keys and values that carry the weight of own parts and the mask.

    A query gets log Z_own in two columns and a one. Half precision has 8 or 11 bits, so the second column holds the
    rounding error of the first. A key gets zeros and the logit of the mask. One more key, for the own parts of the
    query's item, has ones and a zero. The values are zero in these columns, except for a one in the first column of
    that last key. Sizes are padded to a multiple of 8.
    """

    @staticmethod
    def forward(ctx: Any, stacked: Tensor, total: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Args:
            stacked: (3, N, H, K, S) queries, keys and values.
            total: (N, H, K, 1) log Z_own, in float32.
            mask: (N, K) True for real parts.

        Returns:
            Queries (N, K, H, E), keys and values (N, H, K + 1, E).
        """
        _, items, heads, positions, size = stacked.shape
        width = size + EXTRA_COLUMNS + -(size + EXTRA_COLUMNS) % 8
        queries = stacked.new_zeros(items, positions, heads, width)
        by_head = queries.transpose(1, 2)
        by_head[..., :size] = stacked[0]
        by_head[..., size : size + 1] = total
        by_head[..., size + 1 : size + 2] = total - by_head[..., size : size + 1]
        queries[..., size + 2] = 1.0
        keys_values = stacked.new_zeros(2, items, heads, positions + 1, width)
        keys_values[..., :positions, :size] = stacked[1:]
        keys_values[0, :, :, :positions, size + 2].masked_fill_(~mask.unsqueeze(1), MASKED_LOGIT)
        keys_values[0, :, :, positions, size : size + 2] = 1.0
        keys_values[1, :, :, positions, size] = 1.0
        keys, values = keys_values
        ctx.size, ctx.precision = size, total.dtype
        return queries, keys, values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_queries: Tensor, of_keys: Tensor, of_values: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of the head's columns, and of the first piece of log Z_own; the second piece is a rounding
        error.
        """
        size, by_head = ctx.size, of_queries.transpose(1, 2)
        parts = by_head[..., :size], of_keys[:, :, :-1, :size], of_values[:, :, :-1, :size]
        return torch.stack(parts), by_head[..., size : size + 1].to(ctx.precision), None
