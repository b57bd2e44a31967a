"""Retrieve and rerank: the cosine of vectors finds candidates, and the score of the matcher sorts them.

This is how a search uses a matcher that scores pairs. The cost is proportional to the number of candidates. Metrics are
those of the whole ranking: candidates first, sorted by the score, then the other items in the order of the first stage.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.errors import UserError
from calligram.evaluation.recall import (
    EncodedPairing,
    Precision,
    RelevantRanks,
    relevant_ranks,
    score_array,
    score_matrix,
    score_precision,
)
from calligram.models.matcher import EmbeddingMatcher, Matcher
from calligram.progress import Track, silent

Floats = NDArray[np.floating]
NOT_SCORED = float(np.finfo(np.float32).min)
"""score of a pair that is not a candidate; finite, since ranks need finite scores"""
TILE_ITEMS = (256, 2048)
"""number of images and texts whose candidates are scored at once"""


@dataclass(frozen=True)
class RerankReport:
    """Cost and first-stage recall of retrieve and rerank."""

    depth: int
    """largest number of candidates per query; 0 for all"""
    i2t: float
    """percentage of images with a matching text among their candidates: recall@depth of the first stage"""
    t2i: float
    """the same for texts"""
    scored: float
    """share of all pairs that the matcher scored"""
    first: str = ""
    """run whose vectors find the candidates; empty for the matcher itself"""

    def as_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {name: value for name, value in asdict(self).items() if value != ""}


class TwoStageScores(NamedTuple):
    """The scores of both stages (I, T), and the score above which an item is a candidate."""

    first: Floats
    second: Floats
    """``NOT_SCORED`` where a pair is a candidate in neither direction"""
    text_floors: Floats
    """(I,) the candidates of an image are the texts with a first score above this"""
    image_floors: Floats
    """(T,) the same for texts"""
    scored: float
    """share of all pairs that were scored by the second stage"""

    def i2t(self, relevant: Matches) -> tuple[RelevantRanks, float]:
        """Return the ranks of relevant texts, and recall@depth."""
        return reranked_ranks(self.first, self.second, self.text_floors, relevant)

    def t2i(self, relevant: Matches) -> tuple[RelevantRanks, float]:
        """Return the ranks of relevant images, and recall@depth; ``relevant`` is (I, T) here too."""
        return reranked_ranks(self.first.T, self.second.T, self.image_floors, relevant.T)


def check_depth(matcher: Matcher, depth: int, *, first: bool) -> None:
    """Refuse reranking that would change nothing.

    Args:
        first: whether the vectors of another matcher find the candidates.
    """
    if depth < 0:
        raise UserError(f"depth must be at least 1, or 0 for all, got {depth}")
    if not matcher.scoring.reranks and not first:
        raise UserError(
            "this run scores by the cosine of its vectors, so reranking its candidates changes nothing; leave out "
            "--depth, or give with --first a run whose vectors find the candidates"
        )


def candidate_floors(scores: Floats, depth: int) -> Floats:
    """Return the score (Q,) above which a column is a candidate (Q, C): the highest score after the ``depth`` best.

    Columns with exactly this score are left out too, so that the order of a sort does not matter. With ``depth`` 0, or
    at least the number of columns, all are candidates.
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

    Where every pair is a candidate, ``score_matrix`` is used, so that scores are bit-equal to a full evaluation.

    Args:
        depth: number of candidates per query; 0 for all.
        first: encodings of the same items by another matcher, whose vectors find the candidates.
    """
    vectors = score_matrix(EmbeddingMatcher(), first or encoded)
    text_floors, image_floors = candidate_floors(vectors, depth), candidate_floors(vectors.T, depth)
    if not (np.isfinite(text_floors).all() and np.isfinite(image_floors).all()):
        second = score_matrix(matcher, encoded, precision=precision, track=track)
        return TwoStageScores(vectors, second, text_floors, image_floors, 1.0)
    second = score_array(vectors.shape)
    second[:] = NOT_SCORED
    count = 0
    for one, two in track(_tiles(*vectors.shape), "reranking"):
        tile = vectors[one, two]
        rows, columns = np.nonzero((tile > text_floors[one, None]) | (tile > image_floors[two]))
        if len(rows):
            count += len(rows)
            second[one, two][rows, columns] = _scores(matcher, encoded, (one, two), (rows, columns), precision)
    return TwoStageScores(vectors, second, text_floors, image_floors, count / max(1, vectors.size))


def _tiles(images: int, texts: int) -> list[tuple[slice, slice]]:
    """Return the tiles of the score matrix; computations of single items are repeated once per tile."""
    return [
        (slice(i, min(i + TILE_ITEMS[0], images)), slice(t, min(t + TILE_ITEMS[1], texts)))
        for i in range(0, images, TILE_ITEMS[0])
        for t in range(0, texts, TILE_ITEMS[1])
    ]


def _scores(
    matcher: Matcher,
    encoded: EncodedPairing,
    tile: tuple[slice, slice],
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]],
    precision: Precision,
) -> Floats:
    """Return the scores of some pairs of a tile, with rows and columns relative to the tile."""
    device = encoded.images.vectors.device
    rows, columns = (torch.from_numpy(numbers).to(device) for numbers in pairs)
    with score_precision(device, precision):
        found = matcher.score_some(encoded.images.rows(tile[0]), encoded.texts.rows(tile[1]), rows, columns)
    return found.float().cpu().numpy()


def reranked_ranks(first: Floats, second: Floats, floor: Floats, relevant: Matches) -> tuple[RelevantRanks, float]:
    """Return the ranks of the relevant columns of every row, and the percentage of queries with one as a candidate.

    A column that is not a candidate keeps its rank of the first stage: the columns before it stay before it, in another
    order. A relevant candidate has its rank among the candidates.
    """
    candidate = first > floor[:, None]
    before = relevant_ranks(first, relevant)
    among = relevant_ranks(np.where(candidate, second, np.float32(NOT_SCORED)), relevant)
    rows, columns = relevant.pairs()
    counts = np.bincount(rows[candidate[rows, columns]], minlength=len(first))
    place = np.arange(len(rows)) - before.starts[:-1].repeat(np.diff(before.starts))
    ranks = np.where(place < counts.repeat(np.diff(before.starts)), among.ranks, before.ranks)
    has = np.diff(before.starts) > 0
    recall = 100.0 * float((counts[has] > 0).mean()) if has.any() else 0.0
    return RelevantRanks(before.starts, ranks), recall
