"""What scan and bfan share: parts at length one, and scores by attention between them."""

from __future__ import annotations

import torch
from torch import Tensor

from calligram.models.fragment_tiles import score_in_tiles, some_in_tiles
from calligram.models.fragments import Attention, Crossing, Parts, attention
from calligram.models.matcher import Encoded, Matcher, unit
from calligram.models.part_sides import PartSettings, image_branch, image_parts, text_branch, text_parts


class FragmentMatcher(Matcher):
    """Regions or cells and words at length one; an item's vector is the mean of its parts, for a first search."""

    reranks = True
    scores_vectors = False
    scores_parts = True
    settings: PartSettings

    def __init__(self, settings: PartSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image, self.project = image_branch(settings)
        self.text = text_branch(settings)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Features (N, R, D) or (N, D), or pixels (N, 3, H, W) for a backbone."""
        features, real = image_parts(self.image, images, mask)
        return _encoded(self.project(features), real)

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Word numbers (N, W), or states (N, W, D)."""
        mask = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device) if mask is None else mask
        return _encoded(text_parts(self.text, texts, mask), mask)

    @property
    def attention(self) -> Attention:
        """How parts look at each other."""
        raise NotImplementedError

    def crossed(self, crossing: Crossing) -> Tensor:
        """Scores (I, T), or (N, 1) of aligned pairs, from products of regions (context) and words (query)."""
        raise NotImplementedError

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """All pairs, in tiles."""
        return score_in_tiles(images, texts, lambda one, two: self.crossed(Crossing.of(one, two)))

    def score_some(self, images: Encoded, texts: Encoded, rows: Tensor, columns: Tensor) -> Tensor:
        """Some pairs, in tiles."""
        return some_in_tiles(
            images,
            texts,
            (rows, columns),
            lambda one, two: self.crossed(Crossing.of(one, two, aligned=True)).squeeze(1),
            prepare=Parts.of,
            # Aligned pairs are a copy of their parts each, and of the image's Gram matrix.
            numbers=lambda regions, words: (regions + words) * (regions + words + images.vectors.shape[1] // 6),
        )

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Aligned pairs."""
        each = torch.arange(len(images.vectors), device=images.vectors.device)
        return self.score_some(images, texts, each, each)

    def attended(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Where aligned pairs look, each by the attention of the score."""
        crossing = Crossing.of(Parts.of(images), Parts.of(texts), aligned=True)
        words = _shares(attention(crossing, self.attention).squeeze(-1))
        regions = _shares(attention(crossing.turned(), self.attention).squeeze(-1)).mT
        real = crossing.context.mask.unsqueeze(2) & crossing.query.mask.unsqueeze(1)
        return words * real, regions * real


def _shares(weights: Tensor) -> Tensor:
    """Weights (N, S, Q) that sum to one over the context."""
    return weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def _encoded(parts: Tensor, real: Tensor) -> Encoded:
    parts = unit(parts) * real.unsqueeze(-1)
    return Encoded(parts.sum(1) / real.sum(1, keepdim=True).clamp(min=1), parts, real)
