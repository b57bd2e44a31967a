"""Expectation maximisation for mixtures of Gaussians, and of Gaussians and Laplacians."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.features.fisher.mixture import Floats, Mixture, parts
from calligram.features.fisher.weighted_medians import SortedColumns
from calligram.progress import Track, silent

Doubles = NDArray[np.float64]

FLOOR = 1e-3
"""least variance, and least mean distance from a median"""
ITERATIONS = 10
EMPTY = 1e-6
"""a centre that has less than this share of the vectors stays where it is"""


def fit_mixture(
    data: Floats, centres: int, *, hybrid: bool, seed: int = 0, iterations: int = ITERATIONS, track: Track = silent
) -> Mixture:
    """Fit by a fixed number of steps, from random vectors as centres and the spread of all (two-branch, Sec. 4.3).

    Args:
        data: (N, D).
        hybrid: choose Gaussian or Laplacian for every centre and dimension; otherwise all are Gaussian.
    """
    mixture = initial_mixture(data, centres, hybrid=hybrid, seed=seed)
    columns = SortedColumns(data) if hybrid else None
    for _ in track(range(iterations), "fitting a mixture"):
        mixture = step(mixture, data, mixture.posteriors(data), columns)
    return mixture


def initial_mixture(data: Floats, centres: int, *, hybrid: bool, seed: int) -> Mixture:
    """Random vectors as centres, and Gaussian or Laplacian at random."""
    random = np.random.default_rng(seed)
    chosen = data[random.choice(len(data), centres, replace=len(data) < centres)]
    laplace = random.random(chosen.shape) < 0.5 if hybrid else np.zeros(chosen.shape, dtype=np.bool_)
    distance = np.maximum(np.abs(data - np.median(data, axis=0)).mean(0, dtype=np.float64), FLOOR)
    deviation = np.sqrt(np.maximum(data.var(0, dtype=np.float64), FLOOR))
    scales = np.where(laplace, distance, deviation).astype(np.float32)
    return Mixture(np.full(centres, 1 / centres, dtype=np.float32), chosen, scales, laplace)


def step(mixture: Mixture, data: Floats, posteriors: Floats, columns: SortedColumns | None) -> Mixture:
    """The mixture that fits best what the posteriors share out; without ``columns``, of Gaussians only."""
    totals = posteriors.sum(0, dtype=np.float64)
    kept = (totals < EMPTY * len(data))[:, None]
    weights = np.maximum(totals, EMPTY * len(data))[:, None]
    means = _sums(data, posteriors) / weights
    pivots = (means if columns is None else columns.medians(posteriors)).astype(np.float32)
    distances, squares = (total / weights for total in _distances(data, posteriors, pivots))
    variances = np.maximum(squares - (means - pivots) ** 2, 0)
    laplace = np.zeros(pivots.shape, dtype=np.bool_) if columns is None else _laplacian(distances, variances)
    laplace = np.where(kept, mixture.laplace, laplace)
    scales = np.where(laplace, np.maximum(distances, FLOOR), np.sqrt(np.maximum(variances, FLOOR)))
    return Mixture(
        (weights[:, 0] / weights.sum()).astype(np.float32),
        np.where(kept, mixture.centres, np.where(laplace, pivots, means)).astype(np.float32),
        np.where(kept, mixture.scales, scales).astype(np.float32),
        laplace,
    )


def _laplacian(distances: Doubles, variances: Doubles) -> NDArray[np.bool_]:
    """Where the weighted log likelihood is greater for a Laplacian, per unit of weight.

    Of densities fitted to the same weights only these remain of the sums over all vectors.
    """
    s, v = np.maximum(distances, FLOOR), np.maximum(variances, FLOOR)
    likelier: NDArray[np.bool_] = -np.log(2 * s) - distances / s > -0.5 * np.log(2 * math.pi * v) - variances / (2 * v)
    return likelier


def _sums(data: Floats, posteriors: Floats) -> Doubles:
    """Sums of vectors, (K, D)."""
    total = np.zeros((posteriors.shape[1], data.shape[1]))
    weights = torch.from_numpy(posteriors)
    for rows, part in parts(data):
        total += (weights[rows].T @ part).numpy()
    return total


def _distances(data: Floats, posteriors: Floats, pivots: Floats) -> tuple[Doubles, Doubles]:
    """Sums of distances from the pivots and of their squares, both (K, D)."""
    first, second = np.zeros(pivots.shape), np.zeros(pivots.shape)
    weights = torch.from_numpy(np.ascontiguousarray(posteriors.T))
    for rows, part in parts(data):
        for k, pivot in enumerate(torch.from_numpy(pivots)):
            distance = (part - pivot).abs_()
            first[k] += (weights[k, rows] @ distance).numpy()
            second[k] += (weights[k, rows] @ distance.square_()).numpy()
    return first, second
