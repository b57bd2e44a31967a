"""Triton kernels of the attention of mmca's unit on a GPU, in both directions of a training step.

A head of an item, with all of its keys, fits into one program. So weights never reach memory; the backward pass
computes them a second time. Queries, keys and values are read where the projection wrote them, and the heads are
written side by side, so that nothing is copied.

Factors of matrix products are in bfloat16. Sums and softmax are in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from calligram.device import run_kernel
from calligram.models.layers.transformer_unit import (
    ATTENTION_KERNEL,
    MASKED_LOGIT,
    join_heads,
    mask_bias,
    split_heads,
)

MASKED = tl.constexpr(MASKED_LOGIT)
ROWS = 64
"""queries in a tile"""
CONTEXTS = 16
"""items that a program of the forward pass attends to, one after the other"""
WARPS = 4


@triton.jit
def weigh_keys(queries, keys, hidden, own):
    """Softmax of the logits (M, N) of some queries, and the weight (M,) of one more key with the given logit."""
    logits = tl.dot(queries, tl.trans(keys)) + hidden[None, :]
    top = tl.maximum(tl.max(logits, 1), own)
    powers, mine = tl.exp(logits - top[:, None]), tl.exp(own - top)
    total = tl.sum(powers, 1) + mine
    return powers / total[:, None], mine / total, top + tl.log(total)


@triton.jit
def load_stacked(one, two, pair, position, column, parts, others, WIDTH: tl.constexpr, exists):
    """Some columns of the stacked parts of a pair, those of the first item before those of the second."""
    first, inside = position < parts, exists[None, :]
    rest = (position >= parts) & (position < parts + others)
    at = one + (pair * parts + position)[:, None] * WIDTH + column[None, :]
    found = tl.load(at, mask=first[:, None] & inside, other=0.0)
    at = two + (pair * others + position - parts)[:, None] * WIDTH + column[None, :]
    return tl.where(first[:, None], found, tl.load(at, mask=rest[:, None] & inside, other=0.0))


@triton.jit
def store_stacked(one, two, values, pair, position, column, parts, others, WIDTH: tl.constexpr, exists):
    """The inverse of ``load_stacked``."""
    first, inside, values = position < parts, exists[None, :], values.to(one.dtype.element_ty)
    rest = (position >= parts) & (position < parts + others)
    at = one + (pair * parts + position)[:, None] * WIDTH + column[None, :]
    tl.store(at, values, mask=first[:, None] & inside)
    at = two + (pair * others + position - parts)[:, None] * WIDTH + column[None, :]
    tl.store(at, values, mask=rest[:, None] & inside)


@triton.jit
def mask_logits(mask, item, position, parts):
    """Zero for real parts, a low logit for padding, and none beyond the last part."""
    real = tl.load(mask + item * parts + position, mask=(position >= 0) & (position < parts), other=0) != 0
    return tl.where(real, 0.0, MASKED)


@triton.jit
def stacked_keys(one, two, real, spoken, pair, head, column, parts, others, exists,
                 D: tl.constexpr, S: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """Keys, values and the mask of all stacked parts of a pair."""
    position, at = tl.arange(0, N), head * S + column
    keys = load_stacked(one, two, pair, position, D + at, parts, others, 3 * D, exists)
    values = load_stacked(one, two, pair, position, 2 * D + at, parts, others, 3 * D, exists)
    first = mask_logits(real, pair, position, parts)
    hidden = tl.where(position < parts, first, mask_logits(spoken, pair, position - parts, others))
    return keys, values, tl.where(position < parts + others, hidden, float("-inf"))


@triton.jit(do_not_specialize=["parts", "others"])
def attend_stacked_tile(one, two, real, spoken, result, totals, parts, others, H: tl.constexpr, S: tl.constexpr,
                        B: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """Attention of a head over the stacked parts of a pair, and the logarithm of the softmax's denominator."""
    pair, head = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    column, both = tl.arange(0, B), parts + others
    exists = column < S
    keys, values, hidden = stacked_keys(one, two, real, spoken, pair, head, column, parts, others, exists, H * S, S, N)
    for start in range(0, both, M):
        position = start + tl.arange(0, M)
        queries = load_stacked(one, two, pair, position, head * S + column, parts, others, 3 * H * S, exists)
        none = tl.full((M,), float("-inf"), tl.float32)
        shares, _, total = weigh_keys(queries, keys, hidden, none)
        found = tl.dot(shares.to(tl.bfloat16), values)
        at = result + (pair * both + position)[:, None] * (H * S) + head * S + column[None, :]
        tl.store(at, found.to(tl.bfloat16), mask=(position < both)[:, None] & exists[None, :])
        tl.store(totals + (pair * both + position) * H + head, total, mask=position < both)


@triton.jit(do_not_specialize=["parts", "others"])
def attend_stacked_backward(one, two, real, spoken, grads, grad_totals, grad_one, grad_two, parts, others,
                            H: tl.constexpr, S: tl.constexpr, B: tl.constexpr, M: tl.constexpr,
                            N: tl.constexpr):  # fmt: skip
    """Gradients of the queries, keys and values of a head."""
    pair, head = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    column, both = tl.arange(0, B), parts + others
    exists, at, width = column < S, head * S + column, 3 * H * S
    keys, values, hidden = stacked_keys(one, two, real, spoken, pair, head, column, parts, others, exists, H * S, S, N)
    grad_keys, grad_values = tl.full((N, B), 0.0, tl.float32), tl.full((N, B), 0.0, tl.float32)
    for start in range(0, both, M):
        position = start + tl.arange(0, M)
        there = position < both
        queries = load_stacked(one, two, pair, position, at, parts, others, width, exists)
        none = tl.full((M,), float("-inf"), tl.float32)
        shares, _, _ = weigh_keys(queries, keys, hidden, none)
        place = grads + (pair * both + position)[:, None] * (H * S) + at[None, :]
        gradient = tl.load(place, mask=there[:, None] & exists[None, :], other=0.0)
        of_total = tl.load(grad_totals + (pair * both + position) * H + head, mask=there, other=0.0)
        of_shares = tl.dot(gradient, tl.trans(values))
        own = tl.sum(shares * of_shares, 1) - of_total
        of_logits = (shares * (of_shares - own[:, None])).to(tl.bfloat16)
        grad_values += tl.dot(tl.trans(shares.to(tl.bfloat16)), gradient)
        grad_keys += tl.dot(tl.trans(of_logits), queries)
        of_queries = tl.dot(of_logits, keys)
        store_stacked(grad_one, grad_two, of_queries, pair, position, at, parts, others, width, exists)
    position = tl.arange(0, N)
    store_stacked(grad_one, grad_two, grad_keys, pair, position, H * S + at, parts, others, width, exists)
    store_stacked(grad_one, grad_two, grad_values, pair, position, 2 * H * S + at, parts, others, width, exists)


@triton.jit
def load_head(items, row, column, count, exists, WIDTH: tl.constexpr):
    """Some columns of some rows."""
    at = items + row[:, None] * WIDTH + column[None, :]
    return tl.load(at, mask=(row < count)[:, None] & exists[None, :], other=0.0)


@triton.jit
def load_queries(items, attended, totals, row, head, column, rows, exists, H: tl.constexpr, S: tl.constexpr):
    """Queries of some parts, and the attention to their own item with its logit."""
    queries = load_head(items, row, head * S + column, rows, exists, 3 * H * S)
    within = load_head(attended, row, head * S + column, rows, exists, H * S).to(tl.float32)
    return queries, within, tl.load(totals + row * H + head, mask=row < rows, other=0.0)


@triton.jit
def logit_gradients(queries, keys, values, hidden, own, within, gradient):
    """Weights of the keys and gradients of their logits; the same of the one key that stands for the own item."""
    shares, mine, _ = weigh_keys(queries, keys, hidden, own)
    of_shares, of_mine = tl.dot(gradient, tl.trans(values)), tl.sum(gradient.to(tl.float32) * within, 1)
    mean = tl.sum(shares * of_shares, 1) + mine * of_mine
    return shares, (shares * (of_shares - mean[:, None])).to(tl.bfloat16), mine, mine * (of_mine - mean)


@triton.jit
def load_context(others, mask, context, head, column, positions, exists,
                 D: tl.constexpr, S: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """Keys, values and the mask of one item that is attended to."""
    position, at = tl.arange(0, N), head * S + column
    start = others + context * positions * (3 * D)
    keys = load_head(start, position, D + at, positions, exists, 3 * D)
    values = load_head(start, position, 2 * D + at, positions, exists, 3 * D)
    hidden = tl.where(position < positions, mask_logits(mask, context, position, positions), float("-inf"))
    return keys, values, hidden


@triton.jit(do_not_specialize=["rows", "contexts", "positions"])
def attend_others_tile(items, others, mask, attended, totals, result, rows, contexts, positions, H: tl.constexpr,
                       S: tl.constexpr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
                       GROUP: tl.constexpr):  # fmt: skip
    """Attention of a head of some parts to some other items and to their own, with the weight of each."""
    head, column = tl.program_id(0) % H, tl.arange(0, B)
    row, exists = (tl.program_id(0) // H).to(tl.int64) * M + tl.arange(0, M), column < S
    some, at = row < rows, head * S + column
    queries, within, own = load_queries(items, attended, totals, row, head, column, rows, exists, H, S)
    first = tl.program_id(1).to(tl.int64) * GROUP
    for number in range(0, tl.minimum(GROUP, contexts - first)):
        context = first + number
        keys, values, hidden = load_context(others, mask, context, head, column, positions, exists, H * S, S, N)
        shares, mine, _ = weigh_keys(queries, keys, hidden, own)
        found = tl.dot(shares.to(tl.bfloat16), values) + mine[:, None] * within
        place = result + (context * rows + row)[:, None] * (H * S) + at[None, :]
        tl.store(place, found.to(tl.bfloat16), mask=some[:, None] & exists[None, :])


@triton.jit(do_not_specialize=["rows", "contexts", "positions"])
def attend_others_backward_items(items, others, mask, attended, totals, grads, grad_items, grad_attended, grad_totals,
                                 rows, contexts, positions, H: tl.constexpr, S: tl.constexpr, B: tl.constexpr,
                                 M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    """Gradients of the queries of some parts, and of the attention to their own item and its logit."""
    head, column = tl.program_id(0) % H, tl.arange(0, B)
    row, exists = (tl.program_id(0) // H).to(tl.int64) * M + tl.arange(0, M), column < S
    some, at = row < rows, head * S + column
    queries, within, own = load_queries(items, attended, totals, row, head, column, rows, exists, H, S)
    of_queries, of_within = tl.full((M, B), 0.0, tl.float32), tl.full((M, B), 0.0, tl.float32)
    of_own = tl.full((M,), 0.0, tl.float32)
    first = tl.program_id(1).to(tl.int64)  # zero, in 64 bits
    for number in range(0, contexts):
        context = first + number
        keys, values, hidden = load_context(others, mask, context, head, column, positions, exists, H * S, S, N)
        gradient = load_head(grads + context * rows * (H * S), row, at, rows, exists, H * S)
        _, of_logits, mine, of_mine = logit_gradients(queries, keys, values, hidden, own, within, gradient)
        of_queries = tl.dot(of_logits, keys, of_queries)
        of_own += of_mine
        of_within += mine[:, None] * gradient.to(tl.float32)
    inside = some[:, None] & exists[None, :]
    tl.store(grad_items + row[:, None] * (3 * H * S) + at[None, :], of_queries.to(tl.bfloat16), mask=inside)
    tl.store(grad_attended + row[:, None] * (H * S) + at[None, :], of_within.to(tl.bfloat16), mask=inside)
    tl.store(grad_totals + row * H + head, of_own, mask=some)


@triton.jit(do_not_specialize=["rows", "positions"])
def attend_others_backward_context(items, others, mask, attended, totals, grads, grad_others, rows, positions,
                                   H: tl.constexpr, S: tl.constexpr, B: tl.constexpr, M: tl.constexpr,
                                   N: tl.constexpr):  # fmt: skip
    """Gradients of the keys and values of one item, from all parts that attend to it."""
    context, head, column = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H, tl.arange(0, B)
    exists, at = column < S, head * S + column
    keys, values, hidden = load_context(others, mask, context, head, column, positions, exists, H * S, S, N)
    grad_keys, grad_values = tl.full((N, B), 0.0, tl.float32), tl.full((N, B), 0.0, tl.float32)
    for start in range(0, rows, M):
        row = start + tl.arange(0, M)
        queries, within, own = load_queries(items, attended, totals, row, head, column, rows, exists, H, S)
        gradient = load_head(grads + context * rows * (H * S), row, at, rows, exists, H * S)
        shares, of_logits, _, _ = logit_gradients(queries, keys, values, hidden, own, within, gradient)
        grad_values += tl.dot(tl.trans(shares.to(tl.bfloat16)), gradient)
        grad_keys += tl.dot(tl.trans(of_logits), queries)
    position = tl.arange(0, N)
    place = grad_others + (context * positions + position)[:, None] * (3 * H * S) + at[None, :]
    inside = (position < positions)[:, None] & exists[None, :]
    tl.store(place + H * S, grad_keys.to(tl.bfloat16), mask=inside)
    tl.store(place + 2 * H * S, grad_values.to(tl.bfloat16), mask=inside)


def _sizes(heads: int, size: int, keys: int) -> dict[str, int]:
    """Sizes that a kernel is compiled for; matrix products have at least 16 rows and columns."""
    block, count = (max(16, triton.next_power_of_2(each)) for each in (size, keys))
    return {"H": heads, "S": size, "B": block, "N": count, "num_warps": WARPS}


class StackedAttention(Function):
    """Attention over the stacked parts of aligned pairs (N, K + L, D), and log Z of each part and head in float32."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, two: Tensor, real: Tensor, spoken: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        """Args:
        one: (N, K, 3 D) queries, keys and values.
        two: (N, L, 3 D); L may be 0.
        real: (N, K) True for real parts.
        spoken: (N, L).
        """
        one, two = one.contiguous(), two.contiguous()
        real, spoken = (each.contiguous().view(torch.uint8) for each in (real, spoken))
        pairs, parts, width = one.shape
        both, dim = parts + two.shape[1], width // 3
        result = one.new_empty(pairs, both, dim)
        totals = one.new_empty(pairs, both, heads, dtype=torch.float32)
        rows = min(ROWS, max(16, triton.next_power_of_2(both)))
        with torch.cuda.device_of(one):
            attend_stacked_tile[(pairs * heads,)](
                one, two, real, spoken, result, totals, parts, two.shape[1], M=rows,
                **_sizes(heads, dim // heads, both),
            )  # fmt: skip
        ctx.save_for_backward(one, two, real, spoken)
        ctx.heads, ctx.rows = heads, rows
        return result, totals

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_result: Tensor, of_totals: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Gradients of both projections."""
        one, two, real, spoken = ctx.saved_tensors
        (pairs, parts, width), others = one.shape, two.shape[1]

        def fused() -> tuple[Tensor, Tensor]:
            of_one, of_two = torch.empty_like(one), torch.empty_like(two)
            with torch.cuda.device_of(one):
                attend_stacked_backward[(pairs * ctx.heads,)](
                    one, two, real, spoken, of_result.contiguous(), of_totals.contiguous(), of_one, of_two, parts,
                    others, M=ctx.rows, **_sizes(ctx.heads, width // 3 // ctx.heads, parts + others),
                )  # fmt: skip
            return of_one, of_two

        def plain() -> tuple[Tensor, ...]:
            return _gradients_of(
                lambda *both: attend_stacked(both[0], both[1], real, spoken, ctx.heads),
                (one, two),
                (of_result, of_totals),
            )

        of_one, of_two = run_kernel(ATTENTION_KERNEL, fused, plain)
        return of_one, of_two, None, None, None


class OthersAttention(Function):
    """Attention of the parts of N items to S others and to their own items: (S, N, K, D), for all pairs."""

    @staticmethod
    def forward(ctx: Any, items: Tensor, others: Tensor, mask: Tensor, attended: Tensor, totals: Tensor) -> Tensor:
        """Args:
        items: (N, K, 3 D) queries, keys and values.
        others: (S, L, 3 D).
        mask: (S, L) True for real parts of the others.
        attended: (N, K, D) attention of the parts to their own items.
        totals: (N, K, H) its log Z.
        """
        items, others, attended, totals = (each.contiguous() for each in (items, others, attended, totals))
        mask = mask.contiguous().view(torch.uint8)
        (count, parts, width), (contexts, positions), heads = items.shape, others.shape[:2], totals.shape[-1]
        rows, sizes = count * parts, _sizes(heads, width // 3 // heads, positions)
        result = items.new_empty(contexts, count, parts, width // 3)
        with torch.cuda.device_of(items):
            attend_others_tile[(triton.cdiv(rows, ROWS) * heads, triton.cdiv(contexts, CONTEXTS))](
                items, others, mask, attended, totals, result, rows, contexts, positions, M=ROWS, GROUP=CONTEXTS,
                **sizes,
            )  # fmt: skip
        ctx.save_for_backward(items, others, mask, attended, totals)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, Tensor, Tensor]:
        """Gradients of the queries of the items, of keys and values of the others, and of the own attention."""
        given = ctx.saved_tensors
        items, others, mask, attended, totals = given
        (count, parts, width), (contexts, positions), heads = items.shape, others.shape[:2], totals.shape[-1]
        rows, sizes = count * parts, _sizes(heads, width // 3 // heads, positions)
        gradient = gradient.contiguous()

        def fused() -> tuple[Tensor, ...]:
            of_items, of_others = torch.zeros_like(items), torch.zeros_like(others)
            of_attended, of_totals = torch.empty_like(attended), torch.empty_like(totals)
            with torch.cuda.device_of(items):
                attend_others_backward_items[(triton.cdiv(rows, ROWS) * heads,)](
                    *given, gradient, of_items, of_attended, of_totals, rows, contexts, positions, M=ROWS, **sizes
                )
                attend_others_backward_context[(contexts * heads,)](
                    *given, gradient, of_others, rows, positions, M=ROWS, **sizes
                )
            return of_items, of_others, of_attended, of_totals

        def plain() -> tuple[Tensor, ...]:
            return _gradients_of(
                lambda one, two, own, total: (attend_others(one, two, mask, own, total),),
                (items, others, attended, totals), (gradient,),
            )  # fmt: skip

        of_items, of_others, of_attended, of_totals = run_kernel(ATTENTION_KERNEL, fused, plain)
        return of_items, of_others, None, of_attended, of_totals


# The same without kernels, for gradients where a backward kernel cannot run.


def attend_stacked(one: Tensor, two: Tensor, real: Tensor, spoken: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """What ``StackedAttention`` returns for the same arguments."""
    query, key, value = split_heads(torch.cat([one, two], 1).float(), heads)
    logits = query @ key.mT + mask_bias(torch.cat([real, spoken], 1).bool(), torch.float32)
    attended = join_heads(logits.softmax(-1) @ value)
    return attended.to(one.dtype), logits.logsumexp(-1).transpose(1, 2)


def attend_others(items: Tensor, others: Tensor, mask: Tensor, attended: Tensor, totals: Tensor) -> Tensor:
    """What ``OthersAttention`` returns for the same arguments."""
    heads = totals.shape[-1]
    query, (_, key, value) = split_heads(items.float(), heads)[0], split_heads(others.float(), heads).unsqueeze(2)
    logits = query @ key.mT + mask_bias(mask.bool(), torch.float32).unsqueeze(1)  # (S, N, H, K, L)
    own = totals.transpose(1, 2).unsqueeze(-1)
    joint = torch.logaddexp(own, logits.logsumexp(-1, keepdim=True))
    inside = attended.float().unflatten(2, (heads, -1)).transpose(1, 2)
    found: Tensor = (own - joint).exp() * inside + (logits - joint).exp() @ value
    return found.transpose(2, 3).flatten(3).to(items.dtype)


def _gradients_of(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Gradients of the inputs of a function, from those of its outputs."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    with torch.enable_grad(), torch.autocast(inputs[0].device.type, enabled=False):
        return torch.autograd.grad(function(*leaves), leaves, list(gradients))
