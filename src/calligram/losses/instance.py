"""Classification of every image and text as the group it belongs to, for any number of groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CLASSES_PER_CHUNK = 16384
"""classes whose logits are held at a time"""


class InstanceLossAndError(NamedTuple):
    """A batch as its classifier sees it."""

    loss: Tensor
    error: Tensor
    """share of the items whose own class is not the likeliest"""


def instance_loss(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    chunk: int | None = CLASSES_PER_CHUNK,
) -> Tensor:
    """Mean over items of -log softmax(W f)_c, c the item's own class (dual-path, Eqs. 5-8).

    Eqs. 5 and 6 are this with image features, Eqs. 7 and 8 with text features and the same ``weight``, W_share. With
    more classes than ``chunk`` the logits are made, added up and made again for the gradient a chunk at a time: memory
    does not grow with the number of classes, but for the weights themselves, and one more matrix product is the price.

    Args:
        features: (N, D).
        weight: (C, D), a row for each class.
        labels: (N,) classes; items with a negative one are left out.
        bias: (C,).
        chunk: classes at a time; all at once when None.

    See also: ``contrastive.info_nce``, whose classes are the other items of the batch.
    """
    return instance_loss_and_error(features, weight, labels, bias, chunk=chunk).loss


def instance_loss_and_error(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    chunk: int | None = CLASSES_PER_CHUNK,
) -> InstanceLossAndError:
    """``instance``, and the classification error that the paper draws over the epochs (dual-path, Fig. 8)."""
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if features.shape[-1] != weight.shape[-1]:
        raise ValueError(f"features have {features.shape[-1]} numbers and classes {weight.shape[-1]}")
    if chunk is None or len(weight) <= chunk:
        logits = F.linear(features, weight, bias)
        logits, own = logits.to(_at_least_single(logits.dtype)), labels.clamp(min=0)
        losses = F.cross_entropy(logits, own, reduction="none")
        right = logits.detach().amax(1) <= logits.detach().gather(1, own.unsqueeze(1)).squeeze(1)
    else:
        losses, right = _ChunkedCrossEntropy.apply(features, weight, bias, labels.clamp(min=0), chunk)  # type: ignore[no-untyped-call]
    known = (labels >= 0).to(losses.dtype)
    count = known.sum().clamp(min=1)
    return InstanceLossAndError((losses * known).sum() / count, (known * ~right).sum() / count)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """-log softmax(W f)_c of each item, with a running maximum and sum over chunks of classes."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        ctx.chunk, ctx.kind = chunk, _product_dtype(features)
        with torch.autocast(features.device.type, enabled=False):
            seen = features.to(ctx.kind)
            largest = seen.new_full((len(seen),), -torch.inf, dtype=_at_least_single(ctx.kind))
            total, own = torch.zeros_like(largest), torch.zeros_like(largest)
            for start in range(0, len(weight), chunk):
                logits = _logits(seen, weight, bias, start, chunk)
                inside, place = _own_column(labels, start, logits.shape[1])
                own = torch.where(inside, logits.gather(1, place).squeeze(1), own)
                before, largest = largest, torch.maximum(largest, logits.amax(1))
                total = total * (before - largest).exp() + logits.sub_(largest.unsqueeze(1)).exp_().sum(1)
            log_sum = largest + total.log()
        ctx.save_for_backward(features, weight, bias, labels, log_sum)
        right = largest <= own
        ctx.mark_non_differentiable(right)
        return log_sum - own, right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, labels, log_sum = ctx.saved_tensors
        with torch.autocast(features.device.type, enabled=False):
            seen = features.to(ctx.kind)
            to_features = torch.zeros_like(features, dtype=log_sum.dtype)
            to_weight = torch.empty_like(weight)
            to_bias = None if bias is None else torch.empty_like(bias)
            for start in range(0, len(weight), ctx.chunk):
                share = _logits(seen, weight, bias, start, ctx.chunk).sub_(log_sum.unsqueeze(1)).exp_()
                inside, place = _own_column(labels, start, share.shape[1])
                share.scatter_add_(1, place, -inside.to(share.dtype).unsqueeze(1)).mul_(grad.unsqueeze(1))
                if to_bias is not None:
                    to_bias[start : start + ctx.chunk] = share.sum(0)
                share = share.to(ctx.kind)
                to_features += share @ weight[start : start + ctx.chunk].to(ctx.kind)
                to_weight[start : start + ctx.chunk] = share.T @ seen
        return to_features.to(features.dtype), to_weight, to_bias, None, None


def _product_dtype(features: Tensor) -> torch.dtype:
    """What matrix products are computed in: autocast's choice, which does not reach into a function of our own."""
    kind = features.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype


def _at_least_single(kind: torch.dtype) -> torch.dtype:
    return torch.promote_types(kind, torch.float32)


def _logits(features: Tensor, weight: Tensor, bias: Tensor | None, start: int, chunk: int) -> Tensor:
    """(N, chunk), at least in single precision."""
    logits = (features @ weight[start : start + chunk].to(features.dtype).T).to(_at_least_single(features.dtype))
    return logits if bias is None else logits.add_(bias[start : start + chunk])


def _own_column(labels: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Whether an item's class is among ``count`` from ``start`` on, and its column (N, 1) there."""
    place = labels - start
    return (place >= 0) & (place < count), place.clamp(0, count - 1).unsqueeze(1)
