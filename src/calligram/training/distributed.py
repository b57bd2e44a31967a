"""Distributed training of one matcher: each process encodes its share of a batch, and all use the whole batch.

Every process computes the loss of the whole batch from gathered encodings. The backward pass of the gather sums the
gradients of all processes, and parameters get the mean over processes. Together this is the gradient of one process
with the joined batch, for encoders, pair scores and training-only weights. Batch normalisation is the exception: it
uses the share of each process.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from calligram.device import Processes, is_single_process
from calligram.models.matcher import Encoded


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, tensor: Tensor) -> Tensor:
        pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, tensor.contiguous())
        return torch.stack(pieces)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        return total[dist.get_rank()]


def gather(encoded: Encoded) -> Encoded:
    """Concatenate the encodings of all processes in order, with gradients to each; unchanged with a single process."""
    if is_single_process():
        return encoded
    return Encoded(*(None if t is None else _gather_rows(t) for t in encoded))  # type: ignore[arg-type]


def own_rows(count: int) -> tuple[slice, int]:
    """Rows of a whole batch that this process encoded, as in ``Processes.share``, and the number of processes."""
    if is_single_process():
        return slice(0, count), 1
    rows = Processes(dist.get_rank(), dist.get_world_size()).share(np.arange(count))
    first = int(rows[0]) if len(rows) else count
    return slice(first, first + len(rows)), dist.get_world_size()


def _gather_rows(tensor: Tensor) -> Tensor:
    """Concatenate along the first axis; shares may differ in their length, and in the second axis for texts."""
    shape = torch.tensor(tensor.shape[:2], device=tensor.device)
    shapes = [torch.empty_like(shape) for _ in range(dist.get_world_size())]
    dist.all_gather(shapes, shape)
    rows = [int(s[0]) for s in shapes]
    wide = max(int(s[1]) for s in shapes) - tensor.shape[1] if tensor.ndim > 2 or tensor.dtype == torch.bool else 0
    padding = [0] * (2 * (tensor.ndim - 2)) + [0, wide, 0, max(rows) - tensor.shape[0]]
    as_float = tensor.float() if tensor.dtype == torch.bool else tensor
    joined: Tensor = _Gather.apply(F.pad(as_float, padding))  # type: ignore[no-untyped-call]
    out = torch.cat([joined[i, :n] for i, n in enumerate(rows)])
    return out > 0 if tensor.dtype == torch.bool else out
