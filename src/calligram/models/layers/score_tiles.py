"""Scores of all images with all texts in tiles that fit into memory, texts of like length together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from calligram.models.layers.cross_attention import Parts
from calligram.models.matcher import Encoded

Prepared = TypeVar("Prepared", bound=tuple[Tensor, ...])
"""a named tuple of tensors whose first axis is the item"""
ScoreBlock = Callable[[Prepared, Prepared], Tensor]
"""the scores (I, T) of some images with some texts"""

TILE_PRODUCTS = {"cpu": 1 << 20, "cuda": 1 << 27}
"""products of parts in a tile, or what counts as one: what a core's cache holds, or what keeps an accelerator busy"""
TILE_TEXTS = {"cpu": (32, 128), "cuda": (128, 512)}
"""fewest and most texts in a tile: sorted by length, few of them need padding; but a tile must be worth its start"""
MAX_BACKWARD_BYTES = {"cpu": 1 << 31, "cuda": 1 << 34}
"""bytes that a backward pass may hold; beyond, tiles are computed recompute for it"""
BACKWARD_BYTES_PER_PRODUCT = 24
"""bytes that a backward pass holds for a product: about six numbers of four bytes"""


def _products(regions: int, words: int) -> int:
    """Of the parts of a pair."""
    return regions * words


def score_in_tiles(
    images: Encoded,
    texts: Encoded,
    block: ScoreBlock[Any],
    *,
    prepare: Callable[[Encoded], Prepared] = Parts.of,  # type: ignore[assignment]  # a default for one type of many
    pair_products: Callable[[int, int], int] = _products,
    tile: int | None = None,
    max_bytes: int | None = None,
) -> Tensor:
    """The scores (I, T) by tiles, exact and differentiable.

    Args:
        prepare: what is computed once for an item, whatever tiles it is in; ``block`` takes two of them.
        numbers: how many products a pair of so many regions and words counts as, for the sizes of tiles.
        tile: products of parts in a tile.
        kept: bytes that may be held for the backward pass.
    """
    device, mask = images.vectors.device.type, _mask(texts)
    tile = tile or TILE_PRODUCTS.get(device, TILE_PRODUCTS["cpu"])
    max_bytes = MAX_BACKWARD_BYTES.get(device, MAX_BACKWARD_BYTES["cpu"]) if max_bytes is None else max_bytes
    rows, columns = len(images.vectors), len(mask)
    if not rows or not columns:
        return images.vectors.new_zeros(rows, columns)
    seen = prepare(images)
    places, buckets = _mask(images).shape[1], _buckets(columns, *TILE_TEXTS.get(device, TILE_TEXTS["cpu"]))
    recompute = (
        torch.is_grad_enabled()
        and rows * columns * pair_products(places, mask.shape[1]) * BACKWARD_BYTES_PER_PRODUCT > max_bytes
    )

    def column(some: Encoded) -> Tensor:
        """The scores of some texts."""
        words, (count, longest) = prepare(some), _mask(some).shape
        step = max(1, tile // max(1, count * pair_products(places, longest)))
        pieces = [
            _compute(
                block, seen if step >= rows else _rows(seen, slice(start, start + step)), words, recompute=recompute
            )
            for start in range(0, rows, step)
        ]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    if len(buckets) == 1:  # a training batch on an accelerator, which would have to wait for the lengths
        return column(texts)
    lengths = used_lengths(mask)
    order = torch.argsort(lengths, stable=True)
    longest = lengths[order].tolist()
    found = [
        column(truncate_parts(texts.rows(order[first:last]), max(longest[last - 1], 1))) for first, last in buckets
    ]
    return torch.cat(found, dim=1)[:, torch.argsort(order)]


def score_some_in_tiles(
    images: Encoded,
    texts: Encoded,
    pairs: tuple[Tensor, Tensor],
    block: ScoreBlock[Any],
    *,
    prepare: Callable[[Encoded], Prepared],
    pair_products: Callable[[int, int], int],
    tile: int | None = None,
    max_bytes: int | None = None,
) -> Tensor:
    """The scores (N,) of some pairs, rows of images and of texts, by tiles, exact and differentiable.

    Args:
        block: scores (N,) of aligned prepared items.
        prepare: computed once for an item, however many pairs it is in; where there are no fewer items than pairs, for
            those of a tile.
        numbers: as for ``score_in_tiles``, and likewise ``tile`` and ``kept``.
    """
    device, mask, (rows, columns) = images.vectors.device.type, _mask(texts), pairs
    if not len(rows):
        return images.vectors.new_zeros(0)
    tile = tile or TILE_PRODUCTS.get(device, TILE_PRODUCTS["cpu"])
    max_bytes = MAX_BACKWARD_BYTES.get(device, MAX_BACKWARD_BYTES["cpu"]) if max_bytes is None else max_bytes
    places, buckets = _mask(images).shape[1], _buckets(len(mask), *TILE_TEXTS.get(device, TILE_TEXTS["cpu"]))
    recompute = (
        torch.is_grad_enabled()
        and len(rows) * pair_products(places, mask.shape[1]) * BACKWARD_BYTES_PER_PRODUCT > max_bytes
    )

    def taken(items: Encoded, asked: int) -> Callable[[Tensor], Prepared]:
        """What gives some of the items, prepared."""
        if len(items.vectors) >= asked:
            return lambda index: prepare(items.rows(index))
        ready = prepare(items)
        return lambda index: _rows(ready, index)

    seen = taken(images, len(rows))

    def scored(some: Encoded, one: Tensor, two: Tensor) -> list[Callable[[], Tensor]]:
        """What gives the scores of pairs of some texts."""
        step, said = max(1, tile // pair_products(places, _mask(some).shape[1])), taken(some, len(two))
        step = -(-len(one) // _round_up(-(-len(one) // step), torch.get_num_threads() if device == "cpu" else 1))
        return [
            _deferred(lambda a, b: block(seen(a), said(b)), a, b, recompute=recompute)
            for a, b in zip(torch.split(one, step), torch.split(two, step), strict=True)
        ]

    if len(buckets) == 1:
        return torch.cat(_compute_all(scored(texts, rows, columns), device))
    lengths = used_lengths(mask)
    order = torch.argsort(lengths, stable=True)
    longest, rank = lengths[order].tolist(), torch.argsort(order)[columns]
    by_rank = torch.argsort(rank, stable=True)
    ends = torch.searchsorted(rank[by_rank], torch.tensor([last for _, last in buckets], device=rank.device)).tolist()
    found, begin = [], 0
    for (first, last), end in zip(buckets, ends, strict=True):
        which = by_rank[begin:end]
        if begin < end:
            some = truncate_parts(texts.rows(order[first:last]), max(longest[last - 1], 1))
            found += scored(some, rows[which], rank[which] - first)
        begin = end
    return torch.cat(_compute_all(found, device))[torch.argsort(by_rank)]


def _deferred(
    block: Callable[[Tensor, Tensor], Tensor], one: Tensor, two: Tensor, *, recompute: bool
) -> Callable[[], Tensor]:
    """The block's scores, when they are asked for."""
    if recompute:
        return lambda: checkpoint(block, one, two, use_reentrant=False)
    return lambda: block(one, two)


def _round_up(count: int, of: int) -> int:
    """The next multiple."""
    return -(-count // of) * of


def _compute_all(works: list[Callable[[], Tensor]], device: str) -> list[Tensor]:
    """What all of the tiles give; on a CPU several at a time, with one core each.

    Cores that share every small step wait at its end for the slowest, and long where another process has one of them.
    """
    threads = torch.get_num_threads()
    alone = torch.is_grad_enabled() or torch.is_autocast_enabled(device)  # states that a thread does not pass on
    if device != "cpu" or alone or min(threads, len(works)) == 1:
        return [work() for work in works]

    def done(work: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            return work()

    try:
        with ThreadPoolExecutor(min(threads, len(works)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(done, works))
    finally:
        torch.set_num_threads(threads)


def truncate_parts(items: Encoded, count: int) -> Encoded:
    """The same items with so many places for parts."""
    if items.parts is None:
        return items
    return Encoded(items.vectors, items.parts[:, :count], _mask(items)[:, :count])


def _mask(items: Encoded) -> Tensor:
    """(N, K) which parts are real; the vector is the only one where there are none."""
    if items.parts is None:
        return torch.ones(len(items.vectors), 1, dtype=torch.bool, device=items.vectors.device)
    return items.parts.new_ones(items.parts.shape[:2], dtype=torch.bool) if items.mask is None else items.mask


def used_lengths(mask: Tensor) -> Tensor:
    """(N,) how many places hold everything that is real of an item (N, K)."""
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask * places).amax(1)


def _buckets(count: int, fewest: int, most: int) -> list[tuple[int, int]]:
    """Ranges of texts in order of length, by eighths where that is within the bounds."""
    size = min(most, max(fewest, -(-count // 8)))
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def _rows(items: Prepared, index: slice | Tensor) -> Prepared:
    """Some of the items."""
    return type(items)(*(tensor[index] for tensor in items))


def _compute(block: ScoreBlock[Prepared], images: Prepared, texts: Prepared, *, recompute: bool) -> Tensor:
    if not recompute:
        return block(images, texts)
    kind, other, count = type(images), type(texts), len(images)
    found: Tensor = checkpoint(
        lambda *given: block(kind(*given[:count]), other(*given[count:])), *images, *texts, use_reentrant=False
    )
    return found
