"""Triplet hinge losses with all negatives, the hardest K, or the single hardest one."""

from __future__ import annotations

import torch
from torch import Tensor


def ranking_loss(scores: Tensor, target: Tensor, margin: float, top_k: int | None = None) -> Tensor:
    """Sum the hinge loss over triplets whose anchors are the rows of ``scores``.

    Each anchor a, positive p and negative n adds [margin - s(a, p) + s(a, n)]_+ (two-branch, Eq. 3; aoq, Eq. 1).
    With ``top_k=1`` only the hardest negative counts (aoq, Eq. 2; mmca, Eq. 15). For a fixed anchor and positive the
    hinge increases with the score of the negative. The K triplets of highest loss therefore have the K negatives of
    highest score.

    Args:
        scores: (A, C), higher is better.
        target: (A, C), +1 positive, -1 negative, 0 ignored.
        top_k: number of hardest negatives to keep for each anchor; all when None.

    See also: ``bidirectional_ranking_loss``, which sums both directions; ``contrastive.info_nce`` for a softmax loss.
    """
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1 or None, got {top_k}")
    if scores.shape != target.shape:
        raise ValueError(
            f"scores have shape {tuple(scores.shape)} and target {tuple(target.shape)}; both must have the same shape"
        )
    negatives = scores.masked_fill(target >= 0, -torch.inf)
    if top_k == 1 and scores.shape[1]:
        # One hinge for each positive pair: a mask selects them. Indexing the positives would be nonzero(), for which
        # the host waits until the GPU has counted them.
        hinges = (margin - scores + negatives.max(1, keepdim=True).values).clamp(min=0)
        return hinges.masked_fill(target <= 0, 0.0).sum()
    anchor, positive = (target > 0).nonzero(as_tuple=True)
    if top_k is not None:
        negatives = negatives.topk(min(top_k, negatives.shape[1]), dim=1).values
    # For an anchor without negatives the value is minus infinity: its hinge and its gradient are zero.
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
    """``ranking_loss`` with images as anchors plus ``ranking_loss`` with texts as anchors.

    This is two-branch, Eqs. 1-3, with weights; with ``top_k=1`` aoq, Eq. 2, and mmca, Eq. 15.

    Args:
        scores: (I, T).
        image_target: (I, T), +1 positive, -1 negative, 0 ignored, with images as anchors.
        text_target: (T, I), the same with texts as anchors; the transpose of ``image_target`` when None. The two differ
            where each direction samples its own negatives (two-branch, Algorithm 1).
        weights: weight of the image anchors and weight of the text anchors.
    """
    text_target = image_target.T if text_target is None else text_target
    by_image = ranking_loss(scores, image_target, margin, top_k)
    by_text = ranking_loss(scores.T, text_target, margin, top_k)
    return weights[0] * by_image + weights[1] * by_text
