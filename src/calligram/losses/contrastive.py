"""Softmax losses over a batch."""

from __future__ import annotations

import torch
from torch import Tensor


def info_nce(scores: Tensor, target: Tensor, temperature: Tensor | float) -> Tensor:
    """Mean over anchors (rows) of the cross entropy between softmax(scores / temperature) and their positives.

    An anchor with several positives P has the uniform target over them: -1/|P| sum_p log softmax(s)_p. With one
    positive per row this is the usual InfoNCE. Ignored entries leave the softmax; anchors without a positive leave the
    mean.

    Args:
        scores: (A, C), higher is better.
        target: (A, C), +1 positive, -1 negative, 0 ignored.

    See also: ``symmetric_info_nce``; ``ranking.ranking`` for a hinge.
    """
    positive = target > 0
    anchors = positive.any(1, keepdim=True)
    # Rows without a positive count for nothing, and keep what is ignored: of nothing at all, a softmax would be NaN.
    # They are not taken out, since an accelerator would be waited for to count them.
    logits = (scores / temperature).masked_fill((target == 0) & anchors, -torch.inf)
    log_share = (logits - logits.logsumexp(1, keepdim=True)).masked_fill(~positive, 0.0)
    return -(log_share.sum(1) / positive.sum(1).clamp(min=1)).sum() / anchors.sum().clamp(min=1)


def symmetric_info_nce(
    scores: Tensor, image_target: Tensor, text_target: Tensor | None = None, *, temperature: Tensor | float
) -> Tensor:
    """Mean of ``info_nce`` with images as anchors and with texts as anchors."""
    text_target = image_target.T if text_target is None else text_target
    return (info_nce(scores, image_target, temperature) + info_nce(scores.T, text_target, temperature)) / 2
