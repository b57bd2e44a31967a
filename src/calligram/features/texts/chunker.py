"""Noun phrases of free text, found by a small tagger learnt from annotated phrases."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calligram.data.collection import Collection
from calligram.errors import UserError

WEIGHTS_FILE = "chunker.json"
TAGS = ("O", "B", "I")
"""outside a phrase, at its beginning, inside it"""
_WORD = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")


class PhraseSpan(NamedTuple):
    """Characters ``start`` to ``end`` of a text."""

    start: int
    end: int


class ChunkingScores(NamedTuple):
    """How spans that were found agree with those annotated, in percent."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Chunker:
    """Tags words one after the other by a linear score of the word, its neighbours and the tag before."""

    weights: Mapping[str, tuple[float, ...]]
    """for each feature a weight of each of ``TAGS``"""

    @classmethod
    def train(cls, texts: Sequence[tuple[str, Sequence[PhraseSpan]]], *, epochs: int = 4, seed: int = 0) -> Chunker:
        """From texts with the phrases in them; the same weights each time.

        An averaged perceptron (Collins, 2002): the mean over all steps of weights that are changed only by mistakes.

        Raises:
            UserError: when there is nothing to learn from.
        """
        tagged = [(words, tags) for words, tags in (_tagged(*text) for text in texts) if "B" in tags]
        if not tagged:
            raise UserError("there are no phrases to learn noun phrases from")
        learner = _Perceptron()
        rng = np.random.default_rng(seed)
        for _ in range(epochs):
            for place in rng.permutation(len(tagged)).tolist():
                learner.see(*tagged[place])
        return cls(learner.averaged())

    def spans(self, text: str) -> list[PhraseSpan]:
        """The noun phrases of a text, in order."""
        found: list[PhraseSpan] = []
        matches = list(_WORD.finditer(text))
        words = [match.group().lower() for match in matches]
        before, two_before = "O", "O"
        for place, match in enumerate(matches):
            scores = _scores(self.weights, _features(words, place, before, two_before))
            two_before, before = before, _best(scores, before)
            if before == "B":
                found.append(PhraseSpan(*match.span()))
            elif before == "I":
                found[-1] = PhraseSpan(found[-1].start, match.end())
        return found

    def evaluate(self, texts: Iterable[tuple[str, Sequence[PhraseSpan]]]) -> ChunkingScores:
        """Precision, recall and F1 of whole spans."""
        right = found = annotated = 0
        for text, spans in texts:
            mine, theirs = set(self.spans(text)), {PhraseSpan(*span) for span in spans}
            right, found, annotated = right + len(mine & theirs), found + len(mine), annotated + len(theirs)
        precision, recall = 100 * right / max(1, found), 100 * right / max(1, annotated)
        return ChunkingScores(precision, recall, 2 * precision * recall / max(1e-9, precision + recall))

    def save(self, folder: Path) -> str:
        """Write the weights into ``folder``; returns the file's name."""
        content = {name: list(values) for name, values in sorted(self.weights.items())}
        (folder / WEIGHTS_FILE).write_text(
            json.dumps({"tags": TAGS, "weights": content}, ensure_ascii=False), encoding="utf-8"
        )
        return WEIGHTS_FILE

    @classmethod
    def read(cls, folder: Path) -> Chunker:
        """From what ``save`` wrote."""
        try:
            content = json.loads((folder / WEIGHTS_FILE).read_text(encoding="utf-8"))
            return cls({name: tuple(values) for name, values in content["weights"].items()})
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{folder / WEIGHTS_FILE} does not hold a noun-phrase chunker ({error})") from error


def annotated_captions(
    collection: Collection, split: str, most: int | None = None
) -> list[tuple[str, list[PhraseSpan]]]:
    """Captions of a split with the phrases annotated in them, evenly spread where only ``most`` are wanted."""
    pairing = collection.sentences(split)
    wanted = {name: place for place, name in enumerate(pairing.texts.ids)}
    spans: dict[int, list[PhraseSpan]] = defaultdict(list)
    names = collection.column("captions", "id")
    columns = (collection.numbers("phrases", name).tolist() for name in ("caption", "start", "end"))
    for caption, start, end in zip(*columns, strict=True):
        place = wanted.get(str(names[caption]))
        if place is not None and start >= 0:
            spans[place].append(PhraseSpan(start, end))
    chosen = sorted(spans)
    if most is not None and len(chosen) > most:
        chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, most).astype(int).tolist()]
    return [(pairing.texts.strings[place], sorted(spans[place])) for place in chosen]


class _Perceptron:
    """Weights with their running sums, kept lazily: a sum is brought up to date only when its weight changes."""

    def __init__(self) -> None:
        self.weights: dict[str, list[float]] = {}
        self._sums: dict[str, list[float]] = {}
        self._changed: dict[str, int] = {}
        self._step = 0

    def see(self, words: list[str], tags: list[str]) -> None:
        """One text: every wrong tag moves the weights of its features."""
        before, two_before = "O", "O"
        for place, tag in enumerate(tags):
            self._step += 1
            features = _features(words, place, before, two_before)
            guess = _best(_scores(self.weights, features), before)
            if guess != tag:
                for name in features:
                    self._move(name, TAGS.index(tag), TAGS.index(guess))
            # Guesses stand before the next word, as they will later, unless a beginning was missed: then nothing
            # inside the phrase could be guessed.
            two_before, before = before, guess if tag != "I" or guess != "O" else tag

    def _move(self, name: str, up: int, down: int) -> None:
        weights = self.weights.setdefault(name, [0.0] * len(TAGS))
        sums = self._sums.setdefault(name, [0.0] * len(TAGS))
        passed = self._step - self._changed.get(name, 0)
        for tag, weight in enumerate(weights):
            sums[tag] += passed * weight
        self._changed[name] = self._step
        weights[up] += 1
        weights[down] -= 1

    def averaged(self) -> dict[str, tuple[float, ...]]:
        """Mean weights, those that hardly ever counted left out."""
        found = {}
        for name, weights in self.weights.items():
            passed = self._step - self._changed[name]
            mean = [(s + passed * w) / self._step for s, w in zip(self._sums[name], weights, strict=True)]
            if max(map(abs, mean)) >= 0.02:
                found[name] = tuple(round(value, 3) for value in mean)
        return found


def _tagged(text: str, spans: Sequence[PhraseSpan]) -> tuple[list[str], list[str]]:
    """Words in lower case and their tags."""
    words, tags = [], []
    for match in _WORD.finditer(text):
        around = next((s for s in spans if s[0] <= match.start() and match.end() <= s[1]), None)
        words.append(match.group().lower())
        tags.append("O" if around is None else "B" if not words[:-1] or match.start() == around[0] else "I")
    return words, ["B" if tag == "I" and (not n or tags[n - 1] == "O") else tag for n, tag in enumerate(tags)]


def _features(words: Sequence[str], place: int, before: str, two_before: str) -> tuple[str, ...]:
    """What is known of a word when its tag is chosen."""

    def at(distance: int) -> str:
        there = place + distance
        return words[there] if 0 <= there < len(words) else "<>"

    word, last, coming = words[place], at(-1), at(1)
    return (
        "bias",
        f"w={word}",
        f"s={word[-3:]}",
        f"t={word[-2:]}",
        f"w-1={last}",
        f"w-2={at(-2)}",
        f"w+1={coming}",
        f"s+1={coming[-3:]}",
        f"w+2={at(2)}",
        f"p={before}",
        f"pp={two_before}{before}",
        f"p,w={before},{word}",
        f"p,w+1={before},{coming}",
        f"w-1,w={last},{word}",
        f"w,w+1={word},{coming}",
        f"p,s,s+1={before},{word[-2:]},{coming[-2:]}",
    )


def _scores(weights: Mapping[str, Sequence[float]], features: Iterable[str]) -> list[float]:
    total = [0.0] * len(TAGS)
    for name in features:
        for tag, weight in enumerate(weights.get(name, ())):
            total[tag] += weight
    return total


def _best(scores: Sequence[float], before: str) -> str:
    """The tag of highest score; a phrase cannot go on where none has begun."""
    allowed = range(len(TAGS)) if before != "O" else range(len(TAGS) - 1)
    return TAGS[max(allowed, key=lambda tag: scores[tag])]
