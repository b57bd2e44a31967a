"""Words of captions for images without any, learnt from images that have some.

Beyond the paper: a detector knows the words of its makers, captions have others ("beach", "jumps"). Ridge regression
from image vectors to the words of an image's captions gives them to every image. It is solved over images, since those
are few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calligram.features.telling_words import telling

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LearntWords:
    """A linear map from vectors of length one to how much more often than usual each word is said."""

    words: tuple[str, ...]
    centre: Floats = field(repr=False)
    weights: Floats = field(repr=False)
    """(dim, words)"""

    @classmethod
    def fit(
        cls, vectors: Floats, said: Sequence[Collection[str]], *, shrink: float = 1.0, least: int = 3
    ) -> LearntWords:
        """Learn from images whose captions' words are known.

        Args:
            vectors: (N, dim), one for each image.
            said: the words of each image's captions.
            shrink: what is added to the covariance of unit vectors; more trusts single images less.
            least: images that a word must be said of to be learnt.
        """
        counts = Counter(word for words in said for word in set(words))
        known = sorted(telling(word for word, count in counts.items() if count >= least))
        place = {word: number for number, word in enumerate(known)}
        target = np.zeros((len(said), len(known)))
        for row, words in enumerate(said):
            target[row, [place[word] for word in set(words) if word in place]] = 1
        unit = _unit(vectors)
        centre = unit.mean(0) if len(unit) else np.zeros(vectors.shape[1])
        apart = unit - centre
        solved = np.linalg.solve(apart @ apart.T + shrink * np.eye(len(apart)), target - target.mean(0))
        return cls(tuple(known), centre, apart.T @ solved)

    def best(self, vectors: Floats, most: int) -> list[list[str]]:
        """For each image the words that are said of it most beyond what is usual, best first."""
        more = (_unit(vectors) - self.centre) @ self.weights
        order = np.argsort(-more, axis=1, kind="stable")[:, :most]
        return [[self.words[number] for number in row if more[image, number] > 0] for image, row in enumerate(order)]


def _unit(vectors: Floats) -> Floats:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), dtype=np.float64)
