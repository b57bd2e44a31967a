"""Sentences of Flickr30K Entities: ``[/EN#18/people A child] in [/EN#19/clothing a pink dress]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPENING = re.compile(r"\[/EN#(\w+)((?:/[^\s/\]]+)*)\s*")


@dataclass(frozen=True)
class MarkedPhrase:
    """A phrase of a sentence: its place, its chain of mentions and the types of what it names."""

    start: int
    end: int
    chain: str
    types: tuple[str, ...]

    @property
    def entity(self) -> str:
        """Name of the thing; empty for chain 0, which the source uses for all that cannot be seen."""
        return "" if self.chain == "0" else self.chain


@dataclass(frozen=True)
class MarkedSentence:
    """A caption without its markup, its phrases in order, and what was wrong with the markup."""

    text: str
    phrases: tuple[MarkedPhrase, ...]
    fault: str = ""


def parse_sentence(line: str) -> MarkedSentence:
    """Take the markup out of one sentence.

    Read by character, not by word as the published parser does, so that phrases may nest, brackets may stand inside
    words, and punctuation may follow a closing bracket.

    >>> parsed = parse_sentence("[/EN#1/people A man]'s [/EN#0/notvisual view] .")
    >>> parsed.text, [parsed.text[p.start : p.end] for p in parsed.phrases]
    ("A man's view .", ['A man', 'view'])
    """
    out: list[str] = []
    stack: list[tuple[int, str, tuple[str, ...]] | None] = []
    closed: list[MarkedPhrase] = []
    faults: list[str] = []

    def close(opened: tuple[int, str, tuple[str, ...]]) -> None:
        start, chain, types = opened
        words = "".join(out[start:])
        end = start + len(words.rstrip())
        if end > start:
            closed.append(MarkedPhrase(start, end, chain, types))
        else:
            faults.append(f"phrase of chain {chain} has no words")

    place, line = 0, " ".join(line.split())
    while place < len(line):
        opening = _OPENING.match(line, place)
        if opening:
            stack.append((len(out), opening[1], tuple(t for t in opening[2].split("/") if t)))
            place = opening.end()
            continue
        character = line[place]
        place += 1
        if character == "]" and stack and (top := stack.pop()) is not None:
            close(top)
            continue
        if character == "[" and stack:
            # A bracket of the text itself: its partner must not close the phrase around it.
            stack.append(None)
        if character != " " or (out and out[-1] != " "):
            out.append(character)
    for opened in reversed([o for o in stack if o is not None]):
        faults.append(f"phrase of chain {opened[1]} is never closed")
        close(opened)
    return MarkedSentence(
        "".join(out).rstrip(), tuple(sorted(closed, key=lambda p: (p.start, -p.end))), "; ".join(faults)
    )
