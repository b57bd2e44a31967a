"""The attention kernels of mmca against the plain path: by Triton's interpreter, and compiled on a GPU."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from calligram.device import kernel_states, use_kernels
from calligram.models.layers.transformer_unit import ATTENTION_KERNEL, AttendedItems, PreparedItems, TransformerUnit

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPES = [(3, 5, 7, 6), (2, 40, 3, 20), (4, 1, 2, 17), (18, 3, 2, 1)]
"""images, regions, texts, words: less than a tile, more than one, texts of more words than regions, and more images
than a program attends to
"""
SIZES = [(64, 4), (32, 4), (48, 2)]
"""dimensions and heads: a head of 16, a small one, and one of a size that is no power of two"""


def unit_and_items(shape, dim, heads, where="cpu"):
    """A unit, and parts and masks of images and texts; an image has one real region, and a text no word."""
    images, regions, texts, words = shape
    torch.manual_seed(0)
    seen, spoken = torch.rand(images, regions) < 0.7, torch.rand(texts, words) < 0.7
    seen[:, 0], spoken[:, 0], spoken[-1] = True, True, False
    parts = [torch.randn(*mask.shape, dim, device=where, requires_grad=True) for mask in (seen, spoken)]
    return TransformerUnit(dim, heads).to(where), parts, (seen.to(where), spoken.to(where))


def all_pairs(unit, parts, masks):
    """Attention of images to texts, and of texts to images, for all pairs."""
    one, two = (unit.prepare_items(each, mask) for each, mask in zip(parts, masks, strict=True))
    return type(one), [unit.attend(one, two), unit.attend(two, one)]


def aligned(unit, parts, masks):
    """Attention over the stacked parts of as many pairs as there are items, and within images."""
    count = min(map(len, parts))
    one, two = (unit.project_items(each[:count], mask[:count]) for each, mask in zip(parts, masks, strict=True))
    return [unit.attend_stacked(one, two), unit.attend_stacked(one, type(two)(*(each[:, :0] for each in two)))]


def gradients(outputs, inputs):
    """Gradients of a sum in which each output has another weight."""
    torch.manual_seed(1)
    total = sum((each.float() * torch.randn(each.shape).to(each.device)).sum() for each in outputs)
    return torch.autograd.grad(total, inputs)


def assert_near(found, expected, share):
    """The largest difference, as a share of the largest value."""
    most = float(expected.detach().abs().max())
    torch.testing.assert_close(found.float(), expected.float(), atol=share * most, rtol=0)


def compare(unit, parts, masks, work, where, share):
    """Outputs and gradients of the kernels in bfloat16, and of the plain path in float32."""
    inputs = [*parts, unit.query.weight, unit.key.weight, unit.value.weight]
    with use_kernels(False):
        exact = work(unit, parts, masks)
    with torch.autocast(where, torch.bfloat16):
        found = work(unit, parts, masks)
    assert kernel_states()[ATTENTION_KERNEL] == "fused"
    for one, two in zip(found, exact, strict=True):
        assert_near(one, two, share)
    for one, two in zip(gradients(found, inputs), gradients(exact, inputs), strict=True):
        assert_near(one, two, share)


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dim", "heads"), SIZES)
def test_interpreted_attention_of_all_pairs_equals_the_plain_path(interpreted, shape, dim, heads):
    compare(*unit_and_items(shape, dim, heads), lambda *given: all_pairs(*given)[1], "cpu", 0.02)


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dim", "heads"), SIZES)
def test_interpreted_attention_of_stacked_parts_equals_the_plain_path(interpreted, shape, dim, heads):
    compare(*unit_and_items(shape, dim, heads), aligned, "cpu", 0.02)


@needs_triton
@torch.no_grad()
def test_interpreted_attention_within_items_equals_the_plain_path(interpreted):
    unit, parts, masks = unit_and_items(SHAPES[1], 64, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found = unit(parts[0], masks[0])
        assert kernel_states() == {ATTENTION_KERNEL: "fused"}
        with use_kernels(False):
            assert_near(found, unit(parts[0], masks[0]), 0.02)


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("work", [lambda *given: all_pairs(*given)[1], aligned])
def test_a_backward_kernel_that_fails_is_replaced_by_the_plain_path(interpreted, monkeypatch, shape, work):
    module = interpreted["fused_pair_attention"]
    for name in ("attend_stacked_backward", "attend_others_backward_items"):
        monkeypatch.setattr(module, name, None)
    unit, parts, masks = unit_and_items(shape, 64, 4)
    inputs = [*parts, unit.query.weight, unit.key.weight, unit.value.weight]
    with torch.autocast("cpu", torch.bfloat16):
        found = work(unit, parts, masks)
    assert kernel_states()[ATTENTION_KERNEL] == "fused"
    of_found = gradients(found, inputs)
    assert kernel_states()[ATTENTION_KERNEL] == "plain: TypeError"
    with use_kernels(False):
        exact = work(unit, parts, masks)
    for one, two in zip(of_found, gradients(exact, inputs), strict=True):
        assert_near(one, two, 0.02)


@needs_triton
def test_a_kernel_that_fails_leaves_items_that_the_plain_path_takes(interpreted, monkeypatch):
    unit, parts, masks = unit_and_items(SHAPES[0], 64, 4)
    module = interpreted["fused_pair_attention"]
    with torch.autocast("cpu", torch.bfloat16):
        kind, found = all_pairs(unit, parts, masks)
        assert kind is AttendedItems
        monkeypatch.setattr(module, "OthersAttention", None)
        _, plain = all_pairs(unit, parts, masks)
        assert kernel_states()[ATTENTION_KERNEL].startswith("plain")
    for one, two in zip(found, plain, strict=True):
        assert_near(one, two, 0.02)


@needs_triton
def test_float32_and_long_items_take_the_plain_path(interpreted):
    unit, parts, masks = unit_and_items((2, 129, 2, 5), 64, 4)
    assert all_pairs(unit, parts, masks)[0] is PreparedItems
    with torch.autocast("cpu", torch.bfloat16):
        assert all_pairs(unit, parts, masks)[0] is PreparedItems
        assert all_pairs(unit, parts[::-1], masks[::-1])[0] is AttendedItems


@on_cuda
@needs_triton
@pytest.mark.parametrize("shape", [*SHAPES, (40, 36, 70, 20), (9, 64, 20, 32)])
@pytest.mark.parametrize(("dim", "heads"), [(256, 16), (128, 16), (512, 16)])
@pytest.mark.parametrize("work", [lambda *given: all_pairs(*given)[1], aligned], ids=["all pairs", "stacked"])
def test_attention_on_cuda_equals_the_plain_path_in_float32(shape, dim, heads, work):
    compare(*unit_and_items(shape, dim, heads, "cuda"), work, "cuda", 0.03)
