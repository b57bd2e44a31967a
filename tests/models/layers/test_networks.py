"""Recurrent networks give the same states and gradients over packed and padded words."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calligram.models.layers.networks import PaddedOutput
from calligram.models.layers.towers import PackedOutput, PaddedRecurrentText, RecurrentText


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_does_not_change_states_or_gradients(kind, bidirectional):
    torch.manual_seed(0)
    network = kind(6, 5, batch_first=True, bidirectional=bidirectional)
    lengths = torch.tensor([[4], [1], [7], [7], [3]])
    real = (torch.arange(7) < lengths).unsqueeze(-1)
    given = torch.randn(5, 7, 6)
    found = []
    for way in (PackedOutput, PaddedOutput):
        vectors = given.clone().requires_grad_()
        output = way(network, vectors, lengths)
        states, last = output.states * real, output.last
        (states.square().sum() + (3 * last).sin().sum()).backward()
        gradients = [vectors.grad * real, *(p.grad.clone() for p in network.parameters())]
        network.zero_grad()
        found.append([states.detach(), last.detach(), *gradients])
    for packed, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, packed, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("pooling", ["last", "mean", "max"])
@pytest.mark.parametrize("dim", [10, 8])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_padded_recurrent_text_equals_the_packed_one(both_ways, pooling, dim, cell):
    torch.manual_seed(0)
    packed = RecurrentText(30, 6, 10, dim, bidirectional=both_ways, pooling=pooling, dropout=0.5, cell=cell).eval()
    mask = torch.arange(9) < torch.tensor([9, 2, 5, 1, 8])[:, None]
    words = torch.randint(4, 30, (5, 9))  # the words at padding must not matter
    torch.testing.assert_close(
        PaddedRecurrentText(packed).eval().vectors(words, mask), packed.vectors(words * mask, mask)
    )
    torch.testing.assert_close(
        PaddedRecurrentText(packed).eval().parts(words, mask)[0], packed.parts(words * mask, mask)[0]
    )
