"""Tag matching: what a classifier sees in an image against the concepts that a text names; nothing is learnt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calligram.features.images.stored_input import real_parts
from calligram.models.layers.part_towers import pool_states
from calligram.models.matcher import Encoded, Matcher


@dataclass(frozen=True)
class TagSettings:
    """Sizes."""

    image_dim: int
    text_dim: int
    """concepts"""
    least: float = 0.0
    """smaller probabilities count as none"""


class TagMatcher(Matcher):
    """Scores r = s_g' q (a3vse, Sec. 4.2): probabilities s_g of an image's concepts, ones q for those of a text.

    The classifier is a layer over the backbone's vector, as it came with it.
    """

    settings: TagSettings

    def __init__(self, settings: TagSettings) -> None:
        super().__init__()
        self.settings = settings
        self.classifier = nn.Linear(settings.image_dim, settings.text_dim)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Features (N, D), or (N, R, D) whose real parts are averaged, to s_g (N, concepts)."""
        if images.ndim == 3:
            images = pool_states(images, real_parts(images) if mask is None else mask, "mean")
        seen = torch.softmax(self.classifier(images).float(), dim=1)
        return Encoded(torch.where(seen >= self.settings.least, seen, 0.0))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """The queries q as they are."""
        del mask
        return Encoded(texts)

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """R of aligned pairs."""
        return (images.vectors * texts.vectors).sum(1)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """R of every pair."""
        return images.vectors @ texts.vectors.T
