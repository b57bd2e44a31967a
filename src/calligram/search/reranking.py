"""The second stage of a search: candidates in the order of a score that needs both sides.

A second stage can only reorder what the first one found; with a depth that covers the library it is exact. It compares
images with texts and nothing else, so it orders images by queries of texts and captions by queries of pictures. Other
queries, and those that mix both, stay in the order of the first stage: its scores are not on the second stage's scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.models.matcher import Encoded, stack
from calligram.search.library import Library
from calligram.search.query import ItemId, Modality, Query
from calligram.search.query_encoder import QueryEncoder

Floats = NDArray[np.float32]


class Scored(NamedTuple):
    """A candidate and the query's score with it."""

    id: str
    score: float


class Reranker(NamedTuple):
    """A matcher whose score is more than the cosine of vectors, and the library that keeps what it needs of items."""

    encoder: QueryEncoder
    library: Library

    @staticmethod
    def compares(query: Query, found: Modality) -> bool:
        """Whether all terms can be scored with what is searched for: one side must be images, the other texts."""
        return query.modalities == {"text" if found == "image" else "image"}

    def encode(self, query: Query) -> Encoded:
        """The terms, which must be of one modality."""
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
