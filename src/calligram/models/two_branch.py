"""The embedding and the similarity network of the two-branch paper, for sentences and phrases alike."""

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
from calligram.models.matcher import EmbeddingMatcher, Encoded, Matcher, unit

# The branches of two-branch networks, and the networks that may feed them.


class Branch(nn.Module):
    """FC, ReLU, dropout, ..., FC, batch norm, length one (two-branch, Sec. 3.2.1); a single layer is FC, length one.

    The linear variant keeps "only the first layers, immediately followed by L2 normalization" (Sec. 4.2), so it has
    neither ReLU nor batch norm.
    """

    def __init__(
        self, features: int, hidden: int, dim: int, *, layers: int = 2, dropout: float = 0.0, statistics: str
    ) -> None:
        """Args:
        layers: FC layers, 1 to 3; all but the last give ``hidden`` numbers.
        dropout: share of entries set to zero after every ReLU in training.
        statistics: what batch norm uses outside training: ``training``, what it saw there; or ``batch``, the mean and
            variance of what is encoded together, as the paper's tables did (footnote 3).
        """
        super().__init__()
        if not 1 <= layers <= 3:
            raise ValueError(f"a branch has 1 to 3 layers, got {layers}")
        sizes = [features, *[hidden] * (layers - 1), dim]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        self.norm = BranchNorm(dim, statistics) if layers > 1 else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        """(N, features) -> (N, dim) at length one."""
        *first, last = self.layers
        for layer in first:
            features = self.dropout(layer(features).relu())
        return F.normalize(self.norm(last(features)).float(), dim=-1, eps=1e-8)


class BranchNorm(nn.BatchNorm1d):
    """Batch norm that may go on using the statistics of the batch after training (two-branch, footnote 3).

    With ``statistics="batch"`` an item's encoding depends on what it is encoded with, so such a matcher cannot answer
    a single query; ``models.stored`` puts it back to ``training``, whose statistics are kept in either case.
    """

    def __init__(self, dim: int, statistics: str = "training") -> None:
        super().__init__(dim)
        if statistics not in ("training", "batch"):
            raise ValueError(f"statistics must be training or batch, got {statistics!r}")
        self.statistics = statistics

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, dim)."""
        if self.training or self.statistics == "training":
            return super().forward(vectors)
        if len(vectors) < 2:
            raise UserError(
                "this matcher normalises by the statistics of what is encoded together (statistics=batch), and one "
                "item has none; encode at least two, or train with statistics=training"
            )
        return F.batch_norm(vectors, None, None, self.weight, self.bias, training=True, eps=self.eps)


def use_training_statistics(matcher: nn.Module) -> bool:
    """Make batch norm use what it saw in training from now on, so that an item alone is what it is among others.

    Returns:
        Whether anything was changed.
    """
    changed = [m for m in matcher.modules() if isinstance(m, BranchNorm) and m.statistics == "batch"]
    for norm in changed:
        norm.statistics = "training"
    return bool(changed)


class TextVectors(nn.Module):
    """No network: texts are vectors already."""

    def forward(self, texts: Tensor, mask: Tensor | None) -> Tensor:
        """(N, D) as it is."""
        del mask
        return texts


class PooledStates(nn.Module):
    """States of words, given or by an encoder that is trained along, pooled into one vector."""

    def __init__(self, encoder: TextEncoder | None, pooling: str) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be mean, cls or max, got {pooling!r}")
        self.encoder, self.pooling = encoder, pooling

    def forward(self, texts: Tensor, mask: Tensor) -> Tensor:
        """States (N, W, D), or numbers of pieces (N, W), and their mask -> (N, D)."""
        return pool_states(texts if self.encoder is None else self.encoder(texts, mask), mask, self.pooling)


def gru_text(words: int, word_dim: int, dim: int, *, bidirectional: bool, pooling: str) -> RecurrentText:
    """A word table and a GRU whose states have ``dim`` numbers."""
    return RecurrentText(words, word_dim, dim, dim, bidirectional=bidirectional, pooling=pooling, dropout=0.0)


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


class TwoBranchMatcher(Matcher):
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
            images = mean_over_views(lambda pixels: self.image(pixels).vectors, images)
        elif images.ndim == 3:
            images = pool_states(images, real_parts(images) if mask is None else mask, "mean")
        return Encoded(self.image_branch(images))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Vectors (N, D), states (N, W, D) or numbers of words (N, W)."""
        if mask is None:
            mask = torch.ones(texts.shape[:2], dtype=torch.bool, device=texts.device)
        return Encoded(self.text_branch(self.text(texts, mask)))


class TwoBranchEmbedding(TwoBranchMatcher, EmbeddingMatcher):
    """Minus the Euclidean distance d(x, y) of unit vectors in the joint space (two-branch, Sec. 3.2)."""

    reranks = False

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Of aligned vectors."""
        return -distance_from_cosine((unit(images.vectors) * unit(texts.vectors)).sum(-1))

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Of all vectors, by one matrix product."""
        return -distance_from_cosine(unit(images.vectors) @ unit(texts.vectors).T)


class TwoBranchSimilarity(TwoBranchMatcher):
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


def distance_from_cosine(cosines: Tensor) -> Tensor:
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
