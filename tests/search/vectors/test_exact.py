"""Vectors in eight bits find what those in full find."""

from __future__ import annotations

import numpy as np
import pytest

from calligram.search.vectors.exact import ExactSearch


@pytest.mark.parametrize("spread", [1.0, 0.05], ids=["apart", "crowded"])
def test_eight_bits_find_exactly_what_floats_find(spread):
    random = np.random.default_rng(0)
    vectors = random.normal(size=(40, 33))[random.integers(40, size=3000)] + spread * random.normal(size=(3000, 33))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    vectors[5] = vectors[6]
    queries = (vectors[:20] + 0.02 * random.normal(size=(20, 33))).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    coded, plain = ExactSearch(vectors, max_float_numbers=0, eight_bits=True), ExactSearch(vectors)
    assert (coded.vectors.dtype, plain.vectors.dtype) == (np.float16, np.float32)
    for k in (1, 10, 3000):
        for allowed in (None, random.random(3000) < 0.9, random.random(3000) < 0.01):
            for ours, exact in zip(coded.search(queries, k, allowed), plain.search(queries, k, allowed), strict=True):
                np.testing.assert_allclose(ours.scores, exact.scores, atol=1e-6)
                assert len(ours.rows) == min(k, 3000 if allowed is None else allowed.sum())
