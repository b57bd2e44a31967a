"""Tag matching: class probabilities of an image against the concepts in a text. A baseline without training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calligram.features.images.stored_input import feature_vectors
from calligram.models.matcher import Encoded, Matcher, Scoring


@dataclass(frozen=True)
class TagSettings:
    """Sizes and threshold."""

    image_dim: int
    text_dim: int
    """number of concepts"""
    least: float = 0.0
    """smaller probabilities are set to zero"""


class TagMatcher(Matcher):
    """Sum of the image's probabilities of the concepts that the text names (a3vse, Sec. 4.2).

    r = s_g' q: s_g are the concept probabilities of the image, q is one for the concepts of the text and else zero.
    The classifier is the pretrained classification layer of the backbone.
    """

    scoring = Scoring("other", 0.0, 1.0)
    settings: TagSettings

    def __init__(self, settings: TagSettings) -> None:
        super().__init__()
        self.settings = settings
        self.classifier = nn.Linear(settings.image_dim, settings.text_dim)

    @property
    def vector_size(self) -> int:
        """Number of concepts."""
        return self.settings.text_dim

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Map features (N, D), or (N, R, D) whose real parts are averaged, to s_g (N, concepts)."""
        probabilities = torch.softmax(self.classifier(feature_vectors(images, mask)).float(), dim=1)
        return Encoded(torch.where(probabilities >= self.settings.least, probabilities, 0.0))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Return the concept indicators q (N, concepts) unchanged."""
        del mask
        return Encoded(texts)

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score aligned pairs: r (N,)."""
        return (images.vectors * texts.vectors).sum(1)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score every pair: r (I, T)."""
        return images.vectors @ texts.vectors.T
