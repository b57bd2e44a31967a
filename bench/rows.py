"""Measured numbers: printed as they are found, and kept in ``results/bench.json``, or ``bench-gpu.json`` on a GPU."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from calligram.device import commit

Row = dict[str, object]
RESULTS = Path(__file__).parent.parent / "results"


def row(what: str, value: float, unit: str) -> Row:
    print(f"{what}: {value:.3g} {unit}", flush=True)
    return {"what": what, "value": float(f"{value:.4g}"), "unit": unit}


def results_file() -> Path:
    return RESULTS / ("bench-gpu.json" if torch.cuda.is_available() else "bench.json")


def stored_rows() -> list[Row]:
    """The rows of the file, each with the commit that it was measured with."""
    if not results_file().is_file():
        return []
    content = json.loads(results_file().read_text(encoding="utf-8"))
    return [{"commit": content.get("commit", ""), **found} for found in content["rows"]]


def write_rows(rows: Sequence[Row], kept: Sequence[Row]) -> None:
    """Write rows of this commit after the earlier ones that they do not replace."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    hardware = f"{os.cpu_count()} CPU cores ({platform.machine()}), {versions}"
    if torch.cuda.is_available():
        hardware = f"{torch.cuda.get_device_name()}, {hardware}"
    RESULTS.mkdir(exist_ok=True)
    fresh = {found["what"] for found in rows}
    content = {
        "hardware": hardware,
        "command": "make bench",
        "rows": [r for r in kept if r["what"] not in fresh] + [{"commit": commit(), **found} for found in rows],
    }
    results_file().write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
