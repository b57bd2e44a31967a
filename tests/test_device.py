"""Attention without cuDNN, and compilation that does not change results."""

from __future__ import annotations

import functools
import logging
from types import SimpleNamespace

import pytest
import torch

from calligram.device import compile_if_enabled, use_compile, without_cudnn_attention
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.mmca import MMCA, MMCASettings


def test_cudnn_attention_is_disabled_on_a_gpu_and_restored():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn_attention(SimpleNamespace(is_cuda=True)):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_on_a_cpu_nothing_changes():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn_attention(torch.zeros(1)):
        assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.fixture
def traced(monkeypatch):
    """Trace as the compiler does, without generating kernels, which takes a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


def sides(found, images, texts, words, seed):
    torch.manual_seed(seed)
    mask = torch.arange(words) < torch.randint(1, words + 1, (texts, 1))
    return found.encode_images(torch.randn(images, 3, 5)), found.encode_texts(torch.randn(texts, words, 7), mask)


@pytest.mark.parametrize("lower", [False, True])
def test_compiled_scores_and_gradients_of_mmca_are_the_same(lower, traced):
    torch.manual_seed(0)
    settings = MMCASettings(
        ImageArchitecture(feature_dim=5), TextArchitecture("states", state_dim=7), 16, heads=2, filters=4, alpha=0.7
    )
    found = MMCA(settings)
    limits = {"atol": 0.03, "rtol": 0.05} if lower else {}
    for sizes in ((3, 4, 6), (5, 7, 3)):
        scores = []
        for on in (False, True):
            with use_compile(on), torch.autocast("cpu", torch.bfloat16, enabled=lower):
                images, texts = sides(found, *sizes, seed=1)
                whole = found.score(images, texts)
                pairs = found.score_pairs(images, texts.rows(slice(sizes[0])))
            found.zero_grad()
            (whole.square().sum() + pairs.sum()).backward()
            scores.append((whole, pairs, *(p.grad.clone() for p in found.parameters())))
        for one, two in zip(*scores, strict=True):
            torch.testing.assert_close(one, two, **limits)


def test_a_function_that_cannot_be_compiled_runs_anyway_with_one_warning(monkeypatch, caplog, traced):
    def broken(function):
        def called(*args):
            raise RuntimeError("no compiler")

        return called

    monkeypatch.setattr(torch, "compile", broken)
    twice = compile_if_enabled(1)(lambda x: 2 * x)
    with use_compile(), caplog.at_level(logging.WARNING):
        assert [twice(torch.ones(2)).tolist() for _ in range(2)] == [[2, 2]] * 2
    (record,) = caplog.records
    assert record.message == "<lambda> cannot be compiled and runs without compilation: no compiler"


def test_errors_of_a_compiled_function_are_raised(traced):
    def wrong(x):
        raise ValueError("of its own")

    with use_compile(), pytest.raises(ValueError, match="of its own"):
        compile_if_enabled(1)(wrong)(torch.ones(2))
