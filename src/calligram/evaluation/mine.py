"""Offline mining: for every image the texts, and for every text the images, that score best without matching."""

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
from calligram.evaluation.encode import EncodedPairing, Precision, encode_pairing, load_pairing
from calligram.features.inputs import Inputs
from calligram.models.matcher import Matcher
from calligram.progress import Track, silent
from calligram.vectors import unit_length

TILE_BYTES = {"cpu": 1 << 26, "cuda": 1 << 30}
"""scores held at a time, by kind of device"""
_WIDENS = "dtype" in torch.ops.aten.mm.overloads()  # type: ignore[no-untyped-call]
"""whether a product of bfloat16 can be given in float32 on an accelerator: from torch 2.8 on"""


class Best(NamedTuple):
    """The best candidates of each anchor, descending."""

    scores: Tensor
    """(A, k)"""
    rows: Tensor
    """(A, k)"""


def mine_pairing(
    matcher: Matcher,
    inputs: Inputs,
    pairing: Pairing,
    *,
    encoded: EncodedPairing | None = None,
    texts: int = 300,
    images: int = 60,
    precision: Precision = "fp32",
    ignore_also_true: bool = False,
    track: Track = silent,
) -> NegativeLists:
    """Encode a pairing and mine it (aoq, Sec. 3.2); the lists are named by its ids.

    Args:
        encoded: the pairing's encodings, where they are there already.
        ignore_also_true: pairs known to be true without being annotated are no negatives.
    """
    if not len(pairing.matches):
        raise UserError("this split has no captions; there is nothing to mine")
    matcher.eval()
    if encoded is None:
        encoded = encode_pairing(matcher, inputs, load_pairing(inputs, pairing, track), track)
    excluded = pairing.matches
    if ignore_also_true and pairing.also_true is not None:
        excluded = excluded.plus(pairing.also_true)
    of_images, of_texts = mine_negatives(
        matcher, encoded, excluded, texts=texts, images=images, precision=precision, track=track
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
    """The best candidates that are not ``excluded``: (I, texts) for images and (T, images) for texts; -1 where fewer.

    Exact, and in memory bounded by the encodings, a tile of scores and the lists. Cosines are one matrix product and a
    selection each way; other scores are computed once, for both ways.

    Args:
        precision: ``bf16`` rounds the vectors of cosines, and adds up in fp32.
        tile_bytes: of scores held at a time.
    """
    tile = tile_bytes or TILE_BYTES.get(encoded.images.vectors.device.type, 1 << 26)
    if matcher.reranks:
        if precision != "fp32":
            raise UserError("--precision bf16 is for matchers that score by the cosine; leave it out for this one")
        return _by_scores(matcher, encoded, excluded, texts, images, tile, track)
    one, two = unit_length(encoded.images.vectors), unit_length(encoded.texts.vectors)
    for side in (one, two):
        if not bool(torch.isfinite(side).all()):
            raise NotFiniteError("some encodings are not finite; they cannot be ranked")
    if precision == "bf16":
        one, two = one.bfloat16(), two.bfloat16()
    return (
        best_by_cosine(one, two, excluded, texts, tile, track, "mining texts"),
        best_by_cosine(two, one, excluded.T, images, tile, track, "mining images"),
    )


def best_by_cosine(
    anchors: Tensor, candidates: Tensor, excluded: Matches, k: int, tile: int, track: Track = silent, label: str = ""
) -> Tensor:
    """Rows of the k best candidates of each anchor: unit vectors (A, D) and (C, D), in float32 or bfloat16."""
    count = len(candidates)
    k = min(k, count)
    found = torch.empty(len(anchors), k, dtype=torch.int32, device=anchors.device)
    mask = _Mask(excluded, anchors.device)
    step = max(1, tile // (4 * max(1, count)))
    candidates = aligned(candidates)
    starts = range(0, len(anchors), step)
    for start in track(starts, label, len(starts)):
        block = slice(start, min(start + step, len(anchors)))
        scores = product(anchors[block], candidates)
        scores[:, count:] = -torch.inf
        mask.apply(scores, block)
        found[block] = _named(top(scores, k))
    return found


def aligned(vectors: Tensor) -> Tensor:
    """With zeros to a multiple of 8 on an accelerator: tensor cores take seven times as long for rows of odd length."""
    missing = -len(vectors) % 8
    return F.pad(vectors, (0, 0, 0, missing)) if missing and vectors.is_cuda else vectors


def product(one: Tensor, two: Tensor) -> Tensor:
    """All inner products (A, C), added up and given in float32 whatever the vectors are rounded to."""
    if one.dtype == torch.float32:
        return one @ two.T
    if one.device.type == "cuda" and _WIDENS:
        return torch.mm(one, two.T, out_dtype=torch.float32)
    return one.float() @ two.float().T


def top(scores: Tensor, k: int) -> Best:
    """The k largest of each row (A, C), as ``topk`` gives them, in one pass over the scores.

    Columns are laid into groups; the k largest lie within the k groups whose maxima are largest, so that only those
    are searched.
    """
    rows, columns = scores.shape
    width = int((columns / max(1, k)) ** 0.5)
    if width < 4:
        return Best(*scores.topk(min(k, columns), dim=1))
    groups = columns // width
    # Group g holds columns g, g + groups, g + 2 groups, ...: maxima are then taken over neighbours in memory at once.
    whole = scores[:, : groups * width].view(rows, width, groups)
    chosen = whole.amax(1).topk(k, dim=1).indices
    places = (chosen.unsqueeze(1) + groups * torch.arange(width, device=scores.device).view(1, -1, 1)).flatten(1)
    rest = torch.arange(groups * width, columns, device=scores.device).expand(rows, -1)
    places = torch.cat([places, rest], dim=1)
    best = scores.gather(1, places).topk(k, dim=1)
    return Best(best.values, places.gather(1, best.indices))


def _by_scores(
    matcher: Matcher, encoded: EncodedPairing, excluded: Matches, texts: int, images: int, tile: int, track: Track
) -> tuple[Tensor, Tensor]:
    """Each tile of scores serves both ways: images are finished with their rows, texts keep the best so far."""
    count, columns = len(encoded.images.vectors), len(encoded.texts.vectors)
    device = encoded.images.vectors.device
    texts, images = min(texts, columns), min(images, count)
    of_images = torch.empty(count, texts, dtype=torch.int32, device=device)
    so_far = Best(
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
            raise NotFiniteError(f"some scores of images {block.start} to {block.stop - 1} are not finite")
        mask.apply(scores, block)
        of_images[block] = _named(top(scores, texts))
        so_far = _merged(so_far, top(scores.T.contiguous(), min(images, scores.shape[0])), start)
    return of_images, _named(so_far)


def _merged(so_far: Best, fresh: Best, first: int) -> Best:
    scores = torch.cat([so_far.scores, fresh.scores], dim=1)
    rows = torch.cat([so_far.rows, fresh.rows + first], dim=1)
    best = scores.topk(so_far.scores.shape[1], dim=1)
    return Best(best.values, rows.gather(1, best.indices))


def _named(best: Best) -> Tensor:
    """Rows, with -1 where only excluded candidates were left."""
    return best.rows.masked_fill(best.scores == -torch.inf, -1).int()


class _Mask:
    """Takes excluded pairs out of blocks of rows."""

    def __init__(self, excluded: Matches, device: torch.device) -> None:
        rows, columns = excluded.pairs()  # sorted by row
        self._starts = np.searchsorted(rows, np.arange(excluded.shape[0] + 1))
        self._rows, self._columns = (torch.from_numpy(index).to(device) for index in (rows, columns))

    def apply(self, scores: Tensor, block: slice) -> None:
        """Set the excluded pairs of the rows ``block`` to minus infinity."""
        part = slice(int(self._starts[block.start]), int(self._starts[block.stop]))
        scores[self._rows[part] - block.start, self._columns[part]] = -torch.inf


# How hard the hardest negative of a batch is: its rank among all negatives of a split.

Ints = NDArray[np.int64]

WITHIN = 100
"""the paper asks how often a rank is among the first hundred"""


@dataclass(frozen=True)
class OnlineRanks:
    """Ranks of online hard negatives in a whole split, one direction."""

    mean: float
    median: float
    within: float
    """share of ranks among the first hundred"""
    expected_mean: float
    """of batches drawn at random, whatever the scores"""
    expected_within: float
    anchors: int

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


@torch.no_grad()
def online_ranks(
    matcher: Matcher, encoded: EncodedPairing, matches: Matches, batches: Sequence[Ints], *, track: Track = silent
) -> tuple[OnlineRanks, OnlineRanks]:
    """The argument of aoq, Sec. 1, measured: how far the hardest negative of a batch stands from the hardest there is.

    Each anchor's best-scored negative among its batch is ranked among all of the anchor's negatives in the split.

    Args:
        batches: (N, 2) rows of images and texts that share a batch.

    Returns:
        Of image anchors among texts, and of text anchors among images.
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
    return _summary(found[0]), _summary(found[1])


@dataclass(frozen=True)
class _RankedNegatives:
    rank: int
    negatives: int
    """of the anchor in the split"""
    drawn: int
    """of them in the batch"""


def _ranked(scores: NDArray[np.floating], anchors: Ints, batch: Ints, matches: Matches) -> list[_RankedNegatives]:
    """``scores`` are those of the anchors with every candidate of the split; ``batch`` the candidates in the batch."""
    out = []
    for row, anchor in zip(scores, anchors, strict=True):
        own = matches.texts_of(int(anchor))
        others = np.setdiff1d(batch, own, assume_unique=True)
        if not len(others):
            continue
        hardest = row[others].max()
        # Equally hard negatives share the better rank: a tie is no evidence that harder ones were missed.
        harder = np.count_nonzero(row > hardest) - np.count_nonzero(row[own] > hardest)
        out.append(_RankedNegatives(int(harder) + 1, len(row) - len(own), len(others)))
    return out


def _summary(seen: Sequence[_RankedNegatives]) -> OnlineRanks:
    if not seen:
        raise ValueError("no anchor has a negative in its batch")
    ranks = np.array([s.rank for s in seen])
    return OnlineRanks(
        float(ranks.mean()),
        float(np.median(ranks)),
        float((ranks <= WITHIN).mean()),
        float(np.mean([expected_rank(s.negatives, s.drawn) for s in seen])),
        float(np.mean([chance_within(WITHIN, s.negatives, s.drawn) for s in seen])),
        len(seen),
    )


def expected_rank(negatives: int, drawn: int) -> float:
    """Mean rank of the hardest of ``drawn`` negatives out of ``negatives``, drawn at random (aoq, Sec. 1).

    (N + 1) / (m + 1); the paper rounds it to N / m, 500K / 128.
    """
    return (negatives + 1) / (drawn + 1)


def chance_within(first: int, negatives: int, drawn: int) -> float:
    """Chance that one of ``drawn`` random negatives is among the ``first`` hardest (aoq, Sec. 1)."""
    if drawn > negatives - first:
        return 1.0
    # None of them is: each further one is drawn from what is left.
    left = np.arange(drawn)
    return float(1 - np.exp(np.log1p(-first / (negatives - left)).sum()))
