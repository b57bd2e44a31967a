from __future__ import annotations

import numpy as np
import pytest

from calligram.evaluation.figures import correlation, draw_correlation, mean_between


def test_it_is_pearsons_between_images():
    vectors = np.random.default_rng(0).normal(size=(5, 7)) + 3
    expected = np.zeros((5, 5))
    for i in range(5):
        for j in range(5):
            a, b = vectors[i] - vectors[i].mean(), vectors[j] - vectors[j].mean()
            expected[i, j] = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
    found = correlation(vectors)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert mean_between(found) == pytest.approx(np.abs(expected[~np.eye(5, dtype=bool)]).mean())


def test_a_vector_without_differences_has_no_correlation():
    found = correlation(np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]))
    np.testing.assert_array_equal(found, np.eye(2))
    assert mean_between(np.ones((1, 1))) == 0


def test_it_is_drawn_side_by_side(tmp_path):
    draw_correlation({"one": np.eye(4), "two": -np.eye(4)}, tmp_path / "deep" / "c.png")
    assert (tmp_path / "deep" / "c.png").stat().st_size > 3000
