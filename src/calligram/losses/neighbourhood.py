"""Ranking within each modality: items that share a partner stay closer than items that do not."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from calligram.losses.ranking import ranking_loss


class NeighbourhoodScores(NamedTuple):
    """Items of one modality as anchors and as what they are compared with."""

    scores: Tensor
    """(N, N), higher is better"""
    target: Tensor
    """(N, N): +1 neighbour, -1 outside the neighbourhood, 0 ignored; as ``neighbours`` gives it"""


def neighbours(target: Tensor, groups: Tensor | None = None) -> Tensor:
    """N(x) of every row: +1 where two rows have a positive in common, -1 where they have none, 0 for a row with itself.

    These are the triplets of two-branch, Eqs. 4 (rows are images) and 5 (rows are texts).

    Args:
        target: (N, M) against the other modality, +1 positive.
        groups: (N,) class labels; rows of one group that share nothing in this batch are ignored, since what they
            share may be outside it.
    """
    positive = (target > 0).float()
    found = torch.where(positive @ positive.T > 0, 1, -1)
    if groups is not None:
        found[(found < 0) & (groups.unsqueeze(1) == groups)] = 0
    return found.fill_diagonal_(0)


def neighbourhood_ranking(
    scores: Tensor,
    image_target: Tensor,
    text_target: Tensor,
    images: NeighbourhoodScores | None = None,
    texts: NeighbourhoodScores | None = None,
    *,
    weights: tuple[float, float, float, float] = (1.0, 2.0, 0.0, 0.2),
    margin: float = 0.1,
    top_k: int | None = 50,
) -> dict[str, Tensor]:
    """The four weighted sums of two-branch, Eq. 6, by name; those of weight zero are left out.

    Scores are minus the distances. With the last two weights zero this is Eq. 3. The defaults are the paper's for
    sentences (Secs. 5.1 and 5.2), where image neighbours are not known.

    Args:
        scores: (I, T).
        image_target: (I, T), +1 positive, -1 negative, 0 ignored.
        text_target: (T, I).
        images: image neighbourhoods, needed where their weight is not zero.
        texts: text neighbourhoods, likewise.
        weights: lambda 1 to 4: image anchors, text anchors, image neighbourhoods, text neighbourhoods.
        top_k: triplets of highest nonnegative loss to keep for every anchor and positive; all when None.
    """
    sides = {
        "image anchors": NeighbourhoodScores(scores, image_target),
        "text anchors": NeighbourhoodScores(scores.T, text_target),
        "image neighbours": images,
        "text neighbours": texts,
    }
    terms = {}
    for (name, side), weight in zip(sides.items(), weights, strict=True):
        if weight and side is None:
            raise ValueError(f"the term of {name} has weight {weight} but no scores")
        if weight and side is not None:
            terms[name] = weight * ranking_loss(side.scores, side.target, margin, top_k)
    return terms
