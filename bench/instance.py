"""The instance loss over as many classes as MS-COCO has training images: streamed over chunks of classes, and whole."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from statistics import median

import torch

from calligram.losses.instance import CLASSES_PER_CHUNK
from calligram.losses.instance import instance_loss as instance_loss

Row = dict[str, object]
CLASSES, DIM, BATCH, STEPS = 113_287, 512, 1024, 3


def instance(row: Callable[[str, float, str], Row]) -> list[Row]:
    """Both ways in processes of their own, since peak memory is a process's; turn by turn, against drift."""
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[tuple[float, float]]] = {"plain": [], "streamed": []}
    for _ in range(3):
        for name, chunk in (("plain", None), ("streamed", CLASSES_PER_CHUNK)):
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                found[name].append(pool.submit(measured, chunk).result())
    seconds = {name: median(s for s, _ in runs) for name, runs in found.items()}
    memory = {name: median(m for _, m in runs) for name, runs in found.items()}
    title = f"instance loss, {CLASSES} classes, {BATCH} vectors of {DIM}"
    return [
        *(row(f"{title}: {name}, a step", seconds[name], "s") for name in found),
        *(row(f"{title}: {name}, memory beside weights and gradients", memory[name], "GB") for name in found),
        row(f"{title}: time of streamed against plain", seconds["streamed"] / seconds["plain"], "ratio"),
        row(f"{title}: memory of streamed against plain", memory["streamed"] / memory["plain"], "ratio"),
    ]


def measured(chunk: int | None) -> tuple[float, float]:
    """Seconds of a step, forward and back, and the gigabytes it takes beside the weights and all gradients."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    random = torch.Generator(device).manual_seed(0)
    weight = torch.randn(CLASSES, DIM, device=device, generator=random).div_(DIM**0.5).requires_grad_()
    features = torch.randn(BATCH, DIM, device=device, generator=random).requires_grad_()
    labels = torch.randint(0, CLASSES, (BATCH,), device=device, generator=random)
    # Both in memory before anything is measured: a step makes them anew.
    held = torch.ones_like(weight), torch.ones_like(features)
    before = _peak(device)
    del held

    def step() -> None:
        weight.grad = features.grad = None
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = instance_loss(features, weight, labels, chunk=chunk)
        loss.backward()

    step()
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return median(times), max(_peak(device) - before, 1e6) / 1e9


def _peak(device: str) -> float:
    """Largest memory so far, in bytes."""
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1e3
