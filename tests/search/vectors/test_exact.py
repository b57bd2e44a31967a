"""Vectors in eight bits find what those in full find."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calligram.search.vectors.exact import ExactSearch, scores_of_rows


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


@pytest.mark.parametrize("eight_bits", [True, False])
@pytest.mark.parametrize("dim", [7, 64, 513])
def test_equal_rows_have_equal_scores_wherever_they_are_and_come_in_the_given_order(dim, eight_bits):
    """A matrix product gives equal rows slightly different scores, by their place."""
    random = np.random.default_rng(dim)
    few = random.normal(size=(5, dim))
    vectors = (few / np.linalg.norm(few, axis=1, keepdims=True)).astype(np.float16)[random.integers(5, size=1003)]
    queries = random.normal(size=(3, dim)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    names = random.permutation(1003)
    answers = []
    for order in (np.arange(1003), random.permutation(1003)):
        search = ExactSearch(
            vectors[order],
            ties=lambda rows, named=names[order]: named[rows],
            max_float_numbers=0 if eight_bits else 10**9,
            eight_bits=eight_bits,
        )
        allowed = names[order] % 3 > 0
        for k in (1, 10, 300, 1003):
            for chosen in (None, allowed):
                for one in (queries, queries[:1]):
                    hits = search.search(one, k, chosen)
                    answers.append([(names[order][hit.rows].tolist(), hit.scores.tolist()) for hit in hits])
    half = len(answers) // 2
    assert answers[:half] == answers[half:]
    for found, scores in answers[half - 2]:
        assert len(set(scores)) == 5
        assert found == [name for _, name in sorted(zip([-score for score in scores], found, strict=True))]


def test_rows_have_the_same_scores_with_one_thread_and_with_several():
    random = np.random.default_rng(0)
    vectors, query = random.normal(size=(900, 512)).astype(np.float16), random.normal(size=512).astype(np.float32)
    before, rows = torch.get_num_threads(), np.sort(random.choice(900, 300, replace=False))
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for some in (rows, rows[:1], rows[:0]):
                wanted = vectors[some].astype(np.float64) @ query
                np.testing.assert_allclose(scores_of_rows(vectors, some, query), wanted, atol=1e-3)
    finally:
        torch.set_num_threads(before)
