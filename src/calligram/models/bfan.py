"""BFAN: attention in both directions between regions and words, on relevant parts only."""

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
    """Settings of both towers and of the focal attention."""

    focal: Literal["equal", "prob"] = "equal"
    """which parts are relevant: more than the mean attention, or more than the confidence-weighted others"""
    norm: Norm = "clipped_l2norm"
    """norm of the products over the query parts"""
    temperature: float = 20.0
    """factor on the normalised products before the softmax"""


class BFAN(FragmentMatcher):
    """Mean relevance of words to their focal regions, plus that of regions to words, in -2 .. 2 (bfan).

    Departs from its release when all attention weights are equal or there is one part: all parts are kept, where the
    release divides zero by zero.
    """

    settings: BFANSettings

    @property
    def attention(self) -> AttentionSettings:
        """Attention over the relevant parts."""
        return AttentionSettings(self.settings.norm, self.settings.temperature, self.settings.focal)

    @property
    def attends(self) -> frozenset[QuerySide]:
        """Words and regions."""
        return frozenset(("words", "regions"))

    def score_products(self, products: PartProducts) -> Tensor:
        """Score both directions from the same products."""
        attention = self.attention
        words, regions = similarity(products, attention, "mean"), similarity(products.transposed(), attention, "mean")
        return words + (regions if products.aligned else regions.T)
