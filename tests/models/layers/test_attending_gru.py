"""The attending GRU against autograd, and its fused kernels against the plain path: interpreted, and on a GPU."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calligram.device import kernel_states, use_kernels
from calligram.models.layers.attending_gru import FUSED_KERNEL, AttendingGRU

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPES = [(5, 7, 16, (5, 5, 3, 1)), (3, 1, 48, (3,)), (2, 36, 80, (2, 2, 2)), (4, 5, 16, ())]
"""captions, regions, size, and captions at each word; the last captions have no word"""
SOME_REGIONS = 3
"""regions of the first image that are real"""


def example(shape, kind=torch.float64, where="cpu"):
    """Arguments of the function; an image has padding, and another has no real region."""
    captions, regions, size, counts = shape
    torch.manual_seed(0)
    sizes = (
        (captions, regions, size), (captions, regions, size), (len(counts), captions, 3 * size), (captions, size),
        (4 * size, size), (4 * size,), (3 * size, size), (size,),
    )  # fmt: skip
    # Larger matrices would make the states chaotic: a rounding error grows with each word.
    scales = (size**-0.5 if place >= 4 and len(each) == 2 else size**-0.25 for place, each in enumerate(sizes))
    tensors = [(torch.randn(e) * s).to(where, kind).requires_grad_() for e, s in zip(sizes, scales, strict=True)]
    with torch.no_grad():
        tensors[5][:size] = 0  # the bias of the attention layer is in the keys
    real = torch.ones(captions, regions, dtype=torch.bool, device=where)
    real[0, SOME_REGIONS:], real[1] = False, False
    return list(counts), real, *tensors


def literal(counts, real, regions, keys, word_inputs, state, state_weight, bias, context_weight, energy):
    """Word by word and caption by caption, with the GRU of PyTorch."""
    size = len(energy)
    cell = nn.GRUCell(3 * size + size, size).double()
    weights = {
        "weight_ih": torch.cat([torch.eye(3 * size, dtype=torch.float64), context_weight], 1),
        "bias_ih": torch.zeros(3 * size, dtype=torch.float64),
        "weight_hh": state_weight[size:],
        "bias_hh": bias[size:],
    }
    rows = []
    for row in range(len(state)):
        own, states = state[row], []
        for step, count in enumerate(counts):
            if row >= count:
                states.append(torch.zeros_like(own))
                continue
            scores = torch.stack([energy @ torch.tanh(f + state_weight[:size] @ own) for f in keys[row]])
            shares = F.softmax(scores.masked_fill(~real[row], -1e300), 0)
            context = sum(share * region for share, region in zip(shares, regions[row], strict=True))
            own = torch.func.functional_call(cell, weights, (torch.cat([word_inputs[step, row], context]), own))
            states.append(own)
        rows.append(torch.stack(states) if states else state.new_zeros(0, size))
    return torch.stack(rows, 1)


def gradients(function, arguments):
    """Result and gradients of a weighted sum."""
    found = function(*arguments)
    torch.manual_seed(1)
    loss = (found * torch.randn(found.shape, dtype=torch.float64).to(found)).sum()
    return [found.detach(), *torch.autograd.grad(loss, arguments[2:], allow_unused=True)]


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_states_and_gradients_equal_the_literal_loop(shape):
    """The bias of the attention layer is in the keys, so the first part of ``bias`` is not used by the loop."""
    arguments = example(shape)
    found, expected = gradients(AttendingGRU.apply, arguments), gradients(literal, arguments)
    size = len(arguments[-1])
    found[6], expected[6] = found[6][size:], expected[6][size:]
    torch.testing.assert_close(found, expected)


def test_captions_without_words_have_no_states():
    found = gradients(AttendingGRU.apply, example(SHAPES[3]))
    assert found[0].shape == (0, 4, 16)
    assert not any(gradient.any() for gradient in found[1:])


def assert_near(found, expected, share):
    """The largest difference of each tensor, as a share of its largest value."""
    for one, other in zip(found, expected, strict=True):
        limit = share * float(other.abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one.double(), other.double(), atol=limit, rtol=0)


@needs_triton
@pytest.mark.parametrize(("kind", "share"), [(torch.float32, 1e-5), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_interpreted_kernels_equal_the_plain_path(interpreted, shape, kind, share):
    arguments = example(shape, kind)
    fused = gradients(AttendingGRU.apply, arguments)
    assert kernel_states()[FUSED_KERNEL] == "fused"
    with use_kernels(False):
        plain = gradients(AttendingGRU.apply, arguments)
    assert_near(fused, plain, share)


@on_cuda
@pytest.mark.parametrize(("kind", "share"), [(torch.float32, 1e-4), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize("shape", [*SHAPES[:3], (130, 64, 512, [130] * 20)])
def test_compiled_kernels_equal_the_plain_path(shape, kind, share):
    arguments = example(shape, kind, "cuda")
    fused = gradients(AttendingGRU.apply, arguments)
    assert kernel_states()[FUSED_KERNEL] == "fused"
    with use_kernels(False):
        plain = gradients(AttendingGRU.apply, arguments)
    assert_near(fused, plain, share)
