"""Pictures that may belong to an album: a linear classifier over the stored vectors, learnt from a few examples.

The pictures of an album are examples, the pictures that people rejected are counter-examples, and a sample of the
library shows what is usual. The score of a picture is an inner product, so an index of any size finds the best ones as
fast as it answers a query. With no examples, the name of the album is a query (zero-shot).
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
RIDGE = 1.0
"""weight of the squared length of the classifier, relative to the mean variance of a dimension of the vectors"""
REJECTED_WEIGHT = 1.0
"""of all counter-examples together; the examples together and the sample together have the weight 1"""
NAME_EXAMPLES = 3.0
"""number of examples that count as much as the name of the album"""


# The classifier.


def example_direction(usual: Floats, examples: Floats, rejected: Floats) -> Floats:
    """The weights (D) of a linear classifier: examples have the target 1, counter-examples and the sample -1.

    Ridge regression with an intercept, in which the three groups have fixed weights, whatever their sizes: without
    counter-examples this is a linear discriminant analysis with a shrunk covariance.

    Args:
        usual: vectors (N, D) of a sample of the library.
        examples: vectors (E, D) of pictures of the album.
        rejected: vectors (R, D) of pictures that do not belong to it; may be empty.
    """
    groups = [(examples, 1.0, 1.0), (usual, -1.0, 1.0), (rejected, -1.0, REJECTED_WEIGHT)]
    groups = [group for group in groups if len(group[0])]
    total = sum(weight for *_, weight in groups)
    mean = sum(weight / total * vectors.mean(0, dtype=np.float64) for vectors, _, weight in groups)
    target = sum(weight / total * sign for _, sign, weight in groups)
    dim = usual.shape[1]
    gram, moment = np.zeros((dim, dim)), np.zeros(dim)
    for vectors, sign, weight in groups:
        centred = vectors.astype(np.float64) - mean
        gram += weight / total / len(vectors) * centred.T @ centred
        moment += weight / total * (sign - target) * centred.mean(0)
    variance = max(np.trace(gram) / dim, np.finfo(np.float32).tiny)
    found: Floats = np.linalg.solve(gram + RIDGE * variance * np.eye(dim), moment).astype(np.float32)
    return found


def album_direction(usual: Floats, name: Floats | None, examples: Floats, rejected: Floats) -> Floats | None:
    """The direction (D) in which the pictures of an album are, at unit length; None where nothing is known.

    It is the sum of the direction of the name and of that of the examples. Both are divided by the standard deviation
    of their scores over the sample, as the terms of a query are. The examples count the more, the more there are.

    Args:
        usual: vectors (N, D) of a sample of the library.
        name: vector (D) of the album's name; None where the matcher does not know its words.
        examples: vectors (E, D) of pictures of the album; may be empty.
        rejected: vectors (R, D) of pictures that do not belong to it; may be empty.
    """
    parts: list[Floats] = []
    if name is not None:
        parts.append(_scaled(name, usual))
    if len(examples):
        learnt = _scaled(example_direction(usual, examples, rejected), usual)
        parts.append(len(examples) / NAME_EXAMPLES * learnt if parts else learnt)
    if not parts:
        return None
    found = np.sum(parts, axis=0)
    length = np.linalg.norm(found)
    return None if length == 0 else (found / length).astype(np.float32)


def _scaled(direction: Floats, usual: Floats) -> Floats:
    """A direction whose scores over the sample have the standard deviation 1."""
    spread = float((usual @ direction).std()) if len(usual) else 0.0
    return direction / spread if spread > 0 else direction


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
