"""Words of a query that a matcher has never seen."""

from __future__ import annotations

from collections.abc import Iterable

from calligram.features.concepts import ConceptText
from calligram.features.inputs import TextInput
from calligram.features.joined_input import JoinedTexts
from calligram.features.known_words import parts_of
from calligram.features.telling_words import telling
from calligram.features.text_vectors import VectorText
from calligram.features.vocabulary import Vocabulary, tokenise


class UnknownWords:
    """Tells them; none for a matcher that reads pieces of words."""

    def __init__(self, text: TextInput) -> None:
        if isinstance(text, JoinedTexts):
            text = text.sentences
        self._parted = isinstance(text, VectorText)
        self._known: frozenset[str] | None = None
        self._concepts = text if isinstance(text, ConceptText) else None
        if isinstance(text, Vocabulary):
            self._known = frozenset(text.words)
        elif isinstance(text, VectorText):
            self._known = frozenset(text.coder.known.words)

    def __call__(self, text: str) -> list[str]:
        """In the order of the text."""
        return [word for word in tokenise(text) if not self._knows(word)]

    def of_all(self, texts: Iterable[str]) -> list[str]:
        """Those of several texts, each once."""
        return list(dict.fromkeys(word for text in texts for word in self(text)))

    def lost(self, text: str) -> bool:
        """Whether a text has no word that says what is meant and is known."""
        return not telling(word for word in tokenise(text) if self._knows(word))

    def _knows(self, word: str) -> bool:
        if self._concepts is not None:
            return bool(self._concepts.asked(word))
        if self._known is None:
            return True
        # Text vectors look up the parts of a word that they do not know whole.
        return word in self._known or (self._parted and any(part in self._known for part in parts_of(word)))
