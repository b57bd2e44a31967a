"""How many failures are of texts with words that the matcher has never seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.evaluation.ranking import relevant_ranks
from calligram.evaluation.retrieval import Retrieval, measure_retrieval
from calligram.features.inputs import TextInput
from calligram.features.texts.vocabulary import SPECIAL_WORDS, Vocabulary
from calligram.features.texts.word_counts import KnownWords
from calligram.text import tokenise, without_stop_words


@dataclass(frozen=True)
class UnknownFailures:
    """Texts as queries for images, by whether they were found and whether all their words are known."""

    failures: int
    """texts none of whose images is among the first"""
    failures_unknown: int
    """those with an unknown word"""
    found: int
    found_unknown: int
    within: int
    """ranks that count as found"""
    words: tuple[tuple[str, int], ...]
    """unknown words of failures, most frequent first, and how many failures have each"""

    @property
    def failure_rate(self) -> tuple[float, float]:
        """Percent of texts that fail, with an unknown word and without; NaN where there are none."""
        known = (self.failures - self.failures_unknown, self.found - self.found_unknown)
        both = ((self.failures_unknown, self.found_unknown), known)
        rates = [100 * lost / (lost + found) if lost + found else float("nan") for lost, found in both]
        return rates[0], rates[1]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def unknown_failures(
    scores: NDArray[np.floating],
    matches: Matches,
    texts: tuple[str, ...],
    unknown: Callable[[str], list[str]],
    within: int = 10,
) -> UnknownFailures:
    """Count failures from text to image with out-of-vocabulary words (a3vse, Sec. 4.7: those of rank > 10 are marked).

    Args:
        scores: (I, T), higher is better.
        unknown: gives the unknown words of a text.
    """
    asked = np.flatnonzero(matches.counts()[1])
    lost = relevant_ranks(np.asarray(scores).T, matches.T).best > within
    words = [unknown(texts[text]) for text in asked.tolist()]
    strange = np.array([bool(of_text) for of_text in words], dtype=bool)
    counts = Counter(w for of_text, fails in zip(words, lost, strict=True) if fails for w in dict.fromkeys(of_text))
    return UnknownFailures(
        int(lost.sum()), int((lost & strange).sum()), int((~lost).sum()), int((~lost & strange).sum()), within,
        tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
    )  # fmt: skip


# Words of a query that a matcher has never seen.


class UnknownWords:
    """Tells them; none for a matcher that reads pieces of words."""

    def __init__(self, text: TextInput) -> None:
        self._knows = text.is_known

    def __call__(self, text: str) -> list[str]:
        """In the order of the text."""
        return [word for word in tokenise(text) if not self._knows(word)]

    def of_all(self, texts: Iterable[str]) -> list[str]:
        """Those of several texts, each once."""
        return list(dict.fromkeys(word for text in texts for word in self(text)))

    def lost(self, text: str) -> bool:
        """Whether a text has no word that says what is meant and is known."""
        return not without_stop_words(word for word in tokenise(text) if self._knows(word))


# How much two bodies of text share their words.


@dataclass(frozen=True)
class WordOverlap:
    """Two vocabularies."""

    captions: int
    """words that captions use"""
    said: int
    """words of pseudo-sentences"""
    shared: int

    @property
    def iou(self) -> float:
        """Intersection over union of the words, in percent."""
        return 100 * self.shared / max(1, self.captions + self.said - self.shared)

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {**asdict(self), "iou": self.iou}


def word_overlap(captions: Iterable[str], said: Iterable[str], min_count: int = 4) -> WordOverlap:
    """The vocabulary of captions beside that of pseudo-sentences (a3vse, Sec. 4.6).

    Args:
        min_count: rarer words do not count, on either side; the paper's is 4.
    """
    one, other = (set(Vocabulary.build(texts, min_count).words) - set(SPECIAL_WORDS) for texts in (captions, said))
    return WordOverlap(len(one), len(other), len(one & other))


# Captions found by the words that they share with what is said of images: how good pseudo-sentences are.

Floats = NDArray[np.float64]


def word_scores(said: Sequence[str], texts: Sequence[str]) -> Floats:
    """Cosines (I, T) of the words of sentences and texts, each word weighted by how few sentences have it.

    The weight of a word that n of N sentences have is log((N + 1) / (n + 1)). Words that no sentence has do not count.
    """
    known = KnownWords(tuple(sorted({word for sentence in said for word in tokenise(sentence)})))
    sides = [(known.counts(strings) > 0).astype(np.float64) for strings in (said, texts)]
    weights = np.log((len(said) + 1) / (np.asarray(sides[0].sum(axis=0)).ravel() + 1))
    unit = []
    for side in sides:
        weighted = side @ sp.diags_array(weights)
        length = np.sqrt(np.asarray(weighted.power(2).sum(axis=1)).ravel())
        unit.append(sp.diags_array(1 / np.maximum(length, 1e-12)) @ weighted)
    return np.asarray((unit[0] @ unit[1].T).toarray(), dtype=np.float64)


def found_by_words(said: Sequence[str], texts: Sequence[str], matches: Matches) -> Retrieval:
    """Recalls both ways, by shared words alone."""
    return measure_retrieval(word_scores(said, texts), matches)
