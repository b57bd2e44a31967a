"""Losses on the scores of a batch: InfoNCE, KL divergence for distillation, and logistic loss of single pairs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(scores: Tensor, target: Tensor, temperature: Tensor | float = 0.07) -> Tensor:
    """Mean over anchors (rows) of the cross entropy between softmax(scores / temperature) and their positives.

    An anchor with several positives P has a uniform target over them: -1/|P| sum_p log softmax(s)_p. With one positive
    per row this is the usual InfoNCE. Ignored entries are excluded from the softmax. Anchors without a positive are
    excluded from the mean.

    Args:
        scores: (A, C), higher is better.
        target: (A, C), +1 positive, -1 negative, 0 ignored.

    See also: ``symmetric_info_nce``; ``ranking.ranking_loss`` for a hinge loss.
    """
    positive = target > 0
    anchors = positive.any(1, keepdim=True)
    # Rows without a positive have weight zero. They keep their ignored entries, because a softmax over no entries is
    # NaN. They are not removed, because counting them would make the host wait for the accelerator.
    logits = (scores / temperature).masked_fill((target == 0) & anchors, -torch.inf)
    log_share = (logits - logits.logsumexp(1, keepdim=True)).masked_fill(~positive, 0.0)
    return -(log_share.sum(1) / positive.sum(1).clamp(min=1)).sum() / anchors.sum().clamp(min=1)


def symmetric_info_nce(
    scores: Tensor, image_target: Tensor, text_target: Tensor | None = None, *, temperature: Tensor | float
) -> Tensor:
    """Mean of ``info_nce`` with images as anchors and with texts as anchors."""
    text_target = image_target.T if text_target is None else text_target
    return (info_nce(scores, image_target, temperature) + info_nce(scores.T, text_target, temperature)) / 2


def kl_divergence(
    scores: Tensor,
    teacher: Tensor,
    *,
    temperature: Tensor | float,
    teacher_temperature: float,
    counted: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Mean over rows of KL(softmax(teacher / teacher_temperature) || softmax(scores / temperature)).

    This is the distillation loss. It is zero where both distributions are equal. No gradient flows to the teacher.

    Args:
        scores: (A, C) scores of the student, higher is better.
        teacher: (A, C) scores of the teacher, higher is better; their scale may differ from that of ``scores``.
        temperature: divides ``scores``.
        teacher_temperature: divides ``teacher``.
        counted: (A,) and (C,) whether a row and a column count; None for all. Others are left out of the mean and of
            the softmax.

    See also: ``symmetric_kl_divergence``.
    """
    if scores.shape != teacher.shape:
        raise ValueError(
            f"scores have shape {tuple(scores.shape)} and the teacher's scores {tuple(teacher.shape)}; "
            "both must have the same shape (A, C)"
        )
    wanted, given = teacher.detach().float() / teacher_temperature, scores.float() / temperature
    if counted is None:
        return _divergence_of_rows(wanted, given).mean()
    rows, columns = counted
    least = torch.finfo(given.dtype).min  # minus infinity would give NaN: 0 * (-inf + inf)
    of_rows = _divergence_of_rows(wanted.masked_fill(~columns, least), given.masked_fill(~columns, least))
    return of_rows.masked_fill(~rows, 0.0).sum() / rows.sum().clamp(min=1)


def _divergence_of_rows(wanted: Tensor, given: Tensor) -> Tensor:
    """KL divergence (A,) of the softmax of each row of ``given`` from that of ``wanted``."""
    expected, predicted = wanted.log_softmax(1), given.log_softmax(1)
    return (expected.exp() * (expected - predicted)).sum(1)


def symmetric_kl_divergence(
    scores: Tensor,
    teacher: Tensor,
    *,
    temperature: Tensor | float,
    teacher_temperature: float,
    counted: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Mean of ``kl_divergence`` with images as rows and with texts as rows.

    Args:
        counted: whether an image and a text count; None for all.
    """
    temperatures: Any = {"temperature": temperature, "teacher_temperature": teacher_temperature}
    by_image = kl_divergence(scores, teacher, **temperatures, counted=counted)
    by_text = kl_divergence(scores.T, teacher.T, **temperatures, counted=counted and counted[::-1])
    return (by_image + by_text) / 2


def logistic_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Sum over pairs of log(1 + exp(-z p)), where p is the score and z is +1 for a positive, -1 for a negative pair.

    This is two-branch, Eq. 7. Pairs are independent, so give as many negatives as positives. Otherwise the negatives,
    which are far more numerous, dominate the loss (Sec. 3.3).

    Args:
        scores: any shape, higher is better.
        target: same shape, +1 positive, -1 negative, 0 ignored.

    See also: ``ranking.ranking_loss``, which compares pairs of the same anchor.
    """
    if scores.shape != target.shape:
        raise ValueError(
            f"scores have shape {tuple(scores.shape)} and target {tuple(target.shape)}; both must have the same shape"
        )
    counted = target != 0
    return F.softplus(-target[counted].to(scores.dtype) * scores[counted]).sum()
