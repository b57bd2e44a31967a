"""BFAN: attention both ways between regions and words, on the relevant ones alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from calligram.models.layers.cross_attention import AttentionSettings, Norm, PartProducts, similarity
from calligram.models.layers.part_towers import PartSettings
from calligram.models.matcher import QuerySide
from calligram.models.scan import FragmentMatcher


@dataclass(frozen=True)
class BFANSettings(PartSettings):
    """Both sides, and the focus."""

    focal: Literal["equal", "prob"] = "equal"
    """parts are relevant that get more than the mean attention, or more than others weighed by their confidence"""
    norm: Norm = "clipped_l2norm"
    """of products, over what looks"""
    temperature: float = 20.0
    """factor on them before the softmax"""


class BFAN(FragmentMatcher):
    """The mean relevance of words to the regions they focus on, plus that of regions to words: -2 .. 2 (bfan).

    Departs from its release where attentions are all alike or of one part: all are kept, where it divides zero by zero.
    """

    settings: BFANSettings

    @property
    def attention(self) -> AttentionSettings:
        """Over the relevant parts."""
        return AttentionSettings(self.settings.norm, self.settings.temperature, self.settings.focal)

    @property
    def attends(self) -> frozenset[QuerySide]:
        """Both sides."""
        return frozenset(("words", "regions"))

    def score_products(self, crossing: PartProducts) -> Tensor:
        """Both directions, from the same products."""
        how = self.attention
        words, regions = similarity(crossing, how, "mean"), similarity(crossing.transposed(), how, "mean")
        return words + (regions if crossing.aligned else regions.T)
