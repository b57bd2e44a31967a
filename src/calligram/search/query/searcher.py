"""Search a library: find images and captions by texts, pictures and items."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch

from calligram.errors import UserError
from calligram.models.matcher import Encoded
from calligram.notebook import ShownHits
from calligram.search.library.library import Library
from calligram.search.library.matchers import MatcherEncoder, load_encoders, unit_vectors
from calligram.search.library.word_lists import KeywordHit
from calligram.search.query.cutoff import ScoreScales, library_scales, stored_scales
from calligram.search.query.encoded_query import (
    EncodedQuery,
    ImageSearch,
    PlannedSearch,
    QueryPlanner,
    StageTimes,
    nearest_items,
    score_items,
)
from calligram.search.query.query import ItemId, Modality, Query, QueryTerm, TermContent, reciprocal_ranks
from calligram.search.query.rerank import (
    RERANK_DEPTH,
    RerankCosts,
    Reranker,
    ScoredItem,
    TimeBudget,
    merge_candidates,
)
from calligram.search.vectors.table_files import refuse_deleted_version

if TYPE_CHECKING:
    from calligram.search.explain.word_importance import WordImportances

MAX_KEYWORD_HITS = 50
REMEASURE_SHARE = 0.1
"""scales are measured again when the number of items has changed by more than this share"""
_KEYWORD_THREADS = ThreadPoolExecutor(8, "keywords")


class Hit(NamedTuple):
    """An image or a caption that was found."""

    id: str
    score: float
    """of the matcher; higher is better"""
    rank: int
    """from 1"""
    path: str | None = None
    """of an image that is a file of its own"""
    text: str | None = None
    """of a caption"""


@dataclass(frozen=True)
class Results(ShownHits):
    """The hits of a search, best first."""

    hits: tuple[Hit, ...]
    below_cutoff: int = 0
    """how many of the nearest k are hidden because their score is below the cut-off"""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """seconds of ``encode``, ``search`` and ``rerank``"""
    unknown_words: tuple[str, ...] = ()
    """words of the query that are not in the matcher's vocabulary"""
    depth: int = 0
    """number of candidates that were reranked; 0 without a reranker"""
    seconds: float = 0.0
    """of the whole search"""
    truncated_words: int = 0
    """words of the query beyond the longest text that the matcher reads"""
    recall: float | None = None
    """measured share of the ten nearest items that a search of this library finds; None where all were compared"""


class Searcher:
    """Searches a library: encodes a query, finds the nearest items, reranks candidates, and applies the cut-off.

    Hits are in the order of the matcher's score, or of the reranker's score where there is one, with one exception:
    images whose captions or path contain every word of the query form a second ranking, and the two rankings are fused
    by reciprocal ranks. ``Hit.score`` is the matcher's score for these images too. The cut-off does not apply to them.

    This default measured best, with queries that are not in the library (``bench/relevance.py``; scenes with a matcher
    like the demo's, test images of Flickr8k with a small one). Short queries: of the matches that fit into the first
    ten, 33% are there instead of 18% on scenes, and 32% instead of 10% on Flickr8k; 23% and 13% where only a tenth of
    the images have captions. Captions as queries: R@1 is 43 instead of 37 and 17 instead of 12, with almost no change
    where a tenth have captions. Fusion with images that contain *any* word of the query (``hybrid=True``) increases R@1
    of captions to 53 and 25, but lowers it to 6 and 4 where a tenth have captions. It is for libraries in which all
    images have captions.

    A searcher never changes, except for its measured costs of reranking, and any number of threads may use it.
    """

    def __init__(
        self,
        library: Library,
        encoder: MatcherEncoder,
        reranker: MatcherEncoder | None = None,
        scales: ScoreScales | None = None,
        costs: Mapping[Modality, RerankCosts] | None = MappingProxyType({}),
    ) -> None:
        """Args:
        library: to search.
        encoder: of the matcher that indexed the library.
        reranker: of a matcher that scores pairs, which the library must have been indexed with.
        scales: score scales of the library; by default those stored with it, or measured now.
        costs: of reranking on this machine; missing ones are measured, unless it is None: then no search may have a
            time budget.
        """
        self.library, self.scales = library, library_scales(library, encoder, reranker) if scales is None else scales
        self._encoders = encoder, reranker
        self._planner = QueryPlanner(library, encoder, self.scales)
        self._reranker = None if reranker is None else Reranker.with_costs(reranker, library, costs)
        self._costs = costs if self._reranker is None else self._reranker.costs

    @classmethod
    def open(
        cls,
        library_folder: str | os.PathLike[str],
        *,
        device: str | torch.device = "cpu",
        measure_costs: bool = True,
        index: str | None = None,
        memory: int | None = None,
    ) -> Searcher:
        """Open a library with the matcher that indexed it.

        Args:
            library_folder: of the library.
            device: where queries are encoded.
            measure_costs: measure the costs of reranking now, which searches with a time budget need.
            index: address of the vectors, if they are not in the library's folder.
            memory: bytes of mapped vectors that stay in the memory of this process; by default 1 GiB for each index.

        Raises:
            UserError: when there is no library, or its matcher is missing or has changed.
        """
        library = Library.open(library_folder, index=index, memory=memory)
        encoders = load_encoders(library.folder, library.manifest, device)
        return cls(library, *encoders, costs={} if measure_costs else None)

    @property
    def encoder(self) -> MatcherEncoder:
        """The encoder of the matcher that indexed the library."""
        return self._encoders[0]

    @property
    def device(self) -> torch.device:
        """The device on which queries are encoded."""
        return self._encoders[0].device

    def refreshed(self) -> Searcher:
        """This searcher, or a new one if the library has changed since it was opened."""
        library = self.library.refreshed()
        if library is self.library:
            return self
        before, now = self.library.manifest, library.manifest
        if (before.matcher, before.reranker) != (now.matcher, now.reranker):
            return Searcher(
                library, *load_encoders(library.folder, now, self.device), costs=None if self._costs is None else {}
            )
        # During an indexing run, no scales are stored for the present state.
        scales = stored_scales(now, now.matcher.fingerprint, now.reranker.fingerprint if now.reranker else None)
        if scales is None and abs(len(library) - self.scales.items) <= REMEASURE_SHARE * self.scales.items:
            scales = self.scales
        return Searcher(library, *self._encoders, scales=scales, costs=self._costs)

    def images(
        self,
        query: TermContent | QueryTerm | Query,
        k: int = 10,
        *,
        where: str | None = None,
        all: bool = False,
        hybrid: bool | None = None,
        depth: int | TimeBudget | None = RERANK_DEPTH,
        exact: bool = False,
        within: Sequence[str] | None = None,
    ) -> Results:
        """Find images of the library.

        Args:
            query: a text, a picture, an item, or several terms with weights. Items are never among their own hits.
            k: maximum number of hits.
            where: a condition on the metadata, such as ``year >= 2020``.
            all: also return hits below the cut-off. A query of items alone has no cut-off.
            hybrid: True to fuse with images that contain any word of the query, False for no keyword search.
            depth: number of candidates to rerank, None for all, or a time budget.
            exact: compare all vectors, also in a large library, where an approximate search is much faster.
            within: ids of the only items that may be hits, such as ``Album.pictures``.
        """
        only = None if within is None else tuple(within)
        found = self.image_batch([ImageSearch(Query.of(query), k, where, all, hybrid, depth, exact, only)])[0]
        if isinstance(found, UserError):
            raise found
        return found

    @property
    def batches(self) -> bool:
        """Whether several searches are faster together; a second stage takes each search by itself."""
        return self._reranker is None

    def image_batch(self, searches: Sequence[ImageSearch]) -> list[Results | UserError]:
        """Answer several searches for images together, each as ``images`` does; an invalid one gives its error.

        All texts are encoded in one batch, the index compares all queries at once, and the tables are read once. An
        encoder rounds differently in batches of different sizes, so scores may differ in their last digits.
        """
        if len(searches) > 1 and not self.batches:
            return [self.image_batch([search])[0] for search in searches]
        with refuse_deleted_version(self.library.folder):
            return self._image_batch(searches)

    def _image_batch(self, searches: Sequence[ImageSearch]) -> list[Results | UserError]:
        times = StageTimes()
        with times.stage("encode"):
            plans = self._plan(searches, times)
        valid = [plan for plan in plans if isinstance(plan, PlannedSearch)]
        with times.stage("search"):
            keyword_hits = self._start_keyword_search(valid)
            asked = [(p.encoded, p.count + len(p.own), p.search.exact) for p in valid]
            nearest = nearest_items(self.library.images, asked)
            for plan, items, hits in zip(valid, nearest, keyword_hits, strict=True):
                plan.found = [item for item in items if item.id not in plan.own]
                plan.add_keyword_hits(hits())
        with times.stage("rerank"):
            for p in valid:
                if p.reranker is not None and p.terms is not None:
                    ids = merge_candidates([item.id for item in p.found], p.keyword_hits, p.count, p.search.k)
                    p.found = p.reranker.images(p.terms, p.encoded.shares, ids)
        with times.stage("search"):
            chosen = self._fuse(valid)
            paths = self.library.paths([item.id for items in chosen for item in items])
        answers = iter([self._answer(p, items, paths, times) for p, items in zip(valid, chosen, strict=True)])
        return [plan if isinstance(plan, UserError) else next(answers) for plan in plans]

    def _plan(self, searches: Sequence[ImageSearch], times: StageTimes) -> list[PlannedSearch | UserError]:
        """Encode the queries, and decide how many items each needs."""
        encodings = self._planner.encode_all([(s.query, s.where, s.within) for s in searches], "image")
        plans: list[PlannedSearch | UserError] = []
        for search, encoded in zip(searches, encodings, strict=True):
            try:
                _check(search.k, search.depth)
            except UserError as error:
                plans.append(error)
                continue
            if isinstance(encoded, UserError):
                plans.append(encoded)
                continue
            reranker, k = self._reranker_for(encoded), search.k
            terms = None if reranker is None else self._terms(reranker, encoded)
            count = max(k, RERANK_DEPTH)
            if reranker is not None:
                count = reranker.depth("image", search.depth, k, times.elapsed)
            own = frozenset(str(term.content) for term in search.query.terms if isinstance(term.content, ItemId))
            plans.append(PlannedSearch(search, encoded, count, reranker, terms, own))
        return plans

    def _answer(
        self, plan: PlannedSearch, chosen: list[ScoredItem], paths: Mapping[str, Path | None], times: StageTimes
    ) -> Results:
        encoded, reranked = plan.encoded, plan.reranker is not None
        only_items = len(plan.own) == len(encoded.query.terms)
        cutoff = None if plan.search.all or only_items else encoded.cutoff(self.scales, reranked=reranked)
        texts = {id: None if path is None else str(path) for id, path in paths.items()}
        images = [Hit(item.id, item.score, 0, texts[item.id]) for item in chosen if item.id in texts]
        depth = len(plan.found) if reranked else 0
        recall = None if plan.search.exact or encoded.within is not None else self.library.images.recall
        return replace(self._results(encoded, images, cutoff, plan.with_every_word, times, depth), recall=recall)

    def like(self, id: str, k: int = 10, *, where: str | None = None) -> Results:
        """Find images that are similar to an item of the library."""
        return self.images(ItemId(id), k, where=where)

    def texts(
        self,
        query: TermContent | QueryTerm | Query,
        k: int = 10,
        *,
        where: str | None = None,
        all: bool = False,
        hybrid: bool | None = None,
        depth: int | TimeBudget | None = RERANK_DEPTH,
        exact: bool = False,
    ) -> Results:
        """Find captions of the library; arguments are those of ``images``, and conditions apply to the first image.

        Raises:
            UserError: for ``hybrid=True``, because keyword search finds images.
        """
        if hybrid:
            raise UserError("keyword search finds images, not captions; leave out hybrid=True (--any-word)")
        times, index = StageTimes(), self.library.captions
        _check(k, depth)
        with times.stage("encode"):
            encoded = self._planner.encode(query, "text", where)
            reranker = self._reranker_for(encoded)
            terms = None if reranker is None else self._terms(reranker, encoded)
        count = k if reranker is None else reranker.depth("text", depth, k, times.elapsed)
        with times.stage("search"):
            found = encoded.nearest(index, count, exact=exact)
            captions = {caption.id: caption.text for caption in self.library.texts([item.id for item in found])}
        with times.stage("rerank"):
            if reranker is not None and terms is not None:
                ids = [item.id for item in found]
                found = reranker.captions(terms, encoded.shares, ids, [captions[id] for id in ids])
        cutoff = None if all else encoded.cutoff(self.scales, reranked=bool(reranker))
        hits = [Hit(item.id, item.score, 0, text=captions[item.id]) for item in found[:k]]
        results = self._results(encoded, hits, cutoff, (), times, len(found) if reranker else 0)
        return results if exact else replace(results, recall=index.recall)

    def explain(self, id: str, text: str) -> WordImportances:
        """The importance of each word of a text for its score with an item, and the attention of each word.

        Raises:
            UserError: for an unknown item, and for a text of fewer than two words.
        """
        from calligram.search.explain.word_importance import item_attention, leave_one_out

        first, second = self._encoders
        item = self.library.item(id)
        if item.gone:
            raise UserError(f"the picture of item '{id}' was missing when its source was last indexed; index it again")
        if second is not None:
            kept = self.library.parts([id])
            found = leave_one_out(text, lambda texts: second.scores(kept, second.texts(texts))[0])
            return found._replace(attention=item_attention(second, kept, item, text))
        vector = self.library.images.vectors([id])[0]
        return leave_one_out(text, lambda texts: unit_vectors(first.texts(texts)) @ vector)

    def _results(
        self,
        encoded: EncodedQuery,
        hits: list[Hit],
        cutoff: float | None,
        kept: Collection[str],
        times: StageTimes,
        reranked: int,
    ) -> Results:
        """Number the hits that reach the cut-off or are in ``kept``, and update the costs of reranking."""
        shown = [hit for hit in hits if cutoff is None or hit.score >= cutoff or hit.id in kept]
        numbered = tuple(hit._replace(rank=rank) for rank, hit in enumerate(shown, 1))
        total, stages = times.elapsed, times.seconds
        if reranked and self._costs is not None and (costs := self._costs.get(encoded.target)):
            costs.update(total - stages["encode"] - stages["rerank"], reranked, stages["rerank"])
        hidden = len(hits) - len(shown)
        return Results(numbered, hidden, stages, encoded.unknown_words, reranked, total, encoded.truncated_words)

    def _reranker_for(self, encoded: EncodedQuery) -> Reranker | None:
        applies = self._reranker is not None and self._reranker.applies_to(encoded.query, encoded.target)
        return self._reranker if applies else None

    def _terms(self, reranker: Reranker, encoded: EncodedQuery) -> Encoded:
        """The terms encoded by the reranker, which may be the matcher that has encoded them already."""
        if reranker.encoder is self._encoders[0] and encoded.encoded is not None:
            return encoded.encoded
        return reranker.encode(encoded.query)

    def _start_keyword_search(self, plans: Sequence[PlannedSearch]) -> list[Callable[[], list[KeywordHit]]]:
        """A function for each search that gives its hits; where that takes long, other threads search meanwhile."""
        works: list[Callable[[], list[KeywordHit]]] = [partial(self._keyword_hits, p) for p in plans]
        return works if self.library.keywords_in_memory else [_KEYWORD_THREADS.submit(work).result for work in works]

    def _keyword_hits(self, plan: PlannedSearch) -> list[KeywordHit]:
        """Images with words of the query in a caption or the path, best first."""
        words = "" if plan.search.hybrid is False else plan.encoded.query.words
        hits = self.library.full_text(words, MAX_KEYWORD_HITS, plan.encoded.where, plan.encoded.within) if words else []
        return [hit for hit in hits if hit.id not in plan.own]

    def _fuse(self, plans: Sequence[PlannedSearch]) -> list[list[ScoredItem]]:
        """The first k items of each search, of two fused rankings where there are keyword hits."""
        orders, known = [], []
        for plan in plans:
            nearest = {item.id: item for item in plan.found}
            rankings = [list(nearest), plan.keyword_hits]
            orders.append((reciprocal_ranks(rankings) if plan.keyword_hits else rankings[0])[: plan.search.k])
            known.append(nearest)
        missing = [[id for id in order if id not in found] for order, found in zip(orders, known, strict=True)]
        asked = [(plan.encoded, ids) for plan, ids in zip(plans, missing, strict=True)]
        for found, more in zip(known, score_items(self.library.images, asked), strict=True):
            found |= {item.id: item for item in more}
        return [[found[id] for id in order] for order, found in zip(orders, known, strict=True)]


def _check(k: int, depth: int | TimeBudget | None) -> None:
    if k < 1:
        raise UserError(f"k must be at least 1, got {k}")
    if isinstance(depth, int) and depth < 1:
        raise UserError(f"depth must be at least 1, got {depth}")
