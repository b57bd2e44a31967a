"""Domains that are told apart by a discriminator and brought together by what it sees (a3vse, Eqs. 4-8)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Domain = Literal["image", "pseudo_image", "text", "pseudo_text"]
"""v, v_u, t and s: images and texts that people paired, and images with what was found in them"""
DomainPairKind = Literal["intra", "cross", "trans"]
DOMAINS: tuple[Domain, ...] = ("image", "pseudo_image", "text", "pseudo_text")
DOMAIN_PAIRS: tuple[tuple[Domain, Domain], ...] = tuple(combinations(DOMAINS, 2))
"""what each of the six discriminators tells apart"""
DOMAIN_PAIR_KINDS: Mapping[tuple[Domain, Domain], DomainPairKind] = {
    ("image", "pseudo_image"): "intra",
    ("text", "pseudo_text"): "intra",
    ("image", "text"): "cross",
    ("pseudo_image", "pseudo_text"): "cross",
    ("image", "pseudo_text"): "trans",
    ("pseudo_image", "text"): "trans",
}
"""within one modality (Eq. 5), within one kind of pairs (Eq. 6), or across both (Eq. 7)"""


class _ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, tensor: Tensor, strength: float) -> Tensor:
        ctx.strength = strength  # type: ignore[attr-defined]
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * grads[0], None  # type: ignore[attr-defined]


def reverse_gradient(tensor: Tensor, strength: float) -> Tensor:
    """The same going forward; gradients come back with the other sign and ``strength`` times as large.

    What is minimised behind it is maximised by what is before it: the layer by which a3vse optimises Eq. 10.
    """
    return _ReverseGradient.apply(tensor, strength)  # type: ignore[no-any-return,no-untyped-call]


def reversal_strength(progress: float, steepness: float = 10.0) -> float:
    """Gamma = 2 / (1 + exp(-eta p)) - 1, from 0 at the start to almost 1 at the end (a3vse, Sec. 4.3).

    The paper gives gamma with its other parameters, and none of Eqs. 2-9 contains it: it is the strength of the
    reversal layer, as in the work it is taken from.

    Args:
        progress: p, the share of training that is done.
        steepness: eta.
    """
    return 2 / (1 + math.exp(-steepness * progress)) - 1


def domain_loss(first: Tensor, second: Tensor) -> Tensor:
    """Binary cross entropy of telling two domains apart: -l_d of the paper (a3vse, Eq. 4).

    l_d = mean log D(a) + mean log(1 - D(b)) is what a discriminator maximises and the encoders minimise (Eq. 10). Its
    negative is minimised here, and ``reverse`` before the discriminator turns it round for the encoders, so that one
    step of one optimiser does both.

    Args:
        first: logits of D for the first domain, (A,); D is their logistic function.
        second: of the second, (B,).
    """
    return F.softplus(-first.float()).mean() + F.softplus(second.float()).mean()


def domain_error(first: Tensor, second: Tensor) -> Tensor:
    """The share of both domains that a discriminator takes for the other; one half where it cannot tell them apart."""
    return ((first <= 0).float().mean() + (second > 0).float().mean()) / 2
