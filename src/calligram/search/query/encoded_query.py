"""A query made ready: its terms encoded and joined into one vector, its condition read."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.errors import UserError
from calligram.models.matcher import Encoded
from calligram.search.filters.parser import Condition, parse
from calligram.search.library.library import Library
from calligram.search.query.cutoff import ScoreScales, is_short, query_cutoff
from calligram.search.query.encoder import QueryEncoder, unit_vectors
from calligram.search.query.query import ItemId, Modality, Query, Term, What, joined
from calligram.search.query.rerank import Scored
from calligram.search.vectors.index import Index
from calligram.text import tokenise, without_stop_words

Floats = NDArray[np.float32]


@dataclass
class StageTimes:
    """Seconds that the stages of one search took."""

    times: dict[str, float] = field(default_factory=lambda: {"encode": 0.0, "search": 0.0, "rerank": 0.0})
    began: float = field(default_factory=time.perf_counter)

    @property
    def spent(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self.began

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Add what is spent inside to a stage."""
        began = time.perf_counter()
        yield
        self.times[stage] += time.perf_counter() - began


class EncodedQuery(NamedTuple):
    """A query for images or for captions."""

    query: Query
    found: Modality
    """what it is to find"""
    shares: Floats
    """weight of each term in the score"""
    vector: Floats
    """at length one"""
    length: float
    """a cosine times this is the query's score"""
    where: Condition | None
    unknown: tuple[str, ...] = ()
    """words that the matcher has never seen"""
    encoded: Encoded | None = None
    """the terms, where all are texts or all are pictures; a second stage by the same matcher needs no other"""
    unread: int = 0
    """words at the ends of texts that the matcher reads no more"""

    @property
    def lost(self) -> bool:
        """Whether the matcher has never seen most of what is asked for."""
        wanted = [term for term in self.query.terms if term.weight > 0]
        words = without_stop_words(tokenise(self.query.words))
        return (
            all(term.modality == "text" for term in wanted)
            and 2 * len(without_stop_words(self.unknown)) > len(words) > 0
        )

    def look_up(self, index: Index, count: int) -> list[Scored]:
        """The nearest items of an index, best first."""
        if not len(index):
            return []
        return [Scored(f.id, f.score * self.length) for f in index.search(self.vector[None], count, self.where)[0]]

    def scored(self, index: Index, ids: list[str]) -> list[Scored]:
        """Items of an index, wherever they stand."""
        if not ids:
            return []
        scores = (index.vectors(ids) @ self.vector) * self.length
        return [Scored(id, float(score)) for id, score in zip(ids, scores, strict=True)]

    def cutoff(self, scales: ScoreScales, *, reranked: bool) -> float:
        """The score that a match should reach."""
        if self.lost:
            return math.inf
        if reranked:
            return query_cutoff(self.shares, [scales.reranked] * len(self.query.terms))
        terms = [(t.modality, t.modality == "text" and is_short(str(t.what))) for t in self.query.terms]
        return query_cutoff(self.shares, [scales.between(asked, self.found, short=short) for asked, short in terms])


class QueryPlanner(NamedTuple):
    """Makes queries ready."""

    library: Library
    encoder: QueryEncoder
    scales: ScoreScales

    def ask(self, query: What | Term | Query, found: Modality, where: str | None) -> EncodedQuery:
        """Encode a query.

        Raises:
            UserError: for a query or a condition that cannot be read, and for items that are not there.
        """
        whole = Query.of(query)
        condition = parse(where, self.library.kinds) if where is not None and where.strip() else None
        shares = whole.shares({asked: self.scales.between(asked, found).spread for asked in whole.modalities})
        vectors, encoded = self._vectors(whole)
        vector, length = joined(vectors, shares)
        unknown = tuple(dict.fromkeys(self.encoder.unknown_words(whole.words)))
        cut = sum(self.encoder.truncated_words(str(term.what)) for term in whole.terms if term.modality == "text")
        return EncodedQuery(whole, found, shares, vector, length, condition, unknown, encoded, cut)

    def _vectors(self, query: Query) -> tuple[Floats, Encoded | None]:
        """Vectors of the terms at length one (terms, D), those of a kind encoded together, and all of the encodings
        where there is but one kind, of texts or of pictures.
        """
        vectors: Floats = np.empty((len(query.terms), self.library.manifest.dim), dtype=np.float32)
        places: dict[type, list[int]] = {str: [], ItemId: [], Image.Image: []}
        for place, term in enumerate(query.terms):
            places[_kind(term.what)].append(place)
        what = {kind: [query.terms[place].what for place in there] for kind, there in places.items()}
        encoded: list[Encoded] = []
        if there := places[str]:
            encoded.append(self.encoder.texts([str(text) for text in what[str]]))
            vectors[there] = unit_vectors(encoded[-1])
        if there := places[Image.Image]:
            pictures = [picture for picture in what[Image.Image] if isinstance(picture, Image.Image)]
            encoded.append(self.encoder.images([picture.convert("RGB") for picture in pictures]))
            vectors[there] = unit_vectors(encoded[-1])
        if there := places[ItemId]:
            vectors[there] = self.library.images.vectors([str(id) for id in what[ItemId]])
        return vectors, encoded[0] if len(encoded) == 1 and not places[ItemId] else None


def _kind(what: object) -> type:
    for kind in (ItemId, str, Image.Image):
        if isinstance(what, kind):
            return kind
    raise UserError(f"a query is made of texts, pictures and items, not of {type(what).__name__}")
