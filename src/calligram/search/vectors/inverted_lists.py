"""Approximate search with faiss: inverted lists of eight-bit codes, in a file that is mapped into memory.

Rows are grouped by their nearest centre. A query is compared with the rows of the nearest groups only. The rows found
are candidates: the caller scores them again with the stored vectors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calligram.progress import Track, silent

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LISTS_PER_ROOT = 1.0
"""number of lists, in square roots of the number of rows; with more, a million rows take minutes to build"""
TRAINING_ROWS_PER_LIST = 48
TRAINING_STEPS = 10
ADDED_ROWS = 50_000
"""rows that are converted and added at a time"""
MIN_RECALL = 0.985
"""share of the ten nearest rows that must be found, measured with a sample of queries; others then have about 0.98"""


def faiss() -> Any | None:
    """The package faiss, or None where it is not installed: then everything is searched exactly."""
    try:
        return importlib.import_module("faiss")
    except ImportError:
        return None


def build_lists(vectors: NDArray[np.float16], file: Path, trained: Path | None = None, track: Track = silent) -> bool:
    """Write the lists of all rows (N, D) to a file; False where faiss is not installed.

    Args:
        vectors: at unit length.
        file: is not forced onto the disk.
        trained: a file of lists whose centres are used again, which saves most of the time.
        track: shows progress.
    """
    package = faiss()
    if package is None:
        return False
    count, dim = vectors.shape
    if trained is not None:
        index = package.read_index(str(trained))
        index.reset()
    else:
        lists = max(1, min(round(LISTS_PER_ROOT * count**0.5), count // 4))
        index = package.IndexIVFScalarQuantizer(
            package.IndexFlatIP(dim), dim, lists, package.ScalarQuantizer.QT_8bit, package.METRIC_INNER_PRODUCT
        )
        index.cp.niter, index.cp.min_points_per_centroid = TRAINING_STEPS, 1
        sample = np.random.default_rng(0).choice(count, min(count, TRAINING_ROWS_PER_LIST * lists), replace=False)
        index.train(vectors[np.sort(sample)].astype(np.float32))
    starts = range(0, count, ADDED_ROWS)
    for start in track(starts, "building the index", len(starts)):
        index.add(vectors[start : start + ADDED_ROWS].astype(np.float32))
    package.write_index(index, str(file))
    return True


class InvertedLists:
    """Lists in a mapped file. Any number of threads may search."""

    def __init__(self, index: Any) -> None:
        """Use ``open``."""
        self._index = index
        self.lists = int(index.nlist)
        self.mean_list_bytes = int(index.ntotal * (index.code_size + 8) / max(1, index.nlist))

    @classmethod
    def open(cls, file: Path, rows: int, dim: int) -> InvertedLists | None:
        """Map a file; None where faiss is not installed.

        Raises:
            ValueError: when the file holds something else than lists of ``rows`` rows of ``dim`` dimensions.
        """
        package = faiss()
        if package is None:
            return None
        try:
            index = package.read_index(str(file), package.IO_FLAG_MMAP)
        except RuntimeError as error:
            raise ValueError(f"{file} cannot be read by faiss") from error
        if not isinstance(index, package.IndexIVFScalarQuantizer) or (index.ntotal, index.d) != (rows, dim):
            raise ValueError(f"{file} does not hold {rows} rows of {dim} dimensions")
        # By default, faiss starts a thread for each list to read it ahead, which takes longer than the search.
        package.downcast_InvertedLists(index.invlists).prefetch_nthread = 0
        return cls(index)

    def search(self, queries: Floats, k: int, probes: int, allowed: NDArray[np.bool_] | None = None) -> list[Ints]:
        """At most k rows for each query (Q, D), in the order of their approximate scores.

        Args:
            queries: at unit length.
            k: number of rows.
            probes: number of lists that are compared.
            allowed: whether each row may be found; None for all.
        """
        package: Any = faiss()
        bits = None if allowed is None else np.packbits(allowed, bitorder="little")
        selector = None if bits is None else package.IDSelectorBitmap(bits)
        parameters = package.SearchParametersIVF(sel=selector, nprobe=min(probes, self.lists))
        _, found = self._index.search(np.ascontiguousarray(queries), k, params=parameters)
        return [rows[(rows >= 0) & (rows < self._index.ntotal)] for rows in found]


def fewest_probes(recall_of: Callable[[int], float], lists: int, wanted: float) -> int:
    """About the smallest number of lists with the wanted recall; all lists where none is enough.

    >>> fewest_probes(lambda probes: probes / 20, 100, 0.98)
    20
    """
    low, high = 0, 1
    while recall_of(high) < wanted and high < lists:
        low, high = high, min(2 * high, lists)
    while high - low > max(1, high // 16):
        middle = (low + high) // 2
        low, high = (low, middle) if recall_of(middle) >= wanted else (middle, high)
    return high
