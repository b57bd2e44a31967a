from __future__ import annotations

import numpy as np
import pytest
from sklearn import decomposition

from calligram.features.texts.pca import PCA


def in_blocks(rows, size=37):
    return lambda: (rows[start : start + size] for start in range(0, len(rows), size))


def test_components_span_the_same_space_as_an_exact_decomposition():
    random = np.random.default_rng(0)
    rows = (random.normal(size=(400, 60)) * 0.8 ** np.arange(60) + 3).astype(np.float32)
    exact, ours = decomposition.PCA(10).fit(rows), PCA.fit(in_blocks(rows), 10)
    assert ours.explained == pytest.approx(exact.explained_variance_ratio_.sum(), rel=2e-3)
    np.testing.assert_allclose(np.abs((ours.components[:5] * exact.components_[:5]).sum(1)), 1, atol=1e-3)
    np.testing.assert_allclose(ours(rows).var(0)[:5], exact.explained_variance_[:5], rtol=1e-2)
    np.testing.assert_allclose(ours(rows).mean(0), 0, atol=1e-3)


def test_a_slowly_decaying_spectrum_loses_little_variance():
    random = np.random.default_rng(0)
    rows = (random.normal(size=(500, 200)) / np.sqrt(1 + np.arange(200))).astype(np.float32)
    exact, ours = decomposition.PCA(60).fit(rows), PCA.fit(in_blocks(rows), 60)
    assert ours.explained > 0.95 * exact.explained_variance_ratio_.sum()


def test_components_are_orthonormal():
    rows = np.random.default_rng(0).normal(size=(100, 30)).astype(np.float32)
    components = PCA.fit(in_blocks(rows), 8).components
    np.testing.assert_allclose(components @ components.T, np.eye(8), atol=2e-3)


def test_there_are_at_most_as_many_components_as_the_rank():
    rows = np.random.default_rng(0).normal(size=(5, 30)).astype(np.float32)
    fitted = PCA.fit(in_blocks(rows), 20)
    assert fitted.components.shape == (4, 30)
    assert fitted.explained == pytest.approx(1, abs=1e-3)
    assert PCA.fit(in_blocks(rows[:1]), 20)(rows).shape[0] == 5
