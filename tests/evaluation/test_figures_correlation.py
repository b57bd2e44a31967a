from __future__ import annotations

import numpy as np
import pytest

from calligram.evaluation.figures import correlation, draw_correlation, mean_absolute_correlation


def test_correlation_is_pearsons_between_images():
    vectors = np.random.default_rng(0).normal(size=(5, 7)) + 3
    expected = np.zeros((5, 5))
    for i in range(5):
        for j in range(5):
            a, b = vectors[i] - vectors[i].mean(), vectors[j] - vectors[j].mean()
            expected[i, j] = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
    found = correlation(vectors)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert mean_absolute_correlation(found) == pytest.approx(np.abs(expected[~np.eye(5, dtype=bool)]).mean())


def test_the_correlation_of_a_constant_vector_is_zero():
    found = correlation(np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]))
    np.testing.assert_array_equal(found, np.eye(2))
    assert mean_absolute_correlation(np.ones((1, 1))) == 0


def test_correlations_are_drawn(tmp_path):
    draw_correlation({"one": np.eye(4), "two": -np.eye(4)}, tmp_path / "deep" / "c.png")
    assert (tmp_path / "deep" / "c.png").stat().st_size > 3000
