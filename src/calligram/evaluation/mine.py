"""Offline mining of hard negatives, and the rank of the hardest negative of a batch among all negatives of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from calligram.data.matches import Matches
from calligram.data.negatives import NegativeLists
from calligram.data.pairing import Pairing
from calligram.errors import NotFiniteError, UserError
from calligram.evaluation.recall import EncodedPairing, Precision, encode_pairing, load_pairing
from calligram.features.inputs import Inputs
from calligram.models.matcher import Matcher
from calligram.progress import Track, silent
from calligram.vectors import unit_length

Ints = NDArray[np.int64]

LIST_SHARE = 0.002
"""default length of a list as a share of all candidates: the 300 texts of the paper among the captions of Flickr30K"""
MIN_LIST_LENGTH = 10
"""smallest length of a list that is a share of the candidates"""
FIRST_RANKS = 100
"""number of first ranks; the paper counts ranks among the first hundred"""
TILE_BYTES = {"cpu": 1 << 26, "cuda": 1 << 30}
"""size of a tile of scores, by kind of device"""
_HAS_MM_OUT_DTYPE = "dtype" in torch.ops.aten.mm.overloads()  # type: ignore[no-untyped-call]
"""whether torch can return a bfloat16 matrix product in float32 on a GPU: since torch 2.8"""


class BestCandidates(NamedTuple):
    """The best candidates of each anchor, descending."""

    scores: Tensor
    """(A, k)"""
    rows: Tensor
    """(A, k)"""


def list_length(given: int | None, share: float, candidates: int) -> int:
    """Return the length of a list of mined negatives: a given one, or a share of all candidates (aoq, Sec. 4.2).

    Longer lists hold negatives that are easier than the hardest one of a batch.
    """
    return given or max(MIN_LIST_LENGTH, round(share * candidates))


def mine_pairing(
    matcher: Matcher,
    inputs: Inputs,
    pairing: Pairing,
    *,
    encoded: EncodedPairing | None = None,
    texts: int | None = None,
    images: int | None = None,
    share: float = LIST_SHARE,
    precision: Precision = "fp32",
    ignore_also_true: bool = False,
    track: Track = silent,
) -> NegativeLists:
    """Encode a pairing and mine its hard negatives (aoq, Sec. 3.2); the lists hold its ids.

    Args:
        texts: length of the lists of images; None for a share of all texts.
        images: length of the lists of texts; None for a share of all images.
        encoded: encodings of the pairing, if they are computed already.
        ignore_also_true: leave out pairs that are known to be true without being annotated.
    """
    if not len(pairing.matches):
        raise UserError("this split has no captions to mine; give another split")
    matcher.eval()
    if encoded is None:
        encoded = encode_pairing(matcher, inputs, load_pairing(inputs, pairing, track), track)
    excluded = pairing.matches
    if ignore_also_true and pairing.also_true is not None:
        excluded = excluded.plus(pairing.also_true)
    of_images, of_texts = mine_negatives(
        matcher,
        encoded,
        excluded,
        texts=list_length(texts, share, len(pairing.texts)),
        images=list_length(images, share, len(pairing.visuals)),
        precision=precision,
        track=track,
    )
    return NegativeLists(
        of_images.cpu().numpy().astype(np.int32), of_texts.cpu().numpy().astype(np.int32),
        pairing.visuals.ids, pairing.texts.ids,
    )  # fmt: skip


@torch.no_grad()
def mine_negatives(
    matcher: Matcher,
    encoded: EncodedPairing,
    excluded: Matches,
    *,
    texts: int = 300,
    images: int = 60,
    precision: Precision = "fp32",
    tile_bytes: int | None = None,
    track: Track = silent,
) -> tuple[Tensor, Tensor]:
    """Return the hardest negatives: texts (I, texts) of images and images (T, images) of texts; -1 if fewer.

    The result is exact. Memory holds the encodings, a tile of scores and the lists. Cosines are computed for each
    direction; other scores are computed once for both directions.

    Args:
        excluded: pairs that are not negatives.
        precision: ``bf16`` rounds the vectors of cosines and accumulates in fp32.
        tile_bytes: size of a tile of scores.
    """
    tile = tile_bytes or TILE_BYTES.get(encoded.images.vectors.device.type, 1 << 26)
    if matcher.scoring.reranks:
        if precision != "fp32":
            raise UserError("--precision bf16 is for matchers that score by cosines; leave it out for this one")
        return _by_scores(matcher, encoded, excluded, texts, images, tile, track)
    one, two = unit_length(encoded.images.vectors), unit_length(encoded.texts.vectors)
    for side in (one, two):
        if not bool(torch.isfinite(side).all()):
            raise NotFiniteError("some encodings are not finite (NaN or infinite), so they cannot be ranked")
    if precision == "bf16":
        one, two = one.bfloat16(), two.bfloat16()
    return (
        best_by_cosine(one, two, excluded, texts, tile, track, "mining texts"),
        best_by_cosine(two, one, excluded.T, images, tile, track, "mining images"),
    )


def best_by_cosine(
    anchors: Tensor, candidates: Tensor, excluded: Matches, k: int, tile: int, track: Track = silent, label: str = ""
) -> Tensor:
    """Return rows (A, k) of the best candidates (C, D) of each anchor (A, D): unit vectors in float32 or bfloat16."""
    count = len(candidates)
    k = min(k, count)
    found = torch.empty(len(anchors), k, dtype=torch.int32, device=anchors.device)
    mask = _Mask(excluded, anchors.device)
    step = max(1, tile // (4 * max(1, count)))
    candidates = padded_rows(candidates)
    starts = range(0, len(anchors), step)
    for start in track(starts, label, len(starts)):
        block = slice(start, min(start + step, len(anchors)))
        scores = inner_products(anchors[block], candidates)
        scores[:, count:] = -torch.inf
        mask.apply(scores, block)
        found[block] = _rows_or_none(top_candidates(scores, k))
    return found


def padded_rows(vectors: Tensor) -> Tensor:
    """Append zero rows to a multiple of 8 on a GPU: for other numbers tensor cores are seven times as slow."""
    missing = -len(vectors) % 8
    return F.pad(vectors, (0, 0, 0, missing)) if missing and vectors.is_cuda else vectors


def inner_products(one: Tensor, two: Tensor) -> Tensor:
    """Return all inner products (A, C), accumulated in float32 also for bfloat16 vectors."""
    if one.dtype == torch.float32:
        return one @ two.T
    if one.device.type == "cuda" and _HAS_MM_OUT_DTYPE:
        return torch.mm(one, two.T, out_dtype=torch.float32)
    return one.float() @ two.float().T


def top_candidates(scores: Tensor, k: int) -> BestCandidates:
    """Return the k largest of each row (A, C), as ``topk`` does, in one pass over the scores.

    Columns are divided into groups. The k largest values lie in the k groups with the largest maxima, so only these
    groups are searched.
    """
    rows, columns = scores.shape
    width = int((columns / max(1, k)) ** 0.5)
    if width < 4:
        return BestCandidates(*scores.topk(min(k, columns), dim=1))
    groups = columns // width
    # Group g holds columns g, g + groups, g + 2 groups, ...: this order in memory makes the maxima fast.
    whole = scores[:, : groups * width].view(rows, width, groups)
    chosen = whole.amax(1).topk(k, dim=1).indices
    places = (chosen.unsqueeze(1) + groups * torch.arange(width, device=scores.device).view(1, -1, 1)).flatten(1)
    rest = torch.arange(groups * width, columns, device=scores.device).expand(rows, -1)
    places = torch.cat([places, rest], dim=1)
    best = scores.gather(1, places).topk(k, dim=1)
    return BestCandidates(best.values, places.gather(1, best.indices))


def _by_scores(
    matcher: Matcher, encoded: EncodedPairing, excluded: Matches, texts: int, images: int, tile: int, track: Track
) -> tuple[Tensor, Tensor]:
    """Mine both directions from each tile of scores; a tile completes the lists of its images."""
    count, columns = len(encoded.images.vectors), len(encoded.texts.vectors)
    device = encoded.images.vectors.device
    texts, images = min(texts, columns), min(images, count)
    of_images = torch.empty(count, texts, dtype=torch.int32, device=device)
    so_far = BestCandidates(
        torch.full((columns, images), -torch.inf, device=device),
        torch.zeros(columns, images, dtype=torch.int64, device=device),
    )
    mask = _Mask(excluded, device)
    step = max(1, tile // (4 * max(1, columns)))
    starts = range(0, count, step)
    for start in track(starts, "mining", len(starts)):
        block = slice(start, min(start + step, count))
        scores = matcher.score(encoded.images.rows(block), encoded.texts).float()
        if not bool(torch.isfinite(scores).all()):
            raise NotFiniteError(f"scores of images {block.start} to {block.stop - 1} are not finite (NaN or infinite)")
        mask.apply(scores, block)
        of_images[block] = _rows_or_none(top_candidates(scores, texts))
        so_far = _merge(so_far, top_candidates(scores.T.contiguous(), min(images, scores.shape[0])), start)
    return of_images, _rows_or_none(so_far)


def _merge(so_far: BestCandidates, fresh: BestCandidates, first: int) -> BestCandidates:
    scores = torch.cat([so_far.scores, fresh.scores], dim=1)
    rows = torch.cat([so_far.rows, fresh.rows + first], dim=1)
    best = scores.topk(so_far.scores.shape[1], dim=1)
    return BestCandidates(best.values, rows.gather(1, best.indices))


def _rows_or_none(best: BestCandidates) -> Tensor:
    """Return the rows, with -1 where only excluded candidates are left."""
    return best.rows.masked_fill(best.scores == -torch.inf, -1).int()


class _Mask:
    """Masks excluded pairs in blocks of rows."""

    def __init__(self, excluded: Matches, device: torch.device) -> None:
        rows, columns = excluded.pairs()  # sorted by row
        self._starts = np.searchsorted(rows, np.arange(excluded.shape[0] + 1))
        self._rows, self._columns = (torch.from_numpy(index).to(device) for index in (rows, columns))

    def apply(self, scores: Tensor, block: slice) -> None:
        """Set the excluded pairs of the rows ``block`` to minus infinity."""
        part = slice(int(self._starts[block.start]), int(self._starts[block.stop]))
        scores[self._rows[part] - block.start, self._columns[part]] = -torch.inf


@dataclass(frozen=True)
class OnlineRanks:
    """Ranks of the hardest negatives of batches among all negatives of a split, in one direction."""

    mean: float
    median: float
    within: float
    """share of ranks among the first ``FIRST_RANKS``"""
    expected_mean: float
    """expected mean for random batches"""
    expected_within: float
    anchors: int
    harder: float = 0.0
    """share of draws from a list that are harder than the hardest negative of the batch"""

    def as_dict(self) -> dict[str, float]:
        """Return JSON values."""
        return asdict(self)


@torch.no_grad()
def online_ranks(
    matcher: Matcher,
    encoded: EncodedPairing,
    matches: Matches,
    batches: Sequence[Ints],
    *,
    lengths: tuple[int, int] = (1, 1),
    track: Track = silent,
) -> tuple[OnlineRanks, OnlineRanks]:
    """Rank the hardest negative of each anchor in its batch among all its negatives in the split (aoq, Sec. 1).

    Args:
        batches: (N, 2) rows of images and texts that share a batch.
        lengths: lengths of the mined lists of images and of texts.

    Returns:
        Ranks of texts for image anchors, and of images for text anchors.
    """
    device = encoded.images.vectors.device
    found: tuple[list[_RankedNegatives], list[_RankedNegatives]] = ([], [])
    transposed = matches.T
    for pairs in track(batches, "ranking negatives of batches", len(batches)):
        images, texts = np.unique(pairs[:, 0]), np.unique(pairs[:, 1])
        of_images, of_texts = (torch.from_numpy(rows).to(device) for rows in (images, texts))
        by_image = matcher.score(encoded.images.rows(of_images), encoded.texts).float().cpu().numpy()
        by_text = matcher.score(encoded.images, encoded.texts.rows(of_texts)).float().cpu().numpy().T
        found[0].extend(_ranked(by_image, images, texts, matches))
        found[1].extend(_ranked(by_text, texts, images, transposed))
    return _summary(found[0], lengths[0]), _summary(found[1], lengths[1])


@dataclass(frozen=True)
class _RankedNegatives:
    rank: int
    negatives: int
    """number of negatives of the anchor in the split"""
    drawn: int
    """number of them in the batch"""


def _ranked(scores: NDArray[np.floating], anchors: Ints, batch: Ints, matches: Matches) -> list[_RankedNegatives]:
    """Rank the hardest negative of each anchor.

    Args:
        scores: (A, C) of the anchors with every candidate of the split.
        batch: the candidates in the batch.
    """
    out = []
    for row, anchor in zip(scores, anchors, strict=True):
        own = matches.texts_of(int(anchor))
        others = np.setdiff1d(batch, own, assume_unique=True)
        if not len(others):
            continue
        hardest = row[others].max()
        # Equally hard negatives share the better rank: a tie does not show that a harder one was missed.
        harder = np.count_nonzero(row > hardest) - np.count_nonzero(row[own] > hardest)
        out.append(_RankedNegatives(int(harder) + 1, len(row) - len(own), len(others)))
    return out


def _summary(ranked: Sequence[_RankedNegatives], length: int) -> OnlineRanks:
    if not ranked:
        raise ValueError("no anchor has a negative in its batch")
    ranks = np.array([s.rank for s in ranked])
    return OnlineRanks(
        float(ranks.mean()),
        float(np.median(ranks)),
        float((ranks <= FIRST_RANKS).mean()),
        float(np.mean([expected_rank(s.negatives, s.drawn) for s in ranked])),
        float(np.mean([chance_within(FIRST_RANKS, s.negatives, s.drawn) for s in ranked])),
        len(ranked),
        # The items of a list have the ranks 1 to its length, and those before the rank of the batch are harder.
        float(np.mean(np.minimum(ranks - 1, length) / length)),
    )


def expected_rank(negatives: int, drawn: int) -> float:
    """Return the mean rank of the hardest of ``drawn`` random negatives out of ``negatives`` (aoq, Sec. 1).

    (N + 1) / (m + 1); the paper rounds it to N / m, 500K / 128.
    """
    return (negatives + 1) / (drawn + 1)


def chance_within(first: int, negatives: int, drawn: int) -> float:
    """Return the probability that one of ``drawn`` random negatives is among the ``first`` hardest (aoq, Sec. 1)."""
    if drawn > negatives - first:
        return 1.0
    # One minus the probability that none is, drawn without replacement.
    left = np.arange(drawn)
    return float(1 - np.exp(np.log1p(-first / (negatives - left)).sum()))
