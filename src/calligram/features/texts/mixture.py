"""Mixtures with a Gaussian or a Laplacian for each centre and dimension, fitted by EM (Klein et al., 2015)."""

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
Doubles = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]

EM_ITERATIONS = 10
MIN_SPREAD = 1e-3
"""minimum of a variance, and of a mean distance from a median"""
MIN_CENTRE_SHARE = 1e-6
"""a centre with a smaller share of the vectors is not updated"""
BLOCK_ROWS = 1024
"""vectors processed together, so that they stay in the processor's cache"""
SORT_BLOCK_ENTRIES = 512
"""sorted entries whose weights are summed together"""
MIN_WEIGHT = 1e-9
"""smaller weights are ignored; with N rows that sum to one, this is at most N billionths of a column's weight"""


@dataclass(frozen=True)
class Mixture:
    """A mixture with K centres in D dimensions."""

    priors: Floats
    """(K,)"""
    centres: Floats = field(repr=False)
    """(K, D): means of Gaussians, medians of Laplacians"""
    scales: Floats = field(repr=False)
    """(K, D): standard deviations of Gaussians, mean distances from the median of Laplacians"""
    laplace: Flags = field(repr=False)
    """(K, D): True for Laplacians"""

    def posteriors(self, data: Floats) -> Floats:
        """Return the posterior of each centre for each vector, (N, K)."""
        out = torch.empty(len(data), len(self.priors))
        constant = torch.from_numpy(self._constants())
        laplace = torch.from_numpy(self.laplace)
        weights = torch.where(laplace, 1.0, 0.0), torch.where(laplace, 0.0, 0.5)
        inverse = torch.from_numpy(1 / self.scales)
        for rows, block in row_blocks(data):
            for k, centre in enumerate(torch.from_numpy(self.centres)):
                distance = (block - centre).abs_().mul_(inverse[k])
                out[rows, k] = constant[k] - distance @ weights[0][k] - distance.square_() @ weights[1][k]
        return np.asarray(out.softmax(1), dtype=np.float32)

    def _constants(self) -> Floats:
        """Return the part of each centre's log density that does not depend on the vector, (K,)."""
        widths = np.where(self.laplace, 2.0, math.sqrt(2 * math.pi)) * self.scales
        return np.asarray(np.log(self.priors) - np.log(widths).sum(1), dtype=np.float32)


def fit_mixture(
    data: Floats, centres: int, *, hybrid: bool, seed: int = 0, iterations: int = EM_ITERATIONS, track: Track = silent
) -> Mixture:
    """Fit by a fixed number of EM steps (two-branch, Sec. 4.3).

    The initial centres are random vectors; the initial spread is that of all vectors.

    Args:
        data: (N, D).
        hybrid: choose a Gaussian or a Laplacian for every centre and dimension; otherwise all are Gaussians.
    """
    mixture = initial_mixture(data, centres, hybrid=hybrid, seed=seed)
    columns = SortedColumns(data) if hybrid else None
    for _ in track(range(iterations), "fitting a mixture"):
        mixture = maximisation_step(mixture, data, mixture.posteriors(data), columns)
    return mixture


def initial_mixture(data: Floats, centres: int, *, hybrid: bool, seed: int) -> Mixture:
    """Return a mixture with random vectors as centres, and random choices of Gaussian or Laplacian if hybrid."""
    random = np.random.default_rng(seed)
    chosen = data[random.choice(len(data), centres, replace=len(data) < centres)]
    laplace = random.random(chosen.shape) < 0.5 if hybrid else np.zeros(chosen.shape, dtype=np.bool_)
    distance = np.maximum(np.abs(data - np.median(data, axis=0)).mean(0, dtype=np.float64), MIN_SPREAD)
    deviation = np.sqrt(np.maximum(data.var(0, dtype=np.float64), MIN_SPREAD))
    scales = np.where(laplace, distance, deviation).astype(np.float32)
    return Mixture(np.full(centres, 1 / centres, dtype=np.float32), chosen, scales, laplace)


def maximisation_step(mixture: Mixture, data: Floats, posteriors: Floats, columns: SortedColumns | None) -> Mixture:
    """M-step: fit the mixture to the data weighted by the posteriors; without ``columns``, Gaussians only."""
    totals = posteriors.sum(0, dtype=np.float64)
    unchanged = (totals < MIN_CENTRE_SHARE * len(data))[:, None]
    weights = np.maximum(totals, MIN_CENTRE_SHARE * len(data))[:, None]
    means = _weighted_sums(data, posteriors) / weights
    pivots = (means if columns is None else columns.medians(posteriors)).astype(np.float32)
    distances, squares = (total / weights for total in _weighted_distances(data, posteriors, pivots))
    variances = np.maximum(squares - (means - pivots) ** 2, 0)
    laplace = np.zeros(pivots.shape, dtype=np.bool_) if columns is None else _prefers_laplacian(distances, variances)
    laplace = np.where(unchanged, mixture.laplace, laplace)
    scales = np.where(laplace, np.maximum(distances, MIN_SPREAD), np.sqrt(np.maximum(variances, MIN_SPREAD)))
    return Mixture(
        (weights[:, 0] / weights.sum()).astype(np.float32),
        np.where(unchanged, mixture.centres, np.where(laplace, pivots, means)).astype(np.float32),
        np.where(unchanged, mixture.scales, scales).astype(np.float32),
        laplace,
    )


def _prefers_laplacian(distances: Doubles, variances: Doubles) -> NDArray[np.bool_]:
    """Return where the weighted log likelihood of a Laplacian is greater than that of a Gaussian.

    Both densities are fitted to the same weights, so that the likelihoods depend only on these two statistics.
    """
    s, v = np.maximum(distances, MIN_SPREAD), np.maximum(variances, MIN_SPREAD)
    likelier: NDArray[np.bool_] = -np.log(2 * s) - distances / s > -0.5 * np.log(2 * math.pi * v) - variances / (2 * v)
    return likelier


def _weighted_sums(data: Floats, posteriors: Floats) -> Doubles:
    """Return the weighted sums of vectors, (K, D)."""
    total = np.zeros((posteriors.shape[1], data.shape[1]))
    weights = torch.from_numpy(posteriors)
    for rows, block in row_blocks(data):
        total += (weights[rows].T @ block).numpy()
    return total


def _weighted_distances(data: Floats, posteriors: Floats, pivots: Floats) -> tuple[Doubles, Doubles]:
    """Return the weighted sums of distances from the pivots and of their squares, both (K, D)."""
    first, second = np.zeros(pivots.shape), np.zeros(pivots.shape)
    weights = torch.from_numpy(np.ascontiguousarray(posteriors.T))
    for rows, block in row_blocks(data):
        for k, pivot in enumerate(torch.from_numpy(pivots)):
            distance = (block - pivot).abs_()
            first[k] += (weights[k, rows] @ distance).numpy()
            second[k] += (weights[k, rows] @ distance.square_()).numpy()
    return first, second


class SortedColumns:
    """Weighted medians of the columns of data (N, D) under many weights, with one sort of each column.

    The median is the smallest entry such that the entries up to it have half of the weight. Weights are first summed
    over blocks of sorted entries. Only the block that contains the median is searched entry by entry. The result is
    exact, except for ignored small weights. The cost grows with the number of other weights, which is small because
    most posteriors are close to zero or one.
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
        """Return medians (K, D) for weights (N, K) whose rows sum to one; a column without weight gives the maximum."""
        by_centre = np.ascontiguousarray(weights.T)
        centre, row = np.nonzero(by_centre > MIN_WEIGHT)
        weight = by_centre[centre, row].astype(np.float64)
        offset = centre * self._blocks
        medians = np.empty((len(by_centre), len(self._order)), dtype=np.float32)
        for d in range(len(self._order)):
            cells = offset + self._block[d, row]
            sums = np.bincount(cells, weight, len(by_centre) * self._blocks).astype(np.float64, copy=False)
            medians[:, d] = self._data[:, d][self._median_rows(d, sums.reshape(len(by_centre), -1), by_centre)]
        return medians

    @property
    def _blocks(self) -> int:
        return -(-len(self._data) // SORT_BLOCK_ENTRIES)

    def _median_rows(self, d: int, sums: Doubles, by_centre: Floats) -> Ints:
        """Return the median's row in column ``d`` for each of K weights, from their sums over blocks (K, blocks)."""
        upto = sums.cumsum(1)
        half = upto[:, -1:] / 2
        block = np.minimum((upto < half).sum(1, keepdims=True), self._blocks - 1)
        before = np.take_along_axis(upto - sums, block, 1)
        rank = np.minimum(block * SORT_BLOCK_ENTRIES + np.arange(SORT_BLOCK_ENTRIES), len(self._data) - 1)
        rows = self._order[d, rank]
        inside = before + np.take_along_axis(by_centre, rows, 1).astype(np.float64).cumsum(1)
        first = np.minimum((inside < half).sum(1, keepdims=True), SORT_BLOCK_ENTRIES - 1)
        return np.take_along_axis(rows, first, 1)[:, 0]


def row_blocks(data: Floats) -> Iterator[tuple[slice, Tensor]]:
    """Yield the rows in blocks that fit into the processor's cache."""
    tensor = torch.from_numpy(data)
    for start in range(0, len(data), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        yield rows, tensor[rows]
