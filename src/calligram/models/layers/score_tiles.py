"""Scores in tiles that fit into memory; texts of similar length share a tile."""

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
"""named tuple of tensors whose first axis is the item"""
ScoreBlock = Callable[[Prepared, Prepared], Tensor]
"""function that returns the scores (I, T) of some images with some texts"""

TILE_PRODUCTS = {"cpu": 1 << 20, "cuda": 1 << 27}
"""size of a tile in products of parts, or in the numbers that count as products: a CPU core's cache, or enough work for
a GPU"""
TILE_TEXTS = {"cpu": (32, 128), "cuda": (128, 512)}
"""smallest and largest number of texts in a tile: few texts of similar length need little padding, but each tile has a
fixed cost"""
UNSORTED_DEVICES = ("cuda",)
"""devices where pairs that fit into one tile are not sorted by length: reading the lengths waits for the device"""
MAX_BACKWARD_BYTES = {"cpu": 1 << 31, "cuda": 1 << 34}
"""bytes that a backward pass may store; beyond that, the tiles are recomputed in the backward pass"""
BACKWARD_BYTES_PER_PRODUCT = 24
"""bytes that a backward pass stores per product: about six numbers of four bytes"""


def _products(regions: int, words: int) -> int:
    """Number of products of the parts of a pair."""
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
    """Score all pairs (I, T) in tiles, exactly and with gradients.

    Args:
        block: scores (I, T) of prepared images and prepared texts.
        prepare: computation per item, done once for all of its tiles.
        pair_products: cost of a pair with a given number of regions and words, in products; sets the tile size.
        tile: size of a tile in products.
        max_bytes: bytes that the backward pass may store.
    """
    device, mask = images.vectors.device.type, _mask(texts)
    tile = tile or TILE_PRODUCTS.get(device, TILE_PRODUCTS["cpu"])
    max_bytes = MAX_BACKWARD_BYTES.get(device, MAX_BACKWARD_BYTES["cpu"]) if max_bytes is None else max_bytes
    rows, columns = len(images.vectors), len(mask)
    if not rows or not columns:
        return images.vectors.new_zeros(rows, columns)
    all_images = prepare(images)
    parts, buckets = _mask(images).shape[1], _buckets(columns, *TILE_TEXTS.get(device, TILE_TEXTS["cpu"]))
    recompute = _exceeds(max_bytes, rows * columns * pair_products(parts, mask.shape[1]))

    def score_texts(some: Encoded) -> Tensor:
        """Scores of some texts with all images."""
        words, (count, longest) = prepare(some), _mask(some).shape
        step = max(1, tile // max(1, count * pair_products(parts, longest)))
        pieces = [
            _compute(
                block,
                all_images if step >= rows else _rows(all_images, slice(start, start + step)),
                words,
                recompute=recompute,
            )
            for start in range(0, rows, step)
        ]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    if len(buckets) == 1:  # a training batch on a GPU, which would have to wait for the lengths
        return score_texts(texts)
    lengths = used_lengths(mask)
    order = torch.argsort(lengths, stable=True)
    longest = lengths[order].tolist()
    found = [
        score_texts(truncate_parts(texts.rows(order[first:last]), max(longest[last - 1], 1))) for first, last in buckets
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
    """Score selected pairs (N,) in tiles, exactly and with gradients.

    Args:
        pairs: row indices (N,) of images and of texts.
        block: scores (N,) of aligned prepared items.
        prepare: computation per item, done once for all of its pairs; if there are at least as many items as pairs,
            once per tile.
        pair_products: as for ``score_in_tiles``, as are ``tile`` and ``max_bytes``.
    """
    device, mask, (rows, columns) = images.vectors.device.type, _mask(texts), pairs
    if not len(rows):
        return images.vectors.new_zeros(0)
    tile = tile or TILE_PRODUCTS.get(device, TILE_PRODUCTS["cpu"])
    max_bytes = MAX_BACKWARD_BYTES.get(device, MAX_BACKWARD_BYTES["cpu"]) if max_bytes is None else max_bytes
    parts, buckets = _mask(images).shape[1], _buckets(len(mask), *TILE_TEXTS.get(device, TILE_TEXTS["cpu"]))
    recompute = _exceeds(max_bytes, len(rows) * pair_products(parts, mask.shape[1]))

    def selector(items: Encoded, pair_count: int) -> Callable[[Tensor], Prepared]:
        """Function that selects items and prepares them."""
        if len(items.vectors) >= pair_count:
            return lambda index: prepare(items.rows(index))
        ready = prepare(items)
        return lambda index: _rows(ready, index)

    select_images = selector(images, len(rows))

    def deferred_scores(some: Encoded, one: Tensor, two: Tensor) -> list[Callable[[], Tensor]]:
        """Functions that compute the scores of the pairs of some texts."""
        step, select_texts = max(1, tile // pair_products(parts, _mask(some).shape[1])), selector(some, len(two))
        step = -(-len(one) // _round_up(-(-len(one) // step), torch.get_num_threads() if device == "cpu" else 1))
        return [
            _deferred(lambda a, b: block(select_images(a), select_texts(b)), a, b, recompute=recompute)
            for a, b in zip(torch.split(one, step), torch.split(two, step), strict=True)
        ]

    fits = device in UNSORTED_DEVICES and len(rows) * pair_products(parts, mask.shape[1]) <= tile
    if len(buckets) == 1 or fits:
        return torch.cat(_compute_all(deferred_scores(texts, rows, columns), device))
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
            found += deferred_scores(some, rows[which], rank[which] - first)
        begin = end
    return torch.cat(_compute_all(found, device))[torch.argsort(by_rank)]


def _exceeds(max_bytes: int, products: int) -> bool:
    """Whether a backward pass over so many products would store more than ``max_bytes``."""
    return torch.is_grad_enabled() and products * BACKWARD_BYTES_PER_PRODUCT > max_bytes


def _deferred(
    block: Callable[[Tensor, Tensor], Tensor], one: Tensor, two: Tensor, *, recompute: bool
) -> Callable[[], Tensor]:
    """A function that computes the scores of a block when it is called."""
    if recompute:
        return lambda: checkpoint(block, one, two, use_reentrant=False)
    return lambda: block(one, two)


def _round_up(count: int, multiple: int) -> int:
    """The next multiple of ``multiple``."""
    return -(-count // multiple) * multiple


def _compute_all(tasks: list[Callable[[], Tensor]], device: str) -> list[Tensor]:
    """Compute all tiles; on a CPU several at a time, each with one thread.

    With several threads per tile, every small operation waits for its slowest thread, which is long if another process
    uses that core.
    """
    threads = torch.get_num_threads()
    sequential = torch.is_grad_enabled() or torch.is_autocast_enabled(
        device
    )  # other threads do not inherit these states
    if device != "cpu" or sequential or min(threads, len(tasks)) == 1:
        return [task() for task in tasks]

    def run(task: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad():
            return task()

    try:
        with ThreadPoolExecutor(min(threads, len(tasks)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(run, tasks))
    finally:
        torch.set_num_threads(threads)


def truncate_parts(items: Encoded, count: int) -> Encoded:
    """Keep the first ``count`` parts of each item."""
    if items.parts is None:
        return items
    return Encoded(items.vectors, items.parts[:, :count], _mask(items)[:, :count])


def _mask(items: Encoded) -> Tensor:
    """(N, K) True for real parts; an item without parts has its vector as the only part."""
    if items.parts is None:
        return torch.ones(len(items.vectors), 1, dtype=torch.bool, device=items.vectors.device)
    return items.parts.new_ones(items.parts.shape[:2], dtype=torch.bool) if items.mask is None else items.mask


def used_lengths(mask: Tensor) -> Tensor:
    """(N,) length of each item up to its last real part, from its mask (N, K)."""
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask * positions).amax(1)


def _buckets(count: int, fewest: int, most: int) -> list[tuple[int, int]]:
    """Ranges of texts sorted by length: eighths, within the given limits."""
    size = min(most, max(fewest, -(-count // 8)))
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def _rows(items: Prepared, index: slice | Tensor) -> Prepared:
    """Select items."""
    return type(items)(*(tensor[index] for tensor in items))


def _compute(block: ScoreBlock[Prepared], images: Prepared, texts: Prepared, *, recompute: bool) -> Tensor:
    if not recompute:
        return block(images, texts)
    kind, other, count = type(images), type(texts), len(images)
    found: Tensor = checkpoint(
        lambda *tensors: block(kind(*tensors[:count]), other(*tensors[count:])), *images, *texts, use_reentrant=False
    )
    return found
