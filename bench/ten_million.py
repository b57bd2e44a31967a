"""An index of 10,000,000 vectors in a folder, made and searched by the code that a library uses.

It needs about 40 GB of free disk and takes half an hour on two cores, so it is not part of ``make bench``:

    python bench/run.py ten_million

The vectors are the mixture of ``search_index.large_mixture`` in 256 dimensions. One process builds the index, another
searches it, so that memory is counted for each of them. The vectors are deleted at the end.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from search_index import Floats, Row, folder_size, found_share, large_mixture, milliseconds

from calligram.search.filters.conditions import Comparison
from calligram.search.library.tables import open_index

ITEMS, DIM, BATCH, K = 10_000_000, 256, 250_000, 10
QUERIES, EXACT_QUERIES, CONDITION_GROUPS = 200, 50, 100
NEEDED_BYTES = 4000 * ITEMS
NAME = "10,000,000 vectors of 256 dimensions"


def peak_gigabytes() -> float:
    """Of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1e6  # type: ignore[index]


def build(folder: str) -> tuple[dict[str, object], int, list[float]]:
    """What opens the index; seconds of adding and of building, and the peak memory of this process."""
    index, began = open_index(folder, "items", dim=DIM), time.perf_counter()
    for start in range(0, ITEMS, BATCH):
        rows = range(start, start + BATCH)
        columns = pa.table({"group": [float(row % CONDITION_GROUPS) for row in rows]})
        index.add([str(row) for row in rows], large_mixture(BATCH, start + 3, DIM), columns)
        print(f"{start + BATCH} added after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    added = time.perf_counter()
    index.optimize()
    built = time.perf_counter()
    index.drop_versions()
    return dict(index.mapped or {}), index.version or 0, [added - began, built - added, peak_gigabytes()]


def leave_cache(folder: Path) -> None:
    """Ask the system to drop the files from its cache, so that they are read from the disk."""
    os.sync()
    for file in folder.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def search(folder: str, mapped: dict[str, object], version: int) -> list[tuple[str, float, str]]:
    """Rows of a process that only searches."""
    import faiss  # noqa: F401  imports are not part of opening
    import lancedb  # noqa: F401

    queries = large_mixture(QUERIES, 2, DIM)
    leave_cache(Path(folder))
    began = time.perf_counter()
    index = open_index(folder, "items", version=version, mapped=mapped)
    index.search(queries[:1], K)
    rows = [("opened, with the first query", time.perf_counter() - began, "s")]
    (cold,) = milliseconds([lambda n: index.search(queries[n : n + 1], K)], QUERIES)
    rows += [(f"one query from the disk, p{p}", float(np.percentile(cold, p)), "ms") for p in (50, 99)]
    (again,) = milliseconds([lambda n: index.search(queries[n : n + 1], K)], QUERIES)
    rows += [(f"one query again, p{p}", float(np.percentile(again, p)), "ms") for p in (50, 99)]
    few = Comparison("group", "<", 1.0)
    index.search(queries[:1], K, few)
    (filtered,) = milliseconds([lambda n: index.search(queries[n : n + 1], K, few)], EXACT_QUERIES)
    rows.append(("one query with a condition of 1%, median", float(np.median(filtered)), "ms"))
    rows.append(("peak memory of the process that searches", peak_gigabytes(), "GB"))
    return rows + recalls(index, queries[:EXACT_QUERIES], few)


def recalls(index: object, queries: Floats, few: Comparison) -> list[tuple[str, float, str]]:
    """Recall@10 of all rows, and of those that satisfy a condition."""
    rows = []
    for what, where in (("", None), (" with a condition of 1%", few)):
        found, exact = (index.search(queries, K, where, exact=all) for all in (False, True))  # type: ignore[attr-defined]
        rows.append((f"recall@10{what}", found_share(found, exact), "ratio"))
    return rows


def ten_million(row: Callable[[str, float, str], Row]) -> list[Row]:
    """All rows; ``row`` prints and keeps one."""
    with tempfile.TemporaryDirectory() as name:
        free = shutil.disk_usage(name).free
        if free < NEEDED_BYTES:
            sys.exit(
                f"{name} has {free / 1e9:.0f} GB of free disk, and {NEEDED_BYTES / 1e9:.0f} GB are needed; "
                "set TMPDIR to a folder on a larger disk"
            )
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            mapped, version, (adding, building, memory) = pool.submit(build, name).result()
        rows = [
            row(f"{NAME}: added in batches of {BATCH}, with making them up", adding, "s"),
            row(f"{NAME}: compacted and indexed", building, "s"),
            row(f"{NAME}: peak memory of the process that builds", memory, "GB"),
            row(f"{NAME}: folder", folder_size(Path(name)) / 1e9, "GB"),
        ]
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            rows += [
                row(f"{NAME}: {what}", *rest) for what, *rest in pool.submit(search, name, mapped, version).result()
            ]
    return rows
