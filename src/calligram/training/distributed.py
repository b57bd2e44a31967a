"""Distributed training of one matcher: each process encodes its share of a batch, and all use the whole batch.

Every process computes the loss of the whole batch from gathered encodings. The backward pass of the gather sums the
gradients of all processes, and parameters get the mean over processes. Together this is the gradient of one process
with the joined batch, for encoders, pair scores and training-only weights. Batch normalisation is the exception: it
uses the share of each process.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from calligram.models.matcher import Encoded

Ints = NDArray[np.int64]

LONGEST_WAIT = timedelta(days=1)
"""time that a process of a group waits for the first one, which may measure dev or mine negatives for hours"""


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@dataclass(frozen=True)
class Processes:
    """Rank of this process and the number of processes."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls, device: torch.device | None = None) -> Processes:
        """Join the group that ``torchrun`` set in the environment; without it this is the only process.

        Args:
            device: device of this process; None for the CPU.
        """
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count > 1 and not dist.is_initialized():
            # The functions of this module have the process group at import time as a default argument, and so keep it
            # and its threads alive. Optimizers import the module after the group is created. Imported before that, it
            # keeps no group.
            import torch.distributed.nn.functional

            on_gpu = device is not None and device.type == "cuda"
            if on_gpu:
                torch.cuda.set_device(device)  # NCCL takes the current GPU
            dist.init_process_group("nccl" if on_gpu else "gloo", timeout=LONGEST_WAIT)
            # A thread of the group that frees a tensor while the interpreter ends aborts the process.
            atexit.register(_leave_group)
        return cls(int(os.environ.get("RANK", "0")), count)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def share(self, rows: Ints) -> Ints:
        """Contiguous share of this process of the rows of a batch."""
        return np.array_split(rows, self.count)[self.rank]

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their mean over processes."""
        if self.count == 1:
            return
        for parameter in parameters:
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.count

    def broadcast_weights(self, modules: Iterable[nn.Module]) -> None:
        """Copy the weights of the first process to all processes."""
        if self.count > 1:
            for module in modules:
                for tensor in (*module.parameters(), *module.buffers()):
                    dist.broadcast(tensor.data, 0)

    def broadcast_number(self, value: float) -> float:
        """Return the number of the first process in all processes."""
        if self.count == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        box = torch.tensor([value], dtype=torch.float64, device=device)
        dist.broadcast(box, 0)
        return float(box)


def is_single_process() -> bool:
    """Whether there is one process only."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1


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
