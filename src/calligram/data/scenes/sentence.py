"""A sentence in the making, and the caption it becomes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from calligram.data.scenes.phrases import Phrase
from calligram.data.scenes.query import Query


class Span(NamedTuple):
    """Characters of a caption, and the things they name."""

    start: int
    end: int
    things: tuple[int, ...]


@dataclass(frozen=True)
class Caption:
    """A sentence, where its noun phrases are, and what it claims."""

    text: str
    spans: tuple[Span, ...]
    query: Query


@dataclass
class Sentence:
    """A sentence in the making: words and noun phrases in order, and the claims so far."""

    pieces: list[str | Phrase] = field(default_factory=list)
    phrases: list[Phrase] = field(default_factory=list)
    links: list[tuple[int, str, int]] = field(default_factory=list)
    settings: tuple[str, ...] = ()
    times: tuple[str, ...] = ()

    def name(self, phrase: Phrase) -> int:
        """Add a noun phrase; returns its number for links."""
        self.pieces.append(phrase)
        self.phrases.append(phrase)
        return len(self.phrases) - 1

    def claim(self, number: int, fact: str, value: str) -> None:
        """Have the phrase claim one more fact, which words elsewhere in the sentence tell."""
        phrase = self.phrases[number]
        wider = replace(phrase.pattern, constraints=(*phrase.pattern.constraints, (fact, (value,))))
        self.phrases[number] = phrase._replace(pattern=wider)

    def finish(self) -> Caption:
        """Join the pieces, note where the phrases are, and end with a full stop."""
        text, spans = "", []
        for piece in self.pieces:
            words = piece if isinstance(piece, str) else piece.text
            gap = "" if not text or words.startswith(",") else " "
            if not isinstance(piece, str):
                start = len(text) + len(gap)
                spans.append(Span(start, start + len(words), piece.things))
            text += gap + words
        query = Query(tuple(p.pattern for p in self.phrases), tuple(self.links), self.settings, self.times)
        return Caption(text[0].upper() + text[1:] + ".", tuple(spans), query)


def write_different(write: Callable[[], Caption | None], count: int) -> list[Caption]:
    """Call ``write`` until it has given ``count`` captions of different wording; None does not count.

    Once the different sentences are used up, equal ones are taken: better than none.
    """
    found: list[Caption] = []
    texts: set[str] = set()
    for attempt in itertools.count():
        caption = write()
        if caption is not None and (caption.text not in texts or attempt > 40 * count):
            texts.add(caption.text)
            found.append(caption)
            if len(found) == count:
                break
    return found
