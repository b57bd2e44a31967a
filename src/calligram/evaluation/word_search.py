"""Captions found by the words that they share with what is said of images: how good pseudo-sentences are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.evaluation.retrieval import Retrieval, retrieval
from calligram.features.known_words import KnownWords
from calligram.features.vocabulary import tokenise

Floats = NDArray[np.float64]


def word_scores(said: Sequence[str], texts: Sequence[str]) -> Floats:
    """Cosines (I, T) of the words of sentences and texts, each word weighted by how few sentences have it.

    The weight of a word that n of N sentences have is log((N + 1) / (n + 1)). Words that no sentence has do not count.
    """
    known = KnownWords(tuple(sorted({word for sentence in said for word in tokenise(sentence)})))
    sides = [(known.counts(strings) > 0).astype(np.float64) for strings in (said, texts)]
    weights = np.log((len(said) + 1) / (np.asarray(sides[0].sum(axis=0)).ravel() + 1))
    unit = []
    for side in sides:
        weighted = side @ sp.diags_array(weights)
        length = np.sqrt(np.asarray(weighted.power(2).sum(axis=1)).ravel())
        unit.append(sp.diags_array(1 / np.maximum(length, 1e-12)) @ weighted)
    return np.asarray((unit[0] @ unit[1].T).toarray(), dtype=np.float64)


def found_by_words(said: Sequence[str], texts: Sequence[str], matches: Matches) -> Retrieval:
    """Recalls both ways, by shared words alone."""
    return retrieval(word_scores(said, texts), matches)
