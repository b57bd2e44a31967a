"""The simplest text vectors: a mean of word vectors, and tf-idf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from calligram.features.known_words import KnownWords, WordVectors
from calligram.features.vocabulary import tokenise

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class MeanVector:
    """The mean of a text's word vectors, each at length one."""

    words: WordVectors

    @property
    def known(self) -> KnownWords:
        """Words it counts."""
        return self.words.known

    @property
    def dim(self) -> int:
        """Size of a text's vector."""
        return self.words.dim

    def encode(self, strings: Sequence[str]) -> Floats:
        """(N, dim); zeros for a text without a known word."""
        counts = self.known.counts(strings)
        totals = np.asarray(counts.sum(axis=1), dtype=np.float32)
        means: Floats = counts @ unit_rows(self.words.vectors) / np.maximum(totals, 1)[:, None]
        return means

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What ``restore`` needs besides the words."""
        return {"vectors": self.words.vectors}

    @classmethod
    def restore(cls, known: KnownWords, arrays: Mapping[str, NDArray[Any]]) -> MeanVector:
        """The inverse of ``arrays``."""
        return cls(WordVectors(known, arrays["vectors"]))


@dataclass(frozen=True)
class TfIdf:
    """Counts of words, times log(texts / texts that have the word), at length one."""

    known: KnownWords
    idf: Floats = field(repr=False)
    """(words,)"""

    @classmethod
    def fit(cls, strings: Sequence[str], words: int) -> TfIdf:
        """The most frequent ``words`` of training texts."""
        counts = Counter(word for string in strings for word in tokenise(string))
        known = KnownWords(tuple(sorted(counts, key=lambda word: (-counts[word], word))[:words]))
        having = np.asarray((known.counts(strings) > 0).sum(axis=0))
        return cls(known, np.log(len(strings) / np.maximum(having, 1)).astype(np.float32))

    @property
    def dim(self) -> int:
        """Size of a text's vector."""
        return len(self.known.words)

    def encode(self, strings: Sequence[str]) -> Floats:
        """(N, dim); zeros for a text without a known word."""
        weighted = (self.known.counts(strings) @ sp.diags_array(self.idf)).toarray()
        return unit_rows(weighted.astype(np.float32))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What ``restore`` needs besides the words."""
        return {"idf": self.idf}

    @classmethod
    def restore(cls, known: KnownWords, arrays: Mapping[str, NDArray[Any]]) -> TfIdf:
        """The inverse of ``arrays``."""
        return cls(known, arrays["idf"])


def unit_rows(rows: Floats) -> Floats:
    """Rows at length one; zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)
