"""Triton kernels of ``AttendingGRU`` on a GPU: the attention of a word and the gates of a GRU, in both directions.

A word then takes two of these kernels and two matrix products, in place of many small kernels. Values are read and
written in the precision of the tensors; everything else is in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

DIMENSIONS = 64
"""dimensions that a program of the attention has in registers at once"""
BLOCK = 256
"""dimensions of a program of the gates"""


@triton.jit
def sigmoid(values):
    """Logistic function."""
    return 1 / (1 + tl.exp(-values))


@triton.jit
def tanh(values):
    """Hyperbolic tangent."""
    return 2 * sigmoid(2 * values) - 1


@triton.jit
def region_values(source, row, region, column, exists, regions, H: tl.constexpr):
    """Values of all regions of a row, for some dimensions: (R, K)."""
    at = source + (row * regions + region[:, None]) * H + column[None, :]
    return tl.load(at, mask=exists, other=0.0).to(tl.float32)


@triton.jit
def inner_values(keys, projection, row, region, column, exists, regions, H: tl.constexpr):
    """tanh(f_r + Q h) of a row, for some dimensions: (R, K)."""
    query = tl.load(projection + row * 4 * H + column, mask=column < H, other=0.0).to(tl.float32)
    return tanh(region_values(keys, row, region, column, exists, regions, H) + query[None, :])


@triton.jit(do_not_specialize=["regions"])
def attend_row(projection, keys, encoded, real, energy, weights, context, regions,
               H: tl.constexpr, R: tl.constexpr, K: tl.constexpr):  # fmt: skip
    """Attention of one row to its regions, and their weighted sum."""
    row, region, offset = tl.program_id(0).to(tl.int64), tl.arange(0, R), tl.arange(0, K)
    some = region < regions
    logits = tl.full((R,), 0.0, tl.float32)
    for start in range(0, H, K):
        column = start + offset
        exists = some[:, None] & (column < H)[None, :]
        inner = inner_values(keys, projection, row, region, column, exists, regions, H)
        factor = tl.load(energy + column, mask=column < H, other=0.0).to(tl.float32)
        logits += tl.sum(inner * factor[None, :], 1)
    seen = tl.load(real + row * regions + region, mask=some, other=0) != 0
    # A row without real regions has equal weights, as the softmax of equal numbers.
    logits = tl.where(some, tl.where(seen, logits, -3.0e38), float("-inf"))
    powers = tl.exp(logits - tl.max(logits, 0))
    shares = powers / tl.sum(powers, 0)
    tl.store(weights + row * regions + region, shares.to(weights.dtype.element_ty), mask=some)
    for start in range(0, H, K):
        column = start + offset
        exists = some[:, None] & (column < H)[None, :]
        values = region_values(encoded, row, region, column, exists, regions, H)
        found = tl.sum(shares[:, None] * values, 0)
        tl.store(context + row * H + column, found.to(context.dtype.element_ty), mask=column < H)


@triton.jit(do_not_specialize=["regions"])
def attend_row_backward(grad_context, projection, keys, encoded, real, energy, weights, grad_keys, grad_energy,
                        grad_projection, regions, H: tl.constexpr, R: tl.constexpr, K: tl.constexpr):  # fmt: skip
    """Gradients of the attention of one row; added to those of f and w, written for Q h."""
    row, region, offset = tl.program_id(0).to(tl.int64), tl.arange(0, R), tl.arange(0, K)
    some = region < regions
    grad_weights = tl.full((R,), 0.0, tl.float32)
    for start in range(0, H, K):
        column = start + offset
        exists = some[:, None] & (column < H)[None, :]
        values = region_values(encoded, row, region, column, exists, regions, H)
        gradient = tl.load(grad_context + row * H + column, mask=column < H, other=0.0).to(tl.float32)
        grad_weights += tl.sum(values * gradient[None, :], 1)
    shares = tl.load(weights + row * regions + region, mask=some, other=0.0).to(tl.float32)
    grad_logits = shares * (grad_weights - tl.sum(shares * grad_weights, 0))
    # Without any real region the weights of padding are not zero, but they do not depend on the state.
    grad_logits = tl.where(tl.load(real + row * regions + region, mask=some, other=0) != 0, grad_logits, 0.0)
    for start in range(0, H, K):
        column = start + offset
        exists = some[:, None] & (column < H)[None, :]
        inner = inner_values(keys, projection, row, region, column, exists, regions, H)
        factor = tl.load(energy + column, mask=column < H, other=0.0).to(tl.float32)
        own = grad_energy + row * H + column
        before = tl.load(own, mask=column < H, other=0.0)
        tl.store(own, before + tl.sum(grad_logits[:, None] * inner, 0), mask=column < H)
        change = tl.where(exists, (1 - inner * inner) * factor[None, :] * grad_logits[:, None], 0.0)
        at = grad_keys + (row * regions + region[:, None]) * H + column[None, :]
        tl.store(at, tl.load(at, mask=exists, other=0.0) + change, mask=exists)
        total = tl.sum(change, 0)
        tl.store(grad_projection + row * 4 * H + column, total.to(grad_projection.dtype.element_ty), mask=column < H)


@triton.jit
def gates_block(gate_inputs, projection, state, gates, after, H: tl.constexpr, B: tl.constexpr):
    """Gates of the GRU and its next state, for some dimensions of a row."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * B + tl.arange(0, B)
    exists = column < H
    kind: tl.constexpr = after.dtype.element_ty
    by_input, by_state = gate_inputs + row * 3 * H + column, projection + row * 4 * H + H + column
    reset = sigmoid(tl.load(by_input, mask=exists, other=0.0).to(tl.float32)
                    + tl.load(by_state, mask=exists, other=0.0).to(tl.float32))  # fmt: skip
    update = sigmoid(tl.load(by_input + H, mask=exists, other=0.0).to(tl.float32)
                     + tl.load(by_state + H, mask=exists, other=0.0).to(tl.float32))  # fmt: skip
    new = tanh(tl.load(by_input + 2 * H, mask=exists, other=0.0).to(tl.float32)
               + reset * tl.load(by_state + 2 * H, mask=exists, other=0.0).to(tl.float32))  # fmt: skip
    before = tl.load(state + row * H + column, mask=exists, other=0.0).to(tl.float32)
    at = gates + row * 3 * H + column
    tl.store(at, reset.to(kind), mask=exists)
    tl.store(at + H, update.to(kind), mask=exists)
    tl.store(at + 2 * H, new.to(kind), mask=exists)
    tl.store(after + row * H + column, (new + update * (before - new)).to(kind), mask=exists)


@triton.jit
def gates_block_backward(grad_states, grad_state, gates, projection, state, grad_gates, grad_projection, kept,
                         H: tl.constexpr, B: tl.constexpr):  # fmt: skip
    """Gradients of the gates for some dimensions of a row."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * B + tl.arange(0, B)
    exists, place = column < H, row * H + column
    kind: tl.constexpr = kept.dtype.element_ty
    gradient = (tl.load(grad_states + place, mask=exists, other=0.0).to(tl.float32)
                + tl.load(grad_state + place, mask=exists, other=0.0).to(tl.float32))  # fmt: skip
    at = gates + row * 3 * H + column
    reset = tl.load(at, mask=exists, other=0.0).to(tl.float32)
    update = tl.load(at + H, mask=exists, other=0.0).to(tl.float32)
    new = tl.load(at + 2 * H, mask=exists, other=0.0).to(tl.float32)
    by_state = tl.load(projection + row * 4 * H + 3 * H + column, mask=exists, other=0.0).to(tl.float32)
    before = tl.load(state + place, mask=exists, other=0.0).to(tl.float32)
    grad_new = gradient * (1 - update) * (1 - new * new)
    grad_update = gradient * (before - new) * update * (1 - update)
    grad_reset = grad_new * by_state * reset * (1 - reset)
    to_given, to_product = grad_gates + row * 3 * H + column, grad_projection + row * 4 * H + H + column
    tl.store(to_given, grad_reset.to(kind), mask=exists)
    tl.store(to_given + H, grad_update.to(kind), mask=exists)
    tl.store(to_given + 2 * H, grad_new.to(kind), mask=exists)
    tl.store(to_product, grad_reset.to(kind), mask=exists)
    tl.store(to_product + H, grad_update.to(kind), mask=exists)
    tl.store(to_product + 2 * H, (grad_new * reset).to(kind), mask=exists)
    tl.store(kept + place, (gradient * update).to(kind), mask=exists)


# The functions of the plain path, by kernels. All tensors are contiguous.


def attend(
    projection: Tensor, keys: Tensor, regions: Tensor, real: Tensor, energy: Tensor, weights: Tensor, context: Tensor
) -> None:
    """Attention to regions by the state, and their weighted sum."""
    rows, count, size = regions.shape
    with torch.cuda.device_of(regions):
        attend_row[(rows,)](
            projection, keys, regions, real.view(torch.uint8), energy, weights, context, count,
            H=size, R=triton.next_power_of_2(count), K=DIMENSIONS, num_warps=8,
        )  # fmt: skip


def attend_backward(
    grad_context: Tensor, projection: Tensor, keys: Tensor, regions: Tensor, real: Tensor, energy: Tensor,
    weights: Tensor, grad_keys: Tensor, grad_energy: Tensor, grad_projection: Tensor,
) -> None:  # fmt: skip
    """Add the gradients of f and, for each row, of w; write that of Q h."""
    rows, count, size = regions.shape
    with torch.cuda.device_of(regions):
        attend_row_backward[(rows,)](
            grad_context, projection, keys, regions, real.view(torch.uint8), energy, weights, grad_keys, grad_energy,
            grad_projection, count,
            H=size, R=triton.next_power_of_2(count), K=DIMENSIONS, num_warps=8,
        )  # fmt: skip


def open_gates(gate_inputs: Tensor, projection: Tensor, state: Tensor, gates: Tensor, after: Tensor) -> None:
    """Gates of the GRU and its next state, from the products of its matrices with inputs and with the state."""
    rows, size = state.shape
    with torch.cuda.device_of(state):
        gates_block[(rows, triton.cdiv(size, BLOCK))](gate_inputs, projection, state, gates, after, H=size, B=BLOCK)


def gates_backward(
    grad_states: Tensor, grad_state: Tensor, gates: Tensor, projection: Tensor, state: Tensor,
    grad_gates: Tensor, grad_projection: Tensor, kept: Tensor,
) -> None:  # fmt: skip
    """Gradients of the products with inputs and with the state, and of the state by the update gate alone."""
    rows, size = state.shape
    with torch.cuda.device_of(state):
        gates_block_backward[(rows, triton.cdiv(size, BLOCK))](
            grad_states, grad_state, gates, projection, state, grad_gates, grad_projection, kept, H=size, B=BLOCK
        )
