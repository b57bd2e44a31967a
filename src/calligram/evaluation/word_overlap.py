"""How much two bodies of text share their words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from calligram.features.vocabulary import SPECIAL, Vocabulary


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
    one, other = (set(Vocabulary.build(texts, min_count).words) - set(SPECIAL) for texts in (captions, said))
    return WordOverlap(len(one), len(other), len(one & other))
