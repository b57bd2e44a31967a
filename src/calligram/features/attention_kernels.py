"""Which kernels compute attention where hardly two batches have the same shape."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

UNPLANNED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def unplanned(tensor: Tensor) -> AbstractContextManager[None]:
    """Attention without cuDNN, on an accelerator.

    It plans for every shape that it has not seen, for a tenth of a second and more, to compute for a millisecond then.
    """
    return sdpa_kernel(UNPLANNED) if tensor.is_cuda else nullcontext()
