from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from calligram.data.matches import Matches
from calligram.errors import NotFiniteError
from calligram.evaluation import distributions as measured
from calligram.evaluation.distributions import draw_overlap, score_overlap
from calligram.evaluation.retrieval import overlap_of
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.two_branch import (
    TwoBranchEmbedding,
    TwoBranchSettings,
    TwoBranchSimilarity,
    TwoBranchSimilaritySettings,
)


def literal(scores: np.ndarray, matching: np.ndarray, left_out: np.ndarray, bins: int, low: float = -1) -> float:
    """S of Eq. 10 by loops: the two densities over [low, low + 2], the lower one at each step, times its width."""
    width = 2 / bins
    p, q = [0] * bins, [0] * bins
    for i in range(len(scores)):
        for j in range(len(scores[0])):
            place = min(bins - 1, max(0, math.floor((float(scores[i, j]) - low) * bins / 2)))
            if matching[i, j]:
                p[place] += 1
            elif not left_out[i, j]:
                q[place] += 1
    area = 0.0
    for x in range(bins):
        area += min(p[x] / (sum(p) * width), q[x] / (sum(q) * width)) * width
    return area


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("block", [7, 1 << 22])
def test_s_is_the_integral_of_dual_path_eq_10(dtype, block, monkeypatch):
    monkeypatch.setattr(measured, "BLOCK_SCORES", block)
    rng = np.random.default_rng(0)
    matching = rng.random((12, 17)) < 0.2
    left_out = ~matching & (rng.random(matching.shape) < 0.1)
    scores = np.clip(rng.normal(0.4 * matching, 0.3), -1, 1).astype(dtype)
    scores[0, :5] = (-1, 1, 0, 0.5, -0.5)  # on edges of bins
    true = Matches(*np.nonzero(matching | left_out), matching.shape)
    found = score_overlap(scores, Matches(*np.nonzero(matching), matching.shape), also_true=true, bins=20)
    assert found is not None
    assert found.s == pytest.approx(literal(scores, matching, left_out, 20))
    assert found.positive.sum() == matching.sum()
    assert found.negative.sum() == (~matching & ~left_out).sum()
    assert found.positive_mean == pytest.approx(scores[matching].mean())
    assert found.negative_mean == pytest.approx(scores[~matching & ~left_out].mean())


def test_by_hand():
    """Two of four matching pairs and one of four others lie in the upper of two bins: min(2/4, 3/4) + min(2/4, 1/4)."""
    scores = np.array([[0.5, 0.5, -0.5, -0.5], [0.5, -0.5, -0.5, -0.5]])
    found = score_overlap(scores, Matches([0] * 4, range(4), (2, 4)), bins=2)
    assert found is not None
    assert found.s == pytest.approx(0.75)
    assert (found.positive_mean, found.negative_mean) == (0, -0.25)


def test_s_is_zero_for_a_perfect_scorer_and_one_for_a_constant_one():
    matches = Matches([0, 1], [0, 1], (2, 2))
    assert score_overlap(np.eye(2), matches).s == 0
    assert score_overlap(np.zeros((2, 2)), matches).s == 1


def test_scores_that_are_no_cosines_are_counted_over_their_own_range():
    matches = Matches([0, 1], [0, 1], (2, 2))
    found = score_overlap(np.array([[90.0, 10.0], [10.0, 80.0]]), matches, span=None, bins=4)
    assert found.s == 0
    assert (found.edges[0], found.edges[-1]) == (10, 90)
    assert score_overlap(np.full((2, 2), 7.0), matches, span=None).s == 1


def test_one_kind_of_pair_alone_cannot_overlap():
    assert score_overlap(np.zeros((1, 2)), Matches([0, 0], [0, 1], (1, 2))) is None
    assert score_overlap(np.zeros((1, 2)), Matches([], [], (1, 2))) is None
    both = Matches([0, 0], [0, 1], (1, 2))
    assert score_overlap(np.zeros((1, 2)), Matches([0], [0], (1, 2)), also_true=both) is None


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(NotFiniteError, match="not finite"):
        score_overlap(np.array([[np.nan, 0.0]]), Matches([0], [0], (1, 2)))


def test_both_histograms_are_drawn(tmp_path):
    scores = np.random.default_rng(0).uniform(-1, 1, (8, 9))
    found = score_overlap(scores, Matches(range(8), range(8), (8, 9)))
    draw_overlap(found, tmp_path / "deep" / "overlap.png", "a title with $ in it")
    assert (tmp_path / "deep" / "overlap.png").stat().st_size > 5000


def two_branch() -> TwoBranchEmbedding:
    image, text = ImageArchitecture(feature_dim=5), TextArchitecture("vectors", state_dim=7)
    return TwoBranchEmbedding(TwoBranchSettings(image, text, 4, hidden=8))


def pairing_of(matching: np.ndarray) -> SimpleNamespace:
    return SimpleNamespace(matches=Matches(*np.nonzero(matching), matching.shape), also_true=None)


def test_the_overlap_of_distances_is_that_of_eq_10_over_their_range():
    rng = np.random.default_rng(0)
    matching = rng.random((30, 40)) < 0.2
    scores = -np.clip(rng.normal(1.3 - 0.5 * matching, 0.2), 0, 2)  # most are below -1
    found = overlap_of(two_branch(), scores, pairing_of(matching))
    assert (found.edges[0], found.edges[-1]) == (-2, 0)
    assert found.s == pytest.approx(literal(scores, matching, np.zeros_like(matching), 100, low=-2))


def test_distances_that_do_not_overlap_have_no_overlap():
    """All pairs are farther apart than 1; over the range of the cosine all of them would be in the first bin: S = 1."""
    scores = np.array([[-1.1, -1.5], [-1.6, -1.2]])
    assert overlap_of(two_branch(), scores, pairing_of(np.eye(2, dtype=bool))).s == 0
    half = np.array([[-1.1, -1.1], [-1.6, -1.2]])  # one of two other pairs is in the bin of one of two matching pairs
    assert overlap_of(two_branch(), half, pairing_of(np.eye(2, dtype=bool))).s == 0.5


def test_unbounded_scores_are_counted_over_their_own_range():
    settings = TwoBranchSimilaritySettings(
        ImageArchitecture(feature_dim=5), TextArchitecture("vectors", state_dim=7), 4
    )
    found = overlap_of(TwoBranchSimilarity(settings), np.array([[9.0, -3], [-4, 8]]), pairing_of(np.eye(2, dtype=bool)))
    assert (found.edges[0], found.edges[-1], found.s) == (-4, 9, 0)
