"""Weighted medians of many columns under many weights, with one sort of each column for all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCK = 512
NEGLIGIBLE = 1e-9
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
        self._block = np.empty((data.shape[1], count), dtype=np.uint16 if count < BLOCK << 16 else np.uint32)
        for d, column in enumerate(np.ascontiguousarray(data.T)):
            self._order[d] = np.argsort(column)
            self._block[d, self._order[d]] = np.arange(count) // BLOCK

    def medians(self, weights: Floats) -> Floats:
        """(N, K) weights, rows of which sum to one -> (K, D); without any weight, the largest entry."""
        by_centre = np.ascontiguousarray(weights.T)
        centre, row = np.nonzero(by_centre > NEGLIGIBLE)
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
        return -(-len(self._data) // BLOCK)

    def _places(self, d: int, sums: Doubles, by_centre: Floats) -> Ints:
        """Row of the median in column ``d`` for each of K weights, from their sums over blocks (K, blocks)."""
        upto = sums.cumsum(1)
        half = upto[:, -1:] / 2
        block = np.minimum((upto < half).sum(1, keepdims=True), self._blocks - 1)
        before = np.take_along_axis(upto - sums, block, 1)
        rank = np.minimum(block * BLOCK + np.arange(BLOCK), len(self._data) - 1)
        rows = self._order[d, rank]
        inside = before + np.take_along_axis(by_centre, rows, 1).astype(np.float64).cumsum(1)
        first = np.minimum((inside < half).sum(1, keepdims=True), BLOCK - 1)
        return np.take_along_axis(rows, first, 1)[:, 0]
