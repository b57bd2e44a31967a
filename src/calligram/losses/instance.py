"""Instance loss: classify each image and each text as its own group. Memory stays bounded for any number of groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CLASSES_PER_CHUNK = 16384
"""number of classes whose logits are in memory at the same time"""


class InstanceLossAndError(NamedTuple):
    """Instance loss and classification error of a batch."""

    loss: Tensor
    error: Tensor
    """share of items whose own class does not have the highest logit"""


def instance_loss(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    chunk: int | None = CLASSES_PER_CHUNK,
) -> Tensor:
    """Mean over items of -log softmax(W f)_c, where c is the class of the item (dual-path, Eqs. 5-8).

    Eqs. 5 and 6 use image features. Eqs. 7 and 8 use text features and the same ``weight``, W_share. With more classes
    than ``chunk``, the logits are computed chunk by chunk, and computed again for the gradient. Memory then does not
    grow with the number of classes, except for the weights. The price is one more matrix product.

    Args:
        features: (N, D).
        weight: (C, D), one row per class.
        labels: (N,) class of each item; items with a negative label are left out.
        bias: (C,).
        chunk: number of classes per chunk; all classes at once when None.

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
    """``instance_loss`` and the classification error, which the paper plots over epochs (dual-path, Fig. 8)."""
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if features.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"features have {features.shape[-1]} dimensions and the class weights {weight.shape[-1]}; they must agree"
        )
    if chunk is None or len(weight) <= chunk:
        logits = F.linear(features, weight, bias)
        logits, own = logits.to(_at_least_single(logits.dtype)), labels.clamp(min=0)
        losses = F.cross_entropy(logits, own, reduction="none")
        correct = logits.detach().amax(1) <= logits.detach().gather(1, own.unsqueeze(1)).squeeze(1)
    else:
        losses, correct = _ChunkedCrossEntropy.apply(features, weight, bias, labels.clamp(min=0), chunk)  # type: ignore[no-untyped-call]
    known = (labels >= 0).to(losses.dtype)
    count = known.sum().clamp(min=1)
    return InstanceLossAndError((losses * known).sum() / count, (known * ~correct).sum() / count)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """-log softmax(W f)_c of each item, from a running maximum and a running sum over chunks of classes."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        ctx.chunk, ctx.dtype = chunk, _product_dtype(features)
        with torch.autocast(features.device.type, enabled=False):
            cast = features.to(ctx.dtype)
            largest = cast.new_full((len(cast),), -torch.inf, dtype=_at_least_single(ctx.dtype))
            total, own = torch.zeros_like(largest), torch.zeros_like(largest)
            for start in range(0, len(weight), chunk):
                logits = _logits(cast, weight, bias, start, chunk)
                inside, place = _own_column(labels, start, logits.shape[1])
                own = torch.where(inside, logits.gather(1, place).squeeze(1), own)
                before, largest = largest, torch.maximum(largest, logits.amax(1))
                total = total * (before - largest).exp() + logits.sub_(largest.unsqueeze(1)).exp_().sum(1)
            log_sum = largest + total.log()
        ctx.save_for_backward(features, weight, bias, labels, log_sum)
        correct = largest <= own
        ctx.mark_non_differentiable(correct)
        return log_sum - own, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, labels, log_sum = ctx.saved_tensors
        with torch.autocast(features.device.type, enabled=False):
            cast = features.to(ctx.dtype)
            to_features = torch.zeros_like(features, dtype=log_sum.dtype)
            to_weight = torch.empty_like(weight)
            to_bias = None if bias is None else torch.empty_like(bias)
            for start in range(0, len(weight), ctx.chunk):
                share = _logits(cast, weight, bias, start, ctx.chunk).sub_(log_sum.unsqueeze(1)).exp_()
                inside, place = _own_column(labels, start, share.shape[1])
                share.scatter_add_(1, place, -inside.to(share.dtype).unsqueeze(1)).mul_(grad.unsqueeze(1))
                if to_bias is not None:
                    to_bias[start : start + ctx.chunk] = share.sum(0)
                share = share.to(ctx.dtype)
                to_features += share @ weight[start : start + ctx.chunk].to(ctx.dtype)
                to_weight[start : start + ctx.chunk] = share.T @ cast
        return to_features.to(features.dtype), to_weight, to_bias, None, None


def _product_dtype(features: Tensor) -> torch.dtype:
    """Type of the matrix products: the type of autocast, because autocast does not act inside a custom function."""
    kind = features.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _logits(features: Tensor, weight: Tensor, bias: Tensor | None, start: int, chunk: int) -> Tensor:
    """Logits of one chunk of classes, (N, chunk), in single precision or better."""
    logits = (features @ weight[start : start + chunk].to(features.dtype).T).to(_at_least_single(features.dtype))
    return logits if bias is None else logits.add_(bias[start : start + chunk])


def _own_column(labels: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Whether the class of each item is in ``start`` to ``start + count``, and its column (N, 1) in this chunk."""
    place = labels - start
    return (place >= 0) & (place < count), place.clamp(0, count - 1).unsqueeze(1)
