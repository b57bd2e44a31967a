from __future__ import annotations

import numpy as np
import pytest

from calligram.data.matches import Matches
from calligram.errors import NotFiniteError
from calligram.evaluation.distributions import cross_rank_counts, cross_ranks, draw_cross_ranks


def literal(scores, matches):
    """The supplement's definition, pair by pair."""
    images, texts = scores.shape
    found = []
    for i, t in zip(*matches.pairs(), strict=True):
        r_i = 1 + sum(scores[b, t] >= scores[i, t] for b in range(images) if b not in matches.visuals_of(t))
        r_t = 1 + sum(scores[i, c] >= scores[i, t] for c in range(texts) if c not in matches.texts_of(i))
        found.append(max(texts / images * (r_i - 1) + 1, r_t))
    return found


def test_cross_ranks_are_those_of_the_literal_loop():
    random = np.random.default_rng(0)
    for scores in (random.normal(size=(12, 30)), random.integers(4, size=(12, 30)).astype(float)):
        matches = Matches(np.arange(30) % 12, np.arange(30), (12, 30)).plus(Matches([3, 4, 5], [0, 0, 1], (12, 30)))
        assert cross_ranks(scores, matches).tolist() == literal(scores, matches)


def test_with_five_texts_for_an_image_it_is_the_papers_formula():
    matches = Matches(np.repeat(np.arange(4), 5), np.arange(20), (4, 20))
    scores = np.zeros((4, 20))
    scores[matches.pairs()] = 1.0
    scores[1, 0] = 2.0  # one image stands before image 0 at text 0
    scores[1, 19] = 3.0  # one text before all texts of image 1
    found = cross_ranks(scores, matches)
    assert found[0] == 5 * 2 - 4
    assert found[5:10].tolist() == [3] * 5  # texts 0 and 19 score more with image 1 than its own
    assert found[19] == 5 * 2 - 4
    assert found[1:5].tolist() == [1] * 4


def test_counts_and_picture(tmp_path):
    ranks = np.array([1.0, 1, 2, 5, 6, 10, 11, 200, 201, 5000])
    assert cross_rank_counts(ranks) == {"1": 2, "2-5": 2, "6-10": 2, "11-50": 1, "51-200": 1, "> 200": 2}
    draw_cross_ranks({"one": ranks, "two": ranks[:3]}, tmp_path / "pictures" / "ranks.png")
    assert (tmp_path / "pictures" / "ranks.png").stat().st_size > 5000


def test_scores_that_cannot_be_compared_are_refused():
    with pytest.raises(NotFiniteError, match="row 1"):
        cross_ranks(np.array([[1.0, 2.0], [np.nan, 1.0]]), Matches([0, 1], [0, 1], (2, 2)))
