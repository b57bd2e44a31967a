"""Cross attention between the parts of images and texts for all pairs at once: the arithmetic of scan and bfan.

The attended vector is never built. Let A be the products of context parts and query parts, and P the weights over the
context parts. Then cos(query, sum_s P_s context_s) needs only sum_s P_s A_s and the quadratic form P' G P, where G is
the Gram matrix of the context. So the embedding size enters in one matrix product only. The cosine does not depend on
the scale of P, so weights that cannot overflow are not normalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from calligram.device import kernel_applies, run_kernel
from calligram.models.matcher import Encoded, at_least_float32

Norm = Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "softmax", "clipped", "none"]
Focal = Literal["none", "equal", "prob"]
Aggregation = Literal["lse", "mean", "max", "sum"]

MIN_NORM = 1e-8
"""added to norms, and their lower limit in divisions; as in the releases"""
MIN_SQUARED_NORM = 1e-30
"""lower limit of a square before its root, which has no gradient at zero"""
LEAKY_SLOPE = 0.1
"""slope of the clipping below zero, as in scan's release; the paper has zero"""
MAX_UNSHIFTED_TEMPERATURE = 30.0
"""largest temperature at which exp of a value in -1 .. 1, and its square, keep their precision in float32"""
FUSED_KERNEL = "attention between regions and words"
"""name of the kernels of ``fused_attention.py``"""
MAX_FUSED_PARTS = 64
"""largest number of regions or words that they take"""
SINGLE_PART_SLACK = 1e-4
"""share by which a weight must exceed the mean, where a query has one part"""


@dataclass(frozen=True)
class AttentionSettings:
    """How query parts attend to context parts."""

    norm: Norm = "clipped_l2norm"
    """norm of the products over the query parts"""
    temperature: float = 9.0
    """factor on normalised products before the softmax over the context parts"""
    focal: Focal = "none"
    """bfan's selection of context parts: all, those above the mean, or those above the confidence-weighted mean"""

    @property
    def bounded(self) -> bool:
        """Whether the logits are small enough for exp without subtracting their maximum."""
        return self.norm not in ("clipped", "none") and self.temperature <= MAX_UNSHIFTED_TEMPERATURE


class Parts(NamedTuple):
    """The parts of N items; padding is zero."""

    vectors: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True for real parts"""
    gram: Tensor
    """(N, K, K) products of the parts of one item"""

    @classmethod
    def of(cls, items: Encoded) -> Parts:
        """Take the parts of encodings; an item without parts has its vector as the only part."""
        vectors = items.vectors.unsqueeze(1) if items.parts is None else items.parts
        mask = vectors.new_ones(vectors.shape[:2], dtype=torch.bool) if items.mask is None else items.mask
        vectors = vectors.masked_fill(~mask.unsqueeze(-1), 0.0)
        with torch.autocast(vectors.device.type, enabled=False):
            # The Gram matrix is small, and all norms depend on it: no lower precision here.
            wide = at_least_float32(vectors)
            return cls(vectors, mask, wide @ wide.mT)

    @property
    def lengths(self) -> Tensor:
        """(N, K) norms of the vectors; the gradient at zero is zero."""
        lengths: Tensor = torch.linalg.vector_norm(at_least_float32(self.vectors), dim=-1)
        return lengths


class PartProducts(NamedTuple):
    """Products of the parts of context items and query items, for all pairs or for aligned pairs.

    The axes are context items C, their parts S, query parts Q and query items T. T is 1 for aligned pairs. With this
    order, sums do not run over the last axis, which is faster on a CPU.
    """

    products: Tensor
    """(C, S, Q, T)"""
    context: Parts
    query: Parts
    aligned: bool

    @classmethod
    def of(cls, context: Parts, query: Parts, *, aligned: bool = False) -> PartProducts:
        """Compute all pairs (C, T) by one matrix product, or aligned pairs (N, 1)."""
        if aligned:
            return cls(at_least_float32(context.vectors @ query.vectors.mT).unsqueeze(-1), context, query, True)
        items, positions, dim = query.vectors.shape
        columns = query.vectors.transpose(0, 1).reshape(positions * items, dim)
        products = context.vectors.reshape(-1, dim) @ columns.T
        return cls(at_least_float32(products).view(*context.vectors.shape[:2], positions, items), context, query, False)

    def transposed(self) -> PartProducts:
        """Exchange context and query."""
        axes = (0, 2, 1, 3) if self.aligned else (3, 2, 1, 0)
        return PartProducts(self.products.permute(axes).contiguous(), self.query, self.context, self.aligned)

    def align_query(self, of_query: Tensor) -> Tensor:
        """Reshape (N, Q) of the query items to broadcast with (C, Q, T)."""
        return of_query.unsqueeze(-1) if self.aligned else of_query.T.unsqueeze(0)


def attention_weights(pairs: PartProducts, attention: AttentionSettings) -> Tensor:
    """Weights over the context parts for each query part, (C, S, Q, T): scan's attention with bfan's focus.

    Bounded attention is not normalised. Padding has weight zero. If no part is above the mean, because all weights are
    equal or there is one part, all parts are kept; the release divides zero by zero.
    """
    products = pairs.products
    bias = torch.zeros_like(pairs.context.mask, dtype=products.dtype)
    bias = bias.masked_fill(~pairs.context.mask, torch.finfo(products.dtype).min / 4)[:, :, None, None]
    values, size = _normalise(pairs, attention.norm)
    scale = values.new_full((), attention.temperature) if size is None else attention.temperature / size
    if torch.is_grad_enabled():
        logits = torch.addcmul(bias, values, scale)
    else:
        values = values.clone() if values is products else values
        logits = torch.addcmul(bias, values, scale, out=values)
    if not attention.bounded or _uses_float16(products.device.type):
        weights = torch.softmax(logits, dim=1)
    else:
        weights = logits.exp() if torch.is_grad_enabled() else logits.exp_()
    return weights if attention.focal == "none" else weights * _focal_mask(weights, pairs, attention.focal)


def part_relevances(pairs: PartProducts, attention: AttentionSettings) -> Tensor:
    """Cosine of each query part and its attended context, (C, Q, T); zero for padding."""
    weights = attention_weights(pairs, attention)
    along = (weights * pairs.products).sum(1)
    flat = weights.flatten(2)
    square = (flat * (pairs.context.gram @ flat)).sum(1).view_as(along)
    # Each norm is clamped by itself: the weights have any scale, so a bound on the product has no meaning.
    lengths = pairs.align_query(pairs.query.lengths).clamp(min=MIN_NORM)
    return along / (square.clamp(min=MIN_SQUARED_NORM).sqrt() * lengths)


def aggregate(relevance: Tensor, pairs: PartProducts, kind: Aggregation, sharpness: float = 6.0) -> Tensor:
    """Aggregate the relevances of a query's real parts to one score (C, T); zero for a query without parts.

    LogSumExp is log(sum exp(sharpness R)) / sharpness.
    """
    real = pairs.align_query(pairs.query.mask)
    if kind in ("mean", "sum"):
        total = (relevance * real).sum(1)
        return total / real.sum(1).clamp(min=1) if kind == "mean" else total
    if kind == "max":
        return relevance.masked_fill(~real, -1e4).amax(1).masked_fill(~real.any(1), 0.0)
    if sharpness <= MAX_UNSHIFTED_TEMPERATURE:  # cosines are bounded, so the maximum need not be subtracted
        total = ((sharpness * relevance).exp() * real).sum(1)
        return total.masked_fill(~real.any(1), 1.0).log() / sharpness
    # A finite value: with minus infinity the gradient of a query without parts is NaN.
    found = torch.logsumexp((sharpness * relevance).masked_fill(~real, -1e4 * sharpness), dim=1) / sharpness
    return found.masked_fill(~real.any(1), 0.0)


def similarity(pairs: PartProducts, attention: AttentionSettings, kind: Aggregation, sharpness: float = 6.0) -> Tensor:
    """Aggregated relevances of the query parts, (C, T); (N, 1) for aligned pairs."""
    return aggregate(part_relevances(pairs, attention), pairs, kind, sharpness)


class Direction(NamedTuple):
    """Which side attends to which, and how relevances become a score."""

    words_attend: bool
    """whether words attend to regions; otherwise regions attend to words"""
    kind: Aggregation
    sharpness: float = 6.0


def score_grid(images: Parts, texts: Parts, attention: AttentionSettings, directions: Sequence[Direction]) -> Tensor:
    """Scores (I, T) of all pairs, summed over directions; by a fused kernel where it applies."""

    def plain() -> Tensor:
        return score_products(PartProducts.of(images, texts), attention, directions)

    if not fused_kernel_applies(images.vectors, texts.vectors, attention, directions):
        return plain()
    return run_kernel(FUSED_KERNEL, lambda: _score_fused(images, texts, attention, directions), plain)


def score_products(products: PartProducts, attention: AttentionSettings, directions: Sequence[Direction]) -> Tensor:
    """Scores (I, T), or (N, 1) of aligned pairs, from products of regions (context) and words (query)."""
    found = []
    for words_attend, kind, sharpness in directions:
        if words_attend:
            found.append(similarity(products, attention, kind, sharpness))
        else:
            scores = similarity(products.transposed(), attention, kind, sharpness)
            found.append(scores if products.aligned else scores.T)
    return sum(found[1:], found[0])


def fused_kernel_applies(
    images: Tensor, texts: Tensor, attention: AttentionSettings, directions: Sequence[Direction]
) -> bool:
    """Whether the kernels of ``fused_attention.py`` compute the score of these parts (N, K, D)."""
    if not kernel_applies(FUSED_KERNEL, images) or not (images.numel() and texts.numel()):
        return False
    return (
        images.dtype == texts.dtype
        and images.dtype in (torch.float32, torch.bfloat16)
        and max(images.shape[1], texts.shape[1]) <= MAX_FUSED_PARTS
        and attention.bounded
        and attention.norm.endswith(("l1norm", "l2norm"))
        and not _uses_float16(images.device.type)
        and all(way.kind != "max" and way.sharpness <= MAX_UNSHIFTED_TEMPERATURE for way in directions)
    )


def _score_fused(images: Parts, texts: Parts, attention: AttentionSettings, directions: Sequence[Direction]) -> Tensor:
    from calligram.models.layers.fused_attention import FusedScores

    device = images.vectors.device.type
    lower = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
    one, two = (side.vectors.to(torch.bfloat16) if lower else side.vectors for side in (images, texts))
    found = []
    for words_attend, kind, sharpness in directions:
        if words_attend:
            tensors = two, one, images.gram, texts.lengths, texts.mask, images.mask
        else:
            tensors = one, two, texts.gram, images.lengths, images.mask, texts.mask
        scores: Tensor = FusedScores.apply((attention, kind, sharpness), *tensors)  # type: ignore[no-untyped-call]
        found.append(scores if words_attend else scores.T)
    return sum(found[1:], found[0])


def _normalise(pairs: PartProducts, norm: Norm) -> tuple[Tensor, Tensor | None]:
    """Return the products before the division by the norm, and the norm; None for no norm.

    Norms are over the query parts (dim 2 of scan's release). Padding is zero and adds nothing to a norm.
    """
    products = pairs.products
    if norm == "softmax":
        absent = ~pairs.align_query(pairs.query.mask).unsqueeze(1)
        return torch.softmax(products.masked_fill(absent, torch.finfo(products.dtype).min), dim=2), None
    values = F.leaky_relu(products, LEAKY_SLOPE) if norm.startswith("clipped") else products
    if norm.endswith("l2norm"):
        return values, _query_norm(values) + MIN_NORM
    if norm.endswith("l1norm"):
        return values, values.abs().sum(2, keepdim=True) + MIN_NORM
    return values, None


def _query_norm(values: Tensor) -> Tensor:
    """L2 norm over the query parts."""
    if values.is_cuda:
        return torch.linalg.vector_norm(values, dim=2, keepdim=True)  # type: ignore[no-any-return]
    # vector_norm takes forty times as long on a CPU. Clamped, since the square root has no gradient at zero.
    return (values * values).sum(2, keepdim=True).clamp(min=MIN_SQUARED_NORM).sqrt()


@torch.no_grad()
def _focal_mask(weights: Tensor, pairs: PartProducts, kind: Focal) -> Tensor:
    """Mask of the kept context parts (bfan): a_i L > sum_j a_j, or sum_j (a_i - a_j) sqrt(a_j) > 0 in linear time."""
    # The norm over one query part is 1 or -1, so weights are equal except for rounding, which must not select parts.
    single = pairs.align_query(pairs.query.mask).sum(1, keepdim=True).unsqueeze(1) == 1
    slack = 1.0 + SINGLE_PART_SLACK * single.to(weights.dtype)
    if kind == "equal":
        count = pairs.context.mask.sum(1).to(weights.dtype)[:, None, None, None]
        keep = weights * count > weights.sum(1, keepdim=True) * slack
    else:
        root = weights.sqrt()
        keep = weights * root.sum(1, keepdim=True) > (weights * root).sum(1, keepdim=True) * slack
    return keep | ~keep.any(1, keepdim=True)


def _uses_float16(device: str) -> bool:
    """Whether autocast multiplies matrices in float16, whose largest number is 65504."""
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
