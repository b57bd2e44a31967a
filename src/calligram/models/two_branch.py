"""The embedding network and the similarity network of the two-branch paper, for sentences and for phrases."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, Self

import torch.nn.functional as F
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.models.layers.towers import (
    ImageArchitecture,
    TextArchitecture,
    TwoTowerSettings,
    image_tower,
    text_tower,
)
from calligram.models.matcher import EmbeddingMatcher, Encoded, Matcher, Scoring
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


@dataclass(frozen=True)
class TwoBranchSettings(TwoTowerSettings):
    """Settings of both towers and both branches; the sizes are the paper's for sentences (two-branch, Sec. 5.3).

    The paper has dim 512. For phrases it has hidden 1024 and no dropout (Secs. 4.3 and 5.3).
    """

    hidden: Annotated[int, "dimension between the layers of a branch", (1, 65536)] = 2048
    layers: Annotated[
        int,
        "number of FC layers of each branch; 1 is linear, maps to hidden, not to dim, and has no batch norm",
        (1, 3),
    ] = 2
    text_layers: int = 0
    """FC layers of the text branch; 0 for as many as the image branch"""
    dropout: Annotated[float, "dropout rate after each ReLU", (0, 0.99)] = 0.5
    statistics: Annotated[
        Literal["training", "batch"],
        "statistics of batch norm at test: running ones of training, or those of the items encoded together (batch)",
    ] = "training"

    def with_towers(self, image: ImageArchitecture, text: TextArchitecture, dim: int) -> Self:
        """Return these settings with two towers. Linear branches keep W1 and V1, so ``hidden`` is their output size
        (two-branch, Sec. 4.2).
        """
        return super().with_towers(image, text, self.hidden if self.layers == 1 else dim)


@dataclass(frozen=True)
class TwoBranchSimilaritySettings(TwoBranchSettings):
    """Settings of the towers, of the branches and of the layers after the element-wise product.

    Three layers gave the best results (two-branch, Sec. 3.3).
    """

    reranks = True

    heads: Annotated[int, "number of FC layers after the element-wise product", (1, 3)] = 3


class TwoBranchMatcher(Matcher):
    """Two branches with unit vectors as output, over towers that keep their own sizes.

    Gradients also reach towers that are trained.
    """

    settings: TwoBranchSettings

    def __init__(self, settings: TwoBranchSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image = image_tower(settings.image)
        self.text = text_tower(settings.text, None)
        self.image_dim, self.text_dim = self.image.size, self.text.size
        self.image_branch = _branch(settings, self.image_dim, settings.layers)
        self.text_branch = _branch(settings, self.text_dim, settings.text_layers or settings.layers)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode features (N, D), or (N, R, D) whose real parts are averaged, or pixels (N, 3, H, W), or views
        of them.
        """
        return Encoded(self.image_branch(self.image.vectors(images, mask)))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode vectors (N, D), states (N, W, D) or word indices (N, W)."""
        return Encoded(self.text_branch(self.text.vectors(texts, mask)))


class TwoBranchEmbedding(TwoBranchMatcher, EmbeddingMatcher):
    """Minus the Euclidean distance d(x, y) of unit vectors in the joint space (two-branch, Sec. 3.2)."""

    scoring = Scoring("distance", -2.0, 0.0)

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score aligned vectors."""
        return -distance_from_cosine((unit_length(images.vectors) * unit_length(texts.vectors)).sum(-1))

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score all pairs, by one matrix product."""
        return -distance_from_cosine(unit_length(images.vectors) @ unit_length(texts.vectors).T)


class TwoBranchSimilarity(TwoBranchMatcher):
    """Score by FC layers over the element-wise product of both branches (two-branch, Sec. 3.3)."""

    scoring = Scoring("log-odds")
    settings: TwoBranchSimilaritySettings

    def __init__(self, settings: TwoBranchSimilaritySettings) -> None:
        super().__init__(settings)
        if not 1 <= settings.heads <= 3:
            raise ValueError(f"the number of layers after the product must be from 1 to 3, got {settings.heads}")
        # The paper's three layers are 512 x 512, 512 x 256 and 256 x 1; fewer layers leave out the first ones.
        inner = [settings.dim, max(1, settings.dim // 2)][3 - settings.heads :] if settings.heads > 1 else []
        sizes = [settings.dim, *inner, 1]
        self.head = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        # He et al. (2015), the default of MatConvNet, which the paper used. Weights of torch are smaller. With them,
        # entries of a product of unit vectors, about 1 / dim, leave SGD hardly any gradient: all scores stay equal.
        for layer in self.head:
            assert isinstance(layer, nn.Linear)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

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
