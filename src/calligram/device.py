"""Which kernels compute attention where hardly two batches have the same shape."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def without_cudnn_attention(tensor: Tensor) -> AbstractContextManager[None]:
    """Attention without cuDNN, on an accelerator.

    It plans for every shape that it has not seen, for a tenth of a second and more, to compute for a millisecond then.
    """
    return sdpa_kernel(ATTENTION_BACKENDS) if tensor.is_cuda else nullcontext()


# Chains of small steps, compiled into few kernels where that is asked for.
#
# A step over many parts takes as long as it takes to read and write them; compiled, several steps read and write once.
# Compiling takes up to a minute at first use, so it is not the default: ``CALLIGRAM_COMPILE=1`` asks for it on an
# accelerator, and ``fusing`` anywhere.

log = logging.getLogger(__name__)

COMPILE_VARIABLE = "CALLIGRAM_COMPILE"
"""in the environment: 1 to compile on an accelerator"""
P = ParamSpec("P")
R = TypeVar("R")


class _CompileSwitch:
    """Of the whole process: what is computed again for a gradient is computed by another thread, in the same way."""

    on = os.environ.get(COMPILE_VARIABLE) == "1" and torch.cuda.is_available()


@contextmanager
def use_compile(on: bool = True) -> Iterator[None]:
    """Compile what is ``fused``, or not, within a block, whatever the environment says."""
    before, _CompileSwitch.on = _CompileSwitch.on, on
    try:
        yield
    finally:
        _CompileSwitch.on = before


def compile_enabled() -> bool:
    """Whether what is ``fused`` is compiled now."""
    return _CompileSwitch.on


def compile_if_enabled(*changing: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function while ``fusing``; leave it as it is where it cannot be compiled, which is said once.

    Args:
        changing: of each tensor that it is given, in order, how many of its first axes differ in length from call to
            call, so that it is not compiled for each of them.
    """

    def wrapped(function: Callable[P, R]) -> Callable[P, R]:
        compiled: list[Callable[P, R]] = []

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            if not _CompileSwitch.on:
                return function(*args, **kwargs)
            if not compiled:
                compiled.append(torch.compile(function))
            for tensor, axes in zip((each for each in args if isinstance(each, Tensor)), changing, strict=True):
                torch._dynamo.maybe_mark_dynamic(tensor, list(range(axes)))
            try:
                return compiled[0](*args, **kwargs)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever compilers raise
                if compiled[0] is function:
                    raise
                log.warning("%s cannot be compiled and runs step by step: %s", function.__name__, error)
                compiled[0] = function
                return function(*args, **kwargs)

        return called

    return wrapped
