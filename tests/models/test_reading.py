"""Packed and padded texts are read alike, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calligram.models.layers.networks import PackedOutput, PaddedOutput


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_changes_neither_states_nor_gradients(kind, bidirectional):
    torch.manual_seed(0)
    network = kind(6, 5, batch_first=True, bidirectional=bidirectional)
    lengths = torch.tensor([[4], [1], [7], [7], [3]])
    real = (torch.arange(7) < lengths).unsqueeze(-1)
    given = torch.randn(5, 7, 6)
    found = []
    for way in (PackedOutput, PaddedOutput):
        vectors = given.clone().requires_grad_()
        read = way(network, vectors, lengths)
        states, last = read.states * real, read.last
        (states.square().sum() + (3 * last).sin().sum()).backward()
        gradients = [vectors.grad * real, *(p.grad.clone() for p in network.parameters())]
        network.zero_grad()
        found.append([states.detach(), last.detach(), *gradients])
    for packed, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, packed, atol=1e-6, rtol=1e-5)
