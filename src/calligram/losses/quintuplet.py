"""Hinge losses with offline hard negatives: triplets, quintuplets, and adaptive weights of the online terms."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Margins = tuple[float, float]
"""gamma_1 for online negatives and gamma_2 for offline negatives"""


class PairScores(NamedTuple):
    """Scores of N positive pairs (i, t) and of their negatives; minus infinity where a negative does not exist."""

    positive: Tensor
    """(N,) S(i, t)"""
    online: Tensor
    """(N, 2) S(i, t_on) and S(i_on, t)"""
    offline: Tensor
    """(N, 2) S(i, t_off) and S(i_off, t)"""
    derived: Tensor
    """(N, 2) S(i_off, t_off), and S of an image of t_off with a text of i_off"""


def offline_triplet(scores: PairScores, margins: Margins = (0.2, 0.0), *, squared: bool = False) -> dict[str, Tensor]:
    """Online and offline triplet losses (aoq, Eq. 3): two terms, each a sum over pairs and both directions:

    [gamma_1 - S(i,t) + S(i,t_on)]_+ + [gamma_1 - S(i,t) + S(i_on,t)]_+ and
    [gamma_2 - S(i,t) + S(i,t_off)]_+ + [gamma_2 - S(i,t) + S(i_off,t)]_+.
    """
    return {
        "online": _hinge(scores, scores.online, margins[0], squared).sum(),
        "offline": _hinge(scores, scores.offline, margins[1], squared).sum(),
    }


def offline_quintuplet(
    scores: PairScores, margins: Margins = (0.2, 0.0), *, online: bool = True, squared: bool = False
) -> dict[str, Tensor]:
    """Eq. 3 plus terms for negative pairs that contain neither i nor t (aoq, Eq. 4):

    + [gamma_2 - S(i,t) + S(i_off,t_off)]_+ + [gamma_2 - S(i,t) + S(i~_off,t~_off)]_+,
    where i~_off is an image of t_off and t~_off a text of i_off.

    Args:
        online: whether to include the online term; without it this is "OnlyOffline" (aoq, Table 3).
        squared: use [x]_+^2 instead of [x]_+ in every term (aoq, Sec. 3.3).
    """
    terms = offline_triplet(scores, margins, squared=squared)
    terms["derived"] = _hinge(scores, scores.derived, margins[1], squared).sum()
    return terms if online else {name: term for name, term in terms.items() if name != "online"}


def adaptive_quintuplet(
    scores: PairScores,
    margins: Margins = (0.2, 0.0),
    *,
    alpha: float = 0.3,
    beta: float = 1.5,
    against: Literal["offline", "positive"] = "offline",
    squared: bool = False,
) -> dict[str, Tensor]:
    """Eq. 4 with online terms weighted by the difference between the offline and the online score (aoq, Eq. 5):

    (beta - (S(i,t_off) - S(i,t_on)) / alpha) [gamma_1 - S(i,t) + S(i,t_on)]_+, and the same for i_on.

    The weight is not clamped, and gradients flow through it, as in Eq. 6 and in the released code. It is therefore
    negative where S_off - S_on > alpha * beta. Without an offline negative the weight is beta.

    Args:
        against: ``positive`` uses S(i, t) instead of the offline score, "w/o OfflineAdap" (aoq, Table 3).
    """
    terms = offline_quintuplet(scores, margins, squared=squared)
    above = scores.offline if against == "offline" else scores.positive.unsqueeze(1).expand_as(scores.online)
    both = torch.isfinite(above) & torch.isfinite(scores.online)
    weight = beta - torch.where(both, above - scores.online, 0.0) / alpha
    terms["online"] = (weight * _hinge(scores, scores.online, margins[0], squared)).sum()
    return terms


def _hinge(scores: PairScores, negatives: Tensor, margin: float, squared: bool) -> Tensor:
    """[margin - S(i, t) + S(negative)]_+ of each pair, (N, 2); zero, without a gradient, where no negative exists."""
    hinge = (margin - scores.positive.unsqueeze(1) + negatives).clamp(min=0)
    return hinge.square() if squared else hinge
