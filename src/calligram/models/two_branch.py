"""The embedding and the similarity network of the two-branch paper, for sentences and phrases alike."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from calligram.features.backbones import Backbone
from calligram.features.pixels import with_views
from calligram.features.stored import real_parts
from calligram.features.text_encoder import TextEncoder
from calligram.models.branches import Branch, GivenVectors, WordStates, recurrent
from calligram.models.matcher import EmbeddingMatcher, Encoded, Matcher, unit
from calligram.models.text_encoders import pooled


@dataclass(frozen=True)
class TwoBranchSettings:
    """Shape of both branches; the sizes are the paper's for sentences (two-branch, Sec. 5.3)."""

    image_dim: int
    """size of what the image branch is fed"""
    text_dim: int
    """size of what the text branch is fed; the GRU's state where there is one"""
    hidden: int = 2048
    """size between the layers of a branch; 1024 for phrases (Sec. 4.3)"""
    dim: int = 512
    """size of the joint space"""
    layers: int = 2
    """FC layers of each branch, 1 to 3; 1 is the linear variant"""
    text_layers: int = 0
    """FC layers of the text branch where it has another number; 0 for the same"""
    dropout: float = 0.5
    """after each ReLU; 0 for phrases (Sec. 5.3)"""
    statistics: Literal["training", "batch"] = "training"
    """of batch norm outside training"""
    image: Literal["features", "backbone"] = "features"
    """stored features, or a backbone that is trained along"""
    backbone: str = ""
    """architecture of the backbone, as ``Backbone.description`` gives it"""
    text: Literal["vectors", "states", "gru", "bert"] = "vectors"
    """stored vectors, a frozen encoder's states, a word table and GRU, or an encoder that is trained along"""
    encoder: str = ""
    """architecture of the text encoder, as ``TextEncoder.description`` gives it"""
    vocabulary: int = 0
    """words of the GRU's table"""
    word_dim: int = 300
    bidirectional: bool = False
    pooling: Literal["last", "mean", "max", "cls"] = "mean"
    """how the states of a text become its vector"""


@dataclass(frozen=True)
class TwoBranchSimilaritySettings(TwoBranchSettings):
    """The same with layers after the element-wise product."""

    heads: int = 3
    """FC layers after the product, 1 to 3; three gave the best results (Sec. 3.3)"""


class TwoBranches(Matcher):
    """Two branches that give unit vectors; gradients go on into the networks that feed them, where there are any."""

    settings: TwoBranchSettings

    def __init__(self, settings: TwoBranchSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image = Backbone.from_description(settings.backbone) if settings.image == "backbone" else nn.Identity()
        self.text = _text_network(settings)
        self.image_branch = _branch(settings, settings.image_dim, settings.layers)
        self.text_branch = _branch(settings, settings.text_dim, settings.text_layers or settings.layers)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Features (N, D), or (N, R, D) whose real parts are averaged; or pixels (N, 3, H, W), or views of them."""
        if self.settings.image == "backbone":
            images = with_views(lambda pixels: self.image(pixels).vectors, images)
        elif images.ndim == 3:
            images = pooled(images, real_parts(images) if mask is None else mask, "mean")
        return Encoded(self.image_branch(images))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Vectors (N, D), states (N, W, D) or numbers of words (N, W)."""
        if mask is None:
            mask = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device)
        return Encoded(self.text_branch(self.text(texts, mask)))


class TwoBranchEmbedding(TwoBranches, EmbeddingMatcher):
    """Minus the Euclidean distance d(x, y) of unit vectors in the joint space (two-branch, Sec. 3.2)."""

    reranks = False

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Of aligned vectors."""
        return -distance_of((unit(images.vectors) * unit(texts.vectors)).sum(-1))

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Of all vectors, by one matrix product."""
        return -distance_of(unit(images.vectors) @ unit(texts.vectors).T)


class TwoBranchSimilarity(TwoBranches):
    """A score by FC layers over the element-wise product of both branches (two-branch, Sec. 3.3)."""

    reranks = True
    settings: TwoBranchSimilaritySettings

    def __init__(self, settings: TwoBranchSimilaritySettings) -> None:
        super().__init__(settings)
        if not 1 <= settings.heads <= 3:
            raise ValueError(f"1 to 3 layers follow the product, got {settings.heads}")
        # The paper's three are 512 x 512, 512 x 256 and 256 x 1; fewer leave out the first.
        inner = [settings.dim, max(1, settings.dim // 2)][3 - settings.heads :] if settings.heads > 1 else []
        sizes = [settings.dim, *inner, 1]
        self.head = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """The prediction p of Eq. 7 for aligned pairs: above zero where they are taken to match."""
        fused = images.vectors * texts.vectors
        *first, last = self.head
        for layer in first:
            fused = layer(fused).relu()
        return last(fused).squeeze(-1).float()  # type: ignore[no-any-return]


def distance_of(cosines: Tensor) -> Tensor:
    """Euclidean distance of unit vectors from their cosine.

    Kept off zero, where the root has no finite slope: vectors that coincide pull no further.
    """
    return (2 - 2 * cosines).clamp(min=1e-8).sqrt()


def _branch(settings: TwoBranchSettings, features: int, layers: int) -> Branch:
    return Branch(
        features, settings.hidden, settings.dim, layers=layers, dropout=settings.dropout, statistics=settings.statistics
    )


def _text_network(settings: TwoBranchSettings) -> nn.Module:
    if settings.text == "gru":
        return recurrent(
            settings.vocabulary,
            settings.word_dim,
            settings.text_dim,
            bidirectional=settings.bidirectional,
            pooling=settings.pooling,
        )
    if settings.text in ("states", "bert"):
        encoder = TextEncoder.from_description(settings.encoder) if settings.text == "bert" else None
        return WordStates(encoder, settings.pooling)
    return GivenVectors()
