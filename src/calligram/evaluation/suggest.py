"""Suggests images to caption: images that represent the uncaptioned ones and that the matcher is uncertain about.

The choice is facility location over image vectors, weighted by uncertainty.
"""

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
from calligram.evaluation.recall import encode_images, encode_texts
from calligram.features.inputs import Inputs
from calligram.models.matcher import Encoded, Matcher
from calligram.progress import Track, silent
from calligram.vectors import unit_length

Ints = NDArray[np.int64]

IMAGE_BATCH = 1024
"""number of images that are loaded and encoded at once"""
MAX_CAPTIONS = 5000
"""largest number of captions that images are scored with"""
TILE_BYTES = 1 << 26
"""size of a tile of similarities"""
MAX_DEMAND_ITEMS = 20_000
"""largest number of items in the sum of the facility location function"""
UPDATE_BATCH = 32
"""number of candidates whose gains are updated at once"""


class CoverChoice(NamedTuple):
    """An item chosen by ``cover``."""

    row: int
    gain: float
    """increase of the sum of weighted similarities"""
    nearest: float
    """similarity to the nearest earlier centre; -1 where there was none"""
    stands_for: int
    """number of items whose nearest centre it is now"""


@torch.no_grad()
def cover(
    items: Tensor,
    covered: Tensor,
    weights: Tensor,
    n: int,
    *,
    near: float = 0.98,
    demand: int = MAX_DEMAND_ITEMS,
    tile_bytes: int = TILE_BYTES,
    track: Track = silent,
) -> list[CoverChoice]:
    """Choose up to n items S greedily, each time the item with the largest increase of

        F(S) = sum over items i of  w_i  max over j in S and in the centres of  s(i, j)

    where s is the cosine, at least -1. This is the facility location function, which is monotone and submodular, so the
    greedy choice reaches at least 1 - 1/e of the optimum (Nemhauser, Wolsey and Fisher 1978). Wei, Iyer and Bilmes
    (2015) select training data with it. Centres are the items chosen before. The greedy k-center of core-sets (Sener
    and Savarese 2018) takes the item that is furthest away; this function takes an item that is similar to many others.

    Gains never increase, so the gains of the last round are upper bounds, and only the best candidates are computed
    again (Minoux 1978); the choice is the same. Of equal gains the first row is chosen. Memory holds the vectors and a
    tile of similarities.

    Args:
        items: (N, D) unit vectors.
        covered: (N,) similarity of each item to its nearest centre, from ``nearest``.
        weights: (N,), not negative.
        near: items at least this similar to a centre are duplicates and are not chosen.
        demand: largest number of items in the sum, evenly spaced; all items can be chosen.
    """
    free = covered < near
    count = min(demand, len(items))
    in_sum = torch.from_numpy(np.linspace(0, max(0, len(items) - 1), count).round().astype(np.int64)).to(items.device)
    demand_items = _Demand(items[in_sum], weights[in_sum], covered[in_sum], len(items))
    rows = torch.nonzero(free).flatten()
    bounds = torch.full((len(items),), -torch.inf, dtype=torch.float64, device=items.device)
    step = max(1, tile_bytes // (4 * max(1, len(in_sum))))
    starts = range(0, len(rows), step)
    for start in track(starts, "weighing images", len(starts)):
        block = rows[start : start + step]
        bounds[block] = demand_items.gains(items[block])
    known = free.clone()
    picks: list[CoverChoice] = []
    while len(picks) < n and bool(free.any()):
        row = int(bounds.argmax())
        if not known[row]:
            again = torch.topk(
                bounds.masked_fill(known, -torch.inf), min(UPDATE_BATCH, int((free & ~known).sum()))
            ).indices
            again = torch.unique(torch.cat([again, again.new_tensor([row])]))
            bounds[again] = demand_items.gains(items[again])
            known[again] = True
            continue
        picks.append(CoverChoice(row, float(bounds[row]), float(covered[row]), demand_items.take(items[row])))
        like = items @ items[row]
        covered = torch.maximum(covered, like)
        free &= like < near
        free[row] = False
        bounds[~free] = -torch.inf
        known = ~free
    return picks


class _Demand:
    """The items of the sum, and their similarity to the nearest centre."""

    def __init__(self, items: Tensor, weights: Tensor, covered: Tensor, count: int) -> None:
        self._items, self._weights, self._covered = items, weights.to(items.dtype), covered.clone()
        self._scale = count / max(1, len(items))

    def gains(self, candidates: Tensor) -> Tensor:
        """Return the increase of F for each candidate j: sum over i of w_i [s(i, j) - c_i]_+, c_i as ``covered``."""
        closer = torch.relu(candidates @ self._items.T - self._covered)
        return (closer @ self._weights).double() * self._scale

    def take(self, chosen: Tensor) -> int:
        """Make an item a centre; return the number of items whose nearest centre it is."""
        like = self._items @ chosen
        count = int((like > self._covered).sum())
        self._covered = torch.maximum(self._covered, like)
        return round(count * self._scale)


@torch.no_grad()
def nearest(items: Tensor, centres: Tensor, *, tile_bytes: int = TILE_BYTES, track: Track = silent) -> Tensor:
    """Return the similarity of each item (N, D) to its nearest centre (M, D), unit vectors; -1 without centres."""
    best = items.new_full((len(items),), -1.0)
    if not len(centres):
        return best
    step = max(1, tile_bytes // (4 * len(centres)))
    starts = range(0, len(items), step)
    for start in track(starts, "comparing images", len(starts)):
        block = slice(start, start + step)
        best[block] = torch.clamp((items[block] @ centres.T).amax(1), min=-1.0)
    return best


class Suggestion(NamedTuple):
    """An image to caption, and the reasons."""

    image: str
    """id of the image"""
    row: int
    """row in the collection"""
    nearest: float
    """similarity to the nearest image that is captioned or suggested before, -1 to 1"""
    uncertainty: float
    """0 to 1, from ``uncertainties``"""
    stands_for: int
    """number of images without captions that are more similar to it than to those"""
    far: bool
    """whether it is less similar to captioned images than half of the candidates are"""

    @property
    def why(self) -> str:
        """The reasons in words."""
        first = [*(["far from what is captioned"] if self.far else []), *(["uncertain"] if self.uncertain else [])]
        others = "images" if self.stands_for != 1 else "image"
        return ", ".join([*first, f"stands for {self.stands_for} {others}"])

    @property
    def uncertain(self) -> bool:
        """Whether most captioned images have a higher best score with captions of other images."""
        return self.uncertainty > 0.5


class Suggestions(NamedTuple):
    """Images to caption, most useful first, and the numbers of candidates and captioned images."""

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
    """Suggest images without captions of a split; for train also images that are in no split.

    ``cover`` chooses them by the image vectors of the matcher, with the captioned images of the same splits as first
    centres. An image has the weight 1 - a + a u_i, where u_i is its uncertainty and a is ``uncertainty``. So an image
    is suggested if it is similar to many uncertain images, and not if it is an uncertain outlier (information density,
    Settles and Craven 2008). The mean of all vectors is subtracted, since it does not distinguish images.

    Args:
        uncertainty: a, from 0 (coverage only) to 1 (images that the matcher is certain about have no weight).
        near: cosine from which two images are duplicates; only one of them is suggested.
    """
    if n < 1:
        raise UserError(f"the number of images to suggest must be at least 1, got {n}")
    if not 0 <= uncertainty <= 1:
        raise UserError(f"the weight of uncertainty must be from 0 to 1, got {uncertainty}")
    candidates, captioned = _pool(collection, split)
    if not len(candidates):
        raise UserError(
            f"every image of split {split} of {collection.folder} has a caption, so there is nothing to suggest"
        )
    vectors, best = _encode_and_score(
        matcher.eval(), inputs, collection, np.concatenate([captioned, candidates]), track
    )
    own, known = _from_mean(vectors), len(captioned)
    uncertain = uncertainties(best[known:], best[:known])
    covered = nearest(own[known:], own[:known], track=track)
    picks = cover(own[known:], covered, 1 - uncertainty + uncertainty * uncertain, n, near=near, track=track)
    ids = collection.table("images").column("id")
    middle = float(covered.median())
    rows = [int(candidates[pick.row]) for pick in picks]
    chosen = tuple(
        Suggestion(
            ids[row].as_py(), row, pick.nearest, float(uncertain[pick.row]), pick.stands_for, pick.nearest < middle
        )
        for row, pick in zip(rows, picks, strict=True)
    )
    return Suggestions(chosen, len(candidates), known)


def uncertainties(best: Tensor, of_captioned: Tensor) -> Tensor:
    """Return the uncertainty (N,) of images: the share of captioned images that have a higher best score.

    This is least confidence (Lewis and Gale 1994). The confidence of an image is its best score with captions of other
    images. Scores have no absolute scale, so they are compared with those of captioned images, which are scored without
    their own captions. Equal scores count half; the uncertainty is 1 where no image is captioned.

    Args:
        best: (N,) best score of each image.
        of_captioned: (M,) best score of each captioned image.
    """
    if not len(of_captioned):
        return torch.ones(len(best), device=best.device)
    ordered = of_captioned.sort().values.contiguous()
    below, upto = (torch.searchsorted(ordered, best.contiguous(), right=right) for right in (False, True))
    return 1 - (below + upto).float() / (2 * len(ordered))


def _pool(collection: Collection, split: str) -> tuple[Ints, Ints]:
    """Return the rows without and with captions of a split, for train also of no split; of all without splits."""
    matched = collection.numbers("matches", "image")
    if not any(collection.splits()):
        rows = np.arange(len(collection.table("images")))
    else:
        rows = collection.images_in(split)
        if split == "train":
            free = np.flatnonzero(np.array([not s for s in collection.column("images", "split")], dtype=bool))
            rows = np.union1d(rows, free)
    return np.setdiff1d(rows, matched), np.intersect1d(rows, matched)


def _encode_and_score(
    matcher: Matcher, inputs: Inputs, collection: Collection, rows: Ints, track: Track
) -> tuple[Tensor, Tensor]:
    """Return the vectors (N, D) of images, and the best score (N,) of each with a caption of another image.

    Images are loaded, encoded and scored in batches, and only these results are kept.
    """
    known = _captioned(collection, rows)
    kept = np.linspace(0, max(0, len(known.texts) - 1), min(MAX_CAPTIONS, len(known.texts))).round().astype(np.int64)
    cache = known.visuals.pictures.cache
    texts = None
    if len(kept):
        texts = encode_texts(matcher, inputs.texts.load(known.texts.select(kept).strings, cache, track), track=track)
    vectors, best = [], []
    starts = range(0, len(rows), IMAGE_BATCH)
    for start in track(starts, f"images, by {IMAGE_BATCH}", len(starts)):
        part = np.arange(start, min(start + IMAGE_BATCH, len(rows)))
        encoded = encode_images(matcher, inputs, inputs.images.load(known.visuals.select(part), silent))
        if not bool(torch.isfinite(encoded.vectors).all()):
            raise NotFiniteError("some encodings are not finite (NaN or infinite), so they cannot be compared")
        vectors.append(encoded.vectors.float())
        best.append(_best_of_others(matcher, encoded, texts, known.matches.select(part, kept)))
    return torch.cat(vectors), torch.cat(best)


def _captioned(collection: Collection, rows: Ints) -> Pairing:
    """Return the images with their captions; equal captions are joined."""
    image, caption = collection.numbers("matches", "image"), collection.numbers("matches", "caption")
    here = np.isin(image, rows)
    captions = np.unique(caption[here])
    order = np.argsort(rows)
    places = order[np.searchsorted(rows[order], image[here])]
    matches = Matches(places, np.searchsorted(captions, caption[here]), (len(rows), len(captions)))
    return Pairing(collection.visuals(rows), collection.texts(captions), matches).join_equal_texts()


def _best_of_others(matcher: Matcher, images: Encoded, texts: Encoded | None, own: Matches) -> Tensor:
    """Return the best score of each image without its own captions; minus infinity where there are no others."""
    if texts is None:
        return images.vectors.new_full((len(images.vectors),), -torch.inf).float()
    scores = matcher.score(images, texts).float()
    scores[tuple(torch.from_numpy(side).to(scores.device) for side in own.pairs())] = -torch.inf
    return scores.amax(1)


def _from_mean(vectors: Tensor) -> Tensor:
    """Return unit vectors of the differences from the mean direction."""
    directions = unit_length(vectors)
    return unit_length(directions - directions.mean(0)) if len(vectors) > 1 else directions
