"""From which score on a hit counts as a match, learnt from the library's own scores.

It is a cut-off of the matcher's plain score. When it was designed, on scenes and on Flickr8k's dev split, other things
that can be told from a query's scores separated matches from the rest little or no better, and none did on both: how
many deviations they stand above the query's own mean or above the item's mean over other queries, the gap to the tenth,
the likeness of the first ten to each other, a logistic regression on several of these. The highest of many scores lies
some three deviations above the mean, right or wrong.

Hiding what someone looks for is worse than showing what nobody does, so the cut-off is the score that ``KEPT`` of the
matches known in the library reach. They are known where there are captions: a caption's own images are its matches, and
those of a few words taken from a caption are the images with these words in a caption. Short texts score lower than
whole captions, so each has its own cut-off. How much is then hidden is up to the matcher: a good one parts matches from
the rest, and one that cannot is left alone. Captions of the training split, which a matcher may know by heart, are
asked for where others are too few. Where too few matches are known, everyday phrases are tried on the library,
and the cut-off is the score that ``UNRELATED`` of these pairs stay under.

A matcher with a vocabulary reads all words it has never seen as one, and gives a query of such words scores like any
other's. A text more than half of whose telling words are unknown has therefore no good match (``Asked.lost``).

Measured by ``bench/relevance.py`` with a matcher of the demo's kind on scenes, and a small one on Flickr8k's test
images, four captions each: of the matches among the first ten 97 and 90% are shown for whole captions, 96 and 98% for
short queries, and of the other hits 25 and 17%, 6 and 11% are hidden. Queries about something else altogether are
refused in 97 and 57% of cases, nearly all for their unknown words; their scores alone would refuse 7 and 3%. Captions
whose own images were removed are refused in 2% of cases only: what is left is too like them for these matchers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calligram.errors import NotFiniteError

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

KEPT = 0.95
"""share of known matches among first hits that the cut-off lets through"""
UNRELATED = 0.98
"""share of all pairs that stay under the cut-off where matches are not known; on scenes and Flickr8k, cut-offs from
known matches lay between 0.965 and 0.985"""
FIRST = 10
"""hits of a query that are looked at: what lies deeper is not shown anyway"""
ENOUGH_MATCHES = 30
ENOUGH_ITEMS = 50
"""a twentieth of fewer, or a fiftieth of pairs with fewer items, would be one or two odd cases"""


@dataclass(frozen=True)
class Scale:
    """How the scores of one kind of pair, such as texts with images, lie over a library."""

    mean: float
    """of pairs that are not known to match"""
    spread: float
    """their standard deviation"""
    cutoff: float
    """what a match should reach; minus infinity where nothing could be learnt"""


UNKNOWN = Scale(0.0, 1.0, -math.inf)
"""of a library that is too small to tell"""


def calibrated(scores: Floats, matches: Flags, ignore: Flags | None = None) -> Scale:
    """Learn a scale from trial queries.

    Args:
        scores: (queries, items) of the library.
        matches: which of them are known to belong together; all false where nothing is known.
        ignore: pairs to leave out, such as an image with itself.

    Raises:
        NotFiniteError: for scores that cannot be compared.
    """
    counted = np.ones(scores.shape, dtype=np.bool_) if ignore is None else ~ignore
    if not np.isfinite(scores[counted]).all():
        raise NotFiniteError("the matcher's scores are not finite; it cannot be searched with")
    others = scores[counted & ~matches]
    if scores.shape[1] < ENOUGH_ITEMS or others.size < ENOUGH_ITEMS:
        return UNKNOWN
    found, weights = first_matches(np.where(counted, scores, -np.inf), matches & counted)
    if len(found) >= ENOUGH_MATCHES:
        cutoff = weighted_quantile(found, weights, 1 - KEPT)
    else:
        cutoff = float(np.quantile(scores[counted], UNRELATED))
    return Scale(float(others.mean()), max(float(others.std()), 1e-6), cutoff)


def enough_matches(scores: Floats, matches: Flags) -> bool:
    """Whether so many matches are among first hits that a cut-off can be learnt from them."""
    return len(first_matches(scores, matches)[0]) >= ENOUGH_MATCHES


def first_matches(scores: Floats, matches: Flags) -> tuple[Floats, Floats]:
    """Scores of the matches among each query's first hits, and weights that give every query the same say."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :FIRST]
    hits, true = np.take_along_axis(scores, order, 1), np.take_along_axis(matches, order, 1)
    weights = true / np.maximum(true.sum(axis=1, keepdims=True), 1)
    return hits[true], weights[true].astype(np.float32)


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """The smallest value that, with all below it, has at least this share of the weight.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.5)
    2.0
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order], dtype=np.float64)
    place = int(np.searchsorted(reached, share * reached[-1] - 1e-9))
    return float(values[order][min(place, len(order) - 1)])


def cutoff_of(shares: Floats, scales: list[Scale]) -> float:
    """The cut-off of a query with several terms.

    Its score is the mean of the terms' scores weighted by ``shares``, so the cut-off is the same mean of what is asked
    of each: what counts for a match must on average reach its own cut-off, what is to be avoided be no more than usual.

    Args:
        scales: of each term's scores.
    """
    asked = [scale.cutoff if share > 0 else scale.mean for share, scale in zip(shares, scales, strict=True)]
    return float(sum(share * value for share, value in zip(shares, asked, strict=True)))
