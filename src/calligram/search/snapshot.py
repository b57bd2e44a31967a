"""One version of a Lance table in memory, as searches read it."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.search.compiling import to_lance
from calligram.search.condition import Condition
from calligram.search.index import Found
from calligram.search.nearest import Nearest

AT_ONCE = 8192
"""rows read at a time"""
REMEMBERED = 32
"""conditions whose answers are kept: a page sends the same one with every query"""


class Snapshot:
    """Ids and vectors of a version; conditions are put to the table, which stays at that version."""

    def __init__(self, table: Any, ids: pa.StringArray, rows: NDArray[np.uint64], nearest: Nearest):
        """Use ``read``."""
        self.version = int(table.version)
        self._table, self._ids, self._nearest = table, ids, nearest
        self._order = np.argsort(rows)
        self._rows = rows[self._order]
        self._columns = frozenset(table.schema.names)
        self._allowed: OrderedDict[Condition, NDArray[np.bool_]] = OrderedDict()
        self._lock = Lock()

    @classmethod
    def read(cls, table: Any, dim: int) -> Snapshot:
        """Read a table as it is now."""
        count = table.count_rows()
        vectors, rows = np.empty((count, dim), np.float16), np.empty(count, np.uint64)
        ids, at = [], 0
        for batch in table.search().select(["id", "vector"]).with_row_id(True).to_batches(AT_ONCE):
            here = slice(at, at + len(batch))
            vectors[here] = batch["vector"].flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
            rows[here] = batch["_rowid"].to_numpy()
            ids.append(batch["id"])
            at += len(batch)
        return cls(table, pa.concat_arrays(ids) if ids else pa.array([], pa.string()), rows, Nearest(vectors))

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, queries: NDArray[np.float32], k: int, where: Condition | None) -> list[list[Found]]:
        """The k nearest items of each query (Q, D) of length one."""
        allowed = None if where is None else self._that_hold(where)
        return [
            [Found(*pair) for pair in zip(self._ids.take(pa.array(rows)).to_pylist(), scores.tolist(), strict=True)]
            for rows, scores in self._nearest.search(queries, k, allowed)
        ]

    def _that_hold(self, where: Condition) -> NDArray[np.bool_]:
        """For each row whether it satisfies a condition."""
        with self._lock:
            if where in self._allowed:
                self._allowed.move_to_end(where)
                return self._allowed[where]
        query = self._table.search().where(to_lance(where, self._columns)).select(["_rowid"]).with_row_id(True)
        found = query.to_arrow()["_rowid"].to_numpy()
        allowed = np.zeros(len(self._rows), np.bool_)
        allowed[self._order[np.searchsorted(self._rows, found)]] = True
        with self._lock:
            self._allowed[where] = allowed
            if len(self._allowed) > REMEMBERED:
                self._allowed.popitem(last=False)
        return allowed
