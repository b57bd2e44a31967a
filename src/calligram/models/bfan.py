"""BFAN: attention in both directions between regions and words, on relevant parts only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from calligram.models.layers.cross_attention import AttentionSettings, Direction, Norm
from calligram.models.layers.towers import TwoTowerSettings
from calligram.models.matcher import QuerySide, Scoring
from calligram.models.scan import FragmentMatcher


@dataclass(frozen=True)
class BFANSettings(TwoTowerSettings):
    """Settings of both towers and of the focal attention."""

    regions = True
    reranks = True
    scores_vectors = False

    focal: Annotated[
        Literal["equal", "prob"],
        "relevant parts: attention above the mean (equal), or above a mean weighted by confidence (prob)",
    ] = "equal"
    norm: Annotated[Norm, "normalization of the products of regions and words, over the attending items", "rare"] = (
        "clipped_l2norm"
    )
    temperature: Annotated[float, "factor on attention scores before the softmax", (0, 10000), "rare"] = 20.0


class BFAN(FragmentMatcher):
    """Mean relevance of words to their focal regions, plus that of regions to words, in -2 .. 2 (bfan).

    Departs from its release when all attention weights are equal or there is one part: all parts are kept, where the
    release divides zero by zero.
    """

    scoring = Scoring("attention", -2.0, 2.0, vectors=False, parts=True)
    settings: BFANSettings

    @property
    def attention(self) -> AttentionSettings:
        """Attention over the relevant parts."""
        return AttentionSettings(self.settings.norm, self.settings.temperature, self.settings.focal)

    @property
    def attends(self) -> frozenset[QuerySide]:
        """Words and regions."""
        return frozenset(("words", "regions"))

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Both directions."""
        return Direction(True, "mean"), Direction(False, "mean")
