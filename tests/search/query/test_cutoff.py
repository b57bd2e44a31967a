from __future__ import annotations

import math

import numpy as np
import pytest

from calligram.errors import NotFiniteError
from calligram.search.query.cutoff import (
    COUNTED_HITS,
    MIN_IMAGES,
    UNKNOWN_SCALE,
    UNRELATED_SHARE,
    ScoreScale,
    estimate_scale,
    first_matches,
    query_cutoff,
    weighted_quantile,
)


def trials(gain: float, queries: int = 200, items: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Normal scores, one match a query that lies ``gain`` deviations higher."""
    rng = np.random.default_rng(seed)
    matches = np.zeros((queries, items), dtype=bool)
    matches[np.arange(queries), rng.integers(items, size=queries)] = True
    scores = rng.normal(0.2, 0.05, size=(queries, items)) + gain * 0.05 * matches
    return scores.astype(np.float32), matches


def test_most_matches_pass_and_a_good_matcher_hides_all_else():
    scores, matches = trials(gain=8)
    scale = estimate_scale(scores, matches)
    fresh, truth = trials(gain=8, seed=1)
    assert 0.9 < (fresh[truth] >= scale.cutoff).mean() <= 1
    assert (fresh[~truth] >= scale.cutoff).mean() < 1e-4
    assert scale.mean == pytest.approx(0.2, abs=0.002)
    assert scale.spread == pytest.approx(0.05, abs=0.002)


def test_a_matcher_that_knows_nothing_hides_next_to_nothing():
    scores, matches = trials(gain=0, queries=4000)
    first = np.sort(scores, axis=1)[:, -COUNTED_HITS:]
    scale = estimate_scale(scores, matches)
    assert (first < scale.cutoff).mean() < 0.1


def test_without_known_matches_the_cutoff_is_above_nearly_all_pairs():
    scores, matches = trials(gain=8)
    scale = estimate_scale(scores, np.zeros_like(matches))
    assert (scores < scale.cutoff).mean() == pytest.approx(UNRELATED_SHARE, abs=1e-3)


def test_a_library_too_small_to_tell_hides_nothing():
    scores, matches = trials(gain=8, items=MIN_IMAGES - 1)
    assert estimate_scale(scores, matches) == UNKNOWN_SCALE
    assert UNKNOWN_SCALE.cutoff == -math.inf
    assert estimate_scale(np.zeros((0, 500), np.float32), np.zeros((0, 500), bool)) == UNKNOWN_SCALE


def test_ignored_pairs_count_for_nothing():
    scores = np.random.default_rng(0).normal(size=(100, 100)).astype(np.float32)
    none, own = np.zeros((100, 100), bool), np.eye(100, dtype=bool)
    expected = estimate_scale(scores, none, own)
    scores[own] = np.nan
    assert estimate_scale(scores, none, own) == expected
    with pytest.raises(NotFiniteError, match="not finite"):
        estimate_scale(scores, none)


def test_only_matches_among_the_first_hits_count_and_every_query_alike():
    """Query 0 has matches at ranks 1 and 2, query 1 one at rank 12, query 2 one at rank 3."""
    scores = np.tile(np.linspace(1, 0, 20, dtype=np.float32), (3, 1))
    matches = np.zeros((3, 20), bool)
    matches[0, :2] = matches[1, 11] = matches[2, 2] = True
    found, weights = first_matches(scores, matches)
    np.testing.assert_allclose(found, scores[0, [0, 1, 2]])
    np.testing.assert_allclose(weights, [0.5, 0.5, 1.0])


def test_queries_without_a_match_are_not_sorted(monkeypatch):
    scores, matches = trials(gain=9, queries=6)  # every match is the first hit
    matches[[0, 3, 4, 5]] = False
    order, sorted_rows = np.argsort, []
    monkeypatch.setattr(
        np, "argsort", lambda values, **given: sorted_rows.append(len(values)) or order(values, **given)
    )
    found, _ = first_matches(scores, matches)
    np.testing.assert_array_equal(found, scores[matches])
    assert sorted_rows == [2]


def test_a_weighted_quantile_is_the_plain_one_of_repeated_values():
    rng = np.random.default_rng(0)
    values, counts = rng.normal(size=50), rng.integers(1, 5, size=50)
    repeated = np.sort(np.repeat(values, counts))
    for share in (0.01, 0.05, 0.3, 0.5, 0.99, 1.0):
        expected = repeated[max(0, math.ceil(share * len(repeated) - 1e-9) - 1)]
        assert weighted_quantile(values, counts.astype(float), share) == expected


def test_the_cutoff_of_several_terms_is_a_weighted_mean_with_the_mean_score_for_negative_terms():
    """By hand: 0.5 * 0.3 + 0.25 * 0.8 - 0.25 * 0.2."""
    text, image = ScoreScale(0.2, 0.05, 0.3), ScoreScale(0.6, 0.15, 0.8)
    assert query_cutoff(np.array([0.5, 0.25, -0.25]), [text, image, text]) == pytest.approx(0.3)
    assert query_cutoff(np.array([1.0]), [text]) == pytest.approx(0.3)
    assert query_cutoff(np.array([0.5, -0.5]), [UNKNOWN_SCALE, text]) == -math.inf
