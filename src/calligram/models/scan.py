"""SCAN: stacked cross attention between regions and words in one direction, and the base class of SCAN and BFAN."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from calligram.models.layers.cross_attention import (
    Aggregation,
    AttentionSettings,
    Direction,
    Norm,
    PartProducts,
    Parts,
    attention_weights,
    fused_kernel_applies,
    score_grid,
    score_products,
)
from calligram.models.layers.score_tiles import score_in_tiles, score_some_in_tiles
from calligram.models.layers.towers import TwoTowerSettings, image_tower, joint_projection, text_tower
from calligram.models.matcher import Encoded, Matcher, QuerySide, Scoring
from calligram.vectors import unit_length


class FragmentMatcher(Matcher):
    """Regions or cells and words at length one, scored by cross attention.

    The vector of an item is the mean of its parts. It serves the first stage of a search only.
    """

    settings: TwoTowerSettings

    def __init__(self, settings: TwoTowerSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image = image_tower(settings.image)
        self.project = joint_projection(self.image.size, settings.dim)
        self.text = text_tower(settings.text, settings.dim)

    @property
    def part_size(self) -> int:
        """Size of the regions."""
        return self.settings.dim

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode features (N, R, D) or (N, D), or pixels (N, 3, H, W)."""
        features, real = self.image.parts(images, mask)
        return _encode_parts(self.project(features), real)

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode word indices (N, W), states (N, W, D) or vectors (N, D)."""
        return _encode_parts(*self.text.parts(texts, mask))

    @property
    def attention(self) -> AttentionSettings:
        """Settings of the attention between parts."""
        raise NotImplementedError

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Directions of attention; the score is the sum over them."""
        raise NotImplementedError

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score all pairs, in tiles."""
        attention, directions = self.attention, self.directions
        vectors = [side.vectors.unsqueeze(1) if side.parts is None else side.parts for side in (images, texts)]
        fused = fused_kernel_applies(vectors[0], vectors[1], attention, directions)
        return score_in_tiles(
            images,
            texts,
            lambda one, two: score_grid(one, two, attention, directions),
            # The kernel stores nothing for the backward pass.
            max_bytes=sys.maxsize if fused else None,
        )

    def score_some(self, images: Encoded, texts: Encoded, rows: Tensor, columns: Tensor) -> Tensor:
        """Score selected pairs, in tiles."""
        return score_some_in_tiles(
            images,
            texts,
            (rows, columns),
            lambda one, two: score_products(
                PartProducts.of(one, two, aligned=True), self.attention, self.directions
            ).squeeze(1),
            prepare=Parts.of,
            # Each aligned pair has its own copy of its parts and of the image's Gram matrix.
            pair_products=lambda regions, words: (regions + words) * (regions + words + images.vectors.shape[1] // 6),
        )

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score aligned pairs."""
        each = torch.arange(len(images.vectors), device=images.vectors.device)
        return self.score_some(images, texts, each, each)

    def attention_weights(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Attention weights of aligned pairs in both directions, computed as in the score."""
        products = PartProducts.of(Parts.of(images), Parts.of(texts), aligned=True)
        words = _sum_to_one(attention_weights(products, self.attention).squeeze(-1))
        regions = _sum_to_one(attention_weights(products.transposed(), self.attention).squeeze(-1)).mT
        real = products.context.mask.unsqueeze(2) & products.query.mask.unsqueeze(1)
        return words * real, regions * real


def _sum_to_one(weights: Tensor) -> Tensor:
    """Normalise weights (N, S, Q) to sum to one over the context."""
    return weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def _encode_parts(parts: Tensor, real: Tensor) -> Encoded:
    parts = unit_length(parts) * real.unsqueeze(-1)
    return Encoded(parts.sum(1) / real.sum(1, keepdim=True).clamp(min=1), parts, real)


@dataclass(frozen=True)
class SCANSettings(TwoTowerSettings):
    """Settings of both towers and of the attention; the defaults are those of the release for t-i LSE."""

    regions = True
    reranks = True
    scores_vectors = False

    direction: Annotated[
        Literal["t2i", "i2t"], "direction of attention: words attend to regions (t2i), or regions to words (i2t)"
    ] = "t2i"
    norm: Annotated[Norm, "normalization of the products of regions and words, over the attending items"] = (
        "clipped_l2norm"
    )
    temperature: Annotated[
        float, "factor on attention scores before the softmax; 4 in the release for i2t", (0, 10000)
    ] = 9.0
    aggregation: Annotated[Aggregation, "aggregation of relevances into a score"] = "lse"
    sharpness: Annotated[
        float, "factor of LogSumExp; in the release 5 for i2t, or 20 for i2t on MS-COCO", (0.001, 10000)
    ] = 6.0


class SCAN(FragmentMatcher):
    """Aggregated relevance of each word to the regions it attends to, or of each region to words (scan).

    Departs from its paper as its release does: products are clipped with a slope of 0.1 below zero. Two norms that the
    release names and does not define are defined here.
    """

    settings: SCANSettings

    def __init__(self, settings: SCANSettings) -> None:
        super().__init__(settings)
        # LogSumExp and sum grow with the number of parts, so they have no bound.
        limit = 1.0 if settings.aggregation in ("mean", "max") else math.inf
        self.scoring = Scoring("attention", -limit, limit, vectors=False, parts=True)

    @property
    def attention(self) -> AttentionSettings:
        """Attention over all parts."""
        return AttentionSettings(self.settings.norm, self.settings.temperature)

    @property
    def attends(self) -> frozenset[QuerySide]:
        """Words (t2i) or regions (i2t)."""
        return frozenset(("words",) if self.settings.direction == "t2i" else ("regions",))

    @property
    def directions(self) -> tuple[Direction, ...]:
        """One direction."""
        settings = self.settings
        return (Direction(settings.direction == "t2i", settings.aggregation, settings.sharpness),)
