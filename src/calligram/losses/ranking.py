"""Hinge losses over triplets: one core for all, some or the hardest negatives."""

from __future__ import annotations

import torch
from torch import Tensor


def ranking_loss(scores: Tensor, target: Tensor, margin: float, top_k: int | None = None) -> Tensor:
    """Sum the hinge over triplets whose anchors are the rows of ``scores``.

    Each anchor a, positive p and negative n adds [margin - s(a, p) + s(a, n)]_+ (two-branch, Eq. 3; aoq, Eq. 1).
    With ``top_k=1`` only the hardest negative counts (aoq, Eq. 2; mmca, Eq. 15). For a fixed anchor and positive the
    hinge grows with the negative's score, so the K worst triplets are those of the K best-scored negatives.

    Args:
        scores: (A, C), higher is better.
        target: (A, C), +1 positive, -1 negative, 0 ignored.
        top_k: how many of the hardest negatives of each anchor to keep; all when None.

    See also: ``bidirectional``, which applies it both ways; ``contrastive.info_nce`` for a softmax instead of a hinge.
    """
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if scores.shape != target.shape:
        raise ValueError(f"scores are {tuple(scores.shape)} but target is {tuple(target.shape)}")
    negatives = scores.masked_fill(target >= 0, -torch.inf)
    if top_k == 1 and scores.shape[1]:
        # Every pair has one hinge at most, so they stay in their places: to count them, an accelerator would be waited
        # for.
        hinges = (margin - scores + negatives.max(1, keepdim=True).values).clamp(min=0)
        return hinges.masked_fill(target <= 0, 0.0).sum()
    anchor, positive = (target > 0).nonzero(as_tuple=True)
    if top_k is not None:
        negatives = negatives.topk(min(top_k, negatives.shape[1]), dim=1).values
    # An anchor without negatives is left with minus infinity: its hinge, and the hinge's gradient, are zero.
    return (margin - scores[anchor, positive].unsqueeze(1) + negatives[anchor]).clamp(min=0).sum()


def bidirectional_ranking_loss(
    scores: Tensor,
    image_target: Tensor,
    text_target: Tensor | None = None,
    *,
    margin: float,
    weights: tuple[float, float] = (1.0, 1.0),
    top_k: int | None = None,
) -> Tensor:
    """``ranking`` with images as anchors plus ``ranking`` with texts as anchors.

    This is two-branch, Eqs. 1-3, with weights; with ``top_k=1`` aoq, Eq. 2, and mmca, Eq. 15.

    Args:
        scores: (I, T).
        image_target: (I, T), what counts as a negative text of each image.
        text_target: (T, I), what counts as a negative image of each text; the transpose of ``image_target`` when None.
            The two differ where negatives are drawn differently per direction (two-branch, Algorithm 1).
        weights: of the image anchors and of the text anchors.
    """
    text_target = image_target.T if text_target is None else text_target
    by_image = ranking_loss(scores, image_target, margin, top_k)
    by_text = ranking_loss(scores.T, text_target, margin, top_k)
    return weights[0] * by_image + weights[1] * by_text
