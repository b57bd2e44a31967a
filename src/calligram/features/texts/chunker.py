"""Noun-phrase chunker: a small tagger that is trained on annotated phrases."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.text import HYPHENATED_WORD_OR_MARK

WEIGHTS_FILE = "chunker.json"
TAGS = ("O", "B", "I")
"""outside a phrase, at its beginning, inside it"""
MIN_MEAN_WEIGHT = 0.02
"""features whose averaged weights are all smaller are removed"""


class PhraseSpan(NamedTuple):
    """Characters ``start`` to ``end`` of a text."""

    start: int
    end: int


class ChunkingScores(NamedTuple):
    """Agreement of found spans with annotated spans, in percent."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Chunker:
    """Tags words from left to right by a linear score of the word, its neighbours and the previous tags."""

    weights: Mapping[str, tuple[float, ...]]
    """for each feature, a weight for each of ``TAGS``"""

    @classmethod
    def train(cls, texts: Sequence[tuple[str, Sequence[PhraseSpan]]], *, epochs: int = 4, seed: int = 0) -> Chunker:
        """Train an averaged perceptron (Collins, 2002) on texts with annotated phrases.

        Mistakes change the weights; the result is the mean of the weights over all steps. It depends only on the
        arguments.

        Raises:
            UserError: when the texts have no phrases.
        """
        tagged = [(words, tags) for words, tags in (_tagged(*text) for text in texts) if "B" in tags]
        if not tagged:
            raise UserError("there are no annotated phrases to train the noun-phrase chunker on")
        perceptron = _Perceptron()
        rng = np.random.default_rng(seed)
        for _ in range(epochs):
            for row in rng.permutation(len(tagged)).tolist():
                perceptron.update(*tagged[row])
        return cls(perceptron.averaged())

    def spans(self, text: str) -> list[PhraseSpan]:
        """Return the noun phrases of a text, in order."""
        found: list[PhraseSpan] = []
        matches = list(HYPHENATED_WORD_OR_MARK.finditer(text))
        words = [match.group().lower() for match in matches]
        previous, before_previous = "O", "O"
        for position, match in enumerate(matches):
            scores = _scores(self.weights, _features(words, position, previous, before_previous))
            before_previous, previous = previous, _best(scores, previous)
            if previous == "B":
                found.append(PhraseSpan(*match.span()))
            elif previous == "I":
                found[-1] = PhraseSpan(found[-1].start, match.end())
        return found

    def evaluate(self, texts: Iterable[tuple[str, Sequence[PhraseSpan]]]) -> ChunkingScores:
        """Return precision, recall and F1 of whole spans."""
        correct = found = annotated = 0
        for text, spans in texts:
            predicted, expected = set(self.spans(text)), {PhraseSpan(*span) for span in spans}
            correct += len(predicted & expected)
            found, annotated = found + len(predicted), annotated + len(expected)
        precision, recall = 100 * correct / max(1, found), 100 * correct / max(1, annotated)
        return ChunkingScores(precision, recall, 2 * precision * recall / max(1e-9, precision + recall))

    def save(self, folder: Path) -> str:
        """Write the weights into ``folder``; return the name of the file."""
        content = {name: list(values) for name, values in sorted(self.weights.items())}
        (folder / WEIGHTS_FILE).write_text(
            json.dumps({"tags": TAGS, "weights": content}, ensure_ascii=False), encoding="utf-8"
        )
        return WEIGHTS_FILE

    @classmethod
    def read(cls, folder: Path) -> Chunker:
        """Read what ``save`` wrote."""
        try:
            content = json.loads((folder / WEIGHTS_FILE).read_text(encoding="utf-8"))
            return cls({name: tuple(values) for name, values in content["weights"].items()})
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{folder / WEIGHTS_FILE} does not hold a noun-phrase chunker ({error}); train the matcher again"
            ) from error


def annotated_captions(
    collection: Collection, split: str, max_captions: int | None = None
) -> list[tuple[str, list[PhraseSpan]]]:
    """Return captions of a split with their annotated phrases; at most ``max_captions``, evenly spaced."""
    pairing = collection.sentences(split)
    caption_rows = {name: row for row, name in enumerate(pairing.texts.ids)}
    spans: dict[int, list[PhraseSpan]] = defaultdict(list)
    names = collection.column("captions", "id")
    columns = (collection.numbers("phrases", name).tolist() for name in ("caption", "start", "end"))
    for caption, start, end in zip(*columns, strict=True):
        row = caption_rows.get(str(names[caption]))
        if row is not None and start >= 0:
            spans[row].append(PhraseSpan(start, end))
    chosen = sorted(spans)
    if max_captions is not None and len(chosen) > max_captions:
        chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, max_captions).astype(int).tolist()]
    return [(pairing.texts.strings[row], sorted(spans[row])) for row in chosen]


class _Perceptron:
    """Weights and their sums over all steps; a sum is updated lazily, only when its weight changes."""

    def __init__(self) -> None:
        self.weights: dict[str, list[float]] = {}
        self._sums: dict[str, list[float]] = {}
        self._changed: dict[str, int] = {}
        self._step = 0

    def update(self, words: list[str], tags: list[str]) -> None:
        """Train on one text: every wrong tag changes the weights of its features."""
        previous, before_previous = "O", "O"
        for position, tag in enumerate(tags):
            self._step += 1
            features = _features(words, position, previous, before_previous)
            guess = _best(_scores(self.weights, features), previous)
            if guess != tag:
                for name in features:
                    self._move(name, TAGS.index(tag), TAGS.index(guess))
            # The next word uses the guess, as in prediction. Exception: if the beginning of a phrase was missed, the
            # true tag is used, because otherwise no tag inside the phrase could be guessed.
            before_previous, previous = previous, guess if tag != "I" or guess != "O" else tag

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
        """Return the mean weights; features with small weights are left out."""
        found = {}
        for name, weights in self.weights.items():
            passed = self._step - self._changed[name]
            mean = [(s + passed * w) / self._step for s, w in zip(self._sums[name], weights, strict=True)]
            if max(map(abs, mean)) >= MIN_MEAN_WEIGHT:
                found[name] = tuple(round(value, 3) for value in mean)
        return found


def _tagged(text: str, spans: Sequence[PhraseSpan]) -> tuple[list[str], list[str]]:
    """Return the lower-case words of a text and their tags."""
    words, tags = [], []
    for match in HYPHENATED_WORD_OR_MARK.finditer(text):
        phrase = next((s for s in spans if s[0] <= match.start() and match.end() <= s[1]), None)
        words.append(match.group().lower())
        tags.append("O" if phrase is None else "B" if not words[:-1] or match.start() == phrase[0] else "I")
    return words, ["B" if tag == "I" and (not n or tags[n - 1] == "O") else tag for n, tag in enumerate(tags)]


def _features(words: Sequence[str], position: int, previous: str, before_previous: str) -> tuple[str, ...]:
    """Return the features of a word; their names are keys of the saved weights."""

    def neighbour(distance: int) -> str:
        index = position + distance
        return words[index] if 0 <= index < len(words) else "<>"

    word, left, right = words[position], neighbour(-1), neighbour(1)
    return (
        "bias",
        f"w={word}",
        f"s={word[-3:]}",
        f"t={word[-2:]}",
        f"w-1={left}",
        f"w-2={neighbour(-2)}",
        f"w+1={right}",
        f"s+1={right[-3:]}",
        f"w+2={neighbour(2)}",
        f"p={previous}",
        f"pp={before_previous}{previous}",
        f"p,w={previous},{word}",
        f"p,w+1={previous},{right}",
        f"w-1,w={left},{word}",
        f"w,w+1={word},{right}",
        f"p,s,s+1={previous},{word[-2:]},{right[-2:]}",
    )


def _scores(weights: Mapping[str, Sequence[float]], features: Iterable[str]) -> list[float]:
    total = [0.0] * len(TAGS)
    for name in features:
        for tag, weight in enumerate(weights.get(name, ())):
            total[tag] += weight
    return total


def _best(scores: Sequence[float], previous: str) -> str:
    """Return the tag with the highest score; "I" cannot follow "O"."""
    allowed = range(len(TAGS)) if previous != "O" else range(len(TAGS) - 1)
    return TAGS[max(allowed, key=lambda tag: scores[tag])]
