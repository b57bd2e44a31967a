"""Ranks of relevant items and the metrics computed from them, for many-to-many matches.

All metrics are computed from the rank of each relevant item (``relevant_ranks``): 1 plus the number of items before it.
An irrelevant item with an equal score counts as before it. So a constant scorer gets the worst ranks, and no metric
depends on the order of a sort.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.errors import NotFiniteError

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]

BLOCK_SCORES = 1 << 22
"""number of scores compared at once"""


@dataclass(frozen=True)
class RelevantRanks:
    """Ranks of all relevant items by query: those of query q are ``ranks[starts[q]:starts[q + 1]]``, ascending."""

    starts: Ints
    ranks: Ints

    @property
    def best(self) -> Ints:
        """Rank of the first relevant item, for each query that has one."""
        has = np.diff(self.starts) > 0
        return self.ranks[self.starts[:-1][has]]

    @property
    def queries(self) -> int:
        """Number of queries that have a relevant item."""
        return int((np.diff(self.starts) > 0).sum())


def relevant_ranks(scores: Floats, relevant: Matches, ignore: Matches | None = None) -> RelevantRanks:
    """Rank the relevant columns of every row.

    Args:
        scores: (Q, C), higher is better.
        relevant: (Q, C), the relevant columns of each row.
        ignore: (Q, C), columns that are left out of a row's ranking, such as the query itself.

    Raises:
        NotFiniteError: when a score is NaN or infinite. Comparisons with NaN are false, so ranks would look perfect.
    """
    if scores.shape != relevant.shape:
        raise ValueError(f"scores are {scores.shape} but matches are {relevant.shape}")
    rows, columns = (relevant if ignore is None else relevant.minus(ignore)).pairs()
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=scores.shape[0]))]).astype(np.int64)
    ranks = np.empty(len(rows), dtype=np.int64)
    step = max(1, BLOCK_SCORES // max(1, scores.shape[1]))
    for first in range(0, scores.shape[0], step):
        last = min(first + step, scores.shape[0])
        block = np.asarray(scores[first:last])
        _refuse_non_finite(block, first)
        if ignore is not None:
            block = block.copy()
            for row in range(first, last):
                block[row - first, ignore.texts_of(row)] = -np.inf
        part = slice(starts[first], starts[last])
        ranks[part] = _block_ranks(block, rows[part] - first, columns[part])
    return RelevantRanks(starts, ranks)


def _refuse_non_finite(block: Floats, first: int) -> None:
    finite = np.isfinite(block)
    if not finite.all():
        row = int(np.flatnonzero(~finite.all(axis=1))[0])
        count = int((~finite).sum())
        raise NotFiniteError(
            f"{count} scores are not finite (NaN or infinite), the first in row {first + row}; they cannot be ranked"
        )


def _block_ranks(block: Floats, rows: Ints, columns: Ints) -> Ints:
    """Return the ranks of the relevant (row, column) pairs of a block, ascending within each row."""
    values = block[rows, columns]
    order = np.lexsort((-values, rows))
    rows, values = rows[order], values[order]
    counts = np.bincount(rows, minlength=len(block))
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    at_least = np.empty(len(rows), dtype=np.int64)
    if counts.max(initial=0) <= 8:
        for turn in range(counts.max(initial=0)):
            these = np.flatnonzero(place == turn)
            at_least[these] = np.count_nonzero(block[rows[these]] >= values[these, None], axis=1)
    else:
        stops = np.cumsum(counts)
        for row in np.flatnonzero(counts):
            own = slice(stops[row] - counts[row], stops[row])
            at_least[own] = block.shape[1] - np.searchsorted(np.sort(block[row]), values[own], "left")
    # Columns with at least this score, minus the relevant ones among them, plus this item's rank among the relevant.
    return (at_least - _at_least_among(rows, values) + place + 1).astype(np.int64)


def _at_least_among(rows: Ints, values: Floats) -> Ints:
    """Return, for values sorted by row and descending, how many of the same row are at least as large."""
    if not len(rows):
        return np.empty(0, dtype=np.int64)
    changes = np.flatnonzero((rows[1:] != rows[:-1]) | (values[1:] != values[:-1])) + 1
    stops = np.append(changes, len(rows))
    run = np.repeat(np.arange(len(stops)), np.diff(stops, prepend=0))
    return (stops[run] - np.searchsorted(rows, rows, "left")).astype(np.int64)


@dataclass(frozen=True)
class DirectionMetrics:
    """Metrics of one direction. Recalls, mAP and precision are percentages; ranks are 1-based."""

    r1: float
    r5: float
    r10: float
    medr: float
    meanr: float
    map: float
    """mean average precision over the whole ranking"""
    map_r: float
    """mAP@R: mean average precision within the first R ranks, R being the number of relevant items of the query"""
    r_precision: float
    """share of relevant items within the first R ranks"""
    queries: int
    """number of queries that have a relevant item; others are left out"""

    @property
    def rsum(self) -> float:
        """R@1 + R@5 + R@10."""
        return self.r1 + self.r5 + self.r10


def recall_at(best: Ints, ks: Sequence[int]) -> dict[int, float]:
    """Return the percentage of queries whose first relevant item is within the first k ranks."""
    return {k: 100.0 * float((best <= k).mean()) if len(best) else 0.0 for k in ks}


def retrieval_metrics(found: RelevantRanks) -> DirectionMetrics:
    """Return all metrics of one direction.

    The median is rounded down, as usual in the field. With matches by identity the
    recalls are the cumulative match characteristic of person search (dual-path, Table VII).
    """
    if not found.queries:
        raise ValueError("no query has a relevant item; no metric is defined")
    best = found.best
    recall = recall_at(best, (1, 5, 10))
    counts = np.diff(found.starts)
    place = np.arange(len(found.ranks)) - np.repeat(found.starts[:-1], counts) + 1
    relevant = np.repeat(counts, counts)
    precision = place / found.ranks
    inside = found.ranks <= relevant
    per_query = 1 / np.maximum(relevant, 1)
    return DirectionMetrics(
        recall[1],
        recall[5],
        recall[10],
        float(np.floor(np.median(best))),
        float(best.mean()),
        100 * float((precision * per_query).sum() / found.queries),
        100 * float((precision * inside * per_query).sum() / found.queries),
        100 * float((inside * per_query).sum() / found.queries),
        found.queries,
    )


def mean_of(directions: Iterable[DirectionMetrics]) -> DirectionMetrics:
    """Return the mean of each metric over folds; numbers of queries are added."""
    rows = [asdict(d) for d in directions]
    average = {
        f.name: float(np.mean([r[f.name] for r in rows])) for f in fields(DirectionMetrics) if f.name != "queries"
    }
    return DirectionMetrics(**average, queries=sum(r["queries"] for r in rows))
