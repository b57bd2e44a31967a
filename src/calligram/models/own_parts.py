"""What an item's parts make of each other, for attention that looks at other items: few steps forward, few back.

Both steps have their gradients written out. Put together of PyTorch's own they are three times as many, each over
little, and an accelerator waits for the next to be started most of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

NEVER = -1e4
"""logit of parts that are not real: exp of it is zero, and half precision has it"""
COLUMNS = 3
"""of queries and keys beside a head's own: log Z_own in two pieces, and the mask"""


class OwnShares(Function):
    """Softmax of logits (..., K), in their precision, and the logarithm of its denominator (..., 1) in a wide one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Args:
        bias: added to logits, in a wide precision; it has no gradient.
        """
        biased = logits + bias
        shares = torch.softmax(biased, -1)
        # From where the share is largest, and its logarithm most exact.
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


class WithColumns(Function):
    """Queries, keys and values with the columns by which attention to others knows own parts, and the mask.

    A query has log Z_own in two columns, since half precision has eight or eleven bits and what is left over goes into
    a second, and a one. A key has zeros there and the mask's logit; one more key, which stands for the own parts of
    whoever looks, has ones and a zero. Values are zero there, but for a one in the first column of that last key.
    Sizes are filled up to a multiple of 8.
    """

    @staticmethod
    def forward(ctx: Any, stacked: Tensor, total: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Args:
            stacked: (3, N, H, K, S) queries, keys and values.
            total: (N, H, K, 1) log Z_own, in a wide precision.
            mask: (N, K) True where a part is real.

        Returns:
            Queries (N, K, H, E), keys and values (N, H, K + 1, E).
        """
        _, items, heads, places, size = stacked.shape
        whole = size + COLUMNS + -(size + COLUMNS) % 8
        queries = stacked.new_zeros(items, places, heads, whole)
        by_head = queries.transpose(1, 2)
        by_head[..., :size] = stacked[0]
        by_head[..., size : size + 1] = total
        by_head[..., size + 1 : size + 2] = total - by_head[..., size : size + 1]
        queries[..., size + 2] = 1.0
        seen = stacked.new_zeros(2, items, heads, places + 1, whole)
        seen[..., :places, :size] = stacked[1:]
        seen[0, :, :, :places, size + 2].masked_fill_(~mask.unsqueeze(1), NEVER)
        seen[0, :, :, places, size : size + 2] = 1.0
        seen[1, :, :, places, size] = 1.0
        keys, values = seen
        ctx.size, ctx.precision = size, total.dtype
        return queries, keys, values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_queries: Tensor, of_keys: Tensor, of_values: Tensor) -> tuple[Tensor, Tensor, None]:
        """Those of the head's own columns, and that of the first piece of log Z_own, which the second only rounds."""
        size, by_head = ctx.size, of_queries.transpose(1, 2)
        parts = by_head[..., :size], of_keys[:, :, :-1, :size], of_values[:, :, :-1, :size]
        return torch.stack(parts), by_head[..., size : size + 1].to(ctx.precision), None


def wide(tensor: Tensor) -> Tensor:
    """In single precision at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
