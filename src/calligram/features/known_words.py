"""Texts as counts of known words: what every fixed-size text vector starts from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.features.vocabulary import tokenise
from calligram.features.word_vectors import read_first_vectors, read_vectors, vector_size

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
            parts = [word] if word in self.number_of else parts_of(word)
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
        seen = {part for string in strings for word in tokenise(string) for part in (word, *parts_of(word))}
        wanted = read_vectors(file, seen, dim)
        if not wanted:
            raise UserError(f"word vectors {file} have none of the text's {len(seen)} words")
        found = {**read_first_vectors(file, more, dim), **wanted}
        words = sorted(found)
        return cls(KnownWords(tuple(words)), np.stack([found[word] for word in words]))

    @property
    def dim(self) -> int:
        """Numbers per word."""
        return int(self.vectors.shape[1])


def parts_of(word: str) -> list[str]:
    """A word split at ``- + '`` and digits.

    >>> parts_of("dog's"), parts_of("2nd")
    (['dog', 's'], ['nd'])
    """
    return [part for part in _INNER.split(word) if part]
