"""What a scorer would get that knows every fact of every scene, and nothing else.

It scores true pairs above false ones and cannot tell true pairs apart; its metrics are expectations over a random order
of equally true items, so a caption that fits m images finds its own first with probability 1 / m. It is a yardstick and
no bound: a matcher that has learnt how captions are written, that of two true ones the more specific is likelier to be
an image's own, can do better from image to text.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.evaluation.ranking import Direction

Ints = NDArray[np.int64]


def oracle_ranks(own: Matches, true: Matches) -> Direction:
    """Expected metrics of rows as queries.

    Args:
        own: (Q, C), what counts as found: the query's annotated partners.
        true: (Q, C), every true pair, ``own`` included.
    """
    return _expected(own.counts()[0], true.counts()[0])


def chance(own: Matches) -> Direction:
    """Expected metrics of a scorer that knows nothing: all items of the other side in random order."""
    wanted = own.counts()[0]
    return _expected(wanted, np.full_like(wanted, own.shape[1]))


def _expected(wanted: Ints, fitting: Ints) -> Direction:
    """Of ``fitting`` items in random order, ``wanted`` are to be found; a query with none is left out."""
    wanted, fitting = wanted[wanted > 0], fitting[wanted > 0]
    if not len(wanted):
        raise ValueError("no query has a relevant item; there is nothing to measure")
    # Drawing p own items among n true ones in random order, the first stands at (n + 1) / (p + 1) on average.
    first = (fitting + 1) / (wanted + 1)
    kinds, of = np.unique(np.stack([fitting, wanted], axis=1), axis=0, return_inverse=True)
    share = np.bincount(of.ravel(), minlength=len(kinds)) / len(wanted)
    recall = {k: 100 * float(share @ [_within(k, int(n), int(p)) for n, p in kinds]) for k in (1, 5, 10)}
    precision = 100 * share @ np.array([_precisions(int(n), int(p)) for n, p in kinds])
    return Direction(
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
    """Probability that one of ``own`` items is among the first k of ``true`` in random order."""
    return 1 - math.comb(true - own, k) / math.comb(true, k) if k < true else 1.0


def _precisions(true: int, own: int) -> tuple[float, float]:
    """Expected average precision over all places, and within the first ``own``.

    The item at place r is an own one with probability own / true; given that, the r - 1 places before it hold
    (r - 1)(own - 1) / (true - 1) own ones on average.
    """
    place = np.arange(1, true + 1)
    before = (place - 1) * (own - 1) / max(1, true - 1)
    precision = (1 + before) / place * (own / true)
    return float(precision.sum() / own), float(precision[:own].sum() / own)
