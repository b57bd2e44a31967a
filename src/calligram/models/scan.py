"""SCAN: stacked cross attention between regions and words, one way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calligram.models.layers.cross_attention import (
    Aggregation,
    AttentionSettings,
    Norm,
    PartProducts,
    Parts,
    attention_weights,
    similarity,
)
from calligram.models.layers.part_towers import PartSettings, image_parts, image_tower, text_parts, text_tower
from calligram.models.layers.score_tiles import score_in_tiles, score_some_in_tiles
from calligram.models.matcher import Encoded, Matcher, QuerySide, unit

# What scan and bfan share: parts at length one, and scores by attention between them.


class FragmentMatcher(Matcher):
    """Regions or cells and words at length one; an item's vector is the mean of its parts, for a first search."""

    reranks = True
    scores_vectors = False
    scores_parts = True
    settings: PartSettings

    def __init__(self, settings: PartSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image, self.project = image_tower(settings)
        self.text = text_tower(settings)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Features (N, R, D) or (N, D), or pixels (N, 3, H, W) for a backbone."""
        features, real = image_parts(self.image, images, mask)
        return _encode_parts(self.project(features), real)

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Word numbers (N, W), or states (N, W, D)."""
        mask = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device) if mask is None else mask
        return _encode_parts(text_parts(self.text, texts, mask), mask)

    @property
    def attention(self) -> AttentionSettings:
        """How parts look at each other."""
        raise NotImplementedError

    def score_products(self, crossing: PartProducts) -> Tensor:
        """Scores (I, T), or (N, 1) of aligned pairs, from products of regions (context) and words (query)."""
        raise NotImplementedError

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """All pairs, in tiles."""
        return score_in_tiles(images, texts, lambda one, two: self.score_products(PartProducts.of(one, two)))

    def score_some(self, images: Encoded, texts: Encoded, rows: Tensor, columns: Tensor) -> Tensor:
        """Some pairs, in tiles."""
        return score_some_in_tiles(
            images,
            texts,
            (rows, columns),
            lambda one, two: self.score_products(PartProducts.of(one, two, aligned=True)).squeeze(1),
            prepare=Parts.of,
            # Aligned pairs are a copy of their parts each, and of the image's Gram matrix.
            pair_products=lambda regions, words: (regions + words) * (regions + words + images.vectors.shape[1] // 6),
        )

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Aligned pairs."""
        each = torch.arange(len(images.vectors), device=images.vectors.device)
        return self.score_some(images, texts, each, each)

    def attention_weights(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Where aligned pairs look, each by the attention of the score."""
        crossing = PartProducts.of(Parts.of(images), Parts.of(texts), aligned=True)
        words = _sum_to_one(attention_weights(crossing, self.attention).squeeze(-1))
        regions = _sum_to_one(attention_weights(crossing.transposed(), self.attention).squeeze(-1)).mT
        real = crossing.context.mask.unsqueeze(2) & crossing.query.mask.unsqueeze(1)
        return words * real, regions * real


def _sum_to_one(weights: Tensor) -> Tensor:
    """Weights (N, S, Q) that sum to one over the context."""
    return weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def _encode_parts(parts: Tensor, real: Tensor) -> Encoded:
    parts = unit(parts) * real.unsqueeze(-1)
    return Encoded(parts.sum(1) / real.sum(1, keepdim=True).clamp(min=1), parts, real)


@dataclass(frozen=True)
class SCANSettings(PartSettings):
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


class SCAN(FragmentMatcher):
    """The relevance of each word to the regions it attends to, or of each region to words, put together (scan).

    Departs from its paper as its release does: products are clipped with a slope of 0.1 below zero. Departs from the
    release in two norms, which it names and leaves undefined.
    """

    settings: SCANSettings

    @property
    def attention(self) -> AttentionSettings:
        """Over all parts."""
        return AttentionSettings(self.settings.norm, self.settings.temperature)

    @property
    def attends(self) -> frozenset[QuerySide]:
        """One side."""
        return frozenset(("words",) if self.settings.direction == "t2i" else ("regions",))

    def score_products(self, crossing: PartProducts) -> Tensor:
        """One direction."""
        own, how = self.settings, self.attention
        if own.direction == "t2i":
            return similarity(crossing, how, own.aggregation, own.sharpness)
        found = similarity(crossing.transposed(), how, own.aggregation, own.sharpness)
        return found if crossing.aligned else found.T
