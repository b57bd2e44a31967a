"""MMCA: self-attention within images and within texts, and for each pair attention over the parts of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from calligram.device import compile_if_enabled, kernel_applies, run_kernel
from calligram.errors import UserError
from calligram.models.a3vse import mean_of_parts
from calligram.models.layers.score_tiles import TILE_PRODUCTS, score_in_tiles, score_some_in_tiles
from calligram.models.layers.text_cnn import NgramText
from calligram.models.layers.towers import TwoTowerSettings, image_tower, joint_projection, text_tower
from calligram.models.layers.transformer_unit import (
    AttendedItems,
    PreparedItems,
    ProjectedItems,
    TransformerUnit,
)
from calligram.models.matcher import Encoded, Matcher, QuerySide, Scoring, cosines
from calligram.vectors import unit_length

MAX_STACKED_ITEMS = 2
"""on a CPU, grids with at most this many images or texts are scored pair by pair: preparing the items costs more"""
FUSED_KERNEL = "pair module of mmca"
"""name of the kernels of ``fused_unit.py``"""
FUSED_SIZES = (64, 128, 256)
"""sizes of parts that they take"""
MAX_FUSED_PARTS = 128
"""largest number of regions or words that they take"""
SCORING_TILE_FACTOR = 4
"""how many times as large a tile is where these kernels score: a quarter of the numbers exist at the same time"""


Prepared = PreparedItems | AttendedItems
"""images or texts, prepared for all of their pairs"""


@dataclass(frozen=True)
class MMCASettings(TwoTowerSettings):
    """Settings of both towers and both modules; the paper has dim 256 (mmca, Sec. 4.2)."""

    regions = True
    reranks = True

    heads: Annotated[int, "number of heads of each Transformer unit; dim must be a multiple of it", (1, 1000)] = 16
    filters: Annotated[int, "number of filters for each window of one, two and three words", (1, 65536)] = 256
    alpha: Annotated[float, "weight of the attention between image and text; 0 for none", (0, 1000)] = 0.2
    region_dropout: Annotated[
        float, "share of regions or cells that are left out in training, also with a trained backbone", (0, 0.99)
    ] = 0.0


class PairModule(nn.Module):
    """One Transformer unit over the stacked regions and words of a pair (mmca, Eqs. 8-14), then pooling of each
    modality.

    i_1 is the mean over regions, c_1 the output of n-gram filters over words, and the score is their cosine. Cost in
    multiplications for k regions, n words, size d and d filters: a pair takes 3 (k + n) d^2 for the output projection
    and the feed-forward layers, 6 n d^2 + 3 d^2 for n-gram filters and their projection, and 4 k n d for attention.
    Queries, keys, values and attention within an item take 3 (k + n) d^2 + 2 (k^2 + n^2) d; they are shared by all
    pairs of the item. With 36 regions, 20 words and d = 256, a pair takes 302 d^2 instead of 484 d^2.
    """

    def __init__(self, dim: int, heads: int, filters: int) -> None:
        super().__init__()
        self.unit = TransformerUnit(dim, heads)
        self.ngrams = NgramText(dim, filters, dim)

    def prepare_items(self, items: Encoded) -> Prepared:
        """Compute once per image or text what all of its pairs need, to score a full grid."""
        return self.unit.prepare_items(*_masked_parts(items))

    def project_items(self, items: Encoded) -> ProjectedItems:
        """Compute queries, keys and values once per image or text, to score selected pairs."""
        return self.unit.project_items(*_masked_parts(items))

    def forward(self, images: Prepared, texts: Prepared) -> Tensor:
        """Cosines of i_1 and c_1 of all pairs, (I, T)."""
        image = _fused_or_plain(_fused_image_vectors, _image_vectors, self, images, texts)
        text = _fused_or_plain(_fused_text_vectors, _text_vectors, self, texts, images)
        return _aligned_cosines(image.transpose(0, 1), text)

    def aligned(self, images: ProjectedItems, texts: ProjectedItems) -> Tensor:
        """Cosines of i_1 and c_1 of aligned pairs, (N,)."""
        attended = self.unit.attend_stacked(images, texts)
        image, text = _aligned_vectors(self, attended, images.parts, texts.parts, images.mask, texts.mask)
        return _aligned_cosines(image, text)


PairVectors = Callable[[PairModule, Tensor, Tensor, Tensor], Tensor]
"""vectors (S, N, D) of N items with S others, from the attention to own and other parts; parts; mask"""


def _fused_or_plain(
    fused: PairVectors, plain: PairVectors, module: PairModule, items: Prepared, others: Prepared
) -> Tensor:
    """Vectors (S, N, D) of the items with S others; by a fused kernel where it applies."""
    given = module, module.unit.attend(items, others), items.parts, items.mask
    if not _fused_kernels_apply(module, given[1], items.mask):
        return plain(*given)
    return run_kernel(FUSED_KERNEL, lambda: fused(*given), lambda: plain(*given))


def _fused_kernels_apply(module: PairModule, attended: Tensor, mask: Tensor) -> bool:
    """Whether the kernels of ``fused_unit.py`` compute what follows attention: in bfloat16, without gradients."""
    unit, filters = module.unit, len(module.ngrams.windows[0].weight)  # type: ignore[arg-type]
    return (
        kernel_applies(FUSED_KERNEL, attended)
        and attended.dtype == torch.bfloat16
        and attended.numel() > 0
        and not torch.is_grad_enabled()
        and mask.shape[1] <= MAX_FUSED_PARTS
        and unit.heads * unit.size in FUSED_SIZES
        and filters % 32 == 0
    )


def _fused_image_vectors(module: PairModule, attended: Tensor, parts: Tensor, mask: Tensor) -> Tensor:
    from calligram.models.layers.fused_unit import unit_after_attention

    shares = mask / mask.sum(-1, keepdim=True).clamp(min=1)
    return unit_after_attention(module.unit, attended, parts, shares, pool=True)


def _fused_text_vectors(module: PairModule, attended: Tensor, parts: Tensor, mask: Tensor) -> Tensor:
    from calligram.models.layers.fused_unit import best_ngrams, unit_after_attention

    words = unit_after_attention(module.unit, attended, parts, mask, pool=False)
    return module.ngrams.project_best(best_ngrams(module.ngrams, words, mask))


@compile_if_enabled(2, 1, 1)
def _image_vectors(module: PairModule, attended: Tensor, parts: Tensor, mask: Tensor) -> Tensor:
    """i_1 (S, N, D) of N images with S texts."""
    return _mean_of_real(module.unit.feed_forward(parts, attended), mask)


@compile_if_enabled(3, 2, 2)
def _text_vectors(module: PairModule, attended: Tensor, parts: Tensor, mask: Tensor) -> Tensor:
    """c_1 (S, N, D) of N texts with S images."""
    return module.ngrams(module.unit.feed_forward(parts, attended), mask)  # type: ignore[no-any-return]


@compile_if_enabled(2, 1, 2, 1, 2)
def _aligned_vectors(
    module: PairModule, attended: Tensor, regions: Tensor, words: Tensor, real: Tensor, spoken: Tensor
) -> tuple[Tensor, Tensor]:
    """i_1 and c_1 (N, D) of aligned pairs, from the attention output of their stacked parts."""
    parts = module.unit.feed_forward(torch.cat([regions, words], 1), attended)
    image, text = torch.split(parts, [regions.shape[1], words.shape[1]], 1)
    return _mean_of_real(image, real), module.ngrams(text, spoken)


def _aligned_cosines(one: Tensor, two: Tensor) -> Tensor:
    """Cosines of vectors (..., D) in float32; the division by the norms is last, where there is one number per pair."""
    one, two = one.float(), two.float()
    lengths = [torch.linalg.vector_norm(each, dim=-1).clamp(min=1e-8) for each in (one, two)]
    found: Tensor = (one * two).sum(-1) / (lengths[0] * lengths[1])
    return found


def _masked_parts(items: Encoded) -> tuple[Tensor, Tensor]:
    """Parts with padding set to zero, and their mask."""
    assert items.parts is not None
    mask = items.parts.new_ones(items.parts.shape[:2], dtype=torch.bool) if items.mask is None else items.mask
    return items.parts.masked_fill(~mask.unsqueeze(-1), 0.0), mask


def _sum_to_one(shares: Tensor, axis: int) -> Tensor:
    """Normalise weights to sum to one along an axis; all-zero weights stay zero."""
    return shares / shares.sum(axis, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)


def _mean_of_real(parts: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real parts of (..., N, K, D): (..., N, D)."""
    weights = mask.to(parts.dtype) / mask.sum(-1, keepdim=True).clamp(min=1)
    if torch.compiler.is_compiling():  # the compiler merges this sum with the step before it, and their gradients
        return (weights.unsqueeze(-1) * parts).sum(-2)
    return (weights.unsqueeze(-2) @ parts).squeeze(-2)


def drop_regions(real: Tensor, share: float) -> Tensor:
    """Drop a random share of the real parts (N, K); each item keeps at least one."""
    chance = torch.rand(real.shape, device=real.device).masked_fill(~real, -1.0)
    return real & ((chance >= share) | (chance == chance.amax(1, keepdim=True)))


class MMCA(Matcher):
    """Cosine after self-attention plus alpha times the cosine after cross-attention (mmca, Secs. 3.3-3.5).

    S = i_0 . c_0 + alpha i_1 . c_1, with vectors of length one.

    i_0 is the mean over regions after a Transformer unit. c_0 is the output of n-gram filters over the states of a
    BERT-like encoder. They are the vectors of the first search stage; the pair module reranks.

    The pair module receives R and E, as the paper's text says: regions after their linear layer and before the first
    unit, and states after a linear layer of their own. The paper does not mention the latter, but the sizes 768 and 256
    need it. The module has its own n-gram filters, because those of c_0 have the size of the encoder's states. Regions
    have no position encoding. Pieces such as [CLS] count as words. A GRU may replace the encoder.
    """

    settings: MMCASettings

    def __init__(self, settings: MMCASettings) -> None:
        super().__init__()
        if settings.dim % settings.heads:
            raise UserError(
                f"dim={settings.dim} is not a multiple of mmca.heads={settings.heads}; "
                "choose a dim that is a multiple of the number of heads"
            )
        self.settings = settings
        limit = 1.0 + settings.alpha
        self.scoring = Scoring("attention" if settings.alpha else "cosine", -limit, limit, parts=settings.alpha != 0)
        self.image = image_tower(settings.image)
        self.project = joint_projection(self.image.size, settings.dim)
        self.text = text_tower(settings.text, settings.dim)
        self.regions = TransformerUnit(settings.dim, settings.heads)
        self.ngrams = NgramText(self.text.state_size, settings.filters, settings.dim)
        self.pairs = PairModule(settings.dim, settings.heads, settings.filters)

    @property
    def part_size(self) -> int:
        """Size of the regions."""
        return self.settings.dim

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode features (N, R, D) of regions or cells, or pixels (N, 3, H, W), as i_0 (mmca, Eq. 5) and R."""
        features, real = self.image.parts(images, mask)
        if self.training and self.settings.region_dropout:
            real = drop_regions(real, self.settings.region_dropout)
        parts = self.project(features)
        return Encoded(mean_of_parts(self.regions(parts, real), real), parts, real)

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode word indices (N, W), states (N, W, D) or vectors (N, D) as c_0 and E.

        The n-gram filters of c_0 read the states before their projection to the size of regions.
        """
        states, real = self.text.states(texts, mask)
        return Encoded(self.ngrams(states, real), self.text.project_states(states), real)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score all pairs; the pair module runs in tiles."""
        sizes = len(images.vectors), len(texts.vectors)
        scores = cosines(images.vectors, texts.vectors)
        if not self.settings.alpha:
            return scores
        if scores.device.type == "cpu" and min(sizes) <= MAX_STACKED_ITEMS:
            rows, columns = (each.flatten() for each in torch.meshgrid(*map(torch.arange, sizes), indexing="ij"))
            return scores + self.settings.alpha * self._pair_cosines(images, texts, rows, columns).view(sizes)
        fused = (
            kernel_applies(FUSED_KERNEL, scores) and torch.is_autocast_enabled("cuda") and not torch.is_grad_enabled()
        )
        return scores + self.settings.alpha * score_in_tiles(
            images,
            texts,
            self.pairs,
            prepare=self.pairs.prepare_items,
            pair_products=self._pair_products,
            tile=SCORING_TILE_FACTOR * TILE_PRODUCTS["cuda"] if fused else None,
        )

    def score_some(self, images: Encoded, texts: Encoded, rows: Tensor, columns: Tensor) -> Tensor:
        """Score selected pairs in tiles; queries, keys and values of an item are computed once."""
        scores = (unit_length(images.vectors)[rows] * unit_length(texts.vectors)[columns]).sum(-1)
        if not self.settings.alpha:
            return scores
        return scores + self.settings.alpha * self._pair_cosines(images, texts, rows, columns)

    def score_pairs(self, images: Encoded, texts: Encoded) -> Tensor:
        """Score aligned pairs."""
        each = torch.arange(len(images.vectors), device=images.vectors.device)
        return self.score_some(images, texts, each, each)

    @property
    def attends(self) -> frozenset[QuerySide]:
        """Words and regions, if the pair module is used."""
        return frozenset(("words", "regions")) if self.settings.alpha else frozenset()

    def attention_weights(self, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
        """Attention weights of aligned pairs in the pair module (mmca, Eq. 11).

        Takes the mean over heads of the softmax over all stacked parts, keeps the weights on the other modality, and
        normalises them to sum to one. So a head that attends to its own modality counts less.
        """
        one, two = self.pairs.project_items(images), self.pairs.project_items(texts)
        shares, regions = self.pairs.unit.attention_weights(one, two), one.mask.shape[1]
        real = one.mask.unsqueeze(2) & two.mask.unsqueeze(1)
        return (
            _sum_to_one(shares[:, regions:, :regions].mT * real, 1),
            _sum_to_one(shares[:, :regions, regions:] * real, 2),
        )

    def _pair_cosines(self, images: Encoded, texts: Encoded, rows: Tensor, columns: Tensor) -> Tensor:
        """Cosines of i_1 and c_1 of selected pairs."""
        pairs = self.pairs
        return score_some_in_tiles(
            images,
            texts,
            (rows, columns),
            pairs.aligned,
            prepare=pairs.project_items,
            pair_products=self._pair_products,
        )

    def _pair_products(self, regions: int, words: int) -> int:
        """Cost of a pair for the tile size: a sixth of the numbers that a backward pass stores, 8 per part and 6 per
        word for n-grams.
        """
        return (8 * (regions + words) + 6 * words) * self.settings.dim // 6
