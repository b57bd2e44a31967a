from __future__ import annotations

import numpy as np

from calligram.features.texts.fisher_vectors import IcaProjection


def sources(random, count=3000):
    """Independent and heavy-tailed, then mixed."""
    hidden = random.laplace(size=(count, 10)) ** 3
    return hidden, (hidden @ random.normal(size=(10, 10))).astype(np.float32)


def test_points_have_length_ten_whatever_the_vectors_length():
    random = np.random.default_rng(0)
    _, vectors = sources(random)
    space = IcaProjection.fit(vectors)
    points = space(vectors)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 10, rtol=1e-5)
    np.testing.assert_allclose(space(7 * vectors), points, rtol=1e-3, atol=1e-3)


def test_components_are_applied_without_centring():
    _, vectors = sources(np.random.default_rng(0))
    space = IcaProjection.fit(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    through = unit @ space.unmixing.T
    np.testing.assert_allclose(
        space(vectors), 10 * through / np.linalg.norm(through, axis=1, keepdims=True), rtol=1e-3, atol=1e-4
    )


def test_independent_parts_are_told_apart():
    hidden, vectors = sources(np.random.default_rng(1))
    directions = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    correlation = np.abs(np.corrcoef(IcaProjection.fit(vectors)(vectors).T, directions.T)[:10, 10:])
    assert sorted(correlation.argmax(1)) == list(range(10))
    assert correlation.max(1).min() > 0.9
    assert np.sort(correlation, 1)[:, -2].max() < 0.3


def test_the_seed_decides():
    _, vectors = sources(np.random.default_rng(0))
    np.testing.assert_array_equal(IcaProjection.fit(vectors, 3).unmixing, IcaProjection.fit(vectors, 3).unmixing)


def test_few_words_in_many_dimensions_give_fewer_components():
    vectors = np.random.default_rng(0).normal(size=(12, 50)).astype(np.float32)
    space = IcaProjection.fit(np.concatenate([vectors, vectors]))
    assert space.unmixing.shape == (11, 50)
    assert np.isfinite(space(vectors)).all()
