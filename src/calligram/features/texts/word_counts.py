"""Texts as counts of known words: what every fixed-size text vector starts from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.features.texts.vocabulary import tokenise
from calligram.features.texts.word_vectors import read_frequent_vectors, read_vectors, vector_size

Floats = NDArray[np.float32]

_INNER = re.compile(r"[-+'0-9]+")


@dataclass(frozen=True)
class KnownWords:
    """Words by number. A word that is not known is split at ``- + '`` and digits; unknown parts are dropped."""

    words: tuple[str, ...]

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    def numbers(self, text: str) -> list[int]:
        """Numbers of a text's known words, in order."""
        found: list[int] = []
        for word in tokenise(text):
            parts = [word] if word in self.number_of else split_word(word)
            found += [self.number_of[part] for part in parts if part in self.number_of]
        return found

    def counts(self, strings: Sequence[str]) -> sp.csr_array:
        """How often each text (row) has each word (column)."""
        rows = [self.numbers(string) for string in strings]
        places = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        columns = np.fromiter((number for row in rows for number in row), dtype=np.int64, count=int(places[-1]))
        ones = np.ones(len(columns), dtype=np.float32)
        counts = sp.csr_array((ones, columns, places), shape=(len(rows), len(self.words)))
        counts.sum_duplicates()
        return counts


@dataclass(frozen=True)
class WordVectors:
    """Known words and their vectors."""

    known: KnownWords
    vectors: Floats = field(repr=False)
    """(words, dim)"""

    @classmethod
    def read(cls, file: Path, strings: Iterable[str], more: int = 50_000) -> WordVectors:
        """From a file: the words of ``strings``, and the file's first ``more`` words, for queries to come.

        Raises:
            UserError: when the file cannot be read or has no word of the strings.
        """
        dim = vector_size(file)
        seen = {part for string in strings for word in tokenise(string) for part in (word, *split_word(word))}
        wanted = read_vectors(file, seen, dim)
        if not wanted:
            raise UserError(f"word vectors {file} have none of the text's {len(seen)} words")
        found = {**read_frequent_vectors(file, more, dim), **wanted}
        words = sorted(found)
        return cls(KnownWords(tuple(words)), np.stack([found[word] for word in words]))

    @property
    def dim(self) -> int:
        """Numbers per word."""
        return int(self.vectors.shape[1])


def split_word(word: str) -> list[str]:
    """A word split at ``- + '`` and digits.

    >>> parts_of("dog's"), parts_of("2nd")
    (['dog', 's'], ['nd'])
    """
    return [part for part in _INNER.split(word) if part]


# The simplest text vectors: a mean of word vectors, and tf-idf.


@dataclass(frozen=True)
class MeanVectorizer:
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
    def restore(cls, known: KnownWords, arrays: Mapping[str, NDArray[Any]]) -> MeanVectorizer:
        """The inverse of ``arrays``."""
        return cls(WordVectors(known, arrays["vectors"]))


@dataclass(frozen=True)
class TfIdfVectorizer:
    """Counts of words, times log(texts / texts that have the word), at length one."""

    known: KnownWords
    idf: Floats = field(repr=False)
    """(words,)"""

    @classmethod
    def fit(cls, strings: Sequence[str], words: int) -> TfIdfVectorizer:
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
    def restore(cls, known: KnownWords, arrays: Mapping[str, NDArray[Any]]) -> TfIdfVectorizer:
        """The inverse of ``arrays``."""
        return cls(known, arrays["idf"])


def unit_rows(rows: Floats) -> Floats:
    """Rows at length one; zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)
