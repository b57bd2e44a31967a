"""Adversarial domain alignment: discriminators separate domains, encoders learn to confuse them (a3vse, Eqs. 4-8)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Domain = Literal["image", "pseudo_image", "text", "pseudo_text"]
"""v and t are images and captions of annotated pairs; v_u and s are images and sentences of pseudo pairs"""
DomainPairKind = Literal["intra", "cross", "trans"]
DOMAINS: tuple[Domain, ...] = ("image", "pseudo_image", "text", "pseudo_text")
DOMAIN_PAIRS: tuple[tuple[Domain, Domain], ...] = tuple(combinations(DOMAINS, 2))
"""the two domains that each of the six discriminators separates"""
DOMAIN_PAIR_KINDS: Mapping[tuple[Domain, Domain], DomainPairKind] = {
    ("image", "pseudo_image"): "intra",
    ("text", "pseudo_text"): "intra",
    ("image", "text"): "cross",
    ("pseudo_image", "pseudo_text"): "cross",
    ("image", "pseudo_text"): "trans",
    ("pseudo_image", "text"): "trans",
}
"""intra: same modality (Eq. 5); cross: same kind of pairs (Eq. 6); trans: neither (Eq. 7)"""


class _ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, tensor: Tensor, strength: float) -> Tensor:
        ctx.strength = strength  # type: ignore[attr-defined]
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * grads[0], None  # type: ignore[attr-defined]


def reverse_gradient(tensor: Tensor, strength: float) -> Tensor:
    """Gradient reversal layer: the identity forward; backward, gradients are multiplied by ``-strength``.

    Layers after it minimise a loss, and layers before it maximise the same loss: so a3vse optimises Eq. 10.
    """
    return _ReverseGradient.apply(tensor, strength)  # type: ignore[no-any-return,no-untyped-call]


def reversal_strength(progress: float, steepness: float = 10.0) -> float:
    """Gamma = 2 / (1 + exp(-eta p)) - 1, from 0 at the start to almost 1 at the end (a3vse, Sec. 4.3).

    The paper lists gamma among its parameters, but none of Eqs. 2-9 contains it. It is the strength of the gradient
    reversal layer, as in the work that introduced this layer.

    Args:
        progress: p, the completed share of training, 0 to 1.
        steepness: eta.
    """
    return 2 / (1 + math.exp(-steepness * progress)) - 1


def domain_loss(first: Tensor, second: Tensor) -> Tensor:
    """Binary cross entropy of a domain discriminator: -l_d of the paper (a3vse, Eq. 4).

    The discriminator maximises l_d = mean log D(a) + mean log(1 - D(b)), and the encoders minimise it (Eq. 10). This
    function returns -l_d to minimise. ``reverse_gradient`` before the discriminator changes the sign for the encoders,
    so that one step of one optimiser does both.

    Args:
        first: logits of D for the first domain, (A,); D is their logistic function.
        second: logits of D for the second domain, (B,).
    """
    return F.softplus(-first.float()).mean() + F.softplus(second.float()).mean()


def domain_error(first: Tensor, second: Tensor) -> Tensor:
    """Classification error of a discriminator, averaged over both domains; 0.5 is chance level."""
    return ((first <= 0).float().mean() + (second > 0).float().mean()) / 2
