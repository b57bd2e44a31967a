"""How many failures are of texts with words that the matcher has never seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.evaluation.ranking import relevant_ranks


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
