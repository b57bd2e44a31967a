"""A GRU that attends to regions before each step, as in the caption decoder of VSRN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from calligram.device import kernel_applies, run_kernel

R = TypeVar("R")
FUSED_KERNEL = "attending GRU"
"""name of the kernels of ``fused_gru.py``"""
MAX_FUSED_REGIONS = 128
"""a kernel keeps the values of all regions of an image for some dimensions in registers"""


class AttendingGRU(Function):
    """States h_t = GRU([x_t, c_t], h_(t-1)) with the context c_t = sum_r a_r e_r of regions e_r.

    The attention is a = softmax over r of w tanh(f_r + Q h_(t-1)), where f_r depends on the region only.

    The backward pass is written out. Autograd would run several small operations for each operation of each word. Here
    the gradient of a matrix is one product for all words, and on a GPU a word takes four kernels in each direction. The
    (N, R, H) values inside the tanh are the largest, so they are computed again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        counts: list[int],
        real: Tensor,
        regions: Tensor,
        keys: Tensor,
        word_inputs: Tensor,
        state: Tensor,
        state_weight: Tensor,
        bias: Tensor,
        context_weight: Tensor,
        energy: Tensor,
    ) -> Tensor:
        """Return the states (T, N, H); zero for rows without a word.

        Args:
            ctx: keeps what the backward pass needs.
            counts: number of the first rows that have a word at each of T positions, descending.
            real: (N, R) True for real regions.
            regions: (N, R, H) regions e.
            keys: (N, R, H) keys f.
            word_inputs: (T, N, 3H) products of words x with the matrix of the GRU, with its bias.
            state: (N, H) first state.
            state_weight: (4H, H) matrix Q, then the matrices of the GRU for the state.
            bias: (4H,) zeros, then the bias of the GRU for the state.
            context_weight: (3H, H) the matrices of the GRU for the context.
            energy: (H,) vector w.
        """
        first, count = state, len(counts)
        projections, gates = word_inputs.new_zeros(count, len(first), bias.numel()), torch.zeros_like(word_inputs)
        weights, contexts = word_inputs.new_zeros(count, *real.shape), word_inputs.new_zeros(count, *first.shape)
        states = torch.zeros_like(contexts)

        def run(fused: bool) -> Tensor:
            attend, open_gates, _, _ = _functions(fused)
            state = first
            for step, n in enumerate(counts):
                projection, context = projections[step, :n], contexts[step, :n]
                torch.addmm(bias, state[:n], state_weight.T, out=projection)
                attend(projection, keys[:n], regions[:n], real[:n], energy, weights[step, :n], context)
                gate_inputs = torch.addmm(word_inputs[step, :n], context, context_weight.T)
                open_gates(gate_inputs, projection, state[:n], gates[step, :n], states[step, :n])
                state = states[step]
            return states

        with torch.autocast(first.device.type, enabled=False):
            _run(run, regions)
        ctx.counts = counts
        ctx.save_for_backward(
            real,
            regions,
            keys,
            first,
            state_weight,
            context_weight,
            energy,
            projections,
            gates,
            weights,
            contexts,
            states,
        )
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all tensors."""
        real, regions, keys, first, state_weight, context_weight, energy, *saved = ctx.saved_tensors
        projections, gates, weights, contexts, states = saved
        grad_states = grad_states.contiguous()
        before = torch.cat([first.unsqueeze(0), states])[: len(states)]

        def run(fused: bool) -> tuple[Tensor | None, ...]:
            _, _, attend_backward, gates_backward = _functions(fused)
            exact = torch.promote_types(energy.dtype, torch.float32)
            grad_keys, grad_energy = torch.zeros_like(keys, dtype=exact), torch.zeros_like(first, dtype=exact)
            grad_inputs, grad_contexts, grad_projections = map(torch.zeros_like, (gates, contexts, projections))
            grad_state, kept = torch.zeros_like(first), torch.empty_like(first)
            for step in reversed(range(len(ctx.counts))):
                n = ctx.counts[step]
                projection, of_projection = projections[step, :n], grad_projections[step, :n]
                of_gates = grad_inputs[step, :n]
                gates_backward(
                    grad_states[step, :n], grad_state[:n], gates[step, :n], projection, before[step, :n], of_gates,
                    of_projection, kept[:n],
                )  # fmt: skip
                of_context = torch.mm(of_gates, context_weight, out=grad_contexts[step, :n])
                attend_backward(
                    of_context, projection, keys[:n], regions[:n], real[:n], energy, weights[step, :n], grad_keys[:n],
                    grad_energy[:n], of_projection,
                )  # fmt: skip
                torch.addmm(kept[:n], of_projection, state_weight, out=grad_state[:n])
            grad_regions = torch.bmm(weights.permute(1, 2, 0), grad_contexts.transpose(0, 1))
            flat = grad_projections.flatten(0, 1)
            return (
                None, None, grad_regions, grad_keys.to(keys.dtype), grad_inputs, grad_state,
                flat.T @ before.flatten(0, 1), flat.sum(0), grad_inputs.flatten(0, 1).T @ contexts.flatten(0, 1),
                grad_energy.sum(0).to(energy.dtype),
            )  # fmt: skip

        return _run(run, regions)


def _run(run: Callable[[bool], R], regions: Tensor) -> R:
    """Run with fused kernels where they apply, and without them elsewhere."""
    whole, size = regions.shape[1] <= MAX_FUSED_REGIONS, regions.shape[2]
    if whole and size % 16 == 0 and regions.numel() and kernel_applies(FUSED_KERNEL, regions):
        return run_kernel(FUSED_KERNEL, lambda: run(True), lambda: run(False))
    return run(False)


def _functions(fused: bool) -> tuple[Callable[..., None], ...]:
    """Return the functions of a word: attention and gates, and their backward passes."""
    if not fused:
        return _attend, _open_gates, _attend_backward, _gates_backward
    from calligram.models.layers.fused_gru import attend, attend_backward, gates_backward, open_gates

    return attend, open_gates, attend_backward, gates_backward


# The plain path. Each function writes into its last arguments.


def _attend(
    projection: Tensor, keys: Tensor, regions: Tensor, real: Tensor, energy: Tensor, weights: Tensor, context: Tensor
) -> None:
    """Attention to regions by the state, and their weighted sum."""
    inner = torch.tanh(keys + projection[:, None, : len(energy)])
    logits = (inner @ energy).to(torch.promote_types(energy.dtype, torch.float32))
    weights.copy_(torch.softmax(logits.masked_fill(~real, torch.finfo(logits.dtype).min), 1))
    context.copy_(torch.bmm(weights.unsqueeze(1), regions).squeeze(1))


def _open_gates(gate_inputs: Tensor, projection: Tensor, state: Tensor, gates: Tensor, after: Tensor) -> None:
    """Gates of the GRU and its next state, from the products of its matrices with inputs and with the state."""
    size = state.shape[1]
    opened = torch.sigmoid(gate_inputs[:, : 2 * size] + projection[:, size:-size])
    reset, update = opened.chunk(2, 1)
    new = torch.tanh(gate_inputs[:, 2 * size :] + reset * projection[:, -size:])
    torch.cat([opened, new], 1, out=gates)
    torch.lerp(new, state, update, out=after)


def _gates_backward(
    grad_states: Tensor, grad_state: Tensor, gates: Tensor, projection: Tensor, state: Tensor,
    grad_gates: Tensor, grad_projection: Tensor, kept: Tensor,
) -> None:  # fmt: skip
    """Gradients of the products with inputs and with the state, and of the state by the update gate alone."""
    reset, update, new = gates.chunk(3, 1)
    gradient = grad_states + grad_state
    grad_new = gradient * (1 - update) * (1 - new * new)
    grad_update = gradient * (state - new) * update * (1 - update)
    grad_reset = grad_new * projection.chunk(4, 1)[3] * reset * (1 - reset)
    torch.cat([grad_reset, grad_update, grad_new], 1, out=grad_gates)
    grad_projection[:, state.shape[1] :] = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    torch.mul(gradient, update, out=kept)


def _attend_backward(
    grad_context: Tensor, projection: Tensor, keys: Tensor, regions: Tensor, real: Tensor, energy: Tensor,
    weights: Tensor, grad_keys: Tensor, grad_energy: Tensor, grad_projection: Tensor,
) -> None:  # fmt: skip
    """Add the gradients of f and, for each row, of w; write that of Q h."""
    grad_weights = torch.bmm(regions, grad_context.unsqueeze(2)).squeeze(2)
    # Without any real region the weights of padding are not zero, but they do not depend on the state.
    grad_logits = real * weights * (grad_weights - (weights * grad_weights).sum(1, keepdim=True))
    inner = torch.tanh(keys + projection[:, None, : len(energy)])
    grad_energy += torch.bmm(grad_logits.unsqueeze(1), inner).squeeze(1)
    change = (1 - inner * inner) * energy * grad_logits.unsqueeze(2)
    grad_keys += change
    grad_projection[:, : len(energy)] = change.sum(1)
