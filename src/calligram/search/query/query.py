"""Queries: one term, or several terms with weights; and the fusion of the hits of vector search and keyword search.

A query is linear: an item's score is the weighted mean of its scores with the terms, sum(a_i s_i) with sum(|a_i|) = 1.
A term to avoid has a negative weight. For cosines, this score is the inner product with one vector, the sum(a_i u_i) of
unit vectors u_i. An index therefore answers a query of several terms as fast as one of a single term, and a reranker
that scores the terms one by one gives the same kind of score.

Texts and pictures in one query: the vectors of a matcher's two towers have different means. Because of this *modality
gap*, scores of pictures with pictures (for example 0.6 with a standard deviation of 0.15) differ from scores of texts
with pictures (0.2 with 0.05). The difference of the means adds a constant to every score and does not change the order.
The difference of the standard deviations would give a picture three times the influence of a text. Each weight is
therefore divided by the standard deviation of its modality's scores over the library (``Query.shares``). Queries of one
modality are not affected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.data.pictures import PictureError, decode
from calligram.errors import UserError
from calligram.picture_formats import PICTURE_SUFFIXES

Floats = NDArray[np.float32]
Modality = Literal["image", "text"]

MAX_TERMS = 32
"""each term is encoded, and queries arrive in requests"""
RANK_OFFSET = 60
"""added to each rank, as in the paper, so that the first ranks of one ranking do not outweigh the other ranking"""
MAX_PATH_CHARACTERS = 1024
"""a longer text is never taken for a path"""
WEIGHTED_TERM = re.compile(r"(?P<weight>[0-9]*\.?[0-9]+)\s*:\s*(?P<rest>[^\s\d].*)", re.DOTALL)


class ItemId(str):
    """The id of an item of the library; a plain string is a text."""

    __slots__ = ()


TermContent = str | Image.Image | ItemId


@dataclass(frozen=True)
class QueryTerm:
    """A text, a picture or an item of the library, with a weight; negative for something to avoid."""

    content: TermContent
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight) or self.weight == 0:
            raise UserError(f"a term's weight must be a number other than zero, got {self.weight}")
        if isinstance(self.content, str) and not self.content.strip():
            raise UserError("a term of the query is empty; give a text that describes the picture")

    @property
    def modality(self) -> Modality:
        """The tower of the matcher that encodes it."""
        return "text" if isinstance(self.content, str) and not isinstance(self.content, ItemId) else "image"


@dataclass(frozen=True)
class Query:
    """Terms that are searched for together."""

    terms: tuple[QueryTerm, ...]

    def __post_init__(self) -> None:
        if not self.terms:
            raise UserError("the query is empty; give a text or a picture to search for")
        if len(self.terms) > MAX_TERMS:
            raise UserError(f"the query has {len(self.terms)} terms, and at most {MAX_TERMS} are accepted")

    @classmethod
    def of(cls, query: TermContent | QueryTerm | Query) -> Query:
        """A query from a query, a term, or the content of one term."""
        if isinstance(query, Query):
            return query
        return cls((query if isinstance(query, QueryTerm) else QueryTerm(query),))

    @property
    def modalities(self) -> frozenset[Modality]:
        """The modalities of its terms."""
        return frozenset(term.modality for term in self.terms)

    @property
    def words(self) -> str:
        """The text for keyword search: all texts with a positive weight."""
        texts = [str(t.content) for t in self.terms if t.modality == "text" and t.weight > 0]
        return " ".join(texts)

    def shares(self, spreads: Mapping[Modality, float]) -> Floats:
        """The weight of each term in the score; the absolute values sum to one.

        Args:
            spreads: standard deviation of the scores of a term of each modality over the library.
        """
        weights = np.array([t.weight / spreads[t.modality] for t in self.terms], dtype=np.float64)
        shares: Floats = (weights / np.abs(weights).sum()).astype(np.float32)
        return shares


def weighted_text(text: str, sign: float = 1.0) -> QueryTerm:
    """The term of ``2:dog``, with its weight, or of ``dog``; a text is never read as a path."""
    found = WEIGHTED_TERM.fullmatch(text.strip())
    return QueryTerm(found["rest"], sign * float(found["weight"])) if found else QueryTerm(text, sign)


def combine_vectors(vectors: Floats, shares: Floats) -> tuple[Floats, float]:
    """The vector of a query at unit length, and its length before: the score is the cosine times this length.

    Args:
        vectors: (terms, D) at unit length.
        shares: weight of each term.

    Raises:
        UserError: when the terms cancel each other.
    """
    vector = shares @ vectors
    length = float(np.linalg.norm(vector))
    if not length > 1e-4:
        raise UserError("the terms of the query cancel each other; give other terms or weights")
    return (vector / length).astype(np.float32), length


def parse_term(text: str) -> QueryTerm:
    """Parse a term of the command line: a text or the path of a picture, with an optional weight as in ``2:dog``.

    A weight is a number before a colon that no digit follows, so that "3:00 in the morning" is a text.

    >>> parse_term("2:dog")
    QueryTerm(content='dog', weight=2.0)
    >>> parse_term("3:00 in the morning").weight
    1.0
    """
    found = WEIGHTED_TERM.fullmatch(text.strip())
    return QueryTerm(parse_content(found["rest"]), float(found["weight"])) if found else QueryTerm(parse_content(text))


def parse_content(text: str) -> str | Image.Image:
    """The picture if the text is the path of a picture, else the text.

    A name with the suffix of a picture is always a path, so that a misspelt path is an error and not a query. Other
    names need a folder, as in ``./dog``.
    """
    file = Path(text.strip())
    if file.suffix.lower() in PICTURE_SUFFIXES or (
        len(file.parts) > 1 and len(text) < MAX_PATH_CHARACTERS and file.is_file()
    ):
        return read_picture(file)
    return text.strip()


def read_picture(file: Path) -> Image.Image:
    """Read a picture of a query.

    Raises:
        UserError: when the file is not a picture.
    """
    try:
        return decode(file.expanduser())
    except PictureError as error:
        raise UserError(f"{file} cannot be used: {error}; give the path of a picture") from error


def reciprocal_ranks(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Fuse rankings: the ids of all rankings by decreasing fused score.

    The fused score of an item is the sum over rankings of 1 / (60 + rank) (reciprocal-rank fusion: Cormack, Clarke and
    Büttcher, SIGIR 2009). It needs no common scale, which cosines and BM25 scores do not have. Ties keep the order of
    the first ranking.

    >>> reciprocal_ranks([["a", "b", "c"], ["c", "a"]])
    ['a', 'c', 'b']
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, id in enumerate(ranking, 1):
            scores[id] = scores.get(id, 0.0) + 1 / (RANK_OFFSET + rank)
    # The sort is stable, and the dict has the order of the first ranking.
    return sorted(scores, key=lambda id: -scores[id])
