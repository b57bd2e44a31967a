"""Finding images and captions of a library by texts, pictures and items."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch

from calligram.errors import UserError
from calligram.models.matcher import Encoded
from calligram.search.library.library import Library
from calligram.search.library.matchers import PathLike
from calligram.search.library.tables import KeywordHit
from calligram.search.query.cutoff import ScoreScales, library_scales, stored_scales
from calligram.search.query.encoded_query import EncodedQuery, QueryPlanner, StageTimes
from calligram.search.query.encoder import QueryEncoder, load_encoders, unit_vectors
from calligram.search.query.keyword_fusion import has_every_word, reciprocal_ranks
from calligram.search.query.query import ItemId, Modality, Query, Term, What
from calligram.search.query.rerank import Reranker, Scored, StageCosts, TimeBudget, candidates

if TYPE_CHECKING:
    from calligram.search.explain.word_importance import WordImportances

DEPTH = 100
"""candidates that a second stage orders, and at least as many are joined with what words find"""
WORDED = 50
"""images that the words of a query may bring in"""
_WORDS = ThreadPoolExecutor(8, "words")
CHANGED = 0.1
"""share by which a library must have grown or shrunk for its scores to be measured anew"""


class Hit(NamedTuple):
    """Something that was found."""

    id: str
    score: float
    """the matcher's; higher is better"""
    rank: int
    """from 1"""
    path: str | None = None
    """of an image that is a file"""
    text: str | None = None
    """of a caption"""


@dataclass(frozen=True)
class Results:
    """What a search found, best first."""

    hits: tuple[Hit, ...]
    below: int = 0
    """how many more would have been shown, were their scores not under the cut-off"""
    timings: Mapping[str, float] = field(default_factory=dict)
    """seconds of ``encode``, ``search`` and ``rerank``"""
    unknown: tuple[str, ...] = ()
    """words of the query that the matcher has never seen"""
    depth: int = 0
    """candidates that a second stage compared with the query; 0 where there was none"""
    took: float = 0.0
    """seconds, all in all"""
    unread: int = 0
    """words of the query that are more than the matcher reads of a text"""


class Searcher:
    """Encodes a query, looks it up, reorders the first candidates where there is a second stage, and cuts off.

    Hits are in the order of the matcher's score (the second stage's, where there is one), with one exception: images
    whose captions or path have every word of the query form a ranking of their own, and both rankings are joined
    by reciprocal ranks. ``Hit.score`` is the matcher's all the same. Such images are never cut off.

    That is the default because it measured best, with queries kept out of the library (``bench/relevance.py``; scenes
    with a matcher of the demo's kind, Flickr8k's test images with a small one). Short queries: of the matches that
    fit into the first ten, 33% are there instead of 18% on scenes and 32% instead of 10% on Flickr8k; 23% and 13%
    where only a tenth of the images have captions. Whole captions: R@1 43 instead of 37 and 17 instead of 12, next to
    no change with a tenth. Joining with images that have *any* word of the query (``hybrid=True``) takes whole
    captions further, to 53 and 25, but down to 6 and 4 where a tenth have captions: it is for libraries with captions
    throughout.

    Nothing in a searcher changes after it was made, but for what it knows of its own pace, and any number of threads
    may use it.
    """

    def __init__(
        self,
        library: Library,
        encoder: QueryEncoder,
        reranker: QueryEncoder | None = None,
        scales: ScoreScales | None = None,
        paces: Mapping[Modality, StageCosts] | None = MappingProxyType({}),
    ) -> None:
        """Args:
        reranker: of a matcher whose score needs both sides; the library must have been indexed with it.
        scales: score scales of the library; by default those stored with it, or measured now.
        paces: what the second stage takes here; measured when not given, None where no answer will have a budget.
        """
        self.library, self.scales = library, library_scales(library, encoder, reranker) if scales is None else scales
        self._encoders = encoder, reranker
        self._asker = QueryPlanner(library, encoder, self.scales)
        self._reranker = None if reranker is None else Reranker.measured(reranker, library, paces)
        self._paces = paces if self._reranker is None else self._reranker.paces

    @classmethod
    def open(cls, library_folder: PathLike, *, device: str | torch.device = "cpu", paced: bool = True) -> Searcher:
        """Open a library with the matcher that filled it.

        Args:
            paced: whether answers may have a budget, for which the pace of a second stage is measured now.

        Raises:
            UserError: when there is no library, or its matcher is not there or no longer what it was.
        """
        library = Library.open(library_folder)
        return cls(library, *load_encoders(library.folder, library.manifest, device), paces={} if paced else None)

    @property
    def device(self) -> torch.device:
        """Where queries are encoded."""
        return self._encoders[0].device

    def refreshed(self) -> Searcher:
        """This searcher, or, when something was committed to the library since, a new one that sees it."""
        library = self.library.refreshed()
        if library is self.library:
            return self
        before, now = self.library.manifest, library.manifest
        if (before.matcher, before.reranker) != (now.matcher, now.reranker):
            return Searcher(
                library, *load_encoders(library.folder, now, self.device), paces=None if self._paces is None else {}
            )
        # While an indexing run is under way, none are stored for the present state.
        scales = stored_scales(now, now.matcher.fingerprint, now.reranker.fingerprint if now.reranker else None)
        if scales is None and abs(len(library) - self.scales.items) <= CHANGED * self.scales.items:
            scales = self.scales
        return Searcher(library, *self._encoders, scales=scales, paces=self._paces)

    def images(
        self,
        query: What | Term | Query,
        k: int = 10,
        *,
        where: str | None = None,
        all: bool = False,
        hybrid: bool | None = None,
        depth: int | TimeBudget | None = DEPTH,
    ) -> Results:
        """Images of the library.

        Args:
            query: a text, a picture, an item, or several with weights. Items are never among their own hits.
            k: hits at most.
            where: a condition on the metadata, such as ``year >= 2020``.
            all: also hits under the cut-off. A query of items alone has none: an item has neighbours, however far.
            hybrid: True to join with images that have any word of the query, False to look for no words.
            depth: candidates that a second stage orders; None for all there are, a budget for as many as it allows.
        """
        clock, index = StageTimes(), self.library.images
        _check(k, depth)
        with clock.of("encode"):
            asked = self._asker.ask(query, "image", where)
            second = self._second_stage(asked)
            terms = None if second is None else self._terms(second, asked)
        wanted = max(k, DEPTH) if second is None else second.depth("image", depth, k, clock.spent)
        own = frozenset(str(term.what) for term in asked.query.terms if isinstance(term.what, ItemId))
        with clock.of("search"):
            # Words are looked up on another core meanwhile.
            hearing = None if hybrid is False else _WORDS.submit(self._heard, asked, own)
            found = asked.look_up(index, wanted + len(own))
            found = [scored for scored in found if scored.id not in own]
            heard = hearing.result() if hearing else []
            named = {item.id for item in heard if has_every_word(asked.query.words, (item.words,))}
            worded = [item.id for item in heard if hybrid or item.id in named]
        with clock.of("rerank"):
            if second is not None and terms is not None:
                ids = candidates([scored.id for scored in found], worded, wanted, k)
                found = second.images(terms, asked.shares, ids)
        with clock.of("search"):
            chosen = self._joined(asked, found, worded, k)
            paths = self.library.paths([scored.id for scored in chosen])
        cutoff = None if all or len(own) == len(asked.query.terms) else asked.cutoff(self.scales, reranked=bool(second))
        hits = [Hit(s.id, s.score, 0, _plain(paths[s.id])) for s in chosen if s.id in paths]
        return self._results(asked, hits, cutoff, named, clock, len(found) if second else 0)

    def like(self, id: str, k: int = 10, *, where: str | None = None) -> Results:
        """Images that look like one of the library's."""
        return self.images(ItemId(id), k, where=where)

    def texts(
        self,
        query: What | Term | Query,
        k: int = 10,
        *,
        where: str | None = None,
        all: bool = False,
        hybrid: bool | None = None,
        depth: int | TimeBudget | None = DEPTH,
    ) -> Results:
        """Captions of the library; arguments are those of ``images``, and conditions are on a caption's first image.

        Raises:
            UserError: for ``hybrid=True``, since words are looked up for images.
        """
        if hybrid:
            raise UserError("words are looked up for images, not for captions; leave out hybrid=True (--any-word)")
        clock, index = StageTimes(), self.library.captions
        _check(k, depth)
        with clock.of("encode"):
            asked = self._asker.ask(query, "text", where)
            second = self._second_stage(asked)
            terms = None if second is None else self._terms(second, asked)
        wanted = k if second is None else second.depth("text", depth, k, clock.spent)
        with clock.of("search"):
            found = asked.look_up(index, wanted)
            captions = {caption.id: caption.text for caption in self.library.texts([scored.id for scored in found])}
        with clock.of("rerank"):
            if second is not None and terms is not None:
                ids = [scored.id for scored in found]
                found = second.captions(terms, asked.shares, ids, [captions[id] for id in ids])
        cutoff = None if all else asked.cutoff(self.scales, reranked=bool(second))
        hits = [Hit(s.id, s.score, 0, text=captions[s.id]) for s in found[:k]]
        return self._results(asked, hits, cutoff, (), clock, len(found) if second else 0)

    def explain(self, id: str, text: str) -> WordImportances:
        """Which words of a text an image goes by: what its score loses when each is left out, and where each looks.

        Raises:
            UserError: for an image that is not there, and for a text of fewer than two words.
        """
        from calligram.search.explain.word_importance import item_attention, leave_one_out

        first, second = self._encoders
        item = self.library.item(id)
        if item.gone:
            raise UserError(f"the picture of item '{id}' was gone when its source was indexed last; index it again")
        if second is not None:
            kept = self.library.parts([id])
            found = leave_one_out(text, lambda texts: second.scores(kept, second.texts(texts))[0])
            return found._replace(attention=item_attention(second, kept, item, text))
        vector = self.library.images.vectors([id])[0]
        return leave_one_out(text, lambda texts: unit_vectors(first.texts(texts)) @ vector)

    def _results(
        self,
        asked: EncodedQuery,
        hits: list[Hit],
        cutoff: float | None,
        kept: Collection[str],
        clock: StageTimes,
        compared: int,
    ) -> Results:
        """Without what is under the cut-off, and numbered; the pace learns from it."""
        shown = [hit for hit in hits if cutoff is None or hit.score >= cutoff or hit.id in kept]
        numbered = tuple(hit._replace(rank=rank) for rank, hit in enumerate(shown, 1))
        took, times = clock.spent, clock.times
        if compared and self._paces is not None and (pace := self._paces.get(asked.found)):
            pace.learn(took - times["encode"] - times["rerank"], compared, times["rerank"])
        return Results(numbered, len(hits) - len(shown), times, asked.unknown, compared, took, asked.unread)

    def _second_stage(self, asked: EncodedQuery) -> Reranker | None:
        applies = self._reranker is not None and self._reranker.compares(asked.query, asked.found)
        return self._reranker if applies else None

    def _terms(self, second: Reranker, asked: EncodedQuery) -> Encoded:
        """The query as the second stage sees it, which the first may have encoded already."""
        same = second.encoder is self._encoders[0] and asked.encoded is not None
        return asked.encoded if same and asked.encoded is not None else second.encode(asked.query)

    def _heard(self, asked: EncodedQuery, own: Collection[str]) -> list[KeywordHit]:
        """Images with words of the query in a caption or their path, best first."""
        words = asked.query.words
        return [w for w in self.library.full_text(words, WORDED, asked.where) if w.id not in own] if words else []

    def _joined(self, asked: EncodedQuery, found: list[Scored], worded: list[str], k: int) -> list[Scored]:
        """The first k of what was found joined with what words found."""
        order = reciprocal_ranks([[scored.id for scored in found], worded])[:k]
        known = {scored.id: scored for scored in found}
        known |= {s.id: s for s in asked.scored(self.library.images, [id for id in order if id not in known])}
        return [known[id] for id in order]


def _check(k: int, depth: int | TimeBudget | None) -> None:
    if k < 1:
        raise UserError(f"k must be at least 1, got {k}")
    if isinstance(depth, int) and depth < 1:
        raise UserError(f"depth must be at least 1, got {depth}")


def _plain(path: Path | None) -> str | None:
    return None if path is None else str(path)
