"""Triton kernels of the attention of scan and bfan on a GPU: scores of all pairs, and their gradients.

The plain path (``cross_attention.py``) writes the products of all parts to memory and reads them about ten times. Here
a program computes the products of some query items and some context items, and all that follows, in registers. Only the
scores are written. The backward pass computes the products again and writes their gradients once. Two matrix products
then give the gradients of the vectors.

A tile has one row for each query part and one column for each context part. It holds as many whole items as fit: 128
columns hold three images of 36 regions. A sum over the parts of an item is a product with a matrix of zeros and ones
(``row_ones``, ``column_ones``), so an item may have any number of parts up to the size of a tile. The Gram matrices of
a tile are the blocks of one block-diagonal matrix.

Matrix products take bfloat16 and sum in float32. A float32 vector is split into two bfloat16 vectors: rounded values,
and their rounding errors. Three products of these are added, which gives a precision of 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from calligram.device import run_kernel
from calligram.models.layers import cross_attention
from calligram.models.layers.cross_attention import Aggregation, AttentionSettings, PartProducts, Parts, similarity

MAX_ITEMS = 16
"""largest number of items in the rows or columns of a tile; matrix products have at least this size"""
GROUP_TILES = 8
"""tiles of rows that are computed together, because their vectors are then in the cache"""

SLOPE = tl.constexpr(cross_attention.LEAKY_SLOPE)
MIN_NORM = tl.constexpr(cross_attention.MIN_NORM)
MIN_SQUARE = tl.constexpr(cross_attention.MIN_SQUARED_NORM)
SLACK = tl.constexpr(cross_attention.SINGLE_PART_SLACK)
ITEMS = tl.constexpr(MAX_ITEMS)
SIZES = ["query_items", "query_parts", "context_items", "context_parts"]
SIZES += ["rows_held", "columns_held", "row_tiles", "column_tiles"]
"""arguments that differ from call to call; the kernel is compiled once for all of their values"""


class TileSize(NamedTuple):
    """Size of a tile and of the block of dimensions that is loaded at once, and how a program runs."""

    rows: int
    columns: int
    block: int
    warps: int
    stages: int


FORWARD_TILES = {torch.bfloat16: TileSize(128, 128, 64, 8, 3), torch.float32: TileSize(128, 128, 32, 8, 3)}
BACKWARD_TILES = {torch.bfloat16: TileSize(128, 64, 64, 8, 3), torch.float32: TileSize(128, 64, 32, 8, 3)}
"""no side is smaller than MAX_FUSED_PARTS of ``cross_attention.py``, so that a tile holds at least one item"""
FusedScoring = tuple[AttentionSettings, Aggregation, float]
"""attention, aggregation of relevances, and its sharpness"""


@triton.jit
def split_pieces(values):
    """Three tensors in bfloat16 whose sum is a tensor in float32; the sum of the first two has 16 bits."""
    high = values.to(tl.bfloat16)
    rest = values - high.to(tl.float32)
    low = rest.to(tl.bfloat16)
    return high, low, (rest - low.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def sum_by_item(values, ones, PIECES: tl.constexpr):
    """Product of values (R, C) in two or three pieces and ``ones`` (C, ...), zeros and ones in bfloat16.

    Sums the columns of each item, (R, ITEMS); or repeats the column of an item for all of its parts.
    """
    high, low, last = split_pieces(values)
    found = tl.dot(low, ones, tl.dot(high, ones))
    return tl.dot(last, ones, found) if PIECES == 3 else found


@triton.jit
def repeat_rows(ones, values, PIECES: tl.constexpr):
    """Product of ``ones`` (M, ITEMS) and values (ITEMS, N): the row of an item for all of its parts."""
    high, low, last = split_pieces(values)
    found = tl.dot(ones, low, tl.dot(ones, high))
    return tl.dot(ones, last, found) if PIECES == 3 else found


@triton.jit
def tile_items(tile, parts, count, held, SIZE: tl.constexpr):
    """Whether each row of a tile exists, and a matrix (SIZE, ITEMS) of ones at a row's item."""
    local = tl.arange(0, SIZE) // parts
    item = tile * held + local
    exists = (local < held) & (item < count)
    ones = (local[:, None] == tl.arange(0, ITEMS)[None, :]) & exists[:, None]
    return exists, ones.to(tl.float32).to(tl.bfloat16)


@triton.jit
def tile_numbers(rows, columns, GROUP: tl.constexpr):
    """Number of this program's tile among the rows, and among the columns."""
    number = tl.program_id(0)
    group = number // (GROUP * columns)
    height = tl.minimum(rows - group * GROUP, GROUP)
    within = number % (GROUP * columns)
    return group * GROUP + within % height, within // height


@triton.jit
def multiply(query, query_low, context, context_low, row, column, row_exists, column_exists,
             SPLIT: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # fmt: skip
    """Products (M, N) of query parts and context parts."""
    found = tl.full((M, N), 0.0, tl.float32)
    offset = tl.arange(0, K)
    rows = row.to(tl.int64)[:, None] * DIM + offset[None, :]
    columns = column.to(tl.int64)[:, None] * DIM + offset[None, :]
    for start in range(0, DIM, K):
        of_row, of_column = row_exists[:, None], column_exists[:, None]
        if DIM % K != 0:
            of_row &= (start + offset < DIM)[None, :]
            of_column &= (start + offset < DIM)[None, :]
        one = tl.load(query + rows + start, mask=of_row, other=0.0)
        two = tl.load(context + columns + start, mask=of_column, other=0.0)
        if SPLIT:
            one_low = tl.load(query_low + rows + start, mask=of_row, other=0.0)
            two_low = tl.load(context_low + columns + start, mask=of_column, other=0.0)
            found = tl.dot(one, tl.trans(two_low), found)
            found = tl.dot(one_low, tl.trans(two), found)
        found = tl.dot(one, tl.trans(two), found)
    return found


@triton.jit
def attended_products(weights, gram, gram_low, tile, SPLIT: tl.constexpr, N: tl.constexpr):
    """Products (M, N) of the weights and the Gram matrices of a tile's context items."""
    offset = tile.to(tl.int64) * N * N + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    blocks = tl.load(gram + offset)
    high = weights.to(tl.bfloat16)
    found = tl.dot(high, blocks)
    if SPLIT:
        low = (weights - high.to(tl.float32)).to(tl.bfloat16)
        found = tl.dot(low, blocks, found)
        found = tl.dot(high, tl.load(gram_low + offset), found)
    return found


@triton.jit
def focal_weights(weights, column_ones, context_count, single, FOCAL: tl.constexpr):
    """Weights of the context parts that bfan keeps: those above a mean; all if none is."""
    if FOCAL == "equal":
        limit = sum_by_item(weights, column_ones, 3) / tl.maximum(context_count, 1.0)[None, :]
    else:
        root = tl.sqrt(weights)
        total = tl.maximum(sum_by_item(root, column_ones, 3), MIN_SQUARE)
        limit = sum_by_item(weights * root, column_ones, 3) / total
    limit = limit * (single.to(tl.float32) * SLACK + 1.0)[:, None]
    keep = (weights > sum_by_item(limit, tl.trans(column_ones), 3)).to(tl.float32)
    none = (tl.dot(keep.to(tl.bfloat16), column_ones) < 0.5).to(tl.float32)
    return weights * tl.maximum(keep, tl.dot(none.to(tl.bfloat16), tl.trans(column_ones)))


@triton.jit
def attention(products, row_ones, column_ones, real_column, context_count, single, temperature,
              CLIPPED: tl.constexpr, NORM: tl.constexpr, FOCAL: tl.constexpr, PIECES: tl.constexpr):  # fmt: skip
    """Attention weights (M, N) of query parts over context parts, and the norms (N, ITEMS) over query parts."""
    values = tl.where(products > 0, products, products * SLOPE) if CLIPPED else products
    norm = sum_by_item(tl.trans(values * values if NORM == 2 else tl.abs(values)), row_ones, PIECES)
    norm = tl.sqrt(norm) if NORM == 2 else norm
    scale = repeat_rows(row_ones, tl.trans(temperature / (norm + MIN_NORM)), PIECES)
    weights = tl.exp(values * scale) * real_column[None, :]
    if FOCAL != "none":
        weights = focal_weights(weights, column_ones, context_count, single, FOCAL)
    return weights, norm


@triton.jit
def store_scores(relevance, real_row, row_ones, query_count, place, stored, sharpness, KIND: tl.constexpr):
    """Aggregate the relevances (M, ITEMS) over the parts of each query item."""
    if KIND == "lse":
        total = sum_by_item(tl.trans(tl.exp(relevance * sharpness) * real_row[:, None]), row_ones, 3)
        found = tl.log(tl.maximum(total, MIN_SQUARE)) / sharpness
    else:
        found = sum_by_item(tl.trans(relevance * real_row[:, None]), row_ones, 3)
        if KIND == "mean":
            found = found / tl.maximum(query_count, 1.0)[None, :]
    tl.store(place, tl.where(query_count[None, :] > 0, found, 0.0), mask=stored)


@triton.jit
def gradient_of_relevance(of_scores, relevance, real_row, row_ones, query_count, sharpness, KIND: tl.constexpr):
    """Gradient (M, ITEMS) of relevances from the gradient (ITEMS, ITEMS) of scores."""
    if KIND == "lse":
        factor = tl.exp(relevance * sharpness) * real_row[:, None]
        of_scores = of_scores / tl.maximum(sum_by_item(tl.trans(factor), row_ones, 3), MIN_SQUARE)
        return repeat_rows(row_ones, tl.trans(of_scores), 3) * factor
    if KIND == "mean":
        of_scores = of_scores / tl.maximum(query_count, 1.0)[None, :]
    return repeat_rows(row_ones, tl.trans(of_scores), 3) * real_row[:, None]


@triton.jit
def gradient_of_products(products, weights, of_logits, norm, row_ones, temperature,
                         CLIPPED: tl.constexpr, NORM: tl.constexpr, PIECES: tl.constexpr):  # fmt: skip
    """Gradient (M, N) of the products through the attention weights, from the gradient of the logits."""
    values = tl.where(products > 0, products, products * SLOPE) if CLIPPED else products
    scale = temperature / (norm + MIN_NORM)
    share = sum_by_item(tl.trans(of_logits * values), row_ones, PIECES) * scale / (norm + MIN_NORM)
    found = of_logits * repeat_rows(row_ones, tl.trans(scale), PIECES)
    if NORM == 2:
        share = tl.where(norm > 0, share / tl.where(norm > 0, norm, 1.0), 0.0)
        found -= repeat_rows(row_ones, tl.trans(share), PIECES) * values
    else:
        sign = (values > 0).to(tl.float32) - (values < 0).to(tl.float32)
        found -= repeat_rows(row_ones, tl.trans(share), PIECES) * sign
    return tl.where(products > 0, found, found * SLOPE) if CLIPPED else found


@triton.jit
def store_gradients(products, weights, attended, norm, square, inverse, relevance, of_relevance, row_ones, column_ones,
                    of_products, of_gram, context_parts, row_exists, column_exists, temperature,
                    CLIPPED: tl.constexpr, NORM: tl.constexpr, SPLIT: tl.constexpr, PIECES: tl.constexpr,
                    N: tl.constexpr):  # fmt: skip
    """Store the gradients of the products and of the Gram matrices of a tile."""
    of_square = tl.where(square > MIN_SQUARE, of_relevance * relevance * -0.5 / tl.maximum(square, MIN_SQUARE), 0.0)
    of_square = sum_by_item(of_square, tl.trans(column_ones), PIECES) * weights
    of_products_here = sum_by_item(of_relevance * inverse, tl.trans(column_ones), PIECES) * weights
    of_logits = of_products_here * products + of_square * attended * 2.0
    of_products_here += gradient_of_products(
        products, weights, of_logits, norm, row_ones, temperature, CLIPPED, NORM, PIECES
    )
    found = of_products_here.to(of_products.dtype.element_ty)
    tl.store(of_products, found, mask=row_exists[:, None] & column_exists[None, :])
    one, two = tl.trans(of_square.to(tl.bfloat16)), weights.to(tl.bfloat16)
    of_blocks = tl.dot(one, two)
    if SPLIT:
        of_blocks = tl.dot(one, (weights - two.to(tl.float32)).to(tl.bfloat16), of_blocks)
        of_blocks = tl.dot(tl.trans((of_square - tl.trans(one).to(tl.float32)).to(tl.bfloat16)), two, of_blocks)
    column = tl.arange(0, N)
    item, position = column // context_parts, column % context_parts
    inside = (item[:, None] == item[None, :]) & column_exists[:, None] & column_exists[None, :]
    tl.store(of_gram + column[:, None] * context_parts + position[None, :], of_blocks, mask=inside)


@triton.jit(do_not_specialize=SIZES)
def score_tile(query, query_low, context, context_low, gram, gram_low, lengths, query_mask, context_mask,
               query_counts, context_counts, scores, of_products, of_relevances, of_gram,
               query_items, query_parts, context_items, context_parts, rows_held, columns_held, row_tiles,
               column_tiles, temperature, sharpness,
               CLIPPED: tl.constexpr, NORM: tl.constexpr, FOCAL: tl.constexpr, KIND: tl.constexpr,
               SPLIT: tl.constexpr, BACKWARD: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
               M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # fmt: skip
    """Scores (context items, query items) of a tile; or, given their gradient, all gradients that the tile adds."""
    PIECES: tl.constexpr = 3 if SPLIT else 2
    row_tile, column_tile = tile_numbers(row_tiles, column_tiles, GROUP)
    row_exists, row_ones = tile_items(row_tile, query_parts, query_items, rows_held, M)
    column_exists, column_ones = tile_items(column_tile, context_parts, context_items, columns_held, N)
    row = row_tile * rows_held * query_parts + tl.arange(0, M)
    column = column_tile * columns_held * context_parts + tl.arange(0, N)
    local = tl.arange(0, ITEMS)
    query_item, context_item = row_tile * rows_held + local, column_tile * columns_held + local
    of_query = (local < rows_held) & (query_item < query_items)
    of_context = (local < columns_held) & (context_item < context_items)
    place = scores + context_item.to(tl.int64)[:, None] * query_items + query_item[None, :]
    stored = of_context[:, None] & of_query[None, :]
    if BACKWARD:  # noqa: SIM102  a constant; most tiles have no gradient if the loss selects the hardest negatives
        if tl.sum(tl.sum(tl.abs(tl.load(place, mask=stored, other=0.0)), 1), 0) == 0.0:
            return
    products = multiply(query, query_low, context, context_low, row, column, row_exists, column_exists,
                        SPLIT, DIM, M, N, K)  # fmt: skip
    query_count = tl.load(query_counts + query_item, mask=of_query, other=0.0)
    context_count = tl.load(context_counts + context_item, mask=of_context, other=0.0)
    single = (
        tl.load(query_counts + row_tile * rows_held + tl.arange(0, M) // query_parts, mask=row_exists, other=0.0) == 1.0
    )
    real_column = tl.load(context_mask + column, mask=column_exists, other=0.0)
    weights, norm = attention(products, row_ones, column_ones, real_column, context_count, single, temperature,
                              CLIPPED, NORM, FOCAL, PIECES)  # fmt: skip
    attended = attended_products(weights, gram, gram_low, column_tile, SPLIT, N)
    square = sum_by_item(weights * attended, column_ones, PIECES)
    length = tl.load(lengths + row, mask=row_exists, other=1.0)
    inverse = 1.0 / (tl.sqrt(tl.maximum(square, MIN_SQUARE)) * tl.maximum(length, MIN_NORM)[:, None])
    relevance = sum_by_item(weights * products, column_ones, PIECES) * inverse
    real_row = tl.load(query_mask + row, mask=row_exists, other=0.0)
    if BACKWARD:
        of_relevance = gradient_of_relevance(tl.load(place, mask=stored, other=0.0), relevance, real_row, row_ones,
                                             query_count, sharpness, KIND)  # fmt: skip
        at_relevance = context_item.to(tl.int64)[None, :] * query_items * query_parts + row[:, None]
        tl.store(of_relevances + at_relevance, of_relevance * relevance, mask=row_exists[:, None] & of_context[None, :])
        at_products = row.to(tl.int64)[:, None] * context_items * context_parts + column[None, :]
        first = row_tile.to(tl.int64) * context_items + column_tile * columns_held
        store_gradients(products, weights, attended, norm, square, inverse, relevance, of_relevance, row_ones,
                        column_ones, of_products + at_products, of_gram + first * context_parts * context_parts,
                        context_parts, row_exists, column_exists, temperature,
                        CLIPPED, NORM, SPLIT, PIECES, N)  # fmt: skip
    else:
        store_scores(relevance, real_row, row_ones, query_count, place, stored, sharpness, KIND)


def _gram_tiles(gram: Tensor, size: TileSize) -> Tensor:
    """Gram matrices (C, S, S) as the blocks of block-diagonal matrices (tiles, columns, columns)."""
    count, parts, _ = gram.shape
    held = min(MAX_ITEMS, size.columns // parts)
    tiles = triton.cdiv(count, held)
    blocks = gram.new_zeros(tiles, held, parts, held, parts)
    padded = F.pad(gram, (0, 0, 0, 0, 0, tiles * held - count)).view(tiles, held, parts, parts)
    blocks.diagonal(dim1=1, dim2=3).copy_(padded.permute(0, 2, 3, 1))
    missing = size.columns - held * parts
    return F.pad(blocks.view(tiles, held * parts, held * parts), (0, missing, 0, missing))


def _split(values: Tensor, *, low: bool) -> list[Tensor]:
    """A tensor in bfloat16, and its rounding error if it is needed."""
    high = values.to(torch.bfloat16).contiguous()
    return [high, (values - high).to(torch.bfloat16).contiguous() if low else high]


def _launch(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], size: TileSize, how: FusedScoring, *, backward: bool
) -> None:
    """Run the kernel for all tiles."""
    attention, kind, sharpness = how
    (queries, words, dim), (contexts, regions, _) = inputs[0].shape, inputs[2].shape
    rows_held, columns_held = min(MAX_ITEMS, size.rows // words), min(MAX_ITEMS, size.columns // regions)
    row_tiles, column_tiles = triton.cdiv(queries, rows_held), triton.cdiv(contexts, columns_held)
    with torch.cuda.device_of(inputs[0]):
        score_tile[(row_tiles * column_tiles,)](
            *inputs, *outputs, queries, words, contexts, regions, rows_held, columns_held, row_tiles, column_tiles,
            float(attention.temperature), float(sharpness), CLIPPED=attention.norm.startswith("clipped"),
            NORM=2 if attention.norm.endswith("l2norm") else 1, FOCAL=attention.focal, KIND=kind,
            SPLIT=inputs[0] is not inputs[1], BACKWARD=backward, GROUP=GROUP_TILES, DIM=dim,
            M=size.rows, N=size.columns, K=size.block, num_warps=size.warps, num_stages=size.stages,
        )  # fmt: skip


class FusedScores(Function):
    """Scores (C, T) of all pairs of context items C and query items T."""

    @staticmethod
    def forward(ctx: Any, how: FusedScoring, *tensors: Tensor) -> Tensor:
        """The tensors are: parts of the query items (T, Q, D) and of the context items (C, S, D), in bfloat16 or
        float32, with zeros as padding; Gram matrices (C, S, S) of the context items; norms (T, Q) of the query parts,
        in float32; masks (T, Q) and (C, S), True for real parts.
        """
        query, context, _, lengths = tensors[:4]
        scores, size = lengths.new_empty(len(context), len(query)), FORWARD_TILES[query.dtype]
        _launch(_inputs(tensors, size), (scores,) * 4, size, how, backward=False)
        ctx.save_for_backward(*tensors)
        ctx.how = how
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_scores: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the vectors, of the Gram matrices and of the norms."""
        tensors, how = ctx.saved_tensors, ctx.how
        found = run_kernel(
            cross_attention.FUSED_KERNEL,
            lambda: _gradients(tensors, of_scores, how),
            lambda: _plain_gradients(tensors, of_scores, how),
        )
        return None, *found, None, None


def _inputs(tensors: Sequence[Tensor], size: TileSize) -> list[Tensor]:
    """Tensors that the kernel reads: pieces of vectors and Gram matrices, norms, masks, and numbers of parts."""
    query, context, gram, lengths = tensors[:4]
    split = query.dtype == torch.float32
    pieces = [piece for each in (query, context, _gram_tiles(gram, size)) for piece in _split(each, low=split)]
    real = [mask.to(torch.float32).contiguous() for mask in tensors[4:]]
    return [*pieces, lengths.contiguous(), *real, *(mask.sum(1) for mask in real)]


def _gradients(tensors: Sequence[Tensor], of_scores: Tensor, how: FusedScoring) -> tuple[Tensor | None, ...]:
    query, context, gram, lengths = tensors[:4]
    size, bound = BACKWARD_TILES[query.dtype], cross_attention.MIN_NORM
    tiles = triton.cdiv(len(query), min(MAX_ITEMS, size.rows // query.shape[1]))
    of_products = query.new_zeros(lengths.numel(), context.shape[0] * context.shape[1])
    of_relevances = lengths.new_zeros(len(context), *lengths.shape)
    of_gram = lengths.new_zeros(tiles, *gram.shape)
    outputs = of_scores.contiguous(), of_products, of_relevances, of_gram
    _launch(_inputs(tensors, size), outputs, size, how, backward=True)
    return (
        (of_products @ context.flatten(0, 1)).view_as(query),
        (of_products.T @ query.flatten(0, 1)).view_as(context),
        of_gram.sum(0).to(gram.dtype),
        (-of_relevances.sum(0) / lengths.clamp(min=bound)).masked_fill(lengths <= bound, 0.0),
    )


def _plain_gradients(tensors: Sequence[Tensor], of_scores: Tensor, how: FusedScoring) -> tuple[Tensor | None, ...]:
    """The same without the kernel; the norms are computed again, and their gradient is in that of the vectors."""
    leaves, (query_mask, context_mask) = [each.detach().requires_grad_() for each in tensors[:3]], tensors[4:]
    with torch.enable_grad():
        pairs = PartProducts.of(Parts(leaves[1], context_mask, leaves[2]), Parts(leaves[0], query_mask, leaves[2]))
        return *torch.autograd.grad(similarity(pairs, *how), leaves, of_scores), None
