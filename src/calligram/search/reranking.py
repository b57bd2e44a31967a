"""The second stage of a search: candidates in the order of a score that needs both sides.

A second stage can only reorder what the first one found; with a depth that covers the library it is exact. It compares
images with texts and nothing else, so it orders images by queries of texts and captions by queries of pictures. Other
queries, and those that mix both, stay in the order of the first stage: its scores are not on the second stage's scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.models.matcher import Encoded, stack
from calligram.search.library import Library
from calligram.search.pacing import Budget, Pace
from calligram.search.query import ItemId, Modality, Query
from calligram.search.query_encoder import QueryEncoder

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
    paces: Mapping[Modality, Pace] | None
    """what comparing images and captions takes here, or None where nobody asks; all of it that ever changes"""

    @classmethod
    def measured(cls, encoder: QueryEncoder, library: Library, known: Mapping[Modality, Pace] | None) -> Reranker:
        """With paces that are known, and those measured that are not and can be; without any for None."""
        found = cls(encoder, library, known)
        if known is None:
            return found
        paces = {**known}
        if "image" not in known and len(library.images):
            paces["image"] = Pace.measured(library.images, found._compares_images())
        if "text" not in known and len(library.captions) and len(library.images):
            paces["text"] = Pace.measured(library.captions, found._compares_captions())
        return found._replace(paces=paces)

    def _compares_images(self) -> Callable[[Sequence[str]], object]:
        """With a text as long as texts mostly are."""
        terms, shares = self.encoder.texts([TRIAL]), np.ones(1, dtype=np.float32)
        return lambda ids: self.images(terms, shares, ids)

    def _compares_captions(self) -> Callable[[Sequence[str]], object]:
        """With the first image that there is."""
        terms, shares = self.library.parts(self.library.sample(1)), np.ones(1, dtype=np.float32)
        return lambda ids: self.captions(terms, shares, ids, [found.text for found in self.library.texts(ids)])

    def depth(self, found: Modality, wanted: int | Budget | None, k: int, spent: float) -> int:
        """How many candidates to compare: never fewer than are shown, so that all have its score.

        Args:
            wanted: how many, None for all there are, or the time that the answer may take.
            spent: of that time, until now.
        """
        index = self.library.images if found == "image" else self.library.captions
        if isinstance(wanted, Budget):
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
