from __future__ import annotations

import numpy as np
import pytest

from calligram.features.texts import mixture
from calligram.features.texts.mixture import SortedColumns


def slow_median(values, weights):
    """The smallest value at or below which lies half of the weight."""
    total, so_far = sum(map(float, weights)), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        so_far += float(weight)
        if so_far >= total / 2:
            return value
    raise AssertionError


@pytest.mark.parametrize("block", [1, 3, 16, 512])
@pytest.mark.parametrize("sharp", [0.3, 30])
def test_medians_are_those_of_a_plain_loop(monkeypatch, block, sharp):
    monkeypatch.setattr(mixture, "SORT_BLOCK_ENTRIES", block)
    random = np.random.default_rng(0)
    data = random.normal(size=(61, 4)).astype(np.float32)
    data[:, 3] = data[:, 3].round()
    logits = sharp * random.normal(size=(61, 5))
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    expected = [[slow_median(data[:, d], weights[:, k]) for d in range(4)] for k in range(5)]
    np.testing.assert_array_equal(SortedColumns(data).medians(weights), np.array(expected, dtype=np.float32))


def test_by_hand():
    data = np.array([[3], [1], [2], [9]], dtype=np.float32)
    weights = np.array([[0.25, 0, 1], [0.25, 0, 0], [0.25, 0.1, 0], [0.25, 0.9, 0]], dtype=np.float32)
    assert SortedColumns(data).medians(weights).tolist() == [[2], [9], [3]]
