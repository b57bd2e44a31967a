"""Words and their numbers."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calligram.features.inputs import TextInput
from calligram.features.texts.text_encoder import EncoderInput
from calligram.features.texts.wordpieces import WordPieces
from calligram.progress import Track, silent

SPECIAL_WORDS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNKNOWN = range(4)

# Words with inner apostrophes; characters of scripts written without spaces stand alone. An accent that is written as a
# character of its own belongs to its letter.
_LETTERS = r"(?:[^\W_][\u0300-\u036f]*)+"
_WORD = re.compile(rf"[぀-ヿ㐀-鿿豈-﫿]|{_LETTERS}(?:['’]{_LETTERS})?")


def tokenise(text: str) -> list[str]:
    """Lower-case words of a text; punctuation is dropped.

    >>> tokenise("A dog's red ball, 2 cats.")
    ['a', "dog's", 'red', 'ball', '2', 'cats']
    """
    return _WORD.findall(unicodedata.normalize("NFC", text).lower().replace("’", "'"))


def word_places(text: str) -> list[tuple[int, int]]:
    """Where each word that ``tokenise`` gives begins and ends in the text.

    >>> word_places("A dog's ball")
    [(0, 1), (2, 7), (8, 12)]
    """
    # A few letters become two in lower case, after which places would be off by one.
    origin = [place for place, letter in enumerate(text) for _ in letter.lower()]
    found = _WORD.finditer(text.lower().replace("’", "'"))
    return [(origin[match.start()], origin[match.end() - 1] + 1) for match in found]


@dataclass(frozen=True)
class Vocabulary:
    """Word <-> number, saved with the matcher. Texts become ``<start> words <end>``, cut to ``max_words``."""

    kind: ClassVar[str] = "words"

    words: tuple[str, ...]
    """all words, the four special ones first"""
    max_words: int = 60

    @classmethod
    def build(cls, texts: Iterable[str], min_count: int = 4, max_words: int = 60) -> Vocabulary:
        """Keep words seen at least ``min_count`` times, most frequent first. Build it from training text only."""
        counts = Counter(word for text in texts for word in tokenise(text))
        kept = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
        return cls((*SPECIAL_WORDS, *kept), max_words)

    def save(self, folder: Path) -> dict[str, Any]:
        """All words, in order."""
        del folder
        return {"words": list(self.words), "max_words": self.max_words}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> Vocabulary:
        """From what ``save`` gave."""
        del folder
        return cls(tuple(content["words"]), int(content["max_words"]))

    @property
    def mask_token(self) -> int:
        """Number that hides a word in training."""
        return UNKNOWN

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Number of each word."""
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, text: str) -> list[int]:
        """Numbers of one text's words."""
        inner = [self.number_of.get(word, UNKNOWN) for word in tokenise(text)]
        return [START, *inner[: self.max_words], END]

    def places(self, text: str) -> list[tuple[int, int] | None]:
        """Where each part that ``encode`` gives lies in the text; None for the marks of its ends."""
        return [None, *word_places(text)[: self.max_words], None]

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Numbers (N, W) and the mask of real words."""
        return WordRows(self, strings).take(np.arange(len(strings)))

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> WordRows:
        """Texts encoded once, to be taken in batches."""
        return WordRows(self, strings)


class WordRows:
    """Encoded texts of different lengths."""

    def __init__(self, vocabulary: Vocabulary, strings: Sequence[str]) -> None:
        self._rows = [np.array(vocabulary.encode(s), dtype=np.int64) for s in strings]
        self.lengths = np.array([len(r) for r in self._rows], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Numbers (N, W), padded to the longest of these, and their mask."""
        lengths = self.lengths[rows]
        numbers = np.full((len(rows), int(lengths.max(initial=1))), PAD, dtype=np.int64)
        for place, row in enumerate(rows):
            numbers[place, : lengths[place]] = self._rows[row]
        mask = np.arange(numbers.shape[1]) < lengths[:, None]
        return torch.from_numpy(numbers), torch.from_numpy(mask)


# Where the words of a sentence are, and which of them each part belongs to that a text input makes of it.

TextSpan = tuple[int, int]
"""first character, and the one after the last"""


def whitespace_word_spans(sentence: str) -> list[TextSpan]:
    """Where each word begins and ends: what stands between spaces, punctuation around it left out."""
    found = []
    for match in re.finditer(r"\S+", sentence):
        start, end = match.span()
        while start < end and unicodedata.category(sentence[start])[0] in "PS":
            start += 1
        while start < end and unicodedata.category(sentence[end - 1])[0] in "PS":
            end -= 1
        if start < end:
            found.append((start, end))
    return found


def token_spans(texts: TextInput, sentence: str) -> list[TextSpan | None] | None:
    """Where each part of a text lies that a matcher of words sees, in order.

    None for marks of the ends; None instead of a list for inputs that give a text one vector.
    """
    if isinstance(texts, EncoderInput):
        texts = texts.pieces
    return texts.places(sentence) if isinstance(texts, Vocabulary | WordPieces) else None


def count_truncated_words(texts: TextInput, sentence: str) -> int:
    """Words after the last part that a text input makes of a sentence, where it cuts what is longer than it reads."""
    parts = token_spans(texts, sentence)
    if parts is None:
        return 0
    last = max((part[1] for part in parts if part is not None), default=0)
    return sum(start >= last for start, _ in whitespace_word_spans(sentence))


def token_word_indices(parts: Sequence[TextSpan | None], words: Sequence[TextSpan]) -> list[int | None]:
    """The number of the word that each part lies in; None for marks of the ends and for punctuation between words."""
    return [None if part is None else _word_index(part, words) for part in parts]


def _word_index(part: TextSpan, words: Sequence[TextSpan]) -> int | None:
    # Byte-level pieces may begin with the blank before them, so a part need not lie wholly within its word.
    shared = [min(part[1], end) - max(part[0], start) for start, end in words]
    best = max(range(len(words)), key=shared.__getitem__, default=None)
    return best if best is not None and shared[best] > 0 else None
