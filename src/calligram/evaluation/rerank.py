"""Retrieve, then rerank: the cosine of vectors finds candidates, the matcher's score puts them in order.

This is how a matcher that compares pairs is searched with, and it costs the share of pairs that are candidates. Metrics
are those of the whole ranking: candidates first, in the order of the score, then the rest as the first stage had it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.errors import UserError
from calligram.evaluation.encode import EncodedPairing, Precision, lowered, room_for, score_matrix
from calligram.evaluation.ranking import RelevantRanks, relevant_ranks
from calligram.models.matcher import EmbeddingMatcher, Matcher
from calligram.progress import Track, silent

Floats = NDArray[np.floating]
LOWEST = float(np.finfo(np.float32).min)
"""of a pair that was not scored; no candidate has it, and ranks want finite numbers"""
TILE = (256, 2048)
"""images and texts whose candidates are scored at a time"""


@dataclass(frozen=True)
class RerankReport:
    """What retrieve-then-rerank did."""

    depth: int
    """candidates of a query at most; 0 for all there are"""
    i2t: float
    """percentage of images with a matching text among their candidates: the first stage's recall@depth"""
    t2i: float
    """the same of texts"""
    scored: float
    """share of all pairs that the matcher scored"""
    first: str = ""
    """the run whose vectors found candidates; the matcher itself if empty"""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {name: value for name, value in asdict(self).items() if value != ""}


class TwoStageScores(NamedTuple):
    """Both stages' scores of all pairs (I, T), and from where on an item is a candidate."""

    first: Floats
    second: Floats
    """``LOWEST`` where a pair is no candidate either way"""
    text_floors: Floats
    """(I,) an image's candidates are the texts whose first score is above this"""
    image_floors: Floats
    """(T,) likewise a text's"""
    scored: float
    """share of all pairs"""

    def i2t(self, relevant: Matches) -> tuple[RelevantRanks, float]:
        """Ranks of relevant texts, and recall@depth."""
        return staged_ranks(self.first, self.second, self.text_floors, relevant)

    def t2i(self, relevant: Matches) -> tuple[RelevantRanks, float]:
        """Ranks of relevant images, and recall@depth; ``relevant`` is (I, T) here too."""
        return staged_ranks(self.first.T, self.second.T, self.image_floors, relevant.T)


def check_depth(matcher: Matcher, depth: int, *, first: bool) -> None:
    """Refuse a reranking that is none.

    Args:
        first: whether another matcher's vectors find the candidates.
    """
    if depth < 0:
        raise UserError(f"depth must be at least 1, or 0 for all, got {depth}")
    if not matcher.reranks and not first:
        raise UserError(
            "this run scores by the cosine of its vectors, so its candidates are in order already; leave out --depth, "
            "or name with --first a run whose vectors find them"
        )


def floors(scores: Floats, depth: int) -> Floats:
    """The score (Q,) above which a query's candidates (Q, C) are: the next best after ``depth`` of them.

    Candidates that tie with the first one left out are left out too, so that a sort's order decides nothing; with
    ``depth`` 0, or as many as there are, nothing is.
    """
    if not depth or depth >= scores.shape[1]:
        return np.full(len(scores), -np.inf, dtype=np.float32)
    step = max(1, (1 << 22) // scores.shape[1])
    place = scores.shape[1] - 1 - depth
    found = [np.partition(scores[s : s + step], place, axis=1)[:, place] for s in range(0, len(scores), step)]
    return np.concatenate(found)


@torch.no_grad()
def rerank_candidates(
    matcher: Matcher,
    encoded: EncodedPairing,
    depth: int,
    *,
    first: EncodedPairing | None = None,
    precision: Precision = "fp32",
    track: Track = silent,
) -> TwoStageScores:
    """Score the candidates of both directions, and no other pairs.

    Where every pair is a candidate, tiles are those of ``score_matrix``, so that scores are the same to the bit.

    Args:
        depth: candidates of each query; 0 for all.
        first: the same items as another matcher encodes them, whose vectors find the candidates.
    """
    vectors = score_matrix(EmbeddingMatcher(), first or encoded)
    text_floors, image_floors = floors(vectors, depth), floors(vectors.T, depth)
    if not (np.isfinite(text_floors).all() and np.isfinite(image_floors).all()):
        second = score_matrix(matcher, encoded, precision=precision, track=track)
        return TwoStageScores(vectors, second, text_floors, image_floors, 1.0)
    second = room_for(vectors.shape)
    second[:] = LOWEST
    count = 0
    for one, two in track(_tiles(*vectors.shape), "reranking"):
        tile = vectors[one, two]
        rows, columns = np.nonzero((tile > text_floors[one, None]) | (tile > image_floors[two]))
        if len(rows):
            count += len(rows)
            second[one, two][rows, columns] = _scores(matcher, encoded, (one, two), (rows, columns), precision)
    return TwoStageScores(vectors, second, text_floors, image_floors, count / max(1, vectors.size))


def _tiles(images: int, texts: int) -> list[tuple[slice, slice]]:
    """Parts of the grid; what a matcher computes for an item alone, it computes once in each."""
    return [
        (slice(i, min(i + TILE[0], images)), slice(t, min(t + TILE[1], texts)))
        for i in range(0, images, TILE[0])
        for t in range(0, texts, TILE[1])
    ]


def _scores(
    matcher: Matcher,
    encoded: EncodedPairing,
    tile: tuple[slice, slice],
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]],
    precision: Precision,
) -> Floats:
    """The matcher's scores of some pairs of a tile, numbered from its corner."""
    device = encoded.images.vectors.device
    rows, columns = (torch.from_numpy(numbers).to(device) for numbers in pairs)
    with lowered(device, precision):
        found = matcher.score_some(encoded.images.rows(tile[0]), encoded.texts.rows(tile[1]), rows, columns)
    return found.float().cpu().numpy()


def staged_ranks(first: Floats, second: Floats, floor: Floats, relevant: Matches) -> tuple[RelevantRanks, float]:
    """Ranks of the relevant columns of every row, and the percentage of queries with one among the candidates.

    Whatever is no candidate keeps its rank: all that stood before it still does, in another order. So the ranks of
    relevant candidates are those among candidates, and the others are the first stage's.
    """
    candidate = first > floor[:, None]
    before = relevant_ranks(first, relevant)
    among = relevant_ranks(np.where(candidate, second, np.float32(LOWEST)), relevant)
    rows, columns = relevant.pairs()
    counts = np.bincount(rows[candidate[rows, columns]], minlength=len(first))
    place = np.arange(len(rows)) - before.starts[:-1].repeat(np.diff(before.starts))
    ranks = np.where(place < counts.repeat(np.diff(before.starts)), among.ranks, before.ranks)
    has = np.diff(before.starts) > 0
    recall = 100.0 * float((counts[has] > 0).mean()) if has.any() else 0.0
    return RelevantRanks(before.starts, ranks), recall
