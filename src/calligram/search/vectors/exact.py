"""Exact search in memory: every row is looked at, most of them in eight bits.

With 100,000 rows of 512 dimensions on two cores this took half the time of scanning floats (``bench/search_index.py``)
and, in turns with it, as long as Lance's HNSW index, which had taken three minutes to build; Lance's own exact search
was many times slower. Here is nothing to build or to go stale, conditions cost nothing, and the answer is the exact
one.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

PLAIN = 10_000_000
"""numbers (rows x dimensions) up to which floats are scanned as they are, which takes one or two milliseconds"""
FEW = 500_000
"""numbers up to which rows that satisfy a condition are picked out and scored in full, without a look at the codes"""
CHUNK = 8192
"""rows that are converted at a time"""
SCORES = 16_000_000
"""scores held at a time while many queries are answered"""


class Rows(NamedTuple):
    """Rows found for one query, best first."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]


class Nearest:
    """Rows (N, D) whose product with a query is largest; of equal ones the earlier row.

    Above ``PLAIN`` numbers a row x, less the mean m of all rows, is kept as eight-bit codes c with a scale s, beside
    its sixteen-bit floats. A query q becomes codes too, and

        |q (x - m) - q' (s c)|  <=  |q| |x - m - s c| + |q - q'| |s c|,

    where q' is the query its codes stand for. Both lengths on the right that belong to rows are known beforehand, so
    that each approximate score comes with how wrong it can be. Rows that cannot be among the best k are dropped, and
    the few others are scored in full: the result is that of scoring all of them.
    """

    def __init__(self, vectors: NDArray[np.float16], *, plain: int = PLAIN, eight_bits: bool | None = None):
        """Take over rows at length one.

        Args:
            vectors: (N, D).
            plain: how many numbers to scan as floats.
            eight_bits: whether to use them above that; where they are faster when None.
        """
        self.vectors: NDArray[np.float16] | NDArray[np.float32] = vectors
        self._codes: Codes | None = None
        if vectors.size > plain and (eight_bits_pay() if eight_bits is None else eight_bits):
            self._codes = Codes.of(vectors)
        elif vectors.size:
            self.vectors = vectors.astype(np.float32)
        # A product of matrices uses all cores. Many at once take turns in tiny steps: 64 threads each scanning floats
        # got through 2 queries a second, one after the other 35.
        self._turn = threading.Lock()

    def search(self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None = None) -> list[Rows]:
        """The best k rows for each query (Q, D) of length one, out of the allowed ones."""
        rows = None if allowed is None else np.flatnonzero(allowed)
        count = len(self.vectors) if rows is None else len(rows)
        if not count:
            return [Rows(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        found: list[Rows] = []
        step = max(1, SCORES // len(self.vectors))
        for start in range(0, len(queries), step):
            with self._turn:
                found += self._search(queries[start : start + step], min(k, count), rows)
        return found

    def _search(self, queries: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None) -> list[Rows]:
        few = rows is not None and rows.size * self.vectors.shape[1] <= FEW
        if self._codes is not None and not few:
            bounds = self._codes.bounds(queries)
            kept = [candidates(below, above, k, rows) for below, above in bounds]
            return [best(self._scores(query[None], row)[0], k, row) for query, row in zip(queries, kept, strict=True)]
        return [best(scores, k, rows) for scores in self._scores(queries, rows)]

    def _scores(self, queries: NDArray[np.float32], rows: NDArray[np.int64] | None) -> NDArray[np.float32]:
        # By torch, whose conversion from half precision is several times as fast as numpy's.
        chosen = torch.from_numpy(self.vectors if rows is None else self.vectors[rows])
        return (torch.from_numpy(queries) @ chosen.float().T).numpy()


def candidates(
    below: NDArray[np.float32], above: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Rows that can be among the best k when their scores lie between two bounds."""
    if rows is not None:
        return rows[candidates(below[rows], above[rows], k, None)]
    # Not numpy's partition, which takes ten times as long for a million rows.
    return np.flatnonzero(above >= torch.topk(torch.from_numpy(below), k, sorted=False).values.min().numpy())


def best(scores: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None) -> Rows:
    """The k largest scores; ``rows`` says which rows they are of."""
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    chosen = np.flatnonzero(scores >= least)
    order = chosen[np.argsort(-scores[chosen], kind="stable")][:k]
    return Rows(order if rows is None else rows[order], scores[order])


class Codes(NamedTuple):
    """Rows in eight bits."""

    mean: NDArray[np.float32]
    codes: torch.Tensor
    """(D, N), a view of rows that lie one after the other"""
    scale: NDArray[np.float32]
    error: NDArray[np.float32]
    """how far a row is from what its codes stand for"""
    length: NDArray[np.float32]
    """of what its codes stand for"""

    @classmethod
    def of(cls, vectors: NDArray[np.float16]) -> Codes:
        """Codes of rows (N, D)."""
        chunks = [slice(start, start + CHUNK) for start in range(0, len(vectors), CHUNK)]
        mean = sum(vectors[c].astype(np.float32).sum(0) for c in chunks) / np.float32(len(vectors))
        codes = np.empty(vectors.shape, np.int8)
        scale, error, length = (np.empty(len(vectors), np.float32) for _ in range(3))
        for c in chunks:
            rows = vectors[c].astype(np.float32) - mean
            codes[c], scale[c] = coded(rows)
            meant = codes[c] * scale[c, None]
            error[c], length[c] = np.linalg.norm(rows - meant, axis=1), np.linalg.norm(meant, axis=1)
        # What float32 itself rounds away while these are computed is far below a thousandth of a score's last digit.
        return cls(np.asarray(mean), torch.from_numpy(codes).T, scale, error + np.float32(1e-6), length)

    def bounds(self, queries: NDArray[np.float32]) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """The least and the largest score each row can have with each query (Q, D) of length one.

        What a query scores with the mean is the same for all rows, and left out.
        """
        codes, scales = coded(queries)
        products = torch._int_mm(torch.from_numpy(codes), self.codes).numpy()
        missed = np.linalg.norm(queries - codes * scales[:, None], axis=1)
        found = []
        for product, scale, miss in zip(products, scales, missed, strict=True):
            middle = product * (self.scale * scale)
            wrong = self.error + miss * self.length
            found.append((middle - wrong, middle + wrong))
        return found


def coded(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows as whole numbers up to 127 and what one unit of them is worth."""
    scale = np.maximum(np.abs(rows).max(1), np.float32(1e-12)) / np.float32(127)
    return np.rint(rows / scale[:, None]).astype(np.int8), scale


def eight_bits_pay() -> bool:
    """Whether the processor has instructions for products of eight-bit numbers; without them floats are faster.

    Neither name is promised by torch, and where one is gone floats are scanned.
    """
    asked = getattr(torch.cpu, "_is_vnni_supported", None)
    return hasattr(torch, "_int_mm") and asked is not None and bool(asked())
