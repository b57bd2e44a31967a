from __future__ import annotations

import pytest
import torch

from calligram.models.layers.networks import PaddedRecurrentText, RecurrentText


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("pooling", ["last", "mean", "max"])
@pytest.mark.parametrize("dim", [10, 8])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_padded_words_give_what_packed_ones_give(both_ways, pooling, dim, cell):
    torch.manual_seed(0)
    packed = RecurrentText(30, 6, 10, dim, bidirectional=both_ways, pooling=pooling, dropout=0.5, cell=cell).eval()
    mask = torch.arange(9) < torch.tensor([9, 2, 5, 1, 8])[:, None]
    words = torch.randint(4, 30, (5, 9))  # whatever stands in the padding must not matter
    torch.testing.assert_close(PaddedRecurrentText(packed).eval()(words, mask), packed(words * mask, mask))
    torch.testing.assert_close(
        PaddedRecurrentText(packed).eval().states(words, mask), packed.states(words * mask, mask)
    )
