"""Triton kernels of mmca's pair module on a GPU: what follows attention, for all pairs, without gradients.

``unit_tile`` applies the output map, the inner layers and both layer norms to a tile of parts. All of it stays in
registers; weights pass through the cache of the multiprocessor in pieces. For images only the mean over regions is
written. For texts the words are written, and ``ngram_tile`` reads them once: it goes along the words of 128 pairs,
keeps the sums of the n-grams that are not complete yet, and the largest so far.

Factors of matrix products are in bfloat16. Sums, layer norms and everything else are in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from calligram.models.layers.fused_attention import MAX_ITEMS, sum_by_item, tile_items
from calligram.models.layers.text_cnn import NgramText
from calligram.models.layers.transformer_unit import TransformerUnit


class Tile(NamedTuple):
    """Size of a tile, and how a program runs."""

    rows: int
    """parts in a tile of ``unit_tile``, or pairs in a tile of ``ngram_tile``"""
    block: int
    """dimensions that ``unit_tile`` loads at once, or filters of ``ngram_tile``, whose weights stay in shared memory"""
    warps: int
    stages: int


UNIT_TILE, NGRAM_TILE = Tile(128, 64, 8, 2), Tile(128, 32, 8, 2)
"""``bench/mmca_kernels.py`` measures others"""


@triton.jit
def layer_norm(values, weight, bias, column, eps, D: tl.constexpr):
    """Layer norm of rows (M, D)."""
    centred = values - (tl.sum(values, 1) / D)[:, None]
    deviation = tl.sqrt(tl.sum(centred * centred, 1) / D + eps)
    scaled = centred / deviation[:, None]
    return scaled * tl.load(weight + column)[None, :] + tl.load(bias + column)[None, :]


@triton.jit(do_not_specialize=["pairs", "items", "positions", "held"])
def unit_tile(attended, parts, shares, out, inner, inner_bias, outer, outer_bias,
              first_weight, first_bias, second_weight, second_bias, result, pairs, items, positions, held, eps,
              POOL: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
              K: tl.constexpr, LIMIT: tl.constexpr):  # fmt: skip
    """The unit for the parts of some pairs, after attention; the mean of each item, or all parts."""
    tile = tl.program_id(0)
    exists, ones = tile_items(tile, positions, pairs, held, M)
    local = tl.arange(0, M)
    row = (tile * held * positions + local).to(tl.int64)
    own = ((tile * held + local // positions) % items) * positions + local % positions
    column, offset, some = tl.arange(0, D), tl.arange(0, K), exists[:, None]

    mapped = tl.full((M, D), 0.0, tl.float32)
    for start in range(0, D, K):
        found = tl.load(attended + row[:, None] * D + (start + offset)[None, :], mask=some, other=0.0)
        weights = tl.load(out + column[:, None] * D + (start + offset)[None, :])
        mapped = tl.dot(found, tl.trans(weights), mapped)
    before = tl.load(parts + own[:, None] * D + column[None, :], mask=some, other=0.0).to(tl.float32)
    merged = layer_norm(before + mapped, first_weight, first_bias, column, eps, D).to(tl.bfloat16)

    fed = tl.full((M, D), 0.0, tl.float32)
    for start in range(0, D, K):
        weights = tl.load(inner + (start + offset)[:, None] * D + column[None, :])
        hidden = tl.dot(merged, tl.trans(weights)) + tl.load(inner_bias + start + offset)[None, :]
        weights = tl.load(outer + column[:, None] * D + (start + offset)[None, :])
        fed = tl.dot(tl.maximum(hidden, 0.0).to(tl.bfloat16), tl.trans(weights), fed)
    fed += merged.to(tl.float32) + tl.load(outer_bias + column)[None, :]
    final = layer_norm(fed, second_weight, second_bias, column, eps, D)
    if POOL:
        share = tl.load(shares + own, mask=exists, other=0.0)
        means = sum_by_item(tl.trans(final * share[:, None]), ones, 2)
        number = tl.arange(0, LIMIT)
        pair = tile * held + number
        tl.store(result + pair.to(tl.int64)[None, :] * D + column[:, None], means,
                 mask=((number < held) & (pair < pairs))[None, :])  # fmt: skip
    else:
        real = tl.load(shares + own, mask=exists, other=0.0) > 0
        kept = tl.where(real[:, None], final, 0.0)
        tl.store(result + row[:, None] * D + column[None, :], kept.to(tl.bfloat16), mask=some)


@triton.jit(do_not_specialize=["pairs", "items", "positions"])
def ngram_tile(words, shares, weights, result, pairs, items, positions, filters,
               D: tl.constexpr, M: tl.constexpr, F: tl.constexpr):  # fmt: skip
    """Largest response of some filters to the n-grams of the texts of some pairs."""
    pair = tl.program_id(0) * M + tl.arange(0, M)
    exists, text = pair < pairs, pair % items
    column, number = tl.arange(0, D), tl.program_id(1) * F + tl.arange(0, F)
    at = weights + number[:, None] * D + column[None, :]
    step = filters * D
    one, two_0, two_1 = tl.load(at), tl.load(at + step), tl.load(at + 2 * step)
    three_0, three_1, three_2 = tl.load(at + 3 * step), tl.load(at + 4 * step), tl.load(at + 5 * step)

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
        best_1 = tl.where(real[:, None], tl.maximum(best_1, tl.dot(word, tl.trans(one))), best_1)
        best_2 = tl.where(real_1[:, None], tl.maximum(best_2, tl.dot(word, tl.trans(two_1), begun_2)), best_2)
        best_3 = tl.where(real_2[:, None], tl.maximum(best_3, tl.dot(word, tl.trans(three_2), second_3)), best_3)
        begun_2 = tl.dot(word, tl.trans(two_0))
        second_3 = tl.dot(word, tl.trans(three_1), begun_3)
        begun_3 = tl.dot(word, tl.trans(three_0))
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


def unit_after_attention(
    unit: TransformerUnit,
    attended: Tensor,
    parts: Tensor,
    shares: Tensor,
    *,
    pool: bool,
    tile: Tile = UNIT_TILE,
) -> Tensor:
    """``TransformerUnit.feed_forward``: all parts (S, N, K, D), with zeros for padding; or their means (S, N, D).

    Args:
        shares: (N, K) weight of each part in the mean; zero for padding.
    """
    contexts, items, positions, dim = attended.shape
    pairs, held = contexts * items, min(MAX_ITEMS, tile.rows // positions)
    result = parts.new_empty(
        *((contexts, items, dim) if pool else (contexts, items, positions, dim)),
        dtype=torch.float32 if pool else torch.bfloat16,
    )
    maps = unit.out.weight, unit.inner.weight, unit.outer.weight
    norms = [each for norm in (unit.attended_norm, unit.norm) for each in (norm.weight, norm.bias)]
    inner, outer = unit.inner.bias.float(), unit.outer.bias.float()
    low, maps_low = _lower(attended, parts), _lower(*maps)
    with torch.cuda.device_of(attended):
        unit_tile[(triton.cdiv(pairs, held),)](
            *low, shares.float().contiguous(), maps_low[0], maps_low[1], inner, maps_low[2], outer,
            *(each.float() for each in norms), result, pairs, items, positions, held, unit.norm.eps, POOL=pool,
            D=dim, M=tile.rows, K=tile.block, LIMIT=MAX_ITEMS, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip
    return result


def best_ngrams(ngrams: NgramText, words: Tensor, shares: Tensor, tile: Tile = NGRAM_TILE) -> Tensor:
    """``NgramText`` for words (S, N, W, D), up to the largest responses (S, N, 3 F)."""
    contexts, items, positions, dim = words.shape
    layers = [layer for layer in ngrams.windows if isinstance(layer, nn.Linear)]
    weights = torch.cat([piece for layer in layers for piece in torch.split(layer.weight, dim, 1)])
    filters, pairs = len(layers[0].weight), contexts * items
    result = words.new_empty(contexts, items, 3 * filters, dtype=torch.float32)
    with torch.cuda.device_of(words):
        ngram_tile[(triton.cdiv(pairs, tile.rows), filters // tile.block)](
            words, shares.float().contiguous(), *_lower(weights), result, pairs, items, positions, filters,
            D=dim, M=tile.rows, F=tile.block, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return result
