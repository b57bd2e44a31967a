"""Ranking losses within one modality: two images with a common text, or two texts with a common image, stay close."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from calligram.losses.ranking import ranking_loss


class NeighbourhoodScores(NamedTuple):
    """Scores between items of one modality, and which pairs of items are neighbours."""

    scores: Tensor
    """(A, N) between anchors and all items, higher is better"""
    target: Tensor
    """(A, N): +1 neighbour, -1 outside the neighbourhood, 0 ignored; the output of ``neighbours``"""


def neighbours(target: Tensor, groups: Tensor | None = None) -> Tensor:
    """Neighbourhoods N(x) of rows, (N, N): +1 where two rows share a positive, -1 where not, 0 on the diagonal.

    They define the triplets of two-branch, Eqs. 4 (rows are images) and 5 (rows are texts). Every row must be another
    item: a text in two rows would be outside its own neighbourhood. Batches of phrases repeat texts and bring their own
    neighbourhoods.

    Args:
        target: (N, M) matches with the other modality, +1 positive.
        groups: (N,) class labels. Rows of the same group without a shared positive in this batch are ignored, because
            they may share one outside the batch.
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
    """Return the four weighted sums of two-branch, Eq. 6, by name; terms of weight zero are left out.

    Scores are negative distances. With the last two weights zero this is Eq. 3. The defaults are the values of the
    paper for sentences (Secs. 5.1 and 5.2), where image neighbours are not known.

    Args:
        scores: (I, T).
        image_target: (I, T), +1 positive, -1 negative, 0 ignored, with images as anchors.
        text_target: (T, I), the same with texts as anchors.
        images: image neighbourhoods, required where their weight is not zero.
        texts: text neighbourhoods, required where their weight is not zero.
        weights: lambda 1 to 4: image anchors, text anchors, image neighbourhoods, text neighbourhoods.
        top_k: number of triplets of highest loss to keep for each anchor and positive; all when None.
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
            raise ValueError(f"the term '{name}' has weight {weight} but no scores; give its scores or set weight 0")
        if weight and side is not None:
            terms[name] = weight * ranking_loss(side.scores, side.target, margin, top_k)
    return terms
