"""The fast fit against expectation maximisation written out entry by entry."""

from __future__ import annotations

import math

import numpy as np
import pytest

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
    """Weighted medians, mean distances, means and variances; Laplacian where its weighted log likelihood is greater."""
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
    """Priors, medians, mean distances, means, variances, and where it is Laplacian."""
    centres, scales = mixture.centres, mixture.scales
    return mixture.priors, centres, scales, centres, scales**2, mixture.laplace


def compare(mixture, priors, m, s, mu, var, laplace):
    np.testing.assert_array_equal(mixture.laplace, laplace)
    np.testing.assert_allclose(mixture.priors, priors, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(mixture.centres, np.where(laplace, m, mu), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mixture.scales, np.where(laplace, s, np.sqrt(var)), rtol=1e-4, atol=1e-5)


def mixed_data(seed=0, count=120, dim=3):
    """Two clouds; the dimensions of each are Gaussian or Laplacian, the last one constant in the second cloud."""
    random = np.random.default_rng(seed)
    first = np.stack([random.normal(-2, 1, count), random.laplace(1, 0.5, count), random.normal(0, 2, count)], 1)
    second = np.stack([random.laplace(3, 1, count), random.normal(2, 0.5, count), np.zeros(count)], 1)
    return np.concatenate([first, second])[:, :dim].astype(np.float32)


@pytest.mark.parametrize("hybrid", [True, False])
def test_a_step_is_that_of_the_plain_loop(hybrid):
    data = mixed_data()
    start = initial_mixture(data, 3, hybrid=hybrid, seed=1)
    g = start.posteriors(data)
    wanted = slow_posteriors(data, *opened(start))
    np.testing.assert_allclose(g, wanted, rtol=1e-4, atol=1e-6)
    fast = maximisation_step(start, data, g, SortedColumns(data) if hybrid else None)
    compare(fast, *slow_step(data, g.astype(float), hybrid=hybrid))


@pytest.mark.parametrize("hybrid", [True, False])
def test_a_whole_fit_is_that_of_the_plain_loop(hybrid):
    data = mixed_data(seed=3, count=60)
    start = initial_mixture(data, 2, hybrid=hybrid, seed=0)
    now = opened(start)
    for _ in range(10):
        now = slow_step(data, slow_posteriors(data, *now), hybrid=hybrid)
    compare(fit_mixture(data, 2, hybrid=hybrid, seed=0), *now)


def test_it_starts_from_vectors_and_the_spread_of_all():
    data = mixed_data()
    start = initial_mixture(data, 4, hybrid=True, seed=0)
    assert all((data == centre).all(1).any() for centre in start.centres)
    assert start.priors.tolist() == [0.25] * 4
    distance = np.abs(data - np.median(data, 0)).mean(0)
    np.testing.assert_allclose(start.scales, np.where(start.laplace, distance, data.std(0)), rtol=1e-5)
    assert 0 < start.laplace.mean() < 1


def test_each_dimension_becomes_what_it_is():
    random = np.random.default_rng(0)
    data = np.stack([random.normal(size=4000), random.laplace(size=4000)], 1).astype(np.float32)
    mixture = fit_mixture(data, 1, hybrid=True)
    assert mixture.laplace.tolist() == [[False, True]]
    np.testing.assert_allclose(mixture.scales, [[1, 1]], atol=0.05)
    np.testing.assert_allclose(mixture.centres, [[0, 0]], atol=0.05)


def test_one_gaussian_centre_is_mean_and_deviation():
    data = mixed_data()
    mixture = fit_mixture(data, 1, hybrid=False)
    assert mixture.priors.tolist() == [1]
    np.testing.assert_allclose(mixture.centres[0], data.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mixture.scales[0], data.std(0), rtol=1e-4)


def test_no_spread_is_under_the_floor():
    data = np.repeat(np.array([[1, 2], [5, 6]], dtype=np.float32), 20, axis=0)
    for hybrid in (True, False):
        mixture = fit_mixture(data, 2, hybrid=hybrid)
        least = np.where(mixture.laplace, MIN_SPREAD, math.sqrt(MIN_SPREAD))
        assert (mixture.scales >= least * 0.999).all()
        assert np.isfinite(mixture.posteriors(data)).all()


def test_more_centres_than_vectors_stay_finite():
    data = np.array([[1, 2], [5, 6]], dtype=np.float32)
    mixture = fit_mixture(data, 5, hybrid=True)
    assert np.isfinite(mixture.posteriors(data)).all()
    assert (mixture.priors > 0).all()


def test_the_seed_decides():
    data = mixed_data()
    first, again, other = (fit_mixture(data, 3, hybrid=True, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.centres, again.centres)
    assert not np.array_equal(first.centres, other.centres)
