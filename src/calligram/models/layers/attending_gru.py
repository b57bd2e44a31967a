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
        of_regions: Tensor,
        of_words: Tensor,
        state: Tensor,
        from_state: Tensor,
        bias: Tensor,
        from_context: Tensor,
        weigh: Tensor,
    ) -> Tensor:
        """Return the states (T, N, H); zero for rows without a word.

        Args:
            ctx: keeps what the backward pass needs.
            counts: number of the first rows that have a word at each of T positions, descending.
            real: (N, R) True for real regions.
            regions: (N, R, H) regions e.
            of_regions: (N, R, H) values f.
            of_words: (T, N, 3H) products of words x with the matrix of the GRU, with its bias.
            state: (N, H) first state.
            from_state: (4H, H) matrix Q, then the matrices of the GRU for the state.
            bias: (4H,) zeros, then the bias of the GRU for the state.
            from_context: (3H, H) the matrices of the GRU for the context.
            weigh: (H,) vector w.
        """
        first, count = state, len(counts)
        products, gates = of_words.new_zeros(count, len(first), bias.numel()), torch.zeros_like(of_words)
        shares, contexts = of_words.new_zeros(count, *real.shape), of_words.new_zeros(count, *first.shape)
        states = torch.zeros_like(contexts)

        def run(fused: bool) -> Tensor:
            attend, open_gates, _, _ = _functions(fused)
            state = first
            for step, n in enumerate(counts):
                product, context = products[step, :n], contexts[step, :n]
                torch.addmm(bias, state[:n], from_state.T, out=product)
                attend(product, of_regions[:n], regions[:n], real[:n], weigh, shares[step, :n], context)
                given = torch.addmm(of_words[step, :n], context, from_context.T)
                open_gates(given, product, state[:n], gates[step, :n], states[step, :n])
                state = states[step]
            return states

        with torch.autocast(first.device.type, enabled=False):
            _run(run, regions)
        ctx.counts = counts
        ctx.save_for_backward(
            real, regions, of_regions, first, from_state, from_context, weigh, products, gates, shares, contexts, states
        )
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grown: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all tensors."""
        real, regions, of_regions, first, from_state, from_context, weigh, *saved = ctx.saved_tensors
        products, gates, shares, contexts, states = saved
        grown = grown.contiguous()
        before = torch.cat([first.unsqueeze(0), states])[: len(states)]

        def run(fused: bool) -> tuple[Tensor | None, ...]:
            _, _, attend_backward, gates_backward = _functions(fused)
            exact = torch.promote_types(weigh.dtype, torch.float32)
            inner, of_weigh = torch.zeros_like(of_regions, dtype=exact), torch.zeros_like(first, dtype=exact)
            of_given, of_contexts = torch.zeros_like(gates), torch.zeros_like(contexts)
            of_products, of_state, kept = torch.zeros_like(products), torch.zeros_like(first), torch.empty_like(first)
            for step in reversed(range(len(ctx.counts))):
                n = ctx.counts[step]
                product, of_product, given = products[step, :n], of_products[step, :n], of_given[step, :n]
                gates_backward(
                    grown[step, :n], of_state[:n], gates[step, :n], product, before[step, :n], given, of_product,
                    kept[:n],
                )  # fmt: skip
                context = torch.mm(given, from_context, out=of_contexts[step, :n])
                attend_backward(
                    context, product, of_regions[:n], regions[:n], real[:n], weigh, shares[step, :n], inner[:n],
                    of_weigh[:n], of_product,
                )  # fmt: skip
                torch.addmm(kept[:n], of_product, from_state, out=of_state[:n])
            flat, of_all = of_products.flatten(0, 1), torch.bmm(shares.permute(1, 2, 0), of_contexts.transpose(0, 1))
            of_from_context = of_given.flatten(0, 1).T @ contexts.flatten(0, 1)
            return (
                None, None, of_all, inner.to(of_regions.dtype), of_given, of_state, flat.T @ before.flatten(0, 1),
                flat.sum(0), of_from_context, of_weigh.sum(0).to(weigh.dtype),
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
    product: Tensor, of_regions: Tensor, regions: Tensor, real: Tensor, weigh: Tensor, share: Tensor, context: Tensor
) -> None:
    """Attention to regions by the state, and their weighted sum."""
    inner = torch.tanh(of_regions + product[:, None, : len(weigh)])
    logits = (inner @ weigh).to(torch.promote_types(weigh.dtype, torch.float32))
    share.copy_(torch.softmax(logits.masked_fill(~real, torch.finfo(logits.dtype).min), 1))
    context.copy_(torch.bmm(share.unsqueeze(1), regions).squeeze(1))


def _open_gates(given: Tensor, product: Tensor, state: Tensor, gates: Tensor, after: Tensor) -> None:
    """Gates of the GRU and its next state, from the products of its matrices with inputs and with the state."""
    size = state.shape[1]
    opened = torch.sigmoid(given[:, : 2 * size] + product[:, size:-size])
    reset, update = opened.chunk(2, 1)
    new = torch.tanh(given[:, 2 * size :] + reset * product[:, -size:])
    torch.cat([opened, new], 1, out=gates)
    torch.lerp(new, state, update, out=after)


def _gates_backward(
    grown: Tensor, of_state: Tensor, gates: Tensor, product: Tensor, state: Tensor,
    of_given: Tensor, of_product: Tensor, kept: Tensor,
) -> None:  # fmt: skip
    """Gradients of the products with inputs and with the state, and of the state by the update gate alone."""
    reset, update, new = gates.chunk(3, 1)
    gradient = grown + of_state
    of_new = gradient * (1 - update) * (1 - new * new)
    of_update = gradient * (state - new) * update * (1 - update)
    of_reset = of_new * product.chunk(4, 1)[3] * reset * (1 - reset)
    torch.cat([of_reset, of_update, of_new], 1, out=of_given)
    of_product[:, state.shape[1] :] = torch.cat([of_reset, of_update, of_new * reset], 1)
    torch.mul(gradient, update, out=kept)


def _attend_backward(
    of_context: Tensor, product: Tensor, of_regions: Tensor, regions: Tensor, real: Tensor, weigh: Tensor,
    share: Tensor, of_inner: Tensor, of_weigh: Tensor, of_product: Tensor,
) -> None:  # fmt: skip
    """Add the gradients of f and, for each row, of w; write that of Q h."""
    of_share = torch.bmm(regions, of_context.unsqueeze(2)).squeeze(2)
    # Without any real region the weights of padding are not zero, but they do not depend on the state.
    of_logits = real * share * (of_share - (share * of_share).sum(1, keepdim=True))
    inner = torch.tanh(of_regions + product[:, None, : len(weigh)])
    of_weigh += torch.bmm(of_logits.unsqueeze(1), inner).squeeze(1)
    change = (1 - inner * inner) * weigh * of_logits.unsqueeze(2)
    of_inner += change
    of_product[:, : len(weigh)] = change.sum(1)
