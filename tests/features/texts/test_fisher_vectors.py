from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp

from calligram.features.texts.fisher_vectors import IcaProjection, encode_fisher, power_normalise
from calligram.features.texts.mixture import Mixture


def slow_fisher(words, points, posteriors, mixture):
    """The formulas with plain loops over words."""
    count, dim = mixture.centres.shape
    first, second = np.zeros((count, dim)), np.zeros((count, dim))
    for k in range(count):
        root = math.sqrt(len(words) * mixture.priors[k])
        for d in range(dim):
            centre, scale = mixture.centres[k, d], mixture.scales[k, d]
            for word in words:
                g, x = posteriors[word, k], points[word, d]
                if mixture.laplace[k, d]:
                    first[k, d] += g * np.sign(x - centre) / root
                    second[k, d] += g * (abs(x - centre) / scale - 1) / root
                else:
                    first[k, d] += g * (x - centre) / scale / root
                    second[k, d] += g * ((x - centre) ** 2 / scale**2 - 1) / (root * math.sqrt(2))
    return np.concatenate([first.ravel(), second.ravel()])


def counts_of(texts, words):
    counts = np.zeros((len(texts), words), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text:
            counts[row, word] += 1
    return sp.csr_array(counts)


def random_mixture(random, count=3, dim=4):
    priors = random.dirichlet(np.ones(count)).astype(np.float32)
    centres, scales = random.normal(size=(count, dim)), random.uniform(0.5, 2, size=(count, dim))
    return Mixture(priors, centres.astype(np.float32), scales.astype(np.float32), random.random((count, dim)) < 0.5)


def test_fisher_vectors_follow_the_formulas():
    random = np.random.default_rng(0)
    mixture, points = random_mixture(random), random.normal(size=(9, 4)).astype(np.float32)
    posteriors = mixture.posteriors(points)
    texts = [[0, 1, 2, 2], [8], [3, 3, 3, 4, 5, 6, 7, 0]]
    found = encode_fisher(counts_of(texts, 9), points, posteriors, mixture)
    for row, words in zip(found, texts, strict=True):
        np.testing.assert_allclose(row, slow_fisher(words, points, posteriors, mixture), rtol=1e-4, atol=1e-5)


def test_one_centre_by_hand():
    mixture = Mixture(
        np.ones(1, np.float32),
        np.array([[1, 1]], np.float32),
        np.array([[2, 2]], np.float32),
        np.array([[False, True]]),
    )
    points = np.array([[5, 7], [1, 0]], np.float32)
    found = encode_fisher(counts_of([[0, 1], []], 2), points, np.ones((2, 1), np.float32), mixture)
    # Gaussian: (2 + 0) and (3 - 1); Laplacian: (1 - 1) and (2 - 1/2); two words.
    expected = [2 / math.sqrt(2), 0, 2 / math.sqrt(2) / math.sqrt(2), 1.5 / math.sqrt(2)]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    assert not found[1].any()


def test_power_normalisation_by_hand():
    found = power_normalise(np.array([[4, -9, 0], [0, 0, 0]], np.float32))
    np.testing.assert_allclose(found, np.array([[2, -3, 0], [0, 0, 0]]) / math.sqrt(13), rtol=1e-6)


def test_the_gradient_of_a_gaussian_is_zero_on_its_own_data():
    data = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    mixture = Mixture(np.ones(1, np.float32), data.mean(0)[None], data.std(0)[None], np.zeros((1, 3), dtype=np.bool_))
    counts = sp.csr_array(np.ones((1, 5000), np.float32))
    found = encode_fisher(counts, data, np.ones((5000, 1), np.float32), mixture)
    assert found == pytest.approx(0, abs=1e-2)


def sources(random, count=3000):
    """Return independent heavy-tailed sources, and a linear mixture of them."""
    hidden = random.laplace(size=(count, 10)) ** 3
    return hidden, (hidden @ random.normal(size=(10, 10))).astype(np.float32)


def test_points_have_length_ten_for_vectors_of_any_length():
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


def test_independent_components_are_separated():
    hidden, vectors = sources(np.random.default_rng(1))
    directions = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    correlation = np.abs(np.corrcoef(IcaProjection.fit(vectors)(vectors).T, directions.T)[:10, 10:])
    assert sorted(correlation.argmax(1)) == list(range(10))
    assert correlation.max(1).min() > 0.9
    assert np.sort(correlation, 1)[:, -2].max() < 0.3


def test_the_result_depends_on_the_seed():
    _, vectors = sources(np.random.default_rng(0))
    np.testing.assert_array_equal(IcaProjection.fit(vectors, 3).unmixing, IcaProjection.fit(vectors, 3).unmixing)


def test_few_words_in_many_dimensions_give_few_components():
    vectors = np.random.default_rng(0).normal(size=(12, 50)).astype(np.float32)
    space = IcaProjection.fit(np.concatenate([vectors, vectors]))
    assert space.unmixing.shape == (11, 50)
    assert np.isfinite(space(vectors)).all()
