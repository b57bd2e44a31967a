"""A query while it is answered: its terms as one vector, its condition parsed, and the times of the stages."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from calligram.errors import UserError
from calligram.models.matcher import Encoded
from calligram.search.filters.parser import Condition, holds, parse
from calligram.search.library.library import Library
from calligram.search.library.matchers import MatcherEncoder, unit_vectors
from calligram.search.library.word_lists import KeywordHit
from calligram.search.query.cutoff import ScoreScales, is_short, query_cutoff
from calligram.search.query.query import ItemId, Modality, Query, QueryTerm, TermContent, combine_vectors
from calligram.search.query.rerank import RERANK_DEPTH, Reranker, ScoredItem, TimeBudget
from calligram.search.vectors.index import Index
from calligram.text import contain_every_word, tokenise, without_stop_words

Floats = NDArray[np.float32]


@dataclass
class StageTimes:
    """Seconds of the stages of one search."""

    seconds: dict[str, float] = field(default_factory=lambda: {"encode": 0.0, "search": 0.0, "rerank": 0.0})
    start: float = field(default_factory=time.perf_counter)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


class EncodedQuery(NamedTuple):
    """A query for images or for captions."""

    query: Query
    target: Modality
    """modality of the hits"""
    shares: Floats
    """weight of each term in the score"""
    vector: Floats
    """at unit length"""
    length: float
    """the score is the cosine times this length"""
    where: Condition | None
    unknown_words: tuple[str, ...] = ()
    """words that are not in the matcher's vocabulary"""
    encoded: Encoded | None = None
    """the encoded terms, where all are texts or all are pictures; a reranker of the same matcher uses them"""
    truncated_words: int = 0
    """words at the ends of texts beyond the longest text that the matcher reads"""
    within: frozenset[str] | None = None
    """the only items that may be hits; all of them satisfy the condition"""

    @property
    def is_unknown(self) -> bool:
        """Whether more than half of the query's content words are unknown to the matcher."""
        wanted = [term for term in self.query.terms if term.weight > 0]
        words = without_stop_words(tokenise(self.query.words))
        return (
            all(term.modality == "text" for term in wanted)
            and 2 * len(without_stop_words(self.unknown_words)) > len(words) > 0
        )

    def nearest(self, index: Index, count: int, *, exact: bool = False) -> list[ScoredItem]:
        """The nearest items of an index, best first; with ``exact``, all items are compared."""
        return nearest_items(index, [(self, count, exact)])[0]

    def cutoff(self, scales: ScoreScales, *, reranked: bool) -> float:
        """The score that a match should reach."""
        if self.is_unknown:
            return math.inf
        if reranked:
            return query_cutoff(self.shares, [scales.reranked] * len(self.query.terms))
        terms = [(t.modality, t.modality == "text" and is_short(str(t.content))) for t in self.query.terms]
        return query_cutoff(
            self.shares, [scales.between(modality, self.target, short=short) for modality, short in terms]
        )


def nearest_items(index: Index, asked: Sequence[tuple[EncodedQuery, int, bool]]) -> list[list[ScoredItem]]:
    """The nearest items of several queries.

    Queries with the same condition, number and exactness are compared with the index in one call. A query within some
    items is compared with those alone.

    Args:
        index: to search.
        asked: queries, each with the number of items, and whether the search must be exact.
    """
    found: list[list[ScoredItem]] = [[] for _ in asked]
    if not len(index):
        return found
    groups: dict[tuple[Condition | None, int, bool], list[int]] = {}
    for place, (query, count, exact) in enumerate(asked):
        if query.within is not None:
            scored = score_items(index, [(query, sorted(query.within))])[0]
            found[place] = sorted(scored, key=lambda item: (-item.score, item.id))[:count]
            continue
        groups.setdefault((query.where, count, exact), []).append(place)
    for (where, count, exact), places in groups.items():
        hits = index.search(np.stack([asked[place][0].vector for place in places]), count, where, exact=exact)
        for place, nearest in zip(places, hits, strict=True):
            found[place] = [ScoredItem(hit.id, hit.score * asked[place][0].length) for hit in nearest]
    return found


def score_items(index: Index, asked: Sequence[tuple[EncodedQuery, Sequence[str]]]) -> list[list[ScoredItem]]:
    """The scores of given items with each query; all vectors are read in one call."""
    ids = list(dict.fromkeys(id for _, wanted in asked for id in wanted))
    rows = {id: row for row, id in enumerate(ids)}
    vectors = index.vectors(ids) if ids else np.empty((0, index.dim), np.float32)
    return [
        [ScoredItem(id, float(vectors[rows[id]] @ query.vector) * query.length) for id in wanted]
        for query, wanted in asked
    ]


class ImageSearch(NamedTuple):
    """One search for images, with the arguments of ``Searcher.images``."""

    query: Query
    k: int = 10
    where: str | None = None
    all: bool = False
    hybrid: bool | None = None
    depth: int | TimeBudget | None = RERANK_DEPTH
    exact: bool = False
    within: tuple[str, ...] | None = None
    """ids of the only items that may be hits, such as the pictures of an album; others are skipped"""


@dataclass
class PlannedSearch:
    """A search for images while it is answered."""

    search: ImageSearch
    encoded: EncodedQuery
    count: int
    """number of nearest items that are needed"""
    reranker: Reranker | None
    terms: Encoded | None
    """the terms encoded by the reranker"""
    own: frozenset[str]
    """items of the query, which are never among the hits"""
    found: list[ScoredItem] = field(default_factory=list)
    with_every_word: set[str] = field(default_factory=set)
    keyword_hits: list[str] = field(default_factory=list)

    def add_keyword_hits(self, hits: Sequence[KeywordHit]) -> None:
        """Keep the hits that contain every word of the query, or all where the search is hybrid."""
        contained = contain_every_word(self.encoded.query.words, [hit.words for hit in hits])
        self.with_every_word = {hit.id for hit, every in zip(hits, contained, strict=True) if every}
        self.keyword_hits = [hit.id for hit in hits if self.search.hybrid or hit.id in self.with_every_word]


class EncodedTexts(NamedTuple):
    """Texts of several queries that were encoded in one batch."""

    rows: Mapping[str, int]
    """row of each text"""
    encoded: Encoded
    vectors: Floats
    """at unit length"""

    @classmethod
    def of(cls, queries: Sequence[Query], encoder: MatcherEncoder) -> EncodedTexts | None:
        """Encode the texts of all queries, equal ones once; None if there are none."""
        texts = dict.fromkeys(str(t.content) for query in queries for t in query.terms if t.modality == "text")
        if not texts:
            return None
        encoded = encoder.texts(list(texts))
        return cls({text: row for row, text in enumerate(texts)}, encoded, unit_vectors(encoded))


class QueryPlanner(NamedTuple):
    """Encodes queries for a library."""

    library: Library
    encoder: MatcherEncoder
    scales: ScoreScales

    def encode(self, query: TermContent | QueryTerm | Query, target: Modality, where: str | None) -> EncodedQuery:
        """Encode a query.

        Raises:
            UserError: for an invalid query or condition, and for unknown items.
        """
        found = self.encode_all([(Query.of(query), where, None)], target)[0]
        if isinstance(found, UserError):
            raise found
        return found

    def encode_all(
        self, asked: Sequence[tuple[Query, str | None, Sequence[str] | None]], target: Modality
    ) -> list[EncodedQuery | UserError]:
        """Encode queries, all texts in one batch; an invalid query gives its error.

        Args:
            asked: queries, each with its condition and with the ids of the only items that may be hits.
            target: modality of the hits.
        """
        texts = EncodedTexts.of([query for query, *_ in asked], self.encoder)
        found: list[EncodedQuery | UserError] = []
        for query, where, within in asked:
            try:
                plan = self._plan(query, target, where, texts)
                found.append(plan if within is None else plan._replace(within=self._admitted(within, plan.where)))
            except UserError as error:
                found.append(error)
        return found

    def _plan(self, query: Query, target: Modality, where: str | None, texts: EncodedTexts | None) -> EncodedQuery:
        condition = parse(where, self.library.kinds) if where is not None and where.strip() else None
        shares = query.shares({modality: self.scales.between(modality, target).spread for modality in query.modalities})
        vectors, encoded = self._vectors(query, texts)
        vector, length = combine_vectors(vectors, shares)
        unknown = tuple(dict.fromkeys(self.encoder.unknown_words(query.words)))
        truncated = sum(
            self.encoder.truncated_words(str(term.content)) for term in query.terms if term.modality == "text"
        )
        return EncodedQuery(query, target, shares, vector, length, condition, unknown, encoded, truncated)

    def _admitted(self, within: Sequence[str], where: Condition | None) -> frozenset[str]:
        """The present items among these ids that satisfy the condition."""
        items = (item for item in self.library.known_items(within) if not item.gone)
        return frozenset(item.id for item in items if where is None or holds(where, item.metadata))

    def _vectors(self, query: Query, texts: EncodedTexts | None) -> tuple[Floats, Encoded | None]:
        """Vectors (terms, D) at unit length, and the encodings where all terms are texts or all are pictures."""
        vectors: Floats = np.empty((len(query.terms), self.library.manifest.dim), dtype=np.float32)
        places: dict[type, list[int]] = {str: [], ItemId: [], Image.Image: []}
        for place, term in enumerate(query.terms):
            places[_content_type(term.content)].append(place)
        content = {kind: [query.terms[place].content for place in rows] for kind, rows in places.items()}
        encoded: list[Encoded] = []
        if rows := places[str]:
            assert texts is not None
            chosen = [texts.rows[str(text)] for text in content[str]]
            every = chosen == list(range(len(texts.rows)))
            encoded.append(texts.encoded if every else texts.encoded.rows(torch.tensor(chosen)))
            vectors[rows] = texts.vectors[chosen]
        if rows := places[Image.Image]:
            pictures = [picture for picture in content[Image.Image] if isinstance(picture, Image.Image)]
            encoded.append(self.encoder.images([picture.convert("RGB") for picture in pictures]))
            vectors[rows] = unit_vectors(encoded[-1])
        if rows := places[ItemId]:
            vectors[rows] = self.library.images.vectors([str(id) for id in content[ItemId]])
        return vectors, encoded[0] if len(encoded) == 1 and not places[ItemId] else None


def _content_type(content: object) -> type:
    for kind in (ItemId, str, Image.Image):
        if isinstance(content, kind):
            return kind
    raise UserError(f"a query consists of texts, pictures and items, not of {type(content).__name__}")
