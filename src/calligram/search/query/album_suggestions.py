"""Pictures that may belong to an album: a linear classifier over the stored vectors, learnt from a few examples.

The pictures of an album are examples, the pictures that people rejected are counter-examples, and a sample of the
library shows what is usual. The score of a picture is an inner product, so an index of any size finds the best ones as
fast as it answers a query. With no examples, the name of the album is a query (zero-shot). With examples it counts as
far as it agrees with them.
"""

from __future__ import annotations

import threading
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.search.library.library import Library
from calligram.search.library.matchers import unit_vectors
from calligram.search.query.albums import Album, album_items
from calligram.search.query.rerank import ScoredItem
from calligram.search.query.searcher import Searcher
from calligram.text import tokenise, without_stop_words

Floats = NDArray[np.float32]

SAMPLED_ITEMS = 2000
"""of the library, that show what is usual"""
MAX_EXAMPLES = 1000
"""pictures of an album that are used, and as many rejected ones: the latest"""
REJECTED_WEIGHT = 1.0
"""of the mean of all counter-examples; the mean of the sample has the weight 1"""
EXAMPLES_WEIGHT = 0.5
"""of the scores by examples, in standard deviations; that of the name is about 1.5 where the name fits the examples"""
EXPECTED_AGREEMENT, EXPECTED_EXAMPLES = 1.5, 1.0
"""what is assumed of a name before there are examples, and the number of examples that this assumption counts as"""


# The classifier.


def example_direction(usual: Floats, examples: Floats, rejected: Floats) -> Floats:
    """The weights (D) of a linear classifier: the mean of the examples minus the mean of what does not belong.

    Ridge regression (a linear discriminant analysis) measured worse with up to ten examples, the worse the less it was
    regularised: average precision 17.1 instead of 21.4 with three examples (``bench/albums.py``, dev split).

    Args:
        usual: vectors (N, D) of a sample of the library.
        examples: vectors (E, D) of pictures of the album.
        rejected: vectors (R, D) of pictures that do not belong to it; may be empty.
    """
    others = usual.mean(0)
    if len(rejected):
        others = (others + REJECTED_WEIGHT * rejected.mean(0)) / (1 + REJECTED_WEIGHT)
    found: Floats = examples.mean(0) - others
    return found


def name_weight(usual: Floats, name: Floats, examples: Floats) -> float:
    """How much the name of an album counts: by how many standard deviations of the sample its examples score higher.

    A name such as "dog" describes its pictures, a name such as "Summer" may not: then the weight soon is near 0.
    """
    scores = usual @ name
    spread = float(scores.std())
    agreement = float(((examples @ name - scores.mean()) / spread).sum()) if len(examples) and spread > 0 else 0.0
    return max(0.0, (agreement + EXPECTED_EXAMPLES * EXPECTED_AGREEMENT) / (len(examples) + EXPECTED_EXAMPLES))


def album_direction(usual: Floats, name: Floats | None, examples: Floats, rejected: Floats) -> Floats | None:
    """The direction (D) in which the pictures of an album are, at unit length; None where nothing is known.

    It is a weighted sum of the direction of the name and of that of the examples. Both are divided by the standard
    deviation of their scores over the sample, as the terms of a query are.

    Args:
        usual: vectors (N, D) of a sample of the library.
        name: vector (D) of the album's name; None where the matcher does not know its words.
        examples: vectors (E, D) of pictures of the album; may be empty.
        rejected: vectors (R, D) of pictures that do not belong to it; may be empty.
    """
    found = np.zeros(usual.shape[1], dtype=np.float32)
    if name is not None:
        found += name_weight(usual, name, examples) * _scaled(name, usual)
    if len(examples):
        found += EXAMPLES_WEIGHT * _scaled(example_direction(usual, examples, rejected), usual)
    length = float(np.linalg.norm(found))
    return found / np.float32(length) if length > 0 else None


def _scaled(direction: Floats, usual: Floats) -> Floats:
    """A direction whose scores over the sample have the standard deviation 1."""
    spread = float((usual @ direction).std())
    return direction / np.float32(spread) if spread > 0 else direction


# Suggestions.


class LibrarySample:
    """Vectors of a sample of the library, read once for each of its versions. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[Library, dict[str, int], Floats] | None = None

    def vectors(self, library: Library, without: frozenset[str]) -> Floats:
        """The vectors (N, D), without those of some items."""
        with self._lock:
            if self._known is None or self._known[0] is not library:
                ids = library.sample(SAMPLED_ITEMS)
                vectors = library.images.vectors(ids) if ids else np.empty((0, library.images.dim), np.float32)
                self._known = library, {id: row for row, id in enumerate(ids)}, vectors
            _, rows, vectors = self._known
        left_out = [rows[id] for id in without if id in rows]
        kept = np.delete(vectors, left_out, axis=0) if left_out else vectors
        return kept if len(kept) else vectors


class AlbumSuggestions(NamedTuple):
    """Pictures that may belong to an album, best first."""

    items: list[ScoredItem]
    learnt_from: Literal["name", "examples", "both", "nothing"]
    examples: int
    """pictures of the album that were used"""
    rejected: int
    """rejected pictures that were used"""


def suggest_pictures(
    searcher: Searcher, album: Album, k: int = 24, sample: LibrarySample | None = None
) -> AlbumSuggestions:
    """Pictures that are neither in the album nor rejected, the most likely first.

    Args:
        searcher: of the library.
        album: its name, pictures and rejected pictures are what is known.
        k: maximum number of pictures.
        sample: kept for several calls; read from the library by default.

    Raises:
        UserError: for k below 1.
    """
    if k < 1:
        raise UserError(f"k must be at least 1, got {k}")
    library = searcher.library
    examples, rejected = (_vectors(library, ids) for ids in (album.pictures, album.rejected))
    name = _name_vector(searcher, album.name)
    answered = frozenset((*album.pictures, *album.rejected))
    usual = (sample or LibrarySample()).vectors(library, answered)
    direction = album_direction(usual, name, examples, rejected) if len(usual) else None
    used = len(examples), len(rejected) if len(examples) else 0
    if direction is None:
        return AlbumSuggestions([], "nothing", *used)
    found = library.images.search(direction[None], k + len(answered))[0]
    items = [ScoredItem(hit.id, hit.score) for hit in found if hit.id not in answered][:k]
    return AlbumSuggestions(items, "name" if not used[0] else "examples" if name is None else "both", *used)


def _vectors(library: Library, ids: tuple[str, ...]) -> Floats:
    """Vectors of the last of these items that are in the library."""
    known = [item.id for item in album_items(library, ids[-MAX_EXAMPLES:]).items]
    return library.images.vectors(known) if known else np.empty((0, library.images.dim), np.float32)


def _name_vector(searcher: Searcher, name: str) -> Floats | None:
    """The vector of a name; None if the matcher knows none of its words."""
    words = without_stop_words(tokenise(name)) or tokenise(name)
    unknown = searcher.encoder.unknown_words(name)
    if not words or set(words) <= set(unknown):
        return None
    vector: Floats = unit_vectors(searcher.encoder.texts([name]))[0]
    return vector
