"""Matching by words: unknown words of queries, overlap of vocabularies, and retrieval by shared words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.evaluation.recall import relevant_ranks
from calligram.evaluation.retrieval import Retrieval, measure_retrieval
from calligram.features.inputs import TextInput
from calligram.features.texts.vocabulary import SPECIAL_WORDS, Vocabulary
from calligram.features.texts.word_counts import KnownWords
from calligram.text import tokenise, without_stop_words

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class UnknownFailures:
    """Counts of text queries by success and by unknown words."""

    failures: int
    """texts without a matching image among the first ``within`` ranks"""
    failures_unknown: int
    """failures with an unknown word"""
    found: int
    found_unknown: int
    within: int
    """number of first ranks that count as found"""
    words: tuple[tuple[str, int], ...]
    """unknown words of failures with the number of failures, most frequent first"""

    @property
    def failure_rate(self) -> tuple[float, float]:
        """Percent of failures among texts with an unknown word, and among texts without; NaN where there are none."""
        known = (self.failures - self.failures_unknown, self.found - self.found_unknown)
        both = ((self.failures_unknown, self.found_unknown), known)
        rates = [100 * lost / (lost + found) if lost + found else float("nan") for lost, found in both]
        return rates[0], rates[1]

    def as_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return asdict(self)


def unknown_failures(
    scores: NDArray[np.floating],
    matches: Matches,
    texts: tuple[str, ...],
    unknown: Callable[[str], list[str]],
    within: int = 10,
) -> UnknownFailures:
    """Count failures of text-to-image retrieval with out-of-vocabulary words (a3vse, Sec. 4.7: rank > 10 is a failure).

    Args:
        scores: (I, T), higher is better.
        unknown: returns the unknown words of a text.
    """
    queries = np.flatnonzero(matches.counts()[1])
    lost = relevant_ranks(np.asarray(scores).T, matches.T).best > within
    words = [unknown(texts[text]) for text in queries.tolist()]
    strange = np.array([bool(of_text) for of_text in words], dtype=bool)
    counts = Counter(w for of_text, fails in zip(words, lost, strict=True) if fails for w in dict.fromkeys(of_text))
    return UnknownFailures(
        int(lost.sum()), int((lost & strange).sum()), int((~lost).sum()), int((~lost & strange).sum()), within,
        tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
    )  # fmt: skip


class UnknownWords:
    """Finds the words of a query that are not in the vocabulary of a text input; none for inputs of word pieces."""

    def __init__(self, text: TextInput) -> None:
        self._knows = text.is_known

    def __call__(self, text: str) -> list[str]:
        """Return the unknown words in the order of the text."""
        return [word for word in tokenise(text) if not self._knows(word)]

    def of_all(self, texts: Iterable[str]) -> list[str]:
        """Return the unknown words of several texts, each once."""
        return list(dict.fromkeys(word for text in texts for word in self(text)))

    def lost(self, text: str) -> bool:
        """Whether a text has no known word besides stop words."""
        return not without_stop_words(word for word in tokenise(text) if self._knows(word))


@dataclass(frozen=True)
class WordOverlap:
    """Sizes of two vocabularies and of their intersection."""

    captions: int
    """number of words of captions"""
    pseudo: int
    """number of words of pseudo-sentences"""
    shared: int

    @property
    def iou(self) -> float:
        """Intersection over union of the words, in percent."""
        return 100 * self.shared / max(1, self.captions + self.pseudo - self.shared)

    def as_dict(self) -> dict[str, float]:
        """Return JSON values."""
        return {"captions": self.captions, "said": self.pseudo, "shared": self.shared, "iou": self.iou}


def word_overlap(captions: Iterable[str], sentences: Iterable[str], min_count: int = 4) -> WordOverlap:
    """Compare the vocabulary of captions with that of pseudo-sentences (a3vse, Sec. 4.6).

    Args:
        min_count: rarer words are left out of both; 4 in the paper.
    """
    one, other = (set(Vocabulary.build(texts, min_count).words) - set(SPECIAL_WORDS) for texts in (captions, sentences))
    return WordOverlap(len(one), len(other), len(one & other))


def word_scores(sentences: Sequence[str], texts: Sequence[str]) -> Floats:
    """Return the cosines (I, T) of the word vectors of sentences and texts, with inverse document frequency weights.

    The weight of a word in n of N sentences is log((N + 1) / (n + 1)). Words that are in no sentence are left out.
    """
    from scipy.sparse import diags_array

    known = KnownWords(tuple(sorted({word for sentence in sentences for word in tokenise(sentence)})))
    sides = [(known.counts(strings) > 0).astype(np.float64) for strings in (sentences, texts)]
    weights = np.log((len(sentences) + 1) / (np.asarray(sides[0].sum(axis=0)).ravel() + 1))
    unit = []
    for side in sides:
        weighted = side @ diags_array(weights)
        length = np.sqrt(np.asarray(weighted.power(2).sum(axis=1)).ravel())
        unit.append(diags_array(1 / np.maximum(length, 1e-12)) @ weighted)
    return np.asarray((unit[0] @ unit[1].T).toarray(), dtype=np.float64)


def retrieval_by_words(sentences: Sequence[str], texts: Sequence[str], matches: Matches) -> Retrieval:
    """Return retrieval in both directions by shared words only."""
    return measure_retrieval(word_scores(sentences, texts), matches)
