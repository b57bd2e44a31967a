"""What is searched for: one term, or several with weights.

A query is linear: an item's score is the weighted mean of its scores with the terms, sum(a_i s_i) with sum(|a_i|) = 1,
and a term to be avoided has a negative weight. For cosines that is the inner product with one vector, sum(a_i u_i) of
unit vectors u_i, so an index looks up any query at the price of one, and a second stage that scores terms one by one
agrees with it.

Texts and pictures in one query: the vectors of a matcher's two encoders do not share a mean, and this *modality gap*
puts the scores of pictures with pictures (say 0.6, give or take 0.15) elsewhere than those of texts with pictures (0.2,
give or take 0.05). The difference of means adds the same to every item and changes no order, so nothing is centred;
that of spreads lets a picture outvote a text three to one. Each weight is therefore divided by the spread of its kind's
scores over the library (``Query.shares``), after which a weight of 2 means twice the say for either. Queries whose
terms are of one kind are not touched by it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.data.pictures import PICTURE_SUFFIXES, PictureError, decode
from calligram.errors import UserError

Floats = NDArray[np.float32]
Modality = Literal["image", "text"]

MOST_TERMS = 32
"""each is encoded; queries arrive in requests"""
LONGEST_PATH = 1024
"""characters; what is longer is a text and no file system is asked"""
WEIGHTED = re.compile(r"(?P<weight>[0-9]*\.?[0-9]+)\s*:\s*(?P<rest>[^\s\d].*)", re.DOTALL)


class ItemId(str):
    """The id of an image of the library, where a plain string would be a text."""

    __slots__ = ()


What = str | Image.Image | ItemId


@dataclass(frozen=True)
class Term:
    """A text, a picture or an image of the library, and how much it counts; below zero, to be avoided."""

    what: What
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight) or self.weight == 0:
            raise UserError(f"a term's weight must be a number other than zero, got {self.weight}")
        if isinstance(self.what, str) and not self.what.strip():
            raise UserError("a term of the query is empty; write what the picture should show")

    @property
    def modality(self) -> Modality:
        """Which of the matcher's encoders it goes through."""
        return "text" if isinstance(self.what, str) and not isinstance(self.what, ItemId) else "image"


@dataclass(frozen=True)
class Query:
    """Terms that are searched for together."""

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        if not self.terms:
            raise UserError("the query is empty; give a text or a picture to search for")
        if len(self.terms) > MOST_TERMS:
            raise UserError(f"the query has {len(self.terms)} terms, and at most {MOST_TERMS} are taken")

    @classmethod
    def of(cls, query: What | Term | Query) -> Query:
        """A query from one thing."""
        if isinstance(query, Query):
            return query
        return cls((query if isinstance(query, Term) else Term(query),))

    @property
    def modalities(self) -> frozenset[Modality]:
        """Those of its terms."""
        return frozenset(term.modality for term in self.terms)

    @property
    def words(self) -> str:
        """What a full-text search looks for: the texts that count for a match."""
        texts = [str(t.what) for t in self.terms if t.modality == "text" and t.weight > 0]
        return " ".join(texts)

    def shares(self, spreads: Mapping[Modality, float]) -> Floats:
        """The weight of each term in the score, absolute values adding up to one.

        Args:
            spreads: standard deviation of the scores that a term of each modality has over the library.
        """
        weights = np.array([t.weight / spreads[t.modality] for t in self.terms], dtype=np.float64)
        shares: Floats = (weights / np.abs(weights).sum()).astype(np.float32)
        return shares


def joined(vectors: Floats, shares: Floats) -> tuple[Floats, float]:
    """The query's vector at length one, and the length it had: cosine times length is the query's score.

    Args:
        vectors: (terms, D) at length one.
        shares: weight of each.

    Raises:
        UserError: when the terms take each other away and no direction is left.
    """
    vector = shares @ vectors
    length = float(np.linalg.norm(vector))
    if not length > 1e-4:
        raise UserError("the terms of the query cancel each other; give other terms or weights")
    return (vector / length).astype(np.float32), length


def parse_term(text: str) -> Term:
    """A term as it is written on the command line: a text or the path of a picture, as in ``2:dog`` with a weight.

    A weight is a number before a colon that no digit follows, so that "3:00 in the morning" is a text.

    >>> parse_term("2:dog")
    Term(what='dog', weight=2.0)
    >>> parse_term("3:00 in the morning").weight
    1.0
    """
    found = WEIGHTED.fullmatch(text.strip())
    return Term(parse_what(found["rest"]), float(found["weight"])) if found else Term(parse_what(text))


def parse_what(text: str) -> str | Image.Image:
    """A picture where the text is the path of one, else the text.

    A name that ends as pictures do is one, whether it is there or not: a misspelt path should not be searched for.
    Other names need a folder before them, as in ``./dog``.
    """
    file = Path(text.strip())
    if file.suffix.lower() in PICTURE_SUFFIXES or (len(file.parts) > 1 and len(text) < LONGEST_PATH and file.is_file()):
        return read_picture(file)
    return text.strip()


def read_picture(file: Path) -> Image.Image:
    """A picture to search with, or in.

    Raises:
        UserError: when it is none, with its path.
    """
    try:
        return decode(file.expanduser())
    except PictureError as error:
        raise UserError(f"{file} cannot be used: {error}; give the path of a picture") from error
