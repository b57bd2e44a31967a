"""Indexes of 100,000 and of 1,000,000 vectors in a folder: how fast they answer, what they find and what they cost.

The vectors are made up. Those of the small index are a mixture of 2,000 groups, as far apart within a group as the
groups are from each other. Those of the large index are a mixture of 2,000 groups in 32 dimensions, turned into 512
dimensions with some noise: networks give such vectors, and for the first mixture two lists would be enough. The peer of
the small index is the plain loop: all products of a query with float32 vectors in memory, then the ten largest. The
peer of the large one is faiss alone, with the same lists in memory.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.search.filters.conditions import Comparison
from calligram.search.library.tables import open_index
from calligram.search.vectors.index import Index, VectorHit

Row = dict[str, object]
Floats = NDArray[np.float32]
ITEMS, DIM, GROUPS, K = 100_000, 512, 2000, 10
QUERIES, BATCH, THREADS = 300, 5000, 64
NAME = "100,000 vectors of 512 dimensions"
LARGE_ITEMS, LARGE_BATCH, LARGE_QUERIES, CONDITION_GROUPS = 1_000_000, 50_000, 200, 100
INNER_DIM = 32
LARGE_NAME = "1,000,000 vectors of 512 dimensions"


def mixture(count: int, seed: int) -> Floats:
    centres = np.random.default_rng(0).normal(size=(GROUPS, DIM)).astype(np.float32)
    random = np.random.default_rng(seed)
    vectors = centres[random.integers(GROUPS, size=count)] + random.normal(size=(count, DIM)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def large_mixture(count: int, seed: int, dim: int = DIM) -> Floats:
    fixed, random = np.random.default_rng(0), np.random.default_rng(seed)
    centres, turn = fixed.normal(size=(GROUPS, INNER_DIM)), fixed.normal(size=(INNER_DIM, dim)).astype(np.float32)
    inner = centres[random.integers(GROUPS, size=count)] + 0.7 * random.normal(size=(count, INNER_DIM))
    noise = random.standard_normal(size=(count, dim), dtype=np.float32)
    vectors = inner.astype(np.float32) @ turn + np.float32(0.3 * INNER_DIM**0.5) * noise
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


def fill_large(folder: str) -> tuple[dict[str, object], int, float]:
    """Build the large index; returns what opens it, and the seconds of building."""
    index = open_index(folder, "items", dim=DIM)
    for start in range(0, LARGE_ITEMS, LARGE_BATCH):
        rows = range(start, start + LARGE_BATCH)
        columns = pa.table({"group": [float(row % CONDITION_GROUPS) for row in rows]})
        index.add([str(row) for row in rows], large_mixture(LARGE_BATCH, start + 3), columns)
    began = time.perf_counter()
    index.optimize()
    seconds = time.perf_counter() - began
    index.drop_versions()
    return dict(index.mapped or {}), index.version or 0, seconds


def add_to_large(folder: str, mapped: dict[str, object]) -> tuple[float, float]:
    """Seconds until 1,000 added rows are found, and until the index is compact again."""
    index = open_index(folder, "items", dim=DIM, mapped=mapped)
    new = large_mixture(1000, 1)
    began = time.perf_counter()
    index.add([f"new {row}" for row in range(1000)], new, pa.table({"group": [0.0] * 1000}))
    reader = open_index(folder, "items", version=index.version, mapped=mapped)
    assert reader.search(new[:1], 1)[0][0].id == "new 0"
    found = time.perf_counter() - began
    index.optimize()
    return found, time.perf_counter() - began


def found_share(found: Sequence[Sequence[VectorHit]], wanted: Sequence[Sequence[VectorHit]]) -> float:
    """Recall@10."""
    pairs = zip(found, wanted, strict=True)
    return float(np.mean([len({h.id for h in one} & {h.id for h in two}) / K for one, two in pairs]))


def large_latency(
    row: Callable[[str, float, str], Row], index: Index, folder: Path, mapped: dict[str, object]
) -> list[Row]:
    import faiss

    queries = large_mixture(LARGE_QUERIES, 2)
    few = Comparison("group", "<", 1.0)
    alone = faiss.read_index(str(folder / "items.mapped" / str(mapped["folder"]) / "lists.faiss"))
    alone.nprobe = mapped["probes"]
    began = time.perf_counter()
    index.search(queries[:1], K, few)
    condition = time.perf_counter() - began
    ways: list[Callable[[int], object]] = [
        lambda n: alone.search(queries[n : n + 1], K),
        lambda n: index.search(queries[n : n + 1], K),
        lambda n: index.search(queries[n : n + 1], K, few),
    ]
    milliseconds(ways, 20)
    engine, ours, filtered = milliseconds(ways, LARGE_QUERIES)
    exact = [index.search(queries, K, where, exact=True) for where in (None, few)]
    recalls = [found_share(index.search(queries, K, where), exact[n]) for n, where in enumerate((None, few))]
    began = time.perf_counter()
    index.search(queries[:1], K, exact=True)
    return [
        row(f"{LARGE_NAME}: one query, median", float(np.median(ours)), "ms"),
        row(f"{LARGE_NAME}: one query, 99th percentile", float(np.percentile(ours, 99)), "ms"),
        row(f"{LARGE_NAME}: one query against faiss alone, median", float(np.median(ours / engine)), "ratio"),
        row(f"{LARGE_NAME}: recall@10 against exact search", recalls[0], "ratio"),
        row(f"{LARGE_NAME}: one query with a condition of 1%, median", float(np.median(filtered)), "ms"),
        row(f"{LARGE_NAME}: recall@10 with a condition of 1%", recalls[1], "ratio"),
        row(f"{LARGE_NAME}: first query with a condition", condition, "s"),
        row(f"{LARGE_NAME}: one exact query", time.perf_counter() - began, "s"),
    ]


def large_index(row: Callable[[str, float, str], Row]) -> list[Row]:
    # Another process fills the index, so that this one has no memory of its vectors.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, mp_context=context) as pool:
        mapped, version, seconds = pool.submit(fill_large, name).result()
        rows = [row(f"{LARGE_NAME}: compacted and indexed", seconds, "s")]
        import faiss  # noqa: F401  imports are not part of opening
        import lancedb  # noqa: F401

        queries = large_mixture(LARGE_QUERIES, 5)
        before, began = resident_gigabytes(), time.perf_counter()
        index = open_index(name, "items", version=version, mapped=mapped)
        index.search(queries[:1], K)
        rows.append(row(f"{LARGE_NAME}: opened, with the first query", time.perf_counter() - began, "s"))
        for query in queries:
            index.search(query[None], K)
            index.search(query[None], K, Comparison("group", "=", 7.0))
        rows.append(row(f"{LARGE_NAME}: memory of the index", resident_gigabytes() - before, "GB"))
        rows.append(row(f"{LARGE_NAME}: memory of the process", resident_gigabytes(), "GB"))
        rows += large_latency(row, index, Path(name), mapped)
        rows.append(row(f"{LARGE_NAME}: folder", folder_size(Path(name)) / 1e9, "GB"))
        found, compact = pool.submit(add_to_large, name, mapped).result()
        rows.append(row(f"{LARGE_NAME}: 1,000 rows added, until they are found", found, "s"))
        rows.append(row(f"{LARGE_NAME}: 1,000 rows added, until the index is compact", compact, "s"))
    return rows
