"""Where the words of a sentence are, and which of them each part belongs to that a text input makes of it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from calligram.features.encoder_input import EncoderInput
from calligram.features.inputs import TextInput
from calligram.features.vocabulary import Vocabulary
from calligram.features.wordpieces import WordPieces

Place = tuple[int, int]
"""first character, and the one after the last"""


def words_of(sentence: str) -> list[Place]:
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


def parts_of(texts: TextInput, sentence: str) -> list[Place | None] | None:
    """Where each part of a text lies that a matcher of words sees, in order.

    None for marks of the ends; None instead of a list for inputs that give a text one vector.
    """
    if isinstance(texts, EncoderInput):
        texts = texts.pieces
    return texts.places(sentence) if isinstance(texts, Vocabulary | WordPieces) else None


def unread(texts: TextInput, sentence: str) -> int:
    """Words after the last part that a text input makes of a sentence, where it cuts what is longer than it reads."""
    parts = parts_of(texts, sentence)
    if parts is None:
        return 0
    last = max((part[1] for part in parts if part is not None), default=0)
    return sum(start >= last for start, _ in words_of(sentence))


def owners(parts: Sequence[Place | None], words: Sequence[Place]) -> list[int | None]:
    """The number of the word that each part lies in; None for marks of the ends and for punctuation between words."""
    return [None if part is None else _owner(part, words) for part in parts]


def _owner(part: Place, words: Sequence[Place]) -> int | None:
    # Byte-level pieces may begin with the blank before them, so a part need not lie wholly within its word.
    shared = [min(part[1], end) - max(part[0], start) for start, end in words]
    best = max(range(len(words)), key=shared.__getitem__, default=None)
    return best if best is not None and shared[best] > 0 else None
