"""Attention over changing shapes disables the kernels of cuDNN, which plan for each shape, and enables them again."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from calligram.device import without_cudnn_attention


def test_on_an_accelerator_cudnn_attention_is_disabled_and_restored():
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
