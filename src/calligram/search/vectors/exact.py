"""Exact nearest-neighbour search in memory, with eight-bit codes for most rows.

With 100,000 rows of 512 dimensions on two cores, this took half the time of scanning floats (``bench/search_index.py``)
and as long as Lance's HNSW index, which took three minutes to build. Lance's own exact search was many times slower.
There is no index to build or to update, conditions cost nothing, and the result is exact.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MAX_FLOAT_NUMBERS = 10_000_000
"""up to so many numbers (rows x dimensions), floats are scanned, in one or two milliseconds"""
MAX_CHOSEN_NUMBERS = 500_000
"""up to so many numbers, the rows that satisfy a condition are scored in full, without their codes"""
CONVERTED_ROWS = 8192
"""rows that are converted to codes, or scored in float64, at a time"""
ONE_THREAD_NUMBERS = 32_768
"""torch converts up to so many numbers in the calling thread"""
MAX_SCORES = 16_000_000
"""scores in memory while many queries are answered"""


class RowHits(NamedTuple):
    """Rows found for one query, best first, and their scores."""

    rows: Ints
    scores: NDArray[np.float32]


class ExactSearch:
    """Finds the rows (N, D) with the largest inner product with a query, in an order that depends on nothing else.

    A matrix product rounds equal rows differently at different places. So the best rows are scored once more, one by
    one and in float64: equal rows then have equal scores, and come in the order of ``ties``, or of their rows.

    Above ``MAX_FLOAT_NUMBERS`` numbers, a row x minus the mean m of all rows is stored as eight-bit codes c with a
    scale s, in addition to its float16 values. A query q is coded as well, and

        |q (x - m) - q' (s c)|  <=  |q| |x - m - s c| + |q - q'| |s c|,

    where q' is the decoded query. The two lengths on the right that belong to rows are computed in advance, so each
    approximate score has a bound on its error. Rows that cannot be among the best k are dropped, and the few other rows
    are scored in full. The result equals that of scoring all rows.
    """

    vectors: NDArray[np.float16] | NDArray[np.float32]

    def __init__(
        self,
        vectors: NDArray[np.float16],
        *,
        ties: Callable[[Ints], Ints] | None = None,
        max_float_numbers: int = MAX_FLOAT_NUMBERS,
        eight_bits: bool | None = None,
    ):
        """Args:
        vectors: (N, D) at unit length.
        ties: a number for each of the given rows; of rows with equal scores, the one with the smaller number is first.
        max_float_numbers: up to so many numbers, scan floats.
        eight_bits: whether to use codes above that; None for where they are faster.
        """
        self.vectors, self._ties = vectors, ties
        self._codes: EightBitCodes | None = None
        if vectors.size > max_float_numbers and (eight_bits_are_faster() if eight_bits is None else eight_bits):
            self._codes = EightBitCodes.of(vectors)
        elif vectors.size:
            self.vectors = vectors.astype(np.float32)
        # A matrix product uses all cores, and many at the same time disturb each other: 64 threads scanning floats
        # answered 2 queries a second, one after the other 35.
        self._lock = threading.Lock()

    def search(self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None = None) -> list[RowHits]:
        """The best k of the allowed rows for each query (Q, D) at unit length."""
        rows = None if allowed is None else np.flatnonzero(allowed)
        count = len(self.vectors) if rows is None else len(rows)
        if not count:
            return [RowHits(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        found: list[RowHits] = []
        step = max(1, MAX_SCORES // len(self.vectors))
        for start in range(0, len(queries), step):
            with self._lock if torch.get_num_threads() > 1 else nullcontext():
                found += self._search(queries[start : start + step], min(k, count), rows)
        return found

    def _search(self, queries: NDArray[np.float32], k: int, rows: Ints | None) -> list[RowHits]:
        few = rows is not None and rows.size * self.vectors.shape[1] <= MAX_CHOSEN_NUMBERS
        if self._codes is not None and not few:
            found = self._codes.candidates(queries, k, rows)
            kept: list[Ints | None] = list(found)
            rough: Iterator[NDArray[np.float32]] = (
                scores_of_rows(self.vectors, row, query) for query, row in zip(queries, found, strict=True)
            )
        else:
            kept, rough = [rows] * len(queries), iter(self._scores(queries, rows))
        return [self._best(query, scores, k, row) for query, scores, row in zip(queries, rough, kept, strict=True)]

    def _best(self, query: NDArray[np.float32], rough: NDArray[np.float32], k: int, rows: Ints | None) -> RowHits:
        """The best k rows; ``rough`` are scores of a matrix product, of all rows or of ``rows``."""
        chosen = near_best(rough, k, self.vectors.shape[1])
        chosen = chosen if rows is None else rows[chosen]
        return scored_rows(self.vectors.__getitem__, query, chosen, k, self._ties)

    def _scores(self, queries: NDArray[np.float32], rows: Ints | None) -> NDArray[np.float32]:
        # In torch, whose conversion from float16 is several times faster than numpy's.
        chosen = torch.from_numpy(self.vectors if rows is None else self.vectors[rows])
        return (torch.from_numpy(queries) @ chosen.float().T).numpy()


def near_best(rough: NDArray[np.float32], k: int, dim: int) -> Ints:
    """Places of all scores of a matrix product that may be among the best k, whatever their rounding errors are."""
    return np.flatnonzero(rough >= least_score(rough, k, dim))


def least_score(rough: NDArray[np.float32], k: int, dim: int) -> np.float32:
    """The score of a matrix product that a row needs to be possibly among the best k."""
    least = np.partition(rough, len(rough) - k)[len(rough) - k]
    # Bound of the rounding error of two products in float32; a row in float16 may be slightly longer than 1.
    return np.float32(least - 2 * dim * np.finfo(np.float32).eps)


def scored_rows(
    vectors_at: Callable[[Ints], NDArray[np.floating[Any]]],
    query: NDArray[np.float32],
    rows: Ints,
    k: int,
    ties: Callable[[Ints], Ints] | None,
) -> RowHits:
    """The best k of the given rows, each scored on its own in float64; ``vectors_at`` gives the vectors of rows."""
    scores = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), CONVERTED_ROWS):
        part = slice(start, start + CONVERTED_ROWS)
        scores[part] = (vectors_at(rows[part]).astype(np.float64) * query).sum(axis=1)
    return ranked_rows(rows, scores, k, ties)


def ranked_rows(rows: Ints, scores: NDArray[np.float32], k: int, ties: Callable[[Ints], Ints] | None) -> RowHits:
    """The best k rows by their scores; of rows with equal scores, the one with the smaller number of ``ties``."""
    order = np.argsort(-scores, kind="stable")
    if ties is not None and (np.diff(scores[order]) == 0).any():
        order = np.lexsort((ties(rows), -scores))
    return RowHits(rows[order[:k]], scores[order[:k]])


def ranks_of(ids: Sequence[str]) -> Ints:
    """The place of each id in their order."""
    ranks = np.empty(len(ids), np.int64)
    ranks[np.argsort(np.array(ids))] = np.arange(len(ids))
    return ranks


def scores_of_rows(vectors: NDArray[np.floating[Any]], rows: Ints, query: NDArray[np.float32]) -> NDArray[np.float32]:
    """The scores of some rows, computed by torch without its other threads.

    Threads of torch wait for each other. On cores with other work, that took ten times as long as the computation.
    Where torch has one thread anyway, one step is better: after each step, Python may run another thread first.
    """
    wanted = torch.from_numpy(query)
    if torch.get_num_threads() == 1:
        return torch.mv(torch.from_numpy(vectors).index_select(0, torch.from_numpy(rows)).float(), wanted).numpy()
    scores, step = np.empty(len(rows), np.float32), max(1, ONE_THREAD_NUMBERS // max(1, vectors.shape[1]))
    for start in range(0, len(rows), step):
        part = torch.from_numpy(vectors[rows[start : start + step]])
        scores[start : start + step] = torch.mv(part.float(), wanted).numpy()
    return scores


class EightBitCodes(NamedTuple):
    """Rows as eight-bit codes."""

    mean: NDArray[np.float32]
    codes: torch.Tensor
    """(D, N), a transposed view"""
    scale: NDArray[np.float32]
    error: NDArray[np.float32]
    """distance of each row from its decoded codes"""
    length: NDArray[np.float32]
    """length of each decoded row"""

    @classmethod
    def of(cls, vectors: NDArray[np.float16]) -> EightBitCodes:
        """Quantize rows (N, D)."""
        chunks = [slice(start, start + CONVERTED_ROWS) for start in range(0, len(vectors), CONVERTED_ROWS)]
        mean = sum(vectors[c].astype(np.float32).sum(0) for c in chunks) / np.float32(len(vectors))
        codes = np.empty(vectors.shape, np.int8)
        scale, error, length = (np.empty(len(vectors), np.float32) for _ in range(3))
        for c in chunks:
            rows = vectors[c].astype(np.float32) - mean
            codes[c], scale[c] = quantized(rows)
            decoded = codes[c] * scale[c, None]
            error[c], length[c] = np.linalg.norm(rows - decoded, axis=1), np.linalg.norm(decoded, axis=1)
        # The rounding errors of float32 in these computations are far below the added 1e-6.
        return cls(np.asarray(mean), torch.from_numpy(codes).T, scale, error + np.float32(1e-6), length)

    def candidates(self, queries: NDArray[np.float32], k: int, rows: Ints | None) -> list[Ints]:
        """Rows that can be among the best k of the given rows, or of all, for each query (Q, D) at unit length.

        The score of a query with the mean is the same for all rows, and left out.
        """
        codes, scales = quantized(queries)
        products = torch._int_mm(torch.from_numpy(codes), self.codes).numpy()
        query_errors = np.linalg.norm(queries - codes * scales[:, None], axis=1)
        found = []
        for product, scale, query_error in zip(products, scales, query_errors, strict=True):
            middle = np.multiply(product, self.scale * scale, dtype=np.float32, casting="unsafe")
            middle = middle if rows is None else middle[rows]
            # The largest bound of all rows leaves few of them, and only these need their own bounds.
            widest = self.error.max() + query_error * self.length.max()
            near = np.flatnonzero(middle >= kth_largest(middle, k) - 2 * widest)
            chosen = near if rows is None else rows[near]
            bound = self.error[chosen] + query_error * self.length[chosen]
            found.append(chosen[middle[near] + bound >= kth_largest(middle[near] - bound, k)])
        return found


def kth_largest(numbers: NDArray[np.float32], k: int) -> np.float32:
    """The k-th largest number."""
    # Not numpy's partition, which takes ten times longer for a million rows.
    return np.float32(torch.topk(torch.from_numpy(numbers), k, sorted=False).values.min().item())


def quantized(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows as integers from -127 to 127, and the scale of each row."""
    scale = np.maximum(np.abs(rows).max(1), np.float32(1e-12)) / np.float32(127)
    return np.rint(rows / scale[:, None]).astype(np.int8), scale


def eight_bits_are_faster() -> bool:
    """Whether the processor has instructions for products of eight-bit numbers; without them, floats are faster.

    Both names of torch are private; where one is missing, floats are scanned.
    """
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    return hasattr(torch, "_int_mm") and supported is not None and bool(supported())
