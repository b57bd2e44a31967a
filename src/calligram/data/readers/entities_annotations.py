"""Parsers for Flickr30K Entities: boxes of coreference chains, sentences with phrase markup, and their alignment.

An annotation file lists the boxes of each chain of mentions. A sentence marks the phrases of each chain:
``[/EN#18/people A child] in [/EN#19/clothing a pink dress]``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from xml.etree import ElementTree

from calligram.data.draft import Problems
from calligram.text import HYPHENATED_WORD

Box = tuple[float, float, float, float]


_OPENING = re.compile(r"\[/EN#(\w+)((?:/[^\s/\]]+)*)\s*")


MIN_WORD_OVERLAP = 0.5
"""minimum word similarity (difflib's ratio) of two versions of one sentence"""


@dataclass
class Annotation:
    """The boxes of one image, in continuous pixel coordinates from 0, and the chains of each box."""

    size: tuple[int, int] | None = None
    boxes: list[Box] = field(default_factory=list)
    chains: list[tuple[str, ...]] = field(default_factory=list)
    """ids of the chains of each box"""

    def boxes_of(self, chain: str) -> tuple[int, ...]:
        """Numbers of the boxes of one chain; scenes and things without a box have none."""
        return tuple(n for n, names in enumerate(self.chains) if chain in names)


def parse_annotation(data: bytes, item: str, problems: Problems) -> Annotation:
    """Parse one ``Annotations/KEY.xml``. Parts that cannot be read are skipped and reported."""
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        problems.skip("unreadable annotation", item, str(error))
        return Annotation()
    found = Annotation(_size(root))
    for thing in root.findall("object"):
        names = tuple(n.text.strip() for n in thing.findall("name") if n.text)
        for corner in thing.findall("bndbox"):
            box = _box(corner)
            if box is None:
                problems.skip("box without area", item, f"of chain {', '.join(names)}")
            else:
                found.boxes.append(box)
                found.chains.append(names)
    return found


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    try:
        size = int(root.findtext("size/width", "")), int(root.findtext("size/height", ""))
    except ValueError:
        return None
    return size if min(size) > 0 else None


def _box(corner: ElementTree.Element) -> Box | None:
    try:
        left, top, right, bottom = (float(corner.findtext(k, "")) for k in ("xmin", "ymin", "xmax", "ymax"))
    except ValueError:
        return None
    # The source counts pixels from 1 and includes the last pixel: its box 1..1 is 0..1 here.
    box = (left - 1, top - 1, right, bottom)
    return box if box[2] > box[0] and box[3] > box[1] else None


@dataclass(frozen=True)
class MarkedPhrase:
    """A phrase of a sentence: its position, its coreference chain and the types of its entity."""

    start: int
    end: int
    chain: str
    types: tuple[str, ...]

    @property
    def entity(self) -> str:
        """Id of the entity; empty for chain 0, which the source uses for everything that is not visible."""
        return "" if self.chain == "0" else self.chain


@dataclass(frozen=True)
class MarkedSentence:
    """A sentence without its markup, its phrases in order, and the errors in the markup."""

    text: str
    phrases: tuple[MarkedPhrase, ...]
    fault: str = ""


def parse_sentence(line: str) -> MarkedSentence:
    """Parse the markup of one sentence.

    This parser reads characters, unlike the published parser, which reads words. Phrases may therefore be nested,
    brackets may be inside words, and punctuation may follow a closing bracket.

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
            # A bracket of the text: its closing bracket must not close the phrase around it.
            stack.append(None)
        if character != " " or (out and out[-1] != " "):
            out.append(character)
    for opened in reversed([o for o in stack if o is not None]):
        faults.append(f"phrase of chain {opened[1]} is never closed")
        close(opened)
    return MarkedSentence(
        "".join(out).rstrip(), tuple(sorted(closed, key=lambda p: (p.start, -p.end))), "; ".join(faults)
    )


def pair_sentences(captions: Sequence[str], sentences: Sequence[str]) -> list[int | None]:
    """The number of the most similar sentence for each caption, each sentence used once; None where none is left.

    Sentences with equal letters are paired first, then the most similar of the rest, without a minimum similarity.
    The order is not used, because Flickr8k and Entities list the captions of an image in different orders.
    """
    paired: list[int | None] = [None] * len(captions)
    free = dict(enumerate(letters_and_digits(s) for s in sentences))
    for n, caption in enumerate(captions):
        paired[n] = next((m for m, text in free.items() if text == letters_and_digits(caption)), None)
        if (number := paired[n]) is not None:
            del free[number]
    alike = sorted(
        (
            (_word_similarity(captions[n], sentences[m]), -n, -m)
            for n in range(len(captions))
            if paired[n] is None
            for m in free
        ),
        reverse=True,
    )
    for _, n, m in alike:
        if paired[-n] is None and -m in free:
            paired[-n] = -m
            del free[-m]
    return paired


def align_spans(caption: str, sentence: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """The span of ``caption`` that corresponds to each span of ``sentence``; None where there is none."""
    if caption == sentence:
        return list(spans)
    if letters_and_digits(caption) == letters_and_digits(sentence):
        return _align_by_letters(caption, sentence, spans)
    if _word_similarity(caption, sentence) < MIN_WORD_OVERLAP:
        return [None] * len(spans)
    return _align_by_words(caption, sentence, spans)


def letters_and_digits(text: str) -> str:
    """The letters and digits of a text in lower case, so that ``sheep dog`` equals ``Sheepdog``."""
    return "".join(c for c in text.lower() if c.isalnum())


def _word_similarity(first: str, second: str) -> float:
    return SequenceMatcher(None, first.lower().split(), second.lower().split(), autojunk=False).ratio()


def _align_by_letters(caption: str, sentence: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """Align two texts with equal letters, by the number of letters before each span."""
    at = [n for n, c in enumerate(caption) for _ in letters_and_digits(c)]
    found: list[tuple[int, int] | None] = []
    for start, end in spans:
        first, count = len(letters_and_digits(sentence[:start])), len(letters_and_digits(sentence[start:end]))
        found.append((at[first], at[first + count - 1] + 1) if count else None)
    return found


def _align_by_words(caption: str, sentence: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """Align two texts by words; a replaced word (``blond``, ``blonde``) corresponds to its replacement."""
    here, there = list(HYPHENATED_WORD.finditer(caption)), list(HYPHENATED_WORD.finditer(sentence))
    steps = SequenceMatcher(
        None, [w[0].lower() for w in there], [w[0].lower() for w in here], autojunk=False
    ).get_opcodes()
    target: dict[int, tuple[int, int]] = {}
    for kind, i0, i1, j0, j1 in steps:
        for i in range(i0, i1):
            if kind == "equal" or (kind == "replace" and i1 - i0 == j1 - j0):
                target[i] = (j0 + i - i0, j0 + i - i0 + 1)
            elif kind == "replace":
                target[i] = (j0, j1)
    found: list[tuple[int, int] | None] = []
    for start, end in spans:
        hit = [target[i] for i, w in enumerate(there) if w.start() >= start and w.end() <= end and i in target]
        found.append((here[min(hit)[0]].start(), here[max(h[1] for h in hit) - 1].end()) if hit else None)
    return found
