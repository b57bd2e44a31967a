"""What a step of MMCA cannot do without, the matrix products, and what a device does in it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fragments import timed
from torch.profiler import ProfilerActivity, profile

from calligram.models.matcher import Encoded


def shapes(pairs: int, regions: int, words: int, dim: int) -> list[tuple[int, int, int]]:
    """Rows, inputs and outputs of the products of so many pairs: three maps of all parts, windows, the last map."""
    maps = [(pairs * (regions + words), dim, dim)] * 3
    return maps + [(pairs * words, size * dim, dim) for size in (1, 2, 3)] + [(pairs, 3 * dim, dim)]


@torch.no_grad()
def products(texts: Encoded, images: int, regions: int, dim: int, precision: str) -> float:
    """Seconds of the products of all images with these texts' real words, in tiles of many pairs."""
    assert texts.mask is not None
    device, dtype = texts.vectors.device.type, torch.bfloat16 if precision == "bf16" else torch.float32
    pairs, words = images * len(texts.vectors), float(texts.mask.sum()) / len(texts.vectors)
    tile = min(pairs, 16384 if device == "cuda" else 256)
    seconds = 0.0
    for rows, inputs, outputs in shapes(tile, regions, round(words), dim):
        one, two = torch.randn(rows, inputs, device=device).to(dtype), torch.randn(inputs, outputs, device=device)
        two, out = two.to(dtype), torch.empty(rows, outputs, device=device, dtype=dtype)
        seconds += timed_best(device, lambda a=one, b=two, c=out: torch.mm(a, b, out=c), 5)  # type: ignore[misc]
    return seconds * pairs / tile


def worked(step: Callable[[], object], times: int = 2) -> tuple[float, float]:
    """Seconds that the device works in a step, and how many kernels and copies it is given."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            step()
        torch.cuda.synchronize()
    # What the optimiser calls its step is an entry too, over kernels that have their own.
    events = [
        e for e in seen.key_averages() if e.device_type.name == "CUDA" and not getattr(e, "is_user_annotation", False)
    ]
    return sum(e.self_device_time_total for e in events) / times / 1e6, sum(e.count for e in events) / times


@torch.no_grad()
def both_ways(wanted: list[tuple[int, int, int]], device: str, precision: str) -> float:
    """Seconds of products forward, and of their gradients for inputs and weights."""
    dtype, seconds = torch.bfloat16 if precision == "bf16" else torch.float32, 0.0
    for rows, inputs, outputs in wanted:
        x, w, y = (
            torch.randn(*s, device=device).to(dtype) for s in ((rows, inputs), (inputs, outputs), (rows, outputs))
        )
        for one, two in ((x, w), (y, w.T), (x.T, y)):
            seconds += timed_best(device, lambda a=one, b=two: a @ b, 5)  # type: ignore[misc]
    return seconds


def timed_best(device: str, work: Callable[[], object], times: int) -> float:
    """Median seconds after one turn that is not counted."""
    work()
    return timed(device, work, times)
