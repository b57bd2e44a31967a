"""Seconds from pressing Enter to the answer, of commands that a process of its own runs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rows import Row

LIBRARY = Path(__file__).parent.parent / "demo" / "library"
"""what ``make demo`` indexed: 1,000 scenes"""
COLLECTION = LIBRARY.with_name("scenes")
RUNS = 5


def startup(row: Callable[[str, float, str], Row]) -> list[Row]:
    """Median of ``RUNS`` runs, after one that warms the disk."""
    rows = [row("calligram --help, wall", _seconds("--help"), "s")]
    if COLLECTION.is_dir():
        rows.append(
            row("calligram info over the demo's collection of scenes, wall", _seconds("info", str(COLLECTION)), "s")
        )
    bare = _seconds_of([sys.executable, "-c", "import torch"])
    rows.append(row("python -c 'import torch', wall: what a search cannot avoid", bare, "s"))
    if LIBRARY.is_dir():
        search = _seconds("search", str(LIBRARY), "two dogs on a beach")
        rows.append(row("calligram search over the demo's library of 1,000 scenes, wall", search, "s"))
        rows.append(row("calligram search over the demo's library against importing torch", search / bare, "ratio"))
    return rows


def _seconds(*words: str) -> float:
    return _seconds_of([sys.executable, "-m", "calligram", *words])


def _seconds_of(command: list[str]) -> float:
    def once() -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    once()
    return median(once() for _ in range(RUNS))
