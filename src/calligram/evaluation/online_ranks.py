"""How hard the hardest negative of a batch is: its rank among all negatives of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.evaluation.encoding import EncodedPairing
from calligram.models.matcher import Matcher
from calligram.progress import Track, silent

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
    found: tuple[list[_Seen], list[_Seen]] = ([], [])
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
class _Seen:
    rank: int
    negatives: int
    """of the anchor in the split"""
    drawn: int
    """of them in the batch"""


def _ranked(scores: NDArray[np.floating], anchors: Ints, batch: Ints, matches: Matches) -> list[_Seen]:
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
        out.append(_Seen(int(harder) + 1, len(row) - len(own), len(others)))
    return out


def _summary(seen: Sequence[_Seen]) -> OnlineRanks:
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
