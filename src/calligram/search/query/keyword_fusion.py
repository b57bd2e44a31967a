"""Reciprocal-rank fusion of the hits of vector search and of keyword search."""

from __future__ import annotations

from collections.abc import Sequence

RANK_OFFSET = 60
"""added to each rank, as in the paper, so that the first ranks of one ranking do not outweigh the other ranking"""


def reciprocal_ranks(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Fuse rankings: the ids of all rankings by decreasing fused score.

    The fused score of an item is the sum over rankings of 1 / (60 + rank) (reciprocal-rank fusion: Cormack, Clarke and
    Büttcher, SIGIR 2009). It needs no common scale, which cosines and BM25 scores do not have. Ties keep the order of
    the first ranking.

    >>> reciprocal_ranks([["a", "b", "c"], ["c", "a"]])
    ['a', 'c', 'b']
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, id in enumerate(ranking, 1):
            scores[id] = scores.get(id, 0.0) + 1 / (RANK_OFFSET + rank)
    # The sort is stable, and the dict has the order of the first ranking.
    return sorted(scores, key=lambda id: -scores[id])
