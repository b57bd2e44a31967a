"""Reranking: the second stage of a search, which orders candidates by the score of a matcher that scores pairs.

A reranker only reorders the candidates of the first stage. With a depth that covers the library, the result is exact.
It scores images with texts, so it orders images for queries of texts, and captions for queries of pictures. Other
queries, and queries of both modalities, keep the order of the first stage, because scores of the first stage have
another scale.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.models.matcher import Encoded, stack
from calligram.search.library.library import Library
from calligram.search.library.matchers import MatcherEncoder
from calligram.search.query.query import ItemId, Modality, Query
from calligram.search.vectors.index import Index

Floats = NDArray[np.float32]

RERANK_DEPTH = 100
"""candidates that are reranked, and the least number that is fused with keyword hits"""
MEASURED_CANDIDATES = (8, 64)
"""numbers of candidates that are reranked to measure the costs"""
MEASUREMENT_REPEATS = 3
"""the fastest repeat counts, because other processes slow the others down"""
UPDATE_WEIGHT = 0.2
"""weight of a new measurement in the running mean"""
MAX_UPDATE_FACTOR = 2.0
"""a measurement counts as at most so many times slower or faster than expected, so that a pause has little effect"""
MIN_CANDIDATE_SHARE = 0.25
"""share of the reranking time that is at least attributed to the candidates. Where few candidates take as long as many,
as on an accelerator, they would otherwise cost nothing, and every budget would allow the whole library"""
SAMPLE_QUERY = "a man in a red shirt rides a bicycle along the street"
"""a query of typical length, for measuring"""


class TimeBudget(NamedTuple):
    """The time that an answer may take; it replaces a number of candidates."""

    seconds: float

    @classmethod
    def of_milliseconds(cls, milliseconds: float) -> TimeBudget:
        """A budget in milliseconds.

        Raises:
            UserError: unless it is positive and finite.
        """
        if not (math.isfinite(milliseconds) and milliseconds > 0):
            raise UserError(f"a budget is a number of milliseconds above 0, got {milliseconds:g}")
        return cls(milliseconds / 1000)


class RerankCosts:
    """Running means of the seconds that the parts of an answer take; threads may share it."""

    def __init__(self, other: float, setup: float, candidate: float) -> None:
        """Args:
        other: everything except encoding the query and reranking.
        setup: reranking, without the part that depends on the number of candidates.
        candidate: reranking one candidate.
        """
        self.other, self.setup, self.candidate = other, setup, max(candidate, 1e-9)
        self._lock = threading.Lock()

    def depth(self, seconds: float) -> int:
        """Number of candidates that can be reranked in the time left after encoding; 0 when there is no time."""
        return max(0, int((seconds - self.other - self.setup) / self.candidate))

    def update(self, other: float, candidates: int, seconds: float) -> None:
        """Update the means with one answer.

        Args:
            other: seconds, without encoding and reranking.
            candidates: number of candidates reranked.
            seconds: of reranking.
        """
        with self._lock:
            self.other = _running_mean(self.other, other)
            if candidates:
                each = max(1e-9, seconds - self.setup, MIN_CANDIDATE_SHARE * seconds) / candidates
                self.candidate = _running_mean(self.candidate, each)
                if seconds < self.setup:
                    self.setup = _running_mean(self.setup, seconds)

    @classmethod
    def measure(cls, index: Index, rerank: Callable[[Sequence[str]], object]) -> RerankCosts:
        """Measure the costs with a few candidates and with more.

        Args:
            index: with at least one item.
            rerank: reranks the items with the given ids.
        """
        direction = np.full((1, index.dim), index.dim**-0.5, dtype=np.float32)
        count = min(len(index), MEASURED_CANDIDATES[1])
        ids = [found.id for found in index.search(direction, count)[0]]  # the first search also reads the index
        other = _fastest(lambda: index.search(direction, count))
        few = min(MEASURED_CANDIDATES[0], len(ids))
        rerank(ids)
        short, long = _fastest(lambda: rerank(ids[:few])), _fastest(lambda: rerank(ids))
        candidate = (long - short) / (len(ids) - few) if len(ids) > few else short / few
        candidate = max(candidate, MIN_CANDIDATE_SHARE * long / len(ids))
        return cls(other, max(0.0, short - few * candidate), candidate)


def _fastest(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(MEASUREMENT_REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _running_mean(mean: float, value: float) -> float:
    """The running mean after a value, whose influence is limited."""
    limited = min(max(value, mean / MAX_UPDATE_FACTOR), max(mean, 1e-9) * MAX_UPDATE_FACTOR)
    return (1 - UPDATE_WEIGHT) * mean + UPDATE_WEIGHT * limited


class ScoredItem(NamedTuple):
    """An item and the query's score with it."""

    id: str
    score: float


class Reranker(NamedTuple):
    """A matcher that scores pairs, and the library that stores its encodings of the items."""

    encoder: MatcherEncoder
    library: Library
    costs: Mapping[Modality, RerankCosts] | None
    """of reranking images and captions on this machine; None where no answer has a budget"""

    @classmethod
    def with_costs(
        cls, encoder: MatcherEncoder, library: Library, known: Mapping[Modality, RerankCosts] | None
    ) -> Reranker:
        """A reranker with known costs; unknown costs are measured, unless ``known`` is None."""
        reranker = cls(encoder, library, known)
        if known is None:
            return reranker
        costs = {**known}
        if "image" not in known and len(library.images):
            costs["image"] = RerankCosts.measure(library.images, reranker._reranks_images())
        if "text" not in known and len(library.captions) and len(library.images):
            costs["text"] = RerankCosts.measure(library.captions, reranker._reranks_captions())
        return reranker._replace(costs=costs)

    def _reranks_images(self) -> Callable[[Sequence[str]], object]:
        terms, shares = self.encoder.texts([SAMPLE_QUERY]), np.ones(1, dtype=np.float32)
        return lambda ids: self.images(terms, shares, ids)

    def _reranks_captions(self) -> Callable[[Sequence[str]], object]:
        terms, shares = self.library.parts(self.library.sample(1)), np.ones(1, dtype=np.float32)
        return lambda ids: self.captions(terms, shares, ids, [found.text for found in self.library.texts(ids)])

    def depth(self, target: Modality, wanted: int | TimeBudget | None, k: int, elapsed: float) -> int:
        """Number of candidates to rerank: at least k, so that all hits have a score of the reranker.

        Args:
            target: modality of the hits.
            wanted: number of candidates, None for all, or the time that the answer may take.
            k: number of hits.
            elapsed: seconds since the start of the search.
        """
        index = self.library.images if target == "image" else self.library.captions
        if isinstance(wanted, TimeBudget):
            if self.costs is None:
                raise ValueError("a time budget needs measured costs; open the searcher with measure_costs=True")
            wanted = self.costs[target].depth(wanted.seconds - elapsed) if target in self.costs else k
        return max(k, len(index) if wanted is None else min(wanted, len(index)))

    @staticmethod
    def applies_to(query: Query, target: Modality) -> bool:
        """Whether every term can be scored with the hits: images with texts, or texts with images."""
        return query.modalities == {"text" if target == "image" else "image"}

    def encode(self, query: Query) -> Encoded:
        """Encode the terms, which must be of one modality; items are images."""
        if query.modalities == {"text"}:
            return self.encoder.texts([str(term.content) for term in query.terms])
        return stack([self._image(term.content) for term in query.terms])

    def _image(self, content: object) -> Encoded:
        if isinstance(content, ItemId):
            return self.library.parts([str(content)]).to(self.encoder.device)
        return self.encoder.images([content])  # type: ignore[list-item]  # an image term is an item or a picture

    def images(self, terms: Encoded, shares: Floats, ids: Sequence[str]) -> list[ScoredItem]:
        """Images by decreasing score with texts."""
        return sort_by_score(ids, self.encoder.scores(self.library.parts(ids), terms) @ shares) if ids else []

    def captions(self, terms: Encoded, shares: Floats, ids: Sequence[str], texts: Sequence[str]) -> list[ScoredItem]:
        """Captions by decreasing score with images."""
        return sort_by_score(ids, shares @ self.encoder.scores(terms, self.encoder.texts(texts))) if ids else []


def sort_by_score(ids: Sequence[str], scores: Floats) -> list[ScoredItem]:
    """Items by decreasing score; items with equal scores are ordered by id."""
    found = [ScoredItem(id, score) for id, score in zip(ids, scores.tolist(), strict=True)]
    return sorted(found, key=lambda item: (-item.score, item.id))


def merge_candidates(nearest: Sequence[str], keyword_hits: Sequence[str], count: int, k: int) -> list[str]:
    """Candidates for reranking: all keyword hits, the k nearest, and further nearest ones up to ``count``.

    A keyword hit replaces the last of the nearest, because it is a match in any case.
    """
    named = set(keyword_hits)
    others = [id for id in nearest if id not in named][: max(0, count - len(named))]
    kept = named.union(nearest[:k], others)
    return [id for id in dict.fromkeys([*nearest, *keyword_hits]) if id in kept]
