"""Attention between the parts of images and of texts, for all pairs at once: the arithmetic of scan and bfan.

The attended vector is never built. With A the products of context parts and query parts, and weights P over the context
parts, cos(query, sum_s P_s context_s) needs sum_s P_s A_s and the quadratic form P' G P with the context's own Gram
matrix G, so that the size of the space enters in one matrix product only. That cosine does not depend on the scale of
P, so weights that cannot overflow are not normalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from calligram.models.matcher import Encoded

Norm = Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "softmax", "clipped", "none"]
Focal = Literal["none", "equal", "prob"]
Aggregation = Literal["lse", "mean", "max", "sum"]

EPS = 1e-8
TINY = 1e-30
LEAKY_SLOPE = 0.1
"""slope below zero of the clipping in scan's release; its paper has zero"""
MAX_UNSHIFTED_TEMPERATURE = 30.0
"""largest temperature at which exp of a value within -1 .. 1, and its square, keep their precision in float32"""


@dataclass(frozen=True)
class AttentionSettings:
    """How query parts look at context parts."""

    norm: Norm = "clipped_l2norm"
    """of products, over the query's parts"""
    temperature: float = 9.0
    """factor on normalised products before the softmax over the context's parts"""
    focal: Focal = "none"
    """bfan's choice of context parts: all, those above the mean, or above the mean by confidence"""

    @property
    def bounded(self) -> bool:
        """Whether exp of the logits needs no maximum taken off first."""
        return self.norm not in ("clipped", "none") and self.temperature <= MAX_UNSHIFTED_TEMPERATURE


class Parts(NamedTuple):
    """The parts of N items; those that only fill up are zero."""

    vectors: Tensor
    """(N, K, D)"""
    mask: Tensor
    """(N, K) True where a part is real"""
    gram: Tensor
    """(N, K, K) products of an item's own parts"""

    @classmethod
    def of(cls, items: Encoded) -> Parts:
        """From a matcher's encodings; without parts, the vector is the only one."""
        vectors = items.vectors.unsqueeze(1) if items.parts is None else items.parts
        mask = vectors.new_ones(vectors.shape[:2], dtype=torch.bool) if items.mask is None else items.mask
        vectors = vectors.masked_fill(~mask.unsqueeze(-1), 0.0)
        with torch.autocast(vectors.device.type, enabled=False):
            # Small beside the products, and a length that all weights go through: not in lower precision.
            wide = _at_least_float32(vectors)
            return cls(vectors, mask, wide @ wide.mT)

    @property
    def lengths(self) -> Tensor:
        """(N, K) of the vectors; the gradient at zero is zero."""
        lengths: Tensor = torch.linalg.vector_norm(_at_least_float32(self.vectors), dim=-1)
        return lengths


class PartProducts(NamedTuple):
    """Products of the parts of context and query items: of all pairs, or of aligned ones.

    Axes are context items C, their parts S, the query's parts Q and query items T. The last is 1 where pairs are
    aligned. Sums then run over axes that are not the last, which vector units like better.
    """

    products: Tensor
    """(C, S, Q, T)"""
    context: Parts
    query: Parts
    aligned: bool

    @classmethod
    def of(cls, context: Parts, query: Parts, *, aligned: bool = False) -> PartProducts:
        """All pairs (C, T), by one matrix product; or aligned ones (N, 1)."""
        if aligned:
            return cls(_at_least_float32(context.vectors @ query.vectors.mT).unsqueeze(-1), context, query, True)
        items, places, dim = query.vectors.shape
        columns = query.vectors.transpose(0, 1).reshape(places * items, dim)
        products = context.vectors.reshape(-1, dim) @ columns.T
        return cls(_at_least_float32(products).view(*context.vectors.shape[:2], places, items), context, query, False)

    def transposed(self) -> PartProducts:
        """Context and query exchanged."""
        axes = (0, 2, 1, 3) if self.aligned else (3, 2, 1, 0)
        return PartProducts(self.products.permute(axes).contiguous(), self.query, self.context, self.aligned)

    def align_query(self, of_query: Tensor) -> Tensor:
        """(N, Q) of the query items, to stand beside (C, Q, T)."""
        return of_query.unsqueeze(-1) if self.aligned else of_query.T.unsqueeze(0)


def attention_weights(crossing: PartProducts, how: AttentionSettings) -> Tensor:
    """Weights over the context's parts for each query part, (C, S, Q, T): scan's attention with bfan's focus.

    Weights are not normalised where the attention is bounded; those of parts that only fill up are zero. Where no part
    is above the mean, all being alike or alone, all are kept; the release divides zero by zero.
    """
    products = crossing.products
    bias = torch.zeros_like(crossing.context.mask, dtype=products.dtype)
    bias = bias.masked_fill(~crossing.context.mask, torch.finfo(products.dtype).min / 4)[:, :, None, None]
    values, size = _normalise(crossing, how.norm)
    scale = values.new_tensor(how.temperature) if size is None else how.temperature / size
    if torch.is_grad_enabled():
        logits = torch.addcmul(bias, values, scale)
    else:
        values = values.clone() if values is products else values
        logits = torch.addcmul(bias, values, scale, out=values)
    if not how.bounded or _uses_float16(products.device.type):
        weights = torch.softmax(logits, dim=1)
    else:
        weights = logits.exp() if torch.is_grad_enabled() else logits.exp_()
    return weights if how.focal == "none" else weights * _focal_mask(weights, crossing.context.mask, how.focal)


def part_relevances(crossing: PartProducts, how: AttentionSettings) -> Tensor:
    """Cosine of each query part and the context it attends to, (C, Q, T); zero where there is none."""
    weights = attention_weights(crossing, how)
    along = (weights * crossing.products).sum(1)
    flat = weights.flatten(2)
    square = (flat * (crossing.context.gram @ flat)).sum(1).view_as(along)
    # The two lengths are bounded one by one: weights are at any scale, so that their product says nothing.
    lengths = crossing.align_query(crossing.query.lengths).clamp(min=EPS)
    return along / (square.clamp(min=TINY).sqrt() * lengths)


def aggregate(relevance: Tensor, crossing: PartProducts, kind: Aggregation, sharpness: float = 6.0) -> Tensor:
    """One score (C, T) of the relevances of a query's real parts; zero for a query without any.

    LogSumExp is log(sum exp(sharpness R)) / sharpness.
    """
    real = crossing.align_query(crossing.query.mask)
    if kind in ("mean", "sum"):
        total = (relevance * real).sum(1)
        return total / real.sum(1).clamp(min=1) if kind == "mean" else total
    if kind == "max":
        return relevance.masked_fill(~real, -1e4).amax(1).masked_fill(~real.any(1), 0.0)
    if (
        sharpness <= MAX_UNSHIFTED_TEMPERATURE
    ):  # cosines are bounded, and a maximum taken off first would be work for nothing
        total = ((sharpness * relevance).exp() * real).sum(1)
        return total.masked_fill(~real.any(1), 1.0).log() / sharpness
    # A finite stand-in: with minus infinity a query without parts would have no gradient but NaN.
    found = torch.logsumexp((sharpness * relevance).masked_fill(~real, -1e4 * sharpness), dim=1) / sharpness
    return found.masked_fill(~real.any(1), 0.0)


def similarity(crossing: PartProducts, how: AttentionSettings, kind: Aggregation, sharpness: float = 6.0) -> Tensor:
    """The query's relevances aggregated, (C, T); (N, 1) where pairs are aligned."""
    return aggregate(part_relevances(crossing, how), crossing, kind, sharpness)


def _normalise(crossing: PartProducts, norm: Norm) -> tuple[Tensor, Tensor | None]:
    """Products as the norm makes them, and what they are still to be divided by.

    Norms run over the query's parts (dim 2 of scan's release); places that only fill up are zero and add nothing to a
    length.
    """
    products = crossing.products
    if norm == "softmax":
        absent = ~crossing.align_query(crossing.query.mask).unsqueeze(1)
        return torch.softmax(products.masked_fill(absent, torch.finfo(products.dtype).min), dim=2), None
    values = F.leaky_relu(products, LEAKY_SLOPE) if norm.startswith("clipped") else products
    if norm.endswith("l2norm"):
        return values, _query_norm(values) + EPS
    if norm.endswith("l1norm"):
        return values, values.abs().sum(2, keepdim=True) + EPS
    return values, None


def _query_norm(values: Tensor) -> Tensor:
    """Over the query's parts."""
    if values.is_cuda:
        return torch.linalg.vector_norm(values, dim=2, keepdim=True)  # type: ignore[no-any-return]
    # That takes forty times as long on a CPU. Bounded, since the root has no gradient at zero.
    return (values * values).sum(2, keepdim=True).clamp(min=TINY).sqrt()


@torch.no_grad()
def _focal_mask(weights: Tensor, mask: Tensor, kind: Focal) -> Tensor:
    """Which context parts are kept (bfan): a_i L > sum_j a_j, or sum_j (a_i - a_j) sqrt(a_j) > 0 in linear time."""
    if kind == "equal":
        count = mask.sum(1).to(weights.dtype)[:, None, None, None]
        keep = weights * count > weights.sum(1, keepdim=True)
    else:
        root = weights.sqrt()
        keep = weights * root.sum(1, keepdim=True) > (weights * root).sum(1, keepdim=True)
    return keep | ~keep.any(1, keepdim=True)


def _uses_float16(device: str) -> bool:
    """Whether matrix products are in float16, which ends at 65504."""
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16


def _at_least_float32(values: Tensor) -> Tensor:
    """At least single precision: what lower precision multiplied is added up and compared in float32."""
    return values if values.dtype == torch.float64 else values.float()
