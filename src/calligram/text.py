"""Text: what a word is for each purpose, Unicode composition, and stop words.

Vocabularies, word vectors and libraries on disk depend on these definitions. A change makes them unusable.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Literal

NORMAL_FORM: Literal["NFC"] = "NFC"
"""Unicode form in which texts are compared: an é may be one character or two, and file names have either"""

_LETTERS_AND_ACCENTS = r"(?:[^\W_][\u0300-\u036f]*)+"  # an accent that is a character of its own belongs to its letter
_CHARACTER_WORD = r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"  # Japanese kana and Chinese characters: no spaces
_TOKEN = re.compile(rf"{_CHARACTER_WORD}|{_LETTERS_AND_ACCENTS}(?:['’]{_LETTERS_AND_ACCENTS})?")

HYPHENATED_WORD = re.compile(r"\w+(?:['’-]\w+)*")
"""a word of an annotated caption, such as "t-shirt" or "dog's"; a noun phrase begins and ends with one"""
HYPHENATED_WORD_OR_MARK = re.compile(rf"{HYPHENATED_WORD.pattern}|[^\w\s]")
"""the same, or one punctuation mark, which a chunker uses as a feature"""

TextSpan = tuple[int, int]
"""first character, and the character after the last"""


def composed(text: str) -> str:
    r"""Return the text in Unicode normal form C, in which a letter and its accent are one character.

    >>> composed("cafe\u0301") == "caf\u00e9"
    True
    """
    return unicodedata.normalize(NORMAL_FORM, text)


def printable(text: str) -> str:
    r"""Return a text that can be stored: half characters, as in names of files that are not UTF-8, become escapes.

    >>> printable("a\udcff.jpg")
    'a\\udcff.jpg'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def tokenise(text: str) -> list[str]:
    """Words for vocabularies and word vectors: lower case, inner apostrophes kept, other punctuation dropped.

    >>> tokenise("A dog's red ball, 2 cats.")
    ['a', "dog's", 'red', 'ball', '2', 'cats']
    """
    return _TOKEN.findall(composed(text).lower().replace("’", "'"))


def word_spans(text: str) -> list[TextSpan]:
    """Where each word of ``tokenise`` begins and ends in the text.

    >>> word_spans("A dog's ball")
    [(0, 1), (2, 7), (8, 12)]
    """
    # A few letters become two in lower case, after which places would be off by one.
    origin = [place for place, letter in enumerate(text) for _ in letter.lower()]
    found = _TOKEN.finditer(text.lower().replace("’", "'"))
    return [(origin[match.start()], origin[match.end() - 1] + 1) for match in found]


def split_word(word: str) -> list[str]:
    """Split a word that has no vector of its own at ``- + '`` and at digits.

    >>> split_word("dog's")
    ['dog', 's']
    """
    return [part for part in re.split(r"[-+'0-9]+", word) if part]


def whitespace_word_spans(sentence: str) -> list[TextSpan]:
    """Where each word begins and ends for a reader: split at white space, without the punctuation around it.

    >>> whitespace_word_spans("A red, round t-shirt!")
    [(0, 1), (2, 5), (7, 12), (13, 20)]
    """
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


def keywords(text: str) -> list[str]:
    """Words of a query in keyword search: runs of letters, digits and underscores.

    >>> keywords("A dog's IMG_12")
    ['A', 'dog', 's', 'IMG_12']
    """
    return re.findall(r"\w+", text)


def indexed_words(text: str) -> list[str]:
    """Words of a file name or a caption in keyword search: as ``keywords``, but an underscore separates two words.

    >>> indexed_words("IMG_12 of a dog")
    ['IMG', '12', 'of', 'a', 'dog']
    """
    return re.findall(r"[^\W_]+", text)


def has_every_word(query: str, texts: Iterable[str]) -> bool:
    """Whether the texts together contain each keyword of the query, whole and in any case.

    >>> has_every_word("red Dog", ["a dog", "something red"])
    True
    >>> has_every_word("do", ["a dog"])
    False
    """
    return contain_every_word(query, ["\n".join(texts)])[0]


def contain_every_word(query: str, texts: Iterable[str]) -> list[bool]:
    """Whether each text contains each keyword of the query, whole and in any case.

    >>> contain_every_word("red Dog", ["a red dog", "a dog"])
    [True, False]
    """
    wanted = set(keywords(composed(query).lower()))
    return [bool(wanted) and wanted <= set(indexed_words(composed(text).lower())) for text in texts]


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can encode a text: one half of a surrogate pair cannot be stored."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def caption_key(text: str) -> str:
    """Equal for captions that differ only in case and white space.

    >>> caption_key("A dog  runs")
    'a dog runs'
    """
    return " ".join(text.lower().split())


STOP_WORDS = frozenset(
    keywords(
        """a an the this that these those his her its their and or but of in on at by to from with into over under near
        is are was were be been being has have had it he she they there as for while some"""
    )
)
"""words without a meaning of their own; no phrase of a caption begins or ends with one"""


def without_stop_words(words: Iterable[str]) -> list[str]:
    """Return the words that are not stop words, in order."""
    return [word for word in words if word.lower() not in STOP_WORDS]
