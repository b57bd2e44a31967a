"""A network on a CPU with freed memory kept for the next tensors, and returned to the system."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import torch
from rows import Row, row
from transformers import MobileNetV2Config, MobileNetV2Model

from calligram.memory import keep_freed_memory

IMAGES, TURNS = 32, 3


def memory() -> list[Row]:
    """Forward and backward passes of an untrained MobileNetV2, each way in a process of its own."""
    name = f"MobileNetV2 on a CPU, {IMAGES} images of 224 px"
    found: dict[str, dict[str, float]] = {"returned": {}, "kept": {}}
    for _ in range(TURNS):  # in turns, so that a machine that slows down slows both
        for way, best in found.items():
            run = subprocess.run([sys.executable, __file__, way], capture_output=True, text=True, check=True)
            for what, value in json.loads(run.stdout).items():
                best[what] = min(value, best.get(what, value))
    rows = [
        row(f"{name}: {what}, freed memory is {way}", value, "s")
        for way, best in found.items()
        for what, value in best.items()
    ]
    return rows + [
        row(f"{name}: {what}, time with memory returned against kept", value / found["kept"][what], "ratio")
        for what, value in found["returned"].items()
    ]


def passes() -> dict[str, float]:
    """Seconds of a forward pass, and of one with its backward pass."""
    network = MobileNetV2Model(MobileNetV2Config()).to(memory_format=torch.channels_last)
    images = torch.randn(IMAGES, 3, 224, 224).contiguous(memory_format=torch.channels_last)

    def forward() -> None:
        with torch.no_grad():
            network(images)

    def both() -> None:
        network(images).last_hidden_state.sum().backward()
        network.zero_grad()

    found = {}
    for what, work in (("forward", forward), ("forward and backward", both)):
        work()
        began = time.perf_counter()
        for _ in range(TURNS):
            work()
        found[what] = (time.perf_counter() - began) / TURNS
    return found


if __name__ == "__main__":
    if sys.argv[1] == "kept":
        keep_freed_memory()
    print(json.dumps(passes()))
