"""What follows attention in mmca's pair module on a GPU, for all pairs, without gradients.

cuBLAS computes the matrix products of the unit. Its epilogue adds the bias of the inner layer and applies ReLU. Triton
kernels do the rest. ``norm_tile`` adds a bias and a residual to a product, and applies layer norm. ``norm_mean_tile``
does the same, and averages the regions of an image without writing them. ``ngram_tile`` goes along the words of 128
pairs, keeps the sums of the n-grams that are not complete yet, and the largest so far.

Factors of matrix products are in bfloat16, and their sums are in float32. The products of the unit are rounded to
bfloat16 when they are written, and so are the parts after layer norm. The bias of the inner layer is in bfloat16 too.
Everything else is in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from calligram.models.layers.text_cnn import NgramText
from calligram.models.layers.transformer_unit import TransformerUnit


class Tile(NamedTuple):
    """Size of a tile, and how a program runs."""

    rows: int
    """parts in a tile of ``norm_tile``, or pairs in a tile of the others"""
    warps: int
    stages: int


NORM_TILE, MEAN_TILE, NGRAM_TILE = Tile(16, 4, 1), Tile(4, 4, 1), Tile(128, 8, 2)
"""``bench/mmca_kernels.py`` measures others"""
NGRAM_FILTERS = 32
"""filters of a program of ``ngram_tile``, whose weights stay in shared memory"""


@triton.jit
def layer_norm(values, weight, bias, column, eps, D: tl.constexpr):
    """Layer norm of rows (M, D)."""
    centred = values - (tl.sum(values, 1) / D)[:, None]
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)
    return centred * scale[:, None] * tl.load(weight + column)[None, :] + tl.load(bias + column)[None, :]


@triton.jit(do_not_specialize=["rows", "residuals", "own_rows"])
def norm_tile(values, residual, bias, gain, shift, shares, result, rows, residuals, own_rows, eps,
              MASK: tl.constexpr, D: tl.constexpr, M: tl.constexpr):  # fmt: skip
    """Layer norm of rows plus bias and residual; with zeros for padding.

    Rows of the residual, and shares, start again after the last of them.
    """
    row = tl.arange(0, M).to(tl.int64) + tl.program_id(0).to(tl.int64) * M
    column, inside = tl.arange(0, D), (row < rows)[:, None]
    place, at = row[:, None] * D + column[None, :], (row % residuals)[:, None] * D + column[None, :]
    found = tl.load(values + place, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + column)[None, :]
    found += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    found = layer_norm(found, gain, shift, column, eps, D)
    if MASK:
        found = tl.where((tl.load(shares + row % own_rows) > 0)[:, None], found, 0.0)
    tl.store(result + place, found.to(tl.bfloat16), mask=inside)


@triton.jit(do_not_specialize=["pairs", "items", "positions"])
def norm_mean_tile(values, residual, bias, gain, shift, shares, result, pairs, items, positions, eps,
                   D: tl.constexpr, M: tl.constexpr):  # fmt: skip
    """Means of the parts of some pairs, with the weight of each part, after bias, residual and layer norm."""
    pair = tl.arange(0, M).to(tl.int64) + tl.program_id(0).to(tl.int64) * M
    column, exists = tl.arange(0, D), pair < pairs
    inside, total = exists[:, None], tl.full((M, D), 0.0, tl.float32)
    start, weight = (pair * positions)[:, None] * D + column[None, :], shares + (pair % items) * positions
    added = tl.load(bias + column)[None, :]
    for position in range(0, positions):
        at = start + position * D
        found = tl.load(values + at, mask=inside, other=0.0).to(tl.float32) + added
        found += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        found = layer_norm(found, gain, shift, column, eps, D)
        total += found * tl.load(weight + position, mask=exists, other=0.0)[:, None]
    tl.store(result + pair[:, None] * D + column[None, :], total, mask=inside)


@triton.jit
def split_columns(values, M: tl.constexpr, F: tl.constexpr):
    """Both halves of the columns of (M, 2 F)."""
    return tl.split(tl.permute(tl.reshape(values, (M, 2, F)), (0, 2, 1)))


@triton.jit(do_not_specialize=["pairs", "items", "positions", "filters"])
def ngram_tile(words, shares, weights, result, pairs, items, positions, filters,
               D: tl.constexpr, M: tl.constexpr, F: tl.constexpr):  # fmt: skip
    """Largest response of some filters to the n-grams of the texts of some pairs.

    Weights are those of ``_ngram_weights``. Responses to a word are computed in products of several filters at once,
    because a narrow product takes as long as a wide one.
    """
    pair = tl.program_id(0) * M + tl.arange(0, M)
    exists, text = pair < pairs, pair % items
    column, number = tl.arange(0, D), tl.program_id(1) * F + tl.arange(0, F)
    at = weights + (tl.program_id(1) * 6 * F + tl.arange(0, 4 * F))[:, None] * D + column[None, :]
    later = tl.load(at)
    first = tl.load(weights + (tl.program_id(1) * 6 * F + 4 * F + tl.arange(0, 2 * F))[:, None] * D + column[None, :])

    lowest = tl.full((M, F), float("-inf"), tl.float32)
    zero = tl.full((M, F), 0.0, tl.float32)
    best_1, best_2, best_3 = lowest, lowest, lowest
    begun_2, begun_3, second_3 = zero, zero, zero
    mask = shares + text * positions
    start = words + pair.to(tl.int64)[:, None] * positions * D + column[None, :]
    for position in range(0, positions):
        word = tl.load(start + position * D, mask=exists[:, None], other=0.0)
        # Loaded again for the words before: a value that is kept for two turns would prevent loads ahead of their use.
        real = tl.load(mask + position, mask=exists, other=0.0) > 0
        real_1 = tl.load(mask + position - 1, mask=exists & (position > 0), other=0.0) > 0
        real_2 = tl.load(mask + position - 2, mask=exists & (position > 1), other=0.0) > 0
        ends, middles = split_columns(tl.dot(word, tl.trans(later)), M, 2 * F)
        one, two_1 = split_columns(ends, M, F)
        three_2, three_1 = split_columns(middles, M, F)
        best_1 = tl.where(real[:, None], tl.maximum(best_1, one), best_1)
        best_2 = tl.where(real_1[:, None], tl.maximum(best_2, two_1 + begun_2), best_2)
        best_3 = tl.where(real_2[:, None], tl.maximum(best_3, three_2 + second_3), best_3)
        second_3 = three_1 + begun_3
        begun_2, begun_3 = split_columns(tl.dot(word, tl.trans(first)), M, F)
    real_1 = tl.load(mask + positions - 1, mask=exists, other=0.0) > 0
    real_2 = tl.load(mask + positions - 2, mask=exists & (positions > 1), other=0.0) > 0
    best_2 = tl.where(real_1[:, None], tl.maximum(best_2, begun_2), best_2)
    best_3 = tl.where(real_2[:, None], tl.maximum(best_3, second_3), best_3)
    best_3 = tl.where(real_1[:, None], tl.maximum(best_3, begun_3), best_3)
    place = result + pair.to(tl.int64)[:, None] * (3 * filters) + number[None, :]
    tl.store(place, best_1, mask=exists[:, None])
    tl.store(place + filters, best_2, mask=exists[:, None])
    tl.store(place + 2 * filters, best_3, mask=exists[:, None])


def _lower(*tensors: Tensor) -> list[Tensor]:
    return [each.to(torch.bfloat16).contiguous() for each in tensors]


def _norm(
    product: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    norm: nn.LayerNorm,
    shares: Tensor | None,
    tile: Tile,
) -> Tensor:
    """Apply ``norm_tile`` to a product (..., D); with zeros for padding if there are shares."""
    dim = product.shape[-1]
    rows, result = product.numel() // dim, torch.empty_like(product)
    added = product.new_zeros(dim, dtype=torch.float32) if bias is None else bias.float()
    with torch.cuda.device_of(product):
        norm_tile[(triton.cdiv(rows, tile.rows),)](
            product, residual, added, norm.weight.float(), norm.bias.float(), added if shares is None else shares,
            result, rows, residual.numel() // dim, 1 if shares is None else shares.numel(), norm.eps,
            MASK=shares is not None, D=dim, M=tile.rows, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return result


def _norm_mean(product: Tensor, bias: Tensor, residual: Tensor, norm: nn.LayerNorm, shares: Tensor) -> Tensor:
    """Apply ``norm_mean_tile`` to a product (S, N, K, D): means (S, N, D)."""
    contexts, items, positions, dim = product.shape
    result = product.new_empty(contexts, items, dim, dtype=torch.float32)
    with torch.cuda.device_of(product):
        norm_mean_tile[(triton.cdiv(contexts * items, MEAN_TILE.rows),)](
            product, residual, bias.float(), norm.weight.float(), norm.bias.float(), shares, result,
            contexts * items, items, positions, norm.eps, D=dim, M=MEAN_TILE.rows,
            num_warps=MEAN_TILE.warps, num_stages=MEAN_TILE.stages,
        )  # fmt: skip
    return result


def unit_after_attention(
    unit: TransformerUnit,
    attended: Tensor,
    parts: Tensor,
    shares: Tensor,
    *,
    pool: bool,
    tile: Tile = NORM_TILE,
) -> Tensor:
    """``TransformerUnit.feed_forward``: all parts (S, N, K, D), with zeros for padding; or their means (S, N, D).

    Args:
        shares: (N, K) weight of each part in the mean; zero for padding.
    """
    dim, shares = attended.shape[-1], shares.float().contiguous()
    attended, parts, out, inner, outer, bias = _lower(
        attended, parts, unit.out.weight, unit.inner.weight, unit.outer.weight, unit.inner.bias
    )
    with torch.autocast(attended.device.type, enabled=False):
        merged = _norm(F.linear(attended, out), None, parts, unit.attended_norm, None, tile)
        # An epilogue of cuBLASLt adds the bias and applies ReLU before the product is written.
        hidden = torch._addmm_activation(bias, merged.view(-1, dim), inner.t())
        product = F.linear(hidden, outer).view_as(merged)
        if pool:
            return _norm_mean(product, unit.outer.bias, merged, unit.norm, shares)
        return _norm(product, unit.outer.bias, merged, unit.norm, shares, tile)


def _ngram_weights(ngrams: NgramText, dim: int) -> Tensor:
    """Weights of all filters, those of a program of ``ngram_tile`` together: (filters / F, 6, F, D), flat.

    The four that end or continue an n-gram are first, and then the two that begin one.
    """
    layers = [layer for layer in ngrams.windows if isinstance(layer, nn.Linear)]
    one, two_0, two_1, three_0, three_1, three_2 = (
        piece for layer in layers for piece in torch.split(layer.weight, dim, 1)
    )
    pieces = torch.stack([one, two_1, three_2, three_1, two_0, three_0])
    return pieces.view(6, -1, NGRAM_FILTERS, dim).transpose(0, 1).to(torch.bfloat16).contiguous()


def best_ngrams(ngrams: NgramText, words: Tensor, shares: Tensor, tile: Tile = NGRAM_TILE) -> Tensor:
    """``NgramText`` for words (S, N, W, D), up to the largest responses (S, N, 3 F)."""
    contexts, items, positions, dim = words.shape
    weights = _ngram_weights(ngrams, dim)
    filters, pairs = len(weights) * NGRAM_FILTERS, contexts * items
    result = words.new_empty(contexts, items, 3 * filters, dtype=torch.float32)
    with torch.cuda.device_of(words):
        ngram_tile[(triton.cdiv(pairs, tile.rows), len(weights))](
            words, shares.float().contiguous(), weights, result, pairs, items, positions, filters,
            D=dim, M=tile.rows, F=NGRAM_FILTERS, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return result
