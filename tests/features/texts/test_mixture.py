"""The fast fit of mixtures against EM with plain loops, and weighted medians."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calligram.features.texts import mixture
from calligram.features.texts.mixture import MIN_SPREAD, SortedColumns, fit_mixture, initial_mixture, maximisation_step


def slow_posteriors(data, priors, m, s, mu, var, laplace):
    out = np.zeros((len(data), len(priors)))
    for n, x in enumerate(data):
        logs = []
        for k, prior in enumerate(priors):
            log = math.log(prior)
            for d, value in enumerate(x):
                if laplace[k][d]:
                    log += -math.log(2 * s[k][d]) - abs(value - m[k][d]) / s[k][d]
                else:
                    log += -0.5 * math.log(2 * math.pi * var[k][d]) - (value - mu[k][d]) ** 2 / (2 * var[k][d])
            logs.append(log)
        total = max(logs) + math.log(sum(math.exp(log - max(logs)) for log in logs))
        out[n] = [math.exp(log - total) for log in logs]
    return out


def slow_step(data, g, *, hybrid):
    """Compute medians, mean distances, means, variances, and where a Laplacian has the greater log likelihood."""
    count, dim = g.shape[1], data.shape[1]
    m, s, mu, var = (np.zeros((count, dim)) for _ in range(4))
    laplace = np.zeros((count, dim), dtype=bool)
    for k in range(count):
        weight = g[:, k].sum()
        for d in range(dim):
            x = data[:, d].astype(float)
            order = np.argsort(x)
            m[k, d] = x[order[np.flatnonzero(np.cumsum(g[order, k]) >= weight / 2)[0]]]
            s[k, d] = max(MIN_SPREAD, sum(g[n, k] * abs(x[n] - m[k, d]) for n in range(len(x))) / weight)
            mu[k, d] = sum(g[n, k] * x[n] for n in range(len(x))) / weight
            var[k, d] = max(MIN_SPREAD, sum(g[n, k] * (x[n] - mu[k, d]) ** 2 for n in range(len(x))) / weight)
            as_laplace = sum(g[n, k] * (-math.log(2 * s[k, d]) - abs(x[n] - m[k, d]) / s[k, d]) for n in range(len(x)))
            as_gauss = sum(
                g[n, k] * (-0.5 * math.log(2 * math.pi * var[k, d]) - (x[n] - mu[k, d]) ** 2 / (2 * var[k, d]))
                for n in range(len(x))
            )
            laplace[k, d] = hybrid and as_laplace > as_gauss
    return g.sum(0) / len(g), m, s, mu, var, laplace


def opened(mixture):
    """Return priors, medians, mean distances, means, variances, and where the density is Laplacian."""
    centres, scales = mixture.centres, mixture.scales
    return mixture.priors, centres, scales, centres, scales**2, mixture.laplace


def compare(mixture, priors, m, s, mu, var, laplace):
    np.testing.assert_array_equal(mixture.laplace, laplace)
    np.testing.assert_allclose(mixture.priors, priors, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mixture.centres, np.where(laplace, m, mu), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mixture.scales, np.where(laplace, s, np.sqrt(var)), rtol=1e-4, atol=1e-5)


def mixed_data(seed=0, count=120, dim=3):
    """Two clusters with Gaussian and Laplacian dimensions; the last one is constant in the second cluster."""
    random = np.random.default_rng(seed)
    first = np.stack([random.normal(-2, 1, count), random.laplace(1, 0.5, count), random.normal(0, 2, count)], 1)
    second = np.stack([random.laplace(3, 1, count), random.normal(2, 0.5, count), np.zeros(count)], 1)
    return np.concatenate([first, second])[:, :dim].astype(np.float32)


@pytest.mark.parametrize("hybrid", [True, False])
def test_an_em_step_equals_the_plain_loop(hybrid):
    data = mixed_data()
    start = initial_mixture(data, 3, hybrid=hybrid, seed=1)
    g = start.posteriors(data)
    wanted = slow_posteriors(data, *opened(start))
    np.testing.assert_allclose(g, wanted, rtol=1e-4, atol=1e-6)
    fast = maximisation_step(start, data, g, SortedColumns(data) if hybrid else None)
    compare(fast, *slow_step(data, g.astype(float), hybrid=hybrid))


@pytest.mark.parametrize("hybrid", [True, False])
def test_a_whole_fit_equals_the_plain_loop(hybrid):
    data = mixed_data(seed=3, count=60)
    start = initial_mixture(data, 2, hybrid=hybrid, seed=0)
    now = opened(start)
    for _ in range(10):
        now = slow_step(data, slow_posteriors(data, *now), hybrid=hybrid)
    compare(fit_mixture(data, 2, hybrid=hybrid, seed=0), *now)


def test_the_initial_centres_are_vectors_with_the_spread_of_all():
    data = mixed_data()
    start = initial_mixture(data, 4, hybrid=True, seed=0)
    assert all((data == centre).all(1).any() for centre in start.centres)
    assert start.priors.tolist() == [0.25] * 4
    distance = np.abs(data - np.median(data, 0)).mean(0)
    np.testing.assert_allclose(start.scales, np.where(start.laplace, distance, data.std(0)), rtol=1e-5)
    assert 0 < start.laplace.mean() < 1


def test_each_dimension_gets_the_density_of_its_data():
    random = np.random.default_rng(0)
    data = np.stack([random.normal(size=4000), random.laplace(size=4000)], 1).astype(np.float32)
    mixture = fit_mixture(data, 1, hybrid=True)
    assert mixture.laplace.tolist() == [[False, True]]
    np.testing.assert_allclose(mixture.scales, [[1, 1]], atol=0.05)
    np.testing.assert_allclose(mixture.centres, [[0, 0]], atol=0.05)


def test_one_gaussian_centre_is_the_mean_and_standard_deviation():
    data = mixed_data()
    mixture = fit_mixture(data, 1, hybrid=False)
    assert mixture.priors.tolist() == [1]
    np.testing.assert_allclose(mixture.centres[0], data.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mixture.scales[0], data.std(0), rtol=1e-4)


def test_no_spread_is_below_the_minimum():
    data = np.repeat(np.array([[1, 2], [5, 6]], dtype=np.float32), 20, axis=0)
    for hybrid in (True, False):
        mixture = fit_mixture(data, 2, hybrid=hybrid)
        least = np.where(mixture.laplace, MIN_SPREAD, math.sqrt(MIN_SPREAD))
        assert (mixture.scales >= least * 0.999).all()
        assert np.isfinite(mixture.posteriors(data)).all()


def test_more_centres_than_vectors_give_finite_values():
    data = np.array([[1, 2], [5, 6]], dtype=np.float32)
    mixture = fit_mixture(data, 5, hybrid=True)
    assert np.isfinite(mixture.posteriors(data)).all()
    assert (mixture.priors > 0).all()


def test_the_result_depends_on_the_seed():
    data = mixed_data()
    first, again, other = (fit_mixture(data, 3, hybrid=True, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.centres, again.centres)
    assert not np.array_equal(first.centres, other.centres)


def slow_median(values, weights):
    """Return the smallest value such that the values up to it have half of the weight."""
    total, so_far = sum(map(float, weights)), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        so_far += float(weight)
        if so_far >= total / 2:
            return value
    raise AssertionError


@pytest.mark.parametrize("block", [1, 3, 16, 512])
@pytest.mark.parametrize("sharp", [0.3, 30])
def test_weighted_medians_equal_those_of_a_plain_loop(monkeypatch, block, sharp):
    monkeypatch.setattr(mixture, "SORT_BLOCK_ENTRIES", block)
    random = np.random.default_rng(0)
    data = random.normal(size=(61, 4)).astype(np.float32)
    data[:, 3] = data[:, 3].round()
    logits = sharp * random.normal(size=(61, 5))
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    expected = [[slow_median(data[:, d], weights[:, k]) for d in range(4)] for k in range(5)]
    np.testing.assert_array_equal(SortedColumns(data).medians(weights), np.array(expected, dtype=np.float32))


def test_weighted_medians_equal_those_computed_by_hand():
    data = np.array([[3], [1], [2], [9]], dtype=np.float32)
    weights = np.array([[0.25, 0, 1], [0.25, 0, 0], [0.25, 0.1, 0], [0.25, 0.9, 0]], dtype=np.float32)
    assert SortedColumns(data).medians(weights).tolist() == [[2], [9], [3]]
