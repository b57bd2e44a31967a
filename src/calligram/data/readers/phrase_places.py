"""Where the phrases of one sentence lie in a caption that says the same, perhaps in other words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

_WORD = re.compile(r"\w+(?:['’-]\w+)*")

SAME_SENTENCE = 0.5
"""Share of words in common (difflib's ratio) above which two sentences count as versions of one."""


def letters(text: str) -> str:
    """Letters and digits alone: ``sheep dog`` and ``Sheepdog`` are the same."""
    return "".join(c for c in text.lower() if c.isalnum())


def pair_sentences(captions: Sequence[str], sentences: Sequence[str]) -> list[int | None]:
    """For each caption the number of the sentence that says the same, each used once; None where none is left.

    Equal letters come first, then the likest of what is left, however unlike. Their order cannot be trusted: Flickr8k
    and Entities list the captions of an image differently.
    """
    paired: list[int | None] = [None] * len(captions)
    free = dict(enumerate(letters(s) for s in sentences))
    for n, caption in enumerate(captions):
        paired[n] = next((m for m, text in free.items() if text == letters(caption)), None)
        if (number := paired[n]) is not None:
            del free[number]
    alike = sorted(
        ((_ratio(captions[n], sentences[m]), -n, -m) for n in range(len(captions)) if paired[n] is None for m in free),
        reverse=True,
    )
    for _, n, m in alike:
        if paired[-n] is None and -m in free:
            paired[-n] = -m
            del free[-m]
    return paired


def _ratio(first: str, second: str) -> float:
    return SequenceMatcher(None, first.lower().split(), second.lower().split(), autojunk=False).ratio()


def places(caption: str, sentence: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """For each span of ``sentence`` the characters of ``caption`` that say it; None where nothing does."""
    if caption == sentence:
        return list(spans)
    if letters(caption) == letters(sentence):
        return _by_letters(caption, sentence, spans)
    if _ratio(caption, sentence) < SAME_SENTENCE:
        return [None] * len(spans)
    return _by_words(caption, sentence, spans)


def _by_letters(caption: str, sentence: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """Count letters in the one to find the place in the other."""
    at = [n for n, c in enumerate(caption) for _ in letters(c)]
    found: list[tuple[int, int] | None] = []
    for start, end in spans:
        first, count = len(letters(sentence[:start])), len(letters(sentence[start:end]))
        found.append((at[first], at[first + count - 1] + 1) if count else None)
    return found


def _by_words(caption: str, sentence: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """Align the two by words; a word changed (``blond``, ``blonde``) stands for the words in its place."""
    here, there = list(_WORD.finditer(caption)), list(_WORD.finditer(sentence))
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
