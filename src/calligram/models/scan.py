"""SCAN: stacked cross attention between regions and words, one way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from calligram.models.fragment_matcher import FragmentMatcher
from calligram.models.fragments import Aggregation, Attention, Crossing, Norm, similarity
from calligram.models.matcher import Side
from calligram.models.part_sides import PartSettings


@dataclass(frozen=True)
class ScanSettings(PartSettings):
    """Both sides, and how they look at each other; the defaults are those of t-i LSE."""

    direction: Literal["t2i", "i2t"] = "t2i"
    """each word looks at the regions, or each region at the words"""
    norm: Norm = "clipped_l2norm"
    """of products, over what looks"""
    temperature: float = 9.0
    """factor on them before the softmax"""
    aggregation: Aggregation = "lse"
    """how the relevances of words, or regions, become a score"""
    sharpness: float = 6.0
    """of LogSumExp"""


class Scan(FragmentMatcher):
    """The relevance of each word to the regions it attends to, or of each region to words, put together (scan).

    Departs from its paper as its release does: products are clipped with a slope of 0.1 below zero. Departs from the
    release in two norms, which it names and leaves undefined.
    """

    settings: ScanSettings

    @property
    def attention(self) -> Attention:
        """Over all parts."""
        return Attention(self.settings.norm, self.settings.temperature)

    @property
    def attends(self) -> frozenset[Side]:
        """One side."""
        return frozenset(("words",) if self.settings.direction == "t2i" else ("regions",))

    def crossed(self, crossing: Crossing) -> Tensor:
        """One direction."""
        own, how = self.settings, self.attention
        if own.direction == "t2i":
            return similarity(crossing, how, own.aggregation, own.sharpness)
        found = similarity(crossing.turned(), how, own.aggregation, own.sharpness)
        return found if crossing.aligned else found.T
