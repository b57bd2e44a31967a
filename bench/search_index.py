"""An index of 100,000 vectors in a folder: how fast it answers, what it finds and what it costs.

The vectors are a mixture of 2,000 groups, as far apart within a group as the groups are from each other. The peer is
the plain loop: all products of a query with float32 vectors in memory, then the ten largest.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.search.filters.conditions import Comparison
from calligram.search.library.tables import open_index
from calligram.search.vectors.index import Index

Row = dict[str, object]
Floats = NDArray[np.float32]
ITEMS, DIM, GROUPS, K = 100_000, 512, 2000, 10
QUERIES, BATCH, THREADS = 300, 5000, 64
NAME = "100,000 vectors of 512 dimensions"


def mixture(count: int, seed: int) -> Floats:
    centres = np.random.default_rng(0).normal(size=(GROUPS, DIM)).astype(np.float32)
    random = np.random.default_rng(seed)
    vectors = centres[random.integers(GROUPS, size=count)] + random.normal(size=(count, DIM)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def resident_gigabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9


def folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def loop(vectors: Floats, query: Floats) -> set[str]:
    return {str(row) for row in np.argpartition(vectors @ query, -K)[-K:]}


def fill(index: Index, vectors: Floats) -> float:
    """Rows per second, committed in batches as a library does."""
    began = time.perf_counter()
    for start in range(0, ITEMS, BATCH):
        rows = range(start, start + BATCH)
        columns = pa.table({"year": [2000 + row % 25 for row in rows], "folder": [f"f{row % 400}" for row in rows]})
        index.add([str(row) for row in rows], vectors[start : start + BATCH], columns)
    index.optimize()
    return ITEMS / (time.perf_counter() - began)


def milliseconds(works: Sequence[Callable[[int], object]], turns: int) -> list[NDArray[np.float64]]:
    """Times of several ways of doing the same, taken in turns so that a machine that slows down slows all."""
    taken: list[list[float]] = [[] for _ in works]
    for turn in range(turns):
        for work, times in zip(works, taken, strict=True):
            began = time.perf_counter()
            work(turn)
            times.append(1e3 * (time.perf_counter() - began))
    return [np.array(times) for times in taken]


def latency(row: Callable[[str, float, str], Row], index: Index, vectors: Floats, queries: Floats) -> list[Row]:
    found = [{hit.id for hit in hits} for hits in index.search(queries, K)]
    recall = np.mean([len(ours & loop(vectors, q)) / K for ours, q in zip(found, queries, strict=True)])
    late, early = Comparison("year", ">=", 2020.0), [Comparison("year", ">=", 2000.1 + n / 20) for n in range(QUERIES)]
    ways: list[Callable[[int], object]] = [
        lambda n: loop(vectors, queries[n]),
        lambda n: index.search(queries[n : n + 1], K),
        lambda n: index.search(queries[n : n + 1], K, late),
        lambda n: index.search(queries[n : n + 1], K, early[n]),
    ]
    milliseconds(ways, 5)
    plain, ours, known, new = milliseconds(ways, QUERIES)
    return [
        row(f"{NAME}: one query, median", float(np.median(ours)), "ms"),
        row(f"{NAME}: one query, 99th percentile", float(np.percentile(ours, 99)), "ms"),
        row(
            f"{NAME}: one query against the loop over float32, median",
            float(np.median(ours) / np.median(plain)),
            "ratio",
        ),
        row(f"{NAME}: one query with a condition, median", float(np.median(known)), "ms"),
        row(f"{NAME}: one query with a condition never asked before, median", float(np.median(new)), "ms"),
        row(f"{NAME}: recall@10 against the loop over float32", float(recall), "ratio"),
    ]


def crowd(row: Callable[[str, float, str], Row], index: Index, queries: Floats) -> list[Row]:
    def work(n: int) -> object:
        return index.search(queries[n % QUERIES][None], K)

    began = time.perf_counter()
    for n in range(QUERIES):
        work(n)
    alone = QUERIES / (time.perf_counter() - began)
    with ThreadPoolExecutor(THREADS) as pool:
        began = time.perf_counter()
        list(pool.map(work, range(4 * QUERIES)))
        together = 4 * QUERIES / (time.perf_counter() - began)
    return [row(f"{NAME}: queries of 64 threads against those of one", together / alone, "ratio")]


def search_index(row: Callable[[str, float, str], Row]) -> list[Row]:
    vectors, queries = mixture(ITEMS, 1), mixture(QUERIES, 2)
    with tempfile.TemporaryDirectory() as name:
        rows = [
            row(f"{NAME}: added in batches of {BATCH}", fill(open_index(name, "items", dim=DIM), vectors), "rows/s")
        ]
        before, index = resident_gigabytes(), open_index(name, "items")
        began = time.perf_counter()
        index.search(queries[:1], K)
        rows.append(row(f"{NAME}: opened, with the first query", time.perf_counter() - began, "s"))
        rows.append(row(f"{NAME}: memory of the index", resident_gigabytes() - before, "GB"))
        rows += latency(row, index, vectors, queries) + crowd(row, index, queries)
        index.drop_versions()
        once = folder_size(Path(name))
        for _ in range(3):
            fill(index, vectors)
            index.drop_versions()
        rows.append(
            row(
                f"{NAME}: folder after replacing all three times, against before",
                folder_size(Path(name)) / once,
                "ratio",
            )
        )
    return rows
