"""The embedding network and the similarity network of the two-branch paper, for sentences and for phrases."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.images.backbones import Backbone
from calligram.features.images.pixels import mean_over_views
from calligram.features.images.stored_input import real_parts
from calligram.features.texts.text_encoder import TextEncoder
from calligram.models.layers.networks import RecurrentText
from calligram.models.layers.part_towers import POOLINGS, pool_states
from calligram.models.matcher import EmbeddingMatcher, Encoded, Matcher
from calligram.vectors import unit_length


class Branch(nn.Module):
    """FC, ReLU, dropout, ..., FC, batch norm, length one (two-branch, Sec. 3.2.1); a single layer is FC, length one.

    The linear variant keeps "only the first layers, immediately followed by L2 normalization" (Sec. 4.2), so it has
    neither ReLU nor batch norm.
    """

    def __init__(
        self, features: int, hidden: int, dim: int, *, layers: int = 2, dropout: float = 0.0, statistics: str
    ) -> None:
        """Args:
        layers: number of FC layers, 1 to 3; all but the last have ``hidden`` outputs.
        dropout: share of entries set to zero after every ReLU in training.
        statistics: statistics of batch norm outside training: ``training`` for the running averages, or ``batch`` for
            the mean and variance of the items that are encoded together, as in the paper's tables (footnote 3).
        """
        super().__init__()
        if not 1 <= layers <= 3:
            raise ValueError(f"the number of layers of a branch must be from 1 to 3, got {layers}")
        sizes = [features, *[hidden] * (layers - 1), dim]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        self.norm = BranchNorm(dim, statistics) if layers > 1 else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        """Map (N, features) to (N, dim) at length one."""
        *first, last = self.layers
        for layer in first:
            features = self.dropout(layer(features).relu())
        return unit_length(self.norm(last(features)))


class BranchNorm(nn.BatchNorm1d):
    """Batch norm that can use the statistics of the batch also after training (two-branch, footnote 3).

    With ``statistics="batch"`` the encoding of an item depends on the other items of the batch, so such a matcher
    cannot answer a single query. ``models.catalog`` sets it to ``training``. Running averages are kept in both cases.
    """

    def __init__(self, dim: int, statistics: str = "training") -> None:
        super().__init__(dim)
        if statistics not in ("training", "batch"):
            raise ValueError(f"statistics must be training or batch, got {statistics!r}")
        self.statistics = statistics

    def forward(self, vectors: Tensor) -> Tensor:
        """Normalise (N, dim)."""
        if self.training or self.statistics == "training":
            return super().forward(vectors)
        if len(vectors) < 2:
            raise UserError(
                "this matcher uses the batch norm statistics of the encoded items (statistics=batch), and one item "
                "has none; encode at least two, or train with statistics=training"
            )
        return F.batch_norm(vectors, None, None, self.weight, self.bias, training=True, eps=self.eps)


class TextVectors(nn.Module):
    """No text network: the inputs are vectors."""

    def forward(self, texts: Tensor, mask: Tensor | None) -> Tensor:
        """Return (N, D) unchanged."""
        del mask
        return texts


class PooledStates(nn.Module):
    """Pooled word states, from the input or from a trained text encoder."""

    def __init__(self, encoder: TextEncoder | None, pooling: str) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be mean, cls or max, got {pooling!r}")
        self.encoder, self.pooling = encoder, pooling

    def forward(self, texts: Tensor, mask: Tensor) -> Tensor:
        """Map states (N, W, D), or word piece indices (N, W), and their mask to (N, D)."""
        return pool_states(texts if self.encoder is None else self.encoder(texts, mask), mask, self.pooling)


def gru_text(words: int, word_dim: int, dim: int, *, bidirectional: bool, pooling: str) -> RecurrentText:
    """Word embeddings and a GRU with states of size ``dim``."""
    return RecurrentText(words, word_dim, dim, dim, bidirectional=bidirectional, pooling=pooling, dropout=0.0)


@dataclass(frozen=True)
class TwoBranchSettings:
    """Settings of both branches; the sizes are the paper's for sentences (two-branch, Sec. 5.3)."""

    image_dim: int
    """input size of the image branch"""
    text_dim: int
    """input size of the text branch; the GRU's state size if there is a GRU"""
    hidden: int = 2048
    """size of the hidden layers of a branch; 1024 for phrases (Sec. 4.3)"""
    dim: int = 512
    """size of the joint space"""
    layers: int = 2
    """FC layers of each branch, 1 to 3; 1 is the linear variant"""
    text_layers: int = 0
    """FC layers of the text branch; 0 for the same number as ``layers``"""
    dropout: float = 0.5
    """dropout after each ReLU; 0 for phrases (Sec. 5.3)"""
    statistics: Literal["training", "batch"] = "training"
    """statistics of batch norm outside training"""
    image: Literal["features", "backbone"] = "features"
    """stored features, or a backbone that is trained"""
    backbone: str = ""
    """architecture of the backbone, from ``Backbone.description``"""
    text: Literal["vectors", "states", "gru", "bert"] = "vectors"
    """stored vectors, states of a frozen encoder, word embeddings and a GRU, or a text encoder that is trained"""
    encoder: str = ""
    """architecture of the text encoder, from ``TextEncoder.description``"""
    vocabulary: int = 0
    """number of words of the embedding table"""
    word_dim: int = 300
    bidirectional: bool = False
    pooling: Literal["last", "mean", "max", "cls"] = "mean"
    """how the states of a text become one vector"""


@dataclass(frozen=True)
class TwoBranchSimilaritySettings(TwoBranchSettings):
    """Settings of the branches and of the layers after the element-wise product."""

    heads: int = 3
    """FC layers after the product, 1 to 3; three gave the best results (Sec. 3.3)"""


class TwoBranchMatcher(Matcher):
    """Two branches with unit vectors as output; gradients also reach the trained networks below them."""

    settings: TwoBranchSettings

    def __init__(self, settings: TwoBranchSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image = Backbone.from_description(settings.backbone) if settings.image == "backbone" else nn.Identity()
        self.text = _text_network(settings)
        self.image_branch = _branch(settings, settings.image_dim, settings.layers)
        self.text_branch = _branch(settings, settings.text_dim, settings.text_layers or settings.layers)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode features (N, D), or (N, R, D) whose real parts are averaged, or pixels (N, 3, H, W), or views
        of them.
        """
        if self.settings.image == "backbone":
            images = mean_over_views(lambda pixels: self.image(pixels).vectors, images)
        elif images.ndim == 3:
            images = pool_states(images, real_parts(images) if mask is None else mask, "mean")
        return Encoded(self.image_branch(images))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode vectors (N, D), states (N, W, D) or word indices (N, W)."""
        if mask is None:
            mask = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device)
        return Encoded(self.text_branch(self.text(texts, mask)))


class TwoBranchEmbedding(TwoBranchMatcher, EmbeddingMatcher):
    """Minus the Euclidean distance d(x, y) of unit vectors in the joint space (two-branch, Sec. 3.2)."""

    reranks = False
    scores_distance = True

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score aligned vectors."""
        return -distance_from_cosine((unit_length(images.vectors) * unit_length(texts.vectors)).sum(-1))

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score all pairs, by one matrix product."""
        return -distance_from_cosine(unit_length(images.vectors) @ unit_length(texts.vectors).T)


class TwoBranchSimilarity(TwoBranchMatcher):
    """Score by FC layers over the element-wise product of both branches (two-branch, Sec. 3.3)."""

    reranks = True
    settings: TwoBranchSimilaritySettings

    def __init__(self, settings: TwoBranchSimilaritySettings) -> None:
        super().__init__(settings)
        if not 1 <= settings.heads <= 3:
            raise ValueError(f"the number of layers after the product must be from 1 to 3, got {settings.heads}")
        # The paper's three layers are 512 x 512, 512 x 256 and 256 x 1; fewer layers leave out the first ones.
        inner = [settings.dim, max(1, settings.dim // 2)][3 - settings.heads :] if settings.heads > 1 else []
        sizes = [settings.dim, *inner, 1]
        self.head = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """The prediction p of Eq. 7 for aligned pairs: positive means match."""
        fused = images.vectors * texts.vectors
        *first, last = self.head
        for layer in first:
            fused = layer(fused).relu()
        return last(fused).squeeze(-1).float()  # type: ignore[no-any-return]


def distance_from_cosine(cosines: Tensor) -> Tensor:
    """Euclidean distance of unit vectors, from their cosine.

    The distance is kept above zero, where the gradient of the square root is infinite.
    """
    return (2 - 2 * cosines).clamp(min=1e-8).sqrt()


def _branch(settings: TwoBranchSettings, features: int, layers: int) -> Branch:
    return Branch(
        features, settings.hidden, settings.dim, layers=layers, dropout=settings.dropout, statistics=settings.statistics
    )


def _text_network(settings: TwoBranchSettings) -> nn.Module:
    if settings.text == "gru":
        return gru_text(
            settings.vocabulary,
            settings.word_dim,
            settings.text_dim,
            bidirectional=settings.bidirectional,
            pooling=settings.pooling,
        )
    if settings.text in ("states", "bert"):
        encoder = TextEncoder.from_description(settings.encoder) if settings.text == "bert" else None
        return PooledStates(encoder, settings.pooling)
    return TextVectors()
