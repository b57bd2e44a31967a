"""A few items that stand for all: greedy weighted facility location over unit vectors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calligram.progress import Track, silent

TILE_BYTES = 1 << 26
"""similarities held at a time"""
DEMAND = 20_000
"""items that a choice is judged by, where there are more"""
AGAIN = 32
"""candidates whose gains are brought up to date together"""


class Pick(NamedTuple):
    """One of the items chosen."""

    row: int
    gain: float
    """what it added to the sum of weighted similarities"""
    nearest: float
    """its similarity to the most similar item that was a centre before it; -1 where there was none"""
    stands_for: int
    """items whose most similar centre it became"""


@torch.no_grad()
def cover(
    items: Tensor,
    covered: Tensor,
    weights: Tensor,
    n: int,
    *,
    near: float = 0.98,
    demand: int = DEMAND,
    tile_bytes: int = TILE_BYTES,
    track: Track = silent,
) -> list[Pick]:
    """Choose up to n items S, one after the other, each the one that raises most

        F(S) = sum over items i of  w_i  max over j in S and in the centres of  s(i, j)

    with s the cosine, at least -1. It is the facility location function, monotone and submodular, for which this greedy
    choice reaches 1 - 1/e of the best (Nemhauser, Wolsey and Fisher 1978); the centres are those that are there
    already (Wei, Iyer and Bilmes 2015 select training data by it). Unlike the greedy k-center of core-sets (Sener and
    Savarese 2018), which takes whatever lies furthest off, it takes what many others are like.

    Gains can only fall, so those of the last round bound those of this one, and only the candidates at the top are
    computed anew (Minoux 1978); the choice is the same. Of equal gains the first row counts. Memory is bounded by the
    vectors and a tile.

    Args:
        items: (N, D) unit vectors.
        covered: (N,) similarity of each to its nearest centre, as ``nearest`` gives it.
        weights: (N,), none below zero.
        near: items at least this similar to a centre or to one chosen are the same to us, and are not chosen.
        demand: where there are more items, the sum runs over as many, evenly spaced; all can still be chosen.
    """
    free = covered < near
    count = min(demand, len(items))
    asked = torch.from_numpy(np.linspace(0, max(0, len(items) - 1), count).round().astype(np.int64)).to(items.device)
    open_demand = _Demand(items[asked], weights[asked], covered[asked], len(items))
    rows = torch.nonzero(free).flatten()
    bounds = torch.full((len(items),), -torch.inf, dtype=torch.float64, device=items.device)
    step = max(1, tile_bytes // (4 * max(1, len(asked))))
    starts = range(0, len(rows), step)
    for start in track(starts, "weighing images", len(starts)):
        block = rows[start : start + step]
        bounds[block] = open_demand.gains(items[block])
    known = free.clone()
    picks: list[Pick] = []
    while len(picks) < n and bool(free.any()):
        row = int(bounds.argmax())
        if not known[row]:
            again = torch.topk(bounds.masked_fill(known, -torch.inf), min(AGAIN, int((free & ~known).sum()))).indices
            again = torch.unique(torch.cat([again, again.new_tensor([row])]))
            bounds[again] = open_demand.gains(items[again])
            known[again] = True
            continue
        picks.append(Pick(row, float(bounds[row]), float(covered[row]), open_demand.take(items[row])))
        like = items @ items[row]
        covered = torch.maximum(covered, like)
        free &= like < near
        free[row] = False
        bounds[~free] = -torch.inf
        known = ~free
    return picks


class _Demand:
    """Items that are to be near a centre, and how near the nearest one is."""

    def __init__(self, items: Tensor, weights: Tensor, covered: Tensor, count: int) -> None:
        self._items, self._weights, self._covered = items, weights.to(items.dtype), covered.clone()
        self._scale = count / max(1, len(items))

    def gains(self, candidates: Tensor) -> Tensor:
        """What each would add to F: the sum over i of w_i [s(i, j) - c_i]_+, c_i the nearest centre so far."""
        closer = torch.relu(candidates @ self._items.T - self._covered)
        return (closer @ self._weights).double() * self._scale

    def take(self, chosen: Tensor) -> int:
        """Make it a centre; returns for how many items it is the nearest now."""
        like = self._items @ chosen
        count = int((like > self._covered).sum())
        self._covered = torch.maximum(self._covered, like)
        return round(count * self._scale)


@torch.no_grad()
def nearest(items: Tensor, centres: Tensor, *, tile_bytes: int = TILE_BYTES, track: Track = silent) -> Tensor:
    """Similarity of each item (N, D) to its nearest centre (M, D), of unit vectors; -1 where there are none."""
    best = items.new_full((len(items),), -1.0)
    if not len(centres):
        return best
    step = max(1, tile_bytes // (4 * len(centres)))
    starts = range(0, len(items), step)
    for start in track(starts, "comparing images", len(starts)):
        block = slice(start, start + step)
        best[block] = torch.clamp((items[block] @ centres.T).amax(1), min=-1.0)
    return best
