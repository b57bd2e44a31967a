"""Softmax losses over a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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


# How far a matcher's scores of a batch are from those of another that it follows.


def kl_divergence(
    scores: Tensor, teacher: Tensor, *, temperature: Tensor | float, teacher_temperature: float
) -> Tensor:
    """Mean over rows of KL(softmax(teacher / teacher_temperature) || softmax(scores / temperature)).

    Zero where both order a row's candidates alike and are as sure of it. No gradient goes to the teacher.

    Args:
        scores: (A, C), higher is better; ``teacher`` likewise, on a scale of its own.

    See also: ``symmetric_divergence``.
    """
    if scores.shape != teacher.shape:
        raise ValueError(f"scores are {tuple(scores.shape)} but the teacher's {tuple(teacher.shape)}")
    wanted = (teacher.detach().float() / teacher_temperature).log_softmax(1)
    found = (scores.float() / temperature).log_softmax(1)
    return (wanted.exp() * (wanted - found)).sum(1).mean()


def symmetric_kl_divergence(
    scores: Tensor, teacher: Tensor, *, temperature: Tensor | float, teacher_temperature: float
) -> Tensor:
    """Mean of ``divergence`` with images as rows and with texts as rows."""
    by_image = kl_divergence(scores, teacher, temperature=temperature, teacher_temperature=teacher_temperature)
    by_text = kl_divergence(scores.T, teacher.T, temperature=temperature, teacher_temperature=teacher_temperature)
    return (by_image + by_text) / 2


# Logistic regression of single pairs.


def logistic_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Sum over pairs of log(1 + exp(-z p)), p a pair's score and z = +1 where it matches, -1 where not.

    This is two-branch, Eq. 7. Every pair stands alone, so the two kinds should come in equal numbers: negatives
    outnumber positives by far and would decide everything (Sec. 3.3).

    Args:
        scores: of any shape, higher is better.
        target: of the same shape, +1 positive, -1 negative, 0 ignored.

    See also: ``ranking.ranking``, which compares pairs of one anchor instead.
    """
    if scores.shape != target.shape:
        raise ValueError(f"scores are {tuple(scores.shape)} but target is {tuple(target.shape)}")
    counted = target != 0
    return F.softplus(-target[counted].to(scores.dtype) * scores[counted]).sum()
