"""Which images to caption next: those that stand for many that nothing captioned is like, where a matcher is unsure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calligram.data.collection import Collection
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.errors import NotFiniteError, UserError
from calligram.evaluation.encode import encode_images, encode_texts
from calligram.features.inputs import Inputs
from calligram.models.matcher import Encoded, Matcher
from calligram.progress import Track, silent
from calligram.vectors import unit_length

# A few items that stand for all: greedy weighted facility location over unit vectors.

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


Ints = NDArray[np.int64]

CHUNK = 1024
"""images that are prepared and encoded at a time"""
KNOWN = 5000
"""captions that images are scored with, where there are more"""


class Suggestion(NamedTuple):
    """An image to caption, and why."""

    image: str
    """its id"""
    row: int
    """in the collection"""
    nearest: float
    """similarity to the nearest image that is captioned or was proposed before, -1 to 1"""
    uncertainty: float
    """0 to 1, as ``uncertainties`` gives it"""
    stands_for: int
    """images without captions that are more like it than like any of those"""
    far: bool
    """less is captioned that is like it than of half of the candidates"""

    @property
    def why(self) -> str:
        """The reasons in words."""
        first = [*(["far from what is captioned"] if self.far else []), *(["uncertain"] if self.unsure else [])]
        others = "images" if self.stands_for != 1 else "image"
        return ", ".join([*first, f"stands for {self.stands_for} {others}"])

    @property
    def unsure(self) -> bool:
        """Most captioned images are described better by captions of others."""
        return self.uncertainty > 0.5


class Suggestions(NamedTuple):
    """What to caption, the most telling first, and what that was chosen from."""

    chosen: tuple[Suggestion, ...]
    candidates: int
    captioned: int


@torch.no_grad()
def suggest_images(
    matcher: Matcher,
    inputs: Inputs,
    collection: Collection,
    n: int = 50,
    *,
    split: str = "train",
    uncertainty: float = 0.5,
    near: float = 0.98,
    track: Track = silent,
) -> Suggestions:
    """Propose images of a split, and for train of none, that have no caption.

    Chosen by ``cover`` over the matcher's image vectors, the captioned images of the same splits being there already.
    An image weighs 1 - a + a u_i, u_i its uncertainty and a ``uncertainty``: so an image is proposed that is like many
    of which the matcher is unsure, not one that is unsure because it is like no other (information density, Settles and
    Craven 2008). Vectors are taken from their mean, since what all images share tells none apart.

    Args:
        uncertainty: a, 0 to go by coverage alone, 1 for images that the matcher is sure of not to count.
        near: cosine at which two images are the same to us, and one of them is not proposed.
    """
    if n < 1:
        raise UserError(f"at least 1 image is proposed, got {n}")
    if not 0 <= uncertainty <= 1:
        raise UserError(f"the weight of uncertainty is from 0 to 1, got {uncertainty}")
    candidates, captioned = _pool(collection, split)
    if not len(candidates):
        raise UserError(f"every image of split {split} of {collection.folder} has a caption; there is none to propose")
    vectors, best = _seen(matcher.eval(), inputs, collection, np.concatenate([captioned, candidates]), track)
    own, known = _from_mean(vectors), len(captioned)
    unsure = uncertainties(best[known:], best[:known])
    covered = nearest(own[known:], own[:known], track=track)
    picks = cover(own[known:], covered, 1 - uncertainty + uncertainty * unsure, n, near=near, track=track)
    ids = collection.table("images").column("id")
    middle = float(covered.median())
    rows = [int(candidates[pick.row]) for pick in picks]
    chosen = tuple(
        Suggestion(ids[row].as_py(), row, pick.nearest, float(unsure[pick.row]), pick.stands_for, pick.nearest < middle)
        for row, pick in zip(rows, picks, strict=True)
    )
    return Suggestions(chosen, len(candidates), known)


def uncertainties(best: Tensor, of_captioned: Tensor) -> Tensor:
    """How unsure a matcher is of images: the share of captioned images that have a higher best score.

    Least confidence (Lewis and Gale 1994), with the best score of an image among captions of others as confidence.
    Scores of a matcher have no scale of their own; captioned images, scored without their own captions, give it one.
    Equal scores count half; 1 where nothing is captioned.

    Args:
        best: (N,) of the images asked about.
        of_captioned: (M,).
    """
    if not len(of_captioned):
        return torch.ones(len(best), device=best.device)
    ordered = of_captioned.sort().values.contiguous()
    below, upto = (torch.searchsorted(ordered, best.contiguous(), right=right) for right in (False, True))
    return 1 - (below + upto).float() / (2 * len(ordered))


def _pool(collection: Collection, split: str) -> tuple[Ints, Ints]:
    """Rows without and with captions: of a split, for train also of none; of all where there are no splits."""
    matched = collection.numbers("matches", "image")
    if not any(collection.splits()):
        rows = np.arange(len(collection.table("images")))
    else:
        rows = collection.images_in(split)
        if split == "train":
            free = np.flatnonzero(np.array([not s for s in collection.column("images", "split")], dtype=bool))
            rows = np.union1d(rows, free)
    return np.setdiff1d(rows, matched), np.intersect1d(rows, matched)


def _seen(matcher: Matcher, inputs: Inputs, collection: Collection, rows: Ints, track: Track) -> tuple[Tensor, Tensor]:
    """Vectors of images (N, D), and the best score of each with a caption of another (N,).

    Images are read, encoded and scored a chunk at a time, and only this is kept of them.
    """
    known = _captioned(collection, rows)
    kept = np.linspace(0, max(0, len(known.texts) - 1), min(KNOWN, len(known.texts))).round().astype(np.int64)
    cache = known.visuals.pictures.cache
    texts = None
    if len(kept):
        texts = encode_texts(matcher, inputs.texts.load(known.texts.select(kept).strings, cache, track), track=track)
    vectors, best = [], []
    starts = range(0, len(rows), CHUNK)
    for start in track(starts, f"images, by {CHUNK}", len(starts)):
        part = np.arange(start, min(start + CHUNK, len(rows)))
        encoded = encode_images(matcher, inputs, inputs.images.load(known.visuals.select(part), silent))
        if not bool(torch.isfinite(encoded.vectors).all()):
            raise NotFiniteError("some encodings are not finite; they cannot be compared")
        vectors.append(encoded.vectors.float())
        best.append(_best_of_others(matcher, encoded, texts, known.matches.select(part, kept)))
    return torch.cat(vectors), torch.cat(best)


def _captioned(collection: Collection, rows: Ints) -> Pairing:
    """These images and their captions, of which those that read the same are one."""
    image, caption = collection.numbers("matches", "image"), collection.numbers("matches", "caption")
    here = np.isin(image, rows)
    captions = np.unique(caption[here])
    order = np.argsort(rows)
    places = order[np.searchsorted(rows[order], image[here])]
    matches = Matches(places, np.searchsorted(captions, caption[here]), (len(rows), len(captions)))
    return Pairing(collection.visuals(rows), collection.texts(captions), matches).join_equal_texts()


def _best_of_others(matcher: Matcher, images: Encoded, texts: Encoded | None, own: Matches) -> Tensor:
    """The best score of each image, its own captions left out; minus infinity where there are no others."""
    if texts is None:
        return images.vectors.new_full((len(images.vectors),), -torch.inf).float()
    scores = matcher.score(images, texts).float()
    scores[tuple(torch.from_numpy(side).to(scores.device) for side in own.pairs())] = -torch.inf
    return scores.amax(1)


def _from_mean(vectors: Tensor) -> Tensor:
    """Directions from the mean direction, at length one."""
    directions = unit_length(vectors)
    return unit_length(directions - directions.mean(0)) if len(vectors) > 1 else directions
