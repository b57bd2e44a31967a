"""The fused kernels of mmca's pair module against the plain path: by Triton's interpreter, and compiled on a GPU."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from calligram.device import kernel_states, use_kernels
from calligram.models import mmca
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.layers.transformer_unit import ATTENTION_KERNEL
from calligram.models.matcher import Encoded

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SHAPES = [(5, 36, 7, 9), (3, 1, 20, 1), (2, 128, 3, 2), (1, 4, 2, 70)]
"""images, regions, texts, words: several items in a tile, more than a tile may hold, one; a text longer than a tile
has room for two
"""


def module_and_items(shape, dim=64, where="cpu"):
    """A pair module whose biases hide no errors, and items of which some have padding; a text has no word."""
    images, regions, texts, words = shape
    torch.manual_seed(0)
    module = mmca.PairModule(dim, 4 if dim == 64 else 16, dim)
    for weights in module.parameters():
        weights.data += 0.05 * torch.randn_like(weights)
    lengths = torch.randint(1, words + 1, (texts,))
    lengths[0], lengths[-1] = words, 0
    seen = torch.rand(images, regions) < 0.8
    seen[:, 0] = True
    spoken = torch.arange(words) < lengths[:, None]
    sides = [Encoded(torch.zeros(len(m), dim), torch.randn(*m.shape, dim), m).to(where) for m in (seen, spoken)]
    return module.to(where), *sides


def vectors(module, items, others, *, fused):
    """i_1 or c_1 of all pairs, by the plain path or by the kernels."""
    given = module, module.unit.attend(items, others), items.parts, items.mask
    pairs = ((mmca._image_vectors, mmca._fused_image_vectors), (mmca._text_vectors, mmca._fused_text_vectors))
    return [functions[fused](*given) for functions in pairs]


def assert_near(found, expected, share):
    """The largest difference, as a share of the largest value."""
    torch.testing.assert_close(found.double(), expected.double(), atol=share * float(expected.abs().max()), rtol=0)


@needs_triton
@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
def test_interpreted_kernels_equal_the_plain_path(interpreted, shape):
    """Means of parts and n-grams of parts, of both sides; factors are rounded to bfloat16."""
    module, images, texts = module_and_items(shape)
    one, two = module.prepare_items(images), module.prepare_items(texts)
    for items, others in ((one, two), (two, one)):
        plain, fused = (vectors(module, items, others, fused=way) for way in (False, True))
        for expected, found in zip(plain, fused, strict=True):
            assert_near(found, expected, 0.02)


@needs_triton
@torch.no_grad()
def test_interpreted_ngrams_of_the_same_words_are_the_same(interpreted):
    """Words and weights that bfloat16 represents, so that nothing is rounded."""
    module, _, texts = module_and_items((2, 3, 9, 6))
    words = torch.randint(-4, 5, (2, 9, 6, 64)).bfloat16() * texts.mask[..., None]
    for layer in module.ngrams.windows:
        layer.weight.data = torch.randint(-4, 5, layer.weight.shape).float()
    best = interpreted["fused_unit"].best_ngrams(module.ngrams, words, texts.mask)
    torch.testing.assert_close(module.ngrams.project_best(best), module.ngrams(words.float(), texts.mask))


@needs_triton
@torch.no_grad()
def test_scores_in_bfloat16_use_the_kernels_and_others_do_not(interpreted):
    settings = mmca.MMCASettings(
        ImageArchitecture(feature_dim=5), TextArchitecture("states", state_dim=7), 64, heads=4, filters=64
    )
    torch.manual_seed(0)
    matcher = mmca.MMCA(settings).eval()
    images = matcher.encode_images(torch.randn(3, 4, 5))
    texts = matcher.encode_texts(torch.randn(4, 6, 7), torch.arange(6) < torch.tensor([[6], [3], [1], [2]]))
    plain = matcher.score(images, texts)
    assert not kernel_states()
    with torch.autocast("cpu", torch.bfloat16):
        fused = matcher.score(images, texts)
        assert kernel_states() == dict.fromkeys((ATTENTION_KERNEL, mmca.FUSED_KERNEL), "fused")
        with use_kernels(False):
            lower = matcher.score(images, texts)
    torch.testing.assert_close(fused, plain, atol=0.01, rtol=0)
    torch.testing.assert_close(fused, lower, atol=0.01, rtol=0)
    with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        assert matcher.score(images, texts).requires_grad


@on_cuda
@needs_triton
@torch.no_grad()
@pytest.mark.parametrize("shape", [*SHAPES, (40, 36, 70, 20)])
def test_kernels_on_cuda_equal_the_plain_path_in_float32(shape):
    module, images, texts = module_and_items(shape, 256, "cuda")
    exact = module(module.prepare_items(images), module.prepare_items(texts))
    with torch.autocast("cuda", torch.bfloat16):
        one, two = module.prepare_items(images), module.prepare_items(texts)
        fused = module(one, two)
        with use_kernels(False):
            plain = module(one, two)
    assert kernel_states()[mmca.FUSED_KERNEL] == "fused"
    torch.testing.assert_close(fused, exact, atol=0.03, rtol=0)
    torch.testing.assert_close(fused, plain, atol=0.03, rtol=0)
