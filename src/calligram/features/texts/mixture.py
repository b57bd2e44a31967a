"""Mixtures whose every centre has, in every dimension, a Gaussian or a Laplacian (Klein et al., 2015)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calligram.progress import Track, silent

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

BLOCK_ROWS = 1024
"""vectors worked on at a time, so that they stay in the processor's cache"""


@dataclass(frozen=True)
class Mixture:
    """K centres in D dimensions."""

    priors: Floats
    """(K,)"""
    centres: Floats = field(repr=False)
    """(K, D): means, or medians where it is Laplacian"""
    scales: Floats = field(repr=False)
    """(K, D): standard deviations, or mean distances from the median"""
    laplace: Flags = field(repr=False)
    """(K, D)"""

    def posteriors(self, data: Floats) -> Floats:
        """Share of each centre in each vector, (N, K)."""
        out = torch.empty(len(data), len(self.priors))
        constant = torch.from_numpy(self._constants())
        laplace = torch.from_numpy(self.laplace)
        weights = torch.where(laplace, 1.0, 0.0), torch.where(laplace, 0.0, 0.5)
        inverse = torch.from_numpy(1 / self.scales)
        for rows, part in row_blocks(data):
            for k, centre in enumerate(torch.from_numpy(self.centres)):
                distance = (part - centre).abs_().mul_(inverse[k])
                out[rows, k] = constant[k] - distance @ weights[0][k] - distance.square_() @ weights[1][k]
        return np.asarray(out.softmax(1), dtype=np.float32)

    def _constants(self) -> Floats:
        """What a centre's log density has whatever the vector is."""
        widths = np.where(self.laplace, 2.0, math.sqrt(2 * math.pi)) * self.scales
        return np.asarray(np.log(self.priors) - np.log(widths).sum(1), dtype=np.float32)


def row_blocks(data: Floats) -> Iterator[tuple[slice, Tensor]]:
    """Rows in pieces that fit into a cache."""
    whole = torch.from_numpy(data)
    for start in range(0, len(data), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        yield rows, whole[rows]


# Weighted medians of many columns under many weights, with one sort of each column for all of them.

Ints = NDArray[np.int64]

SORT_BLOCK_ENTRIES = 512
MIN_WEIGHT = 1e-9
"""weights up to this do not count; of N rows that each sum to one they are at most N billionths in a column"""


class SortedColumns:
    """Columns of data (N, D), sorted once.

    A median is the smallest entry at or below which lies half of the weight. Weights are summed over blocks of
    sorted entries, and only the block in which half is passed is looked at entry by entry: the result is exact but for
    negligible weights, and costs as much as there are other ones, few where posteriors are nearly zero or one.
    """

    def __init__(self, data: Floats) -> None:
        self._data = data
        count = len(data)
        self._order = np.empty((data.shape[1], count), dtype=np.int32)
        self._block = np.empty(
            (data.shape[1], count), dtype=np.uint16 if count < SORT_BLOCK_ENTRIES << 16 else np.uint32
        )
        for d, column in enumerate(np.ascontiguousarray(data.T)):
            self._order[d] = np.argsort(column)
            self._block[d, self._order[d]] = np.arange(count) // SORT_BLOCK_ENTRIES

    def medians(self, weights: Floats) -> Floats:
        """(N, K) weights, rows of which sum to one -> (K, D); without any weight, the largest entry."""
        by_centre = np.ascontiguousarray(weights.T)
        centre, row = np.nonzero(by_centre > MIN_WEIGHT)
        weight = by_centre[centre, row].astype(np.float64)
        offset = centre * self._blocks
        medians = np.empty((len(by_centre), len(self._order)), dtype=np.float32)
        for d in range(len(self._order)):
            cells = offset + self._block[d, row]
            sums = np.bincount(cells, weight, len(by_centre) * self._blocks).astype(np.float64, copy=False)
            medians[:, d] = self._data[:, d][self._places(d, sums.reshape(len(by_centre), -1), by_centre)]
        return medians

    @property
    def _blocks(self) -> int:
        return -(-len(self._data) // SORT_BLOCK_ENTRIES)

    def _places(self, d: int, sums: Doubles, by_centre: Floats) -> Ints:
        """Row of the median in column ``d`` for each of K weights, from their sums over blocks (K, blocks)."""
        upto = sums.cumsum(1)
        half = upto[:, -1:] / 2
        block = np.minimum((upto < half).sum(1, keepdims=True), self._blocks - 1)
        before = np.take_along_axis(upto - sums, block, 1)
        rank = np.minimum(block * SORT_BLOCK_ENTRIES + np.arange(SORT_BLOCK_ENTRIES), len(self._data) - 1)
        rows = self._order[d, rank]
        inside = before + np.take_along_axis(by_centre, rows, 1).astype(np.float64).cumsum(1)
        first = np.minimum((inside < half).sum(1, keepdims=True), SORT_BLOCK_ENTRIES - 1)
        return np.take_along_axis(rows, first, 1)[:, 0]


# Expectation maximisation for mixtures of Gaussians, and of Gaussians and Laplacians.

Doubles = NDArray[np.float64]

MIN_SPREAD = 1e-3
"""least variance, and least mean distance from a median"""
EM_ITERATIONS = 10
MIN_CENTRE_SHARE = 1e-6
"""a centre that has less than this share of the vectors stays where it is"""


def fit_mixture(
    data: Floats, centres: int, *, hybrid: bool, seed: int = 0, iterations: int = EM_ITERATIONS, track: Track = silent
) -> Mixture:
    """Fit by a fixed number of steps, from random vectors as centres and the spread of all (two-branch, Sec. 4.3).

    Args:
        data: (N, D).
        hybrid: choose Gaussian or Laplacian for every centre and dimension; otherwise all are Gaussian.
    """
    mixture = initial_mixture(data, centres, hybrid=hybrid, seed=seed)
    columns = SortedColumns(data) if hybrid else None
    for _ in track(range(iterations), "fitting a mixture"):
        mixture = maximisation_step(mixture, data, mixture.posteriors(data), columns)
    return mixture


def initial_mixture(data: Floats, centres: int, *, hybrid: bool, seed: int) -> Mixture:
    """Random vectors as centres, and Gaussian or Laplacian at random."""
    random = np.random.default_rng(seed)
    chosen = data[random.choice(len(data), centres, replace=len(data) < centres)]
    laplace = random.random(chosen.shape) < 0.5 if hybrid else np.zeros(chosen.shape, dtype=np.bool_)
    distance = np.maximum(np.abs(data - np.median(data, axis=0)).mean(0, dtype=np.float64), MIN_SPREAD)
    deviation = np.sqrt(np.maximum(data.var(0, dtype=np.float64), MIN_SPREAD))
    scales = np.where(laplace, distance, deviation).astype(np.float32)
    return Mixture(np.full(centres, 1 / centres, dtype=np.float32), chosen, scales, laplace)


def maximisation_step(mixture: Mixture, data: Floats, posteriors: Floats, columns: SortedColumns | None) -> Mixture:
    """The mixture that fits best what the posteriors share out; without ``columns``, of Gaussians only."""
    totals = posteriors.sum(0, dtype=np.float64)
    kept = (totals < MIN_CENTRE_SHARE * len(data))[:, None]
    weights = np.maximum(totals, MIN_CENTRE_SHARE * len(data))[:, None]
    means = _weighted_sums(data, posteriors) / weights
    pivots = (means if columns is None else columns.medians(posteriors)).astype(np.float32)
    distances, squares = (total / weights for total in _weighted_distances(data, posteriors, pivots))
    variances = np.maximum(squares - (means - pivots) ** 2, 0)
    laplace = np.zeros(pivots.shape, dtype=np.bool_) if columns is None else _prefers_laplacian(distances, variances)
    laplace = np.where(kept, mixture.laplace, laplace)
    scales = np.where(laplace, np.maximum(distances, MIN_SPREAD), np.sqrt(np.maximum(variances, MIN_SPREAD)))
    return Mixture(
        (weights[:, 0] / weights.sum()).astype(np.float32),
        np.where(kept, mixture.centres, np.where(laplace, pivots, means)).astype(np.float32),
        np.where(kept, mixture.scales, scales).astype(np.float32),
        laplace,
    )


def _prefers_laplacian(distances: Doubles, variances: Doubles) -> NDArray[np.bool_]:
    """Where the weighted log likelihood is greater for a Laplacian, per unit of weight.

    Of densities fitted to the same weights only these remain of the sums over all vectors.
    """
    s, v = np.maximum(distances, MIN_SPREAD), np.maximum(variances, MIN_SPREAD)
    likelier: NDArray[np.bool_] = -np.log(2 * s) - distances / s > -0.5 * np.log(2 * math.pi * v) - variances / (2 * v)
    return likelier


def _weighted_sums(data: Floats, posteriors: Floats) -> Doubles:
    """Sums of vectors, (K, D)."""
    total = np.zeros((posteriors.shape[1], data.shape[1]))
    weights = torch.from_numpy(posteriors)
    for rows, part in row_blocks(data):
        total += (weights[rows].T @ part).numpy()
    return total


def _weighted_distances(data: Floats, posteriors: Floats, pivots: Floats) -> tuple[Doubles, Doubles]:
    """Sums of distances from the pivots and of their squares, both (K, D)."""
    first, second = np.zeros(pivots.shape), np.zeros(pivots.shape)
    weights = torch.from_numpy(np.ascontiguousarray(posteriors.T))
    for rows, part in row_blocks(data):
        for k, pivot in enumerate(torch.from_numpy(pivots)):
            distance = (part - pivot).abs_()
            first[k] += (weights[k, rows] @ distance).numpy()
            second[k] += (weights[k, rows] @ distance.square_()).numpy()
    return first, second
