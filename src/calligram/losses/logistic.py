"""Logistic regression of single pairs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def logistic(scores: Tensor, target: Tensor) -> Tensor:
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
