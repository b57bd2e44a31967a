"""The second stage of a search: candidates in the order of a score that needs both sides.

A second stage can only reorder what the first one found; with a depth that covers the library it is exact. It compares
images with texts and nothing else, so it orders images by queries of texts and captions by queries of pictures. Other
queries, and those that mix both, stay in the order of the first stage: its scores are not on the second stage's scale.
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
from calligram.search.query.encoder import QueryEncoder
from calligram.search.query.query import ItemId, Modality, Query
from calligram.search.vectors.index import Index

# How many candidates a second stage can compare in a given time, by what it took in this process.

TRIED = (8, 64)
"""candidates that are compared for a first measurement"""
TURNS = 3
"""of which the fastest counts: it shows what the work takes, others what else went on"""
FRESH = 0.2
"""weight of an answer beside all before it"""
FACTOR = 2.0
"""an answer counts as so many times slower or faster than expected at most: a machine that pauses is no measure"""

SHARE = 0.25
"""of a comparison's time is its candidates' at least. Where few take as long as many, as on an accelerator or after a
pause, they would else cost nothing, and all of a library would fit into any time"""


class TimeBudget(NamedTuple):
    """Time that an answer may take, in place of a number of candidates."""

    seconds: float

    @classmethod
    def of_milliseconds(cls, milliseconds: float) -> TimeBudget:
        """Of what users write.

        Raises:
            UserError: for no time at all, or a time without end.
        """
        if not (math.isfinite(milliseconds) and milliseconds > 0):
            raise UserError(f"a budget is a number of milliseconds above 0, got {milliseconds:g}")
        return cls(milliseconds / 1000)


class StageCosts:
    """What the parts of an answer take, in seconds; learns from every answer, and threads may share it."""

    def __init__(self, around: float, start: float, each: float) -> None:
        """Args:
        around: what comes between encoding the query and comparing candidates, and after it.
        start: of comparing, however few candidates there are.
        each: a candidate.
        """
        self.around, self.start, self.each = around, start, max(each, 1e-9)
        self._learning = threading.Lock()

    def depth(self, left: float) -> int:
        """Candidates that can be compared when so many seconds are left after encoding; 0 when there is no time."""
        return max(0, int((left - self.around - self.start) / self.each))

    def learn(self, around: float, candidates: int, seconds: float) -> None:
        """From an answer: what was around comparing, and how many candidates were compared in what time."""
        with self._learning:
            self.around = _moved(self.around, around)
            if candidates:
                self.each = _moved(self.each, max(1e-9, seconds - self.start, SHARE * seconds) / candidates)
                if seconds < self.start:
                    self.start = _moved(self.start, seconds)

    @classmethod
    def measured(cls, index: Index, compare: Callable[[Sequence[str]], object]) -> StageCosts:
        """Look candidates up and compare them, a few and some more.

        Args:
            index: of one item at least.
            compare: is handed ids of it.
        """
        direction = np.full((1, index.dim), index.dim**-0.5, dtype=np.float32)
        most = min(len(index), TRIED[1])
        ids = [found.id for found in index.search(direction, most)[0]]  # also reads what is read but once
        around = _fastest(lambda: index.search(direction, most))
        few = min(TRIED[0], len(ids))
        compare(ids)
        short, long = _fastest(lambda: compare(ids[:few])), _fastest(lambda: compare(ids))
        each = (long - short) / (len(ids) - few) if len(ids) > few else short / few
        each = max(each, SHARE * long / len(ids))
        return cls(around, max(0.0, short - few * each), each)


def _fastest(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(TURNS):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return min(spent)


def _moved(before: float, now: float) -> float:
    """A running mean that no single value moves far."""
    held = min(max(now, before / FACTOR), max(before, 1e-9) * FACTOR)
    return (1 - FRESH) * before + FRESH * held


Floats = NDArray[np.float32]
TRIAL = "a man in a red shirt rides a bicycle along the street"
"""a query to take the time of"""


class Scored(NamedTuple):
    """A candidate and the query's score with it."""

    id: str
    score: float


class Reranker(NamedTuple):
    """A matcher whose score is more than the cosine of vectors, and the library that keeps what it needs of items."""

    encoder: QueryEncoder
    library: Library
    paces: Mapping[Modality, StageCosts] | None
    """what comparing images and captions takes here, or None where nobody asks; all of it that ever changes"""

    @classmethod
    def measured(cls, encoder: QueryEncoder, library: Library, known: Mapping[Modality, StageCosts] | None) -> Reranker:
        """With paces that are known, and those measured that are not and can be; without any for None."""
        found = cls(encoder, library, known)
        if known is None:
            return found
        paces = {**known}
        if "image" not in known and len(library.images):
            paces["image"] = StageCosts.measured(library.images, found._compares_images())
        if "text" not in known and len(library.captions) and len(library.images):
            paces["text"] = StageCosts.measured(library.captions, found._compares_captions())
        return found._replace(paces=paces)

    def _compares_images(self) -> Callable[[Sequence[str]], object]:
        """With a text as long as texts mostly are."""
        terms, shares = self.encoder.texts([TRIAL]), np.ones(1, dtype=np.float32)
        return lambda ids: self.images(terms, shares, ids)

    def _compares_captions(self) -> Callable[[Sequence[str]], object]:
        """With the first image that there is."""
        terms, shares = self.library.parts(self.library.sample(1)), np.ones(1, dtype=np.float32)
        return lambda ids: self.captions(terms, shares, ids, [found.text for found in self.library.texts(ids)])

    def depth(self, found: Modality, wanted: int | TimeBudget | None, k: int, spent: float) -> int:
        """How many candidates to compare: never fewer than are shown, so that all have its score.

        Args:
            wanted: how many, None for all there are, or the time that the answer may take.
            spent: of that time, until now.
        """
        index = self.library.images if found == "image" else self.library.captions
        if isinstance(wanted, TimeBudget):
            if self.paces is None:
                raise ValueError("what was opened with paced=False knows no pace, by which a budget is kept")
            wanted = self.paces[found].depth(wanted.seconds - spent) if found in self.paces else k
        return max(k, len(index) if wanted is None else min(wanted, len(index)))

    @staticmethod
    def compares(query: Query, found: Modality) -> bool:
        """Whether all terms can be scored with what is searched for: one side must be images, the other texts."""
        return query.modalities == {"text" if found == "image" else "image"}

    def encode(self, query: Query) -> Encoded:
        """The terms, which must be of one modality; a picture may come as an item or as itself."""
        if query.modalities == {"text"}:
            return self.encoder.texts([str(term.what) for term in query.terms])
        return stack([self._image(term.what) for term in query.terms])

    def _image(self, what: object) -> Encoded:
        if isinstance(what, ItemId):
            return self.library.parts([str(what)]).to(self.encoder.device)
        return self.encoder.images([what])  # type: ignore[list-item]  # terms of this modality are nothing else

    def images(self, terms: Encoded, shares: Floats, ids: Sequence[str]) -> list[Scored]:
        """Images by their score with texts."""
        return reordered(ids, self.encoder.scores(self.library.parts(ids), terms) @ shares) if ids else []

    def captions(self, terms: Encoded, shares: Floats, ids: Sequence[str], texts: Sequence[str]) -> list[Scored]:
        """Captions by their score with images."""
        return reordered(ids, shares @ self.encoder.scores(terms, self.encoder.texts(texts))) if ids else []


def reordered(ids: Sequence[str], scores: Floats) -> list[Scored]:
    """Candidates by falling score; of equal ones that which came first stays first."""
    order = np.argsort(-scores, kind="stable")
    return [Scored(ids[place], float(scores[place])) for place in order]


def candidates(found: Sequence[str], worded: Sequence[str], most: int, k: int) -> list[str]:
    """What vectors and words found, each once: all of words, the k nearest by vectors, and more of them up to ``most``.

    Words bring in what is a match by itself, so it takes the place of what vectors found last.
    """
    named = set(worded)
    others = [id for id in found if id not in named][: max(0, most - len(named))]
    kept = named.union(found[:k], others)
    return [id for id in dict.fromkeys([*found, *worded]) if id in kept]
