"""Counts of known words, and the text vectors that follow from them directly: mean of word vectors, and tf-idf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.features.texts.word_vectors import read_frequent_vectors, read_vectors, vector_size
from calligram.text import split_word, tokenise
from calligram.vectors import unit_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class KnownWords:
    """Index of words. An unknown word is split at ``- + '`` and digits; unknown parts are dropped."""

    words: tuple[str, ...]

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Column of each word."""
        return {word: number for number, word in enumerate(self.words)}

    def numbers(self, text: str) -> list[int]:
        """Return the columns of a text's known words, in order."""
        found: list[int] = []
        for word in tokenise(text):
            parts = [word] if word in self.number_of else split_word(word)
            found += [self.number_of[part] for part in parts if part in self.number_of]
        return found

    def counts(self, strings: Sequence[str]) -> csr_array:
        """Return the counts of each word (column) in each text (row)."""
        from scipy.sparse import csr_array

        rows = [self.numbers(string) for string in strings]
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        columns = np.fromiter((number for row in rows for number in row), dtype=np.int64, count=int(starts[-1]))
        ones = np.ones(len(columns), dtype=np.float32)
        counts = csr_array((ones, columns, starts), shape=(len(rows), len(self.words)))
        counts.sum_duplicates()
        return counts


@dataclass(frozen=True)
class WordVectors:
    """Known words with their vectors."""

    known: KnownWords
    vectors: Floats = field(repr=False)
    """(words, dim)"""

    @classmethod
    def read(cls, file: Path, strings: Iterable[str], extra_words: int = 50_000) -> WordVectors:
        """Read the vectors of the words of ``strings``, and of the file's first ``extra_words`` words, for queries.

        Raises:
            UserError: when the file cannot be read or has no word of the strings.
        """
        dim = vector_size(file)
        seen = {part for string in strings for word in tokenise(string) for part in (word, *split_word(word))}
        wanted = read_vectors(file, seen, dim)
        if not wanted:
            raise UserError(
                f"word vectors {file} have none of the {len(seen)} words of the texts; give vectors of their language"
            )
        found = {**read_frequent_vectors(file, extra_words, dim), **wanted}
        words = sorted(found)
        return cls(KnownWords(tuple(words)), np.stack([found[word] for word in words]))

    @property
    def dim(self) -> int:
        """Dimension of a word vector."""
        return int(self.vectors.shape[1])


@dataclass(frozen=True)
class MeanVectorizer:
    """Mean of a text's word vectors, each normalised to unit length."""

    words: WordVectors

    @property
    def known(self) -> KnownWords:
        """Words that it counts."""
        return self.words.known

    @property
    def dim(self) -> int:
        """Dimension of a text's vector."""
        return self.words.dim

    def encode(self, strings: Sequence[str]) -> Floats:
        """Return vectors (N, dim); zeros for a text without a known word."""
        counts = self.known.counts(strings)
        totals = np.asarray(counts.sum(axis=1), dtype=np.float32)
        means: Floats = counts @ unit_rows(self.words.vectors) / np.maximum(totals, 1)[:, None]
        return means

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that ``restore`` needs, in addition to the words."""
        return {"vectors": self.words.vectors}

    @classmethod
    def restore(cls, known: KnownWords, arrays: Mapping[str, NDArray[Any]]) -> MeanVectorizer:
        """Build the vectorizer from the result of ``arrays``."""
        return cls(WordVectors(known, arrays["vectors"]))


@dataclass(frozen=True)
class TfIdfVectorizer:
    """Tf-idf: counts of words times log(texts / texts with the word), normalised to unit length."""

    known: KnownWords
    idf: Floats = field(repr=False)
    """(words,)"""

    @classmethod
    def fit(cls, strings: Sequence[str], words: int) -> TfIdfVectorizer:
        """Fit on training texts; keep the ``words`` most frequent words."""
        counts = Counter(word for string in strings for word in tokenise(string))
        known = KnownWords(tuple(sorted(counts, key=lambda word: (-counts[word], word))[:words]))
        texts_with_word = np.asarray((known.counts(strings) > 0).sum(axis=0))
        return cls(known, np.log(len(strings) / np.maximum(texts_with_word, 1)).astype(np.float32))

    @property
    def dim(self) -> int:
        """Dimension of a text's vector."""
        return len(self.known.words)

    def encode(self, strings: Sequence[str]) -> Floats:
        """Return vectors (N, dim); zeros for a text without a known word."""
        from scipy.sparse import diags_array

        weighted = (self.known.counts(strings) @ diags_array(self.idf)).toarray()
        return unit_rows(weighted.astype(np.float32))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that ``restore`` needs, in addition to the words."""
        return {"idf": self.idf}

    @classmethod
    def restore(cls, known: KnownWords, arrays: Mapping[str, NDArray[Any]]) -> TfIdfVectorizer:
        """Build the vectorizer from the result of ``arrays``."""
        return cls(known, arrays["idf"])
