"""Vocabularies, the spans of tokens and words in a text, and groups of texts with similar numbers of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calligram.features.inputs import TextInput
from calligram.progress import Track, silent
from calligram.text import TextSpan, tokenise, whitespace_word_spans, word_spans

Ints = NDArray[np.int64]
SPECIAL_WORDS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNKNOWN = range(4)
LENGTH_GROUPS, MIN_GROUP_TEXTS = 4, 16
"""groups of texts of similar length in a batch, and the fewest texts in one"""
GROUP_LENGTH_MULTIPLE = 4
MIN_SAVED_SHARE = 0.15
"""share of tokens that groups have to save"""


@dataclass(frozen=True)
class Vocabulary(TextInput):
    """Text input by word ids. A text becomes ``<start> words <end>``, truncated to ``max_words``."""

    kind: ClassVar[str] = "words"

    words: tuple[str, ...]
    """all words in the order of their ids; the four special words come first"""
    max_words: int = 60

    @classmethod
    def build(cls, texts: Iterable[str], min_count: int = 4, max_words: int = 60) -> Vocabulary:
        """Build a vocabulary from training text: words that occur ``min_count`` times, most frequent first."""
        counts = Counter(word for text in texts for word in tokenise(text))
        kept = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
        return cls((*SPECIAL_WORDS, *kept), max_words)

    def save(self, folder: Path) -> dict[str, Any]:
        """Return all words, in order."""
        del folder
        return {"words": list(self.words), "max_words": self.max_words}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> Vocabulary:
        """Read what ``save`` returned."""
        del folder
        return cls(tuple(content["words"]), int(content["max_words"]))

    @property
    def token_input(self) -> Vocabulary:
        """This input."""
        return self

    @property
    def vocabulary(self) -> Vocabulary:
        """This input."""
        return self

    @property
    def mask_token(self) -> int:
        """Id of the token that replaces a word in word dropout."""
        return UNKNOWN

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Id of each word."""
        return {word: number for number, word in enumerate(self.words)}

    def is_known(self, word: str) -> bool:
        """Whether a word has a number of its own."""
        return word in self.number_of

    def encode(self, text: str) -> list[int]:
        """Return the word ids of a text."""
        inner = [self.number_of.get(word, UNKNOWN) for word in tokenise(text)]
        return [START, *inner[: self.max_words], END]

    def token_spans(self, text: str) -> list[TextSpan | None]:
        """Return the span of each token of ``encode`` in the text; None for the start and end tokens."""
        return [None, *word_spans(text)[: self.max_words], None]

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode a few texts: word ids (N, W) and the mask of real words."""
        return self.load(strings).take(np.arange(len(strings)))

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> TokenRows:
        """Encode many texts once."""
        return TokenRows([self.encode(string) for string in strings], PAD)


class TokenRows:
    """Encoded texts of different lengths, concatenated in one array."""

    def __init__(self, encoded: Sequence[Sequence[int]], pad: int) -> None:
        self.lengths = np.array([len(numbers) for numbers in encoded], dtype=np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._ids = np.fromiter((n for numbers in encoded for n in numbers), dtype=np.int32)
        self._pad = pad

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return token ids (N, W), padded to the longest of these texts, and their mask."""
        lengths = self.lengths[rows]
        positions = np.arange(int(lengths.max(initial=1)))
        mask = positions < lengths[:, None]
        ids = np.full(mask.shape, self._pad, dtype=np.int64)
        ids[mask] = self._ids[(self._starts[rows][:, None] + positions)[mask]]
        return torch.from_numpy(ids), torch.from_numpy(mask)


def count_truncated_words(texts: TextInput, sentence: str) -> int:
    """Return the number of words that the text input cuts off because the sentence is too long."""
    tokens = texts.token_spans(sentence)
    if tokens is None:
        return 0
    last = max((token[1] for token in tokens if token is not None), default=0)
    return sum(start >= last for start, _ in whitespace_word_spans(sentence))


def token_word_indices(tokens: Sequence[TextSpan | None], words: Sequence[TextSpan]) -> list[int | None]:
    """Return the index of the word that contains each token; None for special tokens and punctuation."""
    return [None if token is None else _word_index(token, words) for token in tokens]


def _word_index(token: TextSpan, words: Sequence[TextSpan]) -> int | None:
    # A byte-level token may begin with the space before it, so it need not lie completely inside its word.
    overlap = [min(token[1], end) - max(token[0], start) for start, end in words]
    best = max(range(len(words)), key=overlap.__getitem__, default=None)
    return best if best is not None and overlap[best] > 0 else None


_LENGTHS: ContextVar[Sequence[int]] = ContextVar("lengths of the texts that are encoded", default=())


@contextmanager
def known_lengths(lengths: Sequence[int]) -> Iterator[None]:
    """Encode texts of similar length together inside a block: padding of a batch is often more than half of its tokens.

    Args:
        lengths: number of tokens of each text; empty if unknown. A mask on a GPU has them too, but reading it waits.
    """
    before = _LENGTHS.set(lengths)
    try:
        yield
    finally:
        _LENGTHS.reset(before)


def length_groups(count: int, longest: int) -> list[tuple[Ints, int]]:
    """Return groups of texts of similar length: their rows, and the number of tokens that they are padded to.

    Groups have as many texts each. There are none where lengths are not known, and where groups would save little.
    """
    lengths = np.asarray(_LENGTHS.get(), dtype=np.int64)
    if not len(lengths) or len(lengths) != count or count < LENGTH_GROUPS * MIN_GROUP_TEXTS:
        return []
    order = np.argsort(lengths, kind="stable")
    found = [(rows, min(longest, _round_up(int(lengths[rows[-1]])))) for rows in np.array_split(order, LENGTH_GROUPS)]
    saved = 1 - sum(len(rows) * length for rows, length in found) / (count * longest)
    return found if saved >= MIN_SAVED_SHARE else []


def _round_up(length: int) -> int:
    return -(-max(length, 1) // GROUP_LENGTH_MULTIPLE) * GROUP_LENGTH_MULTIPLE
