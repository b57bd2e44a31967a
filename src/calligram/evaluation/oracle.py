"""Metrics of an oracle that knows which pairs are true, and nothing else.

It scores true pairs above false ones, and all true pairs alike. Its metrics are expectations over a random order of
equally true items: a caption that is true of m images ranks its own image first with probability 1 / m. It is a
reference and not an upper bound. A matcher that knows how captions are written can do better from image to text: of two
true captions, the more specific one is more likely to be the image's own.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.evaluation.recall import DirectionMetrics

Ints = NDArray[np.int64]


def oracle_ranks(own: Matches, true: Matches) -> DirectionMetrics:
    """Return the expected metrics of the oracle, with rows as queries.

    Args:
        own: (Q, C), relevant pairs: the annotated partners of a query.
        true: (Q, C), all true pairs, with ``own``.
    """
    return _expected(own.counts()[0], true.counts()[0])


def chance(own: Matches) -> DirectionMetrics:
    """Return the expected metrics of a random order of all items."""
    wanted = own.counts()[0]
    return _expected(wanted, np.full_like(wanted, own.shape[1]))


def _expected(wanted: Ints, fitting: Ints) -> DirectionMetrics:
    """Return the metrics where ``wanted`` of ``fitting`` items in random order are relevant, for queries with any."""
    wanted, fitting = wanted[wanted > 0], fitting[wanted > 0]
    if not len(wanted):
        raise ValueError("no query has a relevant item; no metric is defined")
    # The mean rank of the first of p own items among n true ones in random order is (n + 1) / (p + 1).
    first = (fitting + 1) / (wanted + 1)
    kinds, of = np.unique(np.stack([fitting, wanted], axis=1), axis=0, return_inverse=True)
    share = np.bincount(of.ravel(), minlength=len(kinds)) / len(wanted)
    recall = {k: 100 * float(share @ [_within(k, int(n), int(p)) for n, p in kinds]) for k in (1, 5, 10)}
    precision = 100 * share @ np.array([_precisions(int(n), int(p)) for n, p in kinds])
    return DirectionMetrics(
        recall[1],
        recall[5],
        recall[10],
        float(np.floor(np.median(first))),
        float(first.mean()),
        float(precision[0]),
        float(precision[1]),
        100 * float(np.mean(wanted / fitting)),
        len(wanted),
    )


def _within(k: int, true: int, own: int) -> float:
    """Return the probability that one of ``own`` items is among the first k of ``true`` in random order."""
    return 1 - math.comb(true - own, k) / math.comb(true, k) if k < true else 1.0


def _precisions(true: int, own: int) -> tuple[float, float]:
    """Return the expected average precision over all ranks, and within the first ``own`` ranks.

    The item at rank r is an own one with probability own / true. Given that, the r - 1 ranks before it hold
    (r - 1)(own - 1) / (true - 1) own ones on average.
    """
    place = np.arange(1, true + 1)
    before = (place - 1) * (own - 1) / max(1, true - 1)
    precision = (1 + before) / place * (own / true)
    return float(precision.sum() / own), float(precision[:own].sum() / own)
