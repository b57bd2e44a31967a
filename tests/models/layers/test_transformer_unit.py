"""Gradients written by hand equal those of automatic differentiation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from calligram.models.layers.text_cnn import NGRAM_SIZES, BestNgrams, best_ngrams_compiled
from calligram.models.layers.transformer_unit import MASKED_LOGIT, AppendColumns, OwnSoftmax


def test_own_softmax_and_its_log_denominator_have_correct_gradients():
    torch.manual_seed(0)
    logits = (5 * torch.randn(2, 3, 4, 5, dtype=torch.float64)).requires_grad_()
    bias = torch.tensor([[0.0] * 5, [0.0, MASKED_LOGIT, 0.0, 0.0, MASKED_LOGIT]], dtype=torch.float64)[:, None, None]
    shares, total = OwnSoftmax.apply(logits, bias)
    torch.testing.assert_close(shares, torch.softmax(logits + bias, -1))
    torch.testing.assert_close(total, torch.logsumexp(logits + bias, -1, keepdim=True))
    assert torch.autograd.gradcheck(OwnSoftmax.apply, (logits, bias))


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_extra_columns_carry_the_own_logit_and_the_mask(precision):
    torch.manual_seed(0)
    size, mask = 5, torch.tensor([[True] * 4, [True, True, False, False]])
    stacked, total = torch.randn(3, 2, 3, 4, size).to(precision), 20 * torch.rand(2, 3, 4, 1)
    total = total.to(torch.promote_types(precision, torch.float32))
    queries, keys, values = AppendColumns.apply(stacked, total, mask)
    assert queries.shape == (2, 4, 3, 8)
    assert keys.shape == values.shape == (2, 3, 5, 8)
    # In float64, so that only the precision of the columns matters.
    logits = queries.transpose(1, 2).double() @ keys.double().mT
    expected = (
        stacked[0].double() @ stacked[1].double().mT + (~mask * MASKED_LOGIT).to(precision).double()[:, None, None]
    )
    torch.testing.assert_close(logits[..., :4], expected)
    torch.testing.assert_close(logits[..., 4:], total.double(), atol=1e-3, rtol=0)
    assert torch.equal(values[..., :4, :size], stacked[2])
    assert torch.equal(values.double().sum(2)[..., size:], torch.tensor([1.0, 0, 0]).double().expand(2, 3, 3))


def test_extra_columns_have_correct_gradients():
    torch.manual_seed(0)
    stacked = torch.randn(3, 2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    total, mask = torch.randn(2, 2, 3, 1, dtype=torch.float64, requires_grad=True), torch.ones(2, 3, dtype=torch.bool)

    def logits_and_values(*given):
        # The second piece of the logarithm is a rounding error and has no gradient.
        queries, keys, values = AppendColumns.apply(*given, mask)
        return queries.transpose(1, 2)[..., :5] @ keys.mT[..., :5, :], values

    assert torch.autograd.gradcheck(logits_and_values, (stacked, total))


@pytest.mark.parametrize("places", [1, 2, 5])
def test_best_ngrams_and_gradients_equal_copied_windows(places):
    torch.manual_seed(0)
    words = torch.randn(3, 4, places, 6, dtype=torch.float64)
    mask = torch.arange(places) < torch.tensor([[places], [1], [max(1, places - 1)], [0]])
    weights = [torch.randn(2, count * 6, dtype=torch.float64, requires_grad=True) for count in NGRAM_SIZES]
    words = (words * mask.unsqueeze(-1)).requires_grad_()
    pieces = torch.cat([piece for weight in weights for piece in weight.split(6, 1)])
    padded = F.pad(words, (0, 0, 0, 2))
    expected = []
    for count, weight in zip(NGRAM_SIZES, weights, strict=True):
        spans = torch.cat([padded[..., by : by + places, :] for by in range(count)], -1)
        expected.append((spans @ weight.T).masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(-2))
    expected = torch.cat(expected, -1).relu()
    gradients = torch.autograd.grad(expected.square().sum(), [words, *weights])
    for way in (BestNgrams.apply, best_ngrams_compiled):
        found = way(words @ pieces.T, ~mask.unsqueeze(-1)).relu()
        torch.testing.assert_close(found, expected)
        again = torch.autograd.grad(found.square().sum(), [words, *weights], retain_graph=True)
        for one, two in zip(again, gradients, strict=True):
            torch.testing.assert_close(one, two)
