"""How mapped files follow a Lance table: rows that changed since they were written, and when they are written again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.progress import Track
from calligram.search.vectors import mapped as mapping
from calligram.search.vectors.exact import ExactSearch, Ints, RowHits, ranked_rows
from calligram.search.vectors.mapped import MappedVectors, RowBatch, write_mapped

Addresses = NDArray[np.uint64]

READ_BATCH_ROWS = 8192
TAKEN_ROWS = 20_000
"""rows that are read by their addresses at a time"""


class MappedSearch:
    """Searches mapped rows and, exactly, the rows that were added to the table since; deleted rows are left out.

    Rows are numbered in this order: those of the mapped files, then the added ones.
    """

    def __init__(
        self,
        mapped: MappedVectors,
        alive: NDArray[np.bool_] | None,
        added: NDArray[np.float16],
        ties: Callable[[Ints], Ints],
    ) -> None:
        """Args:
        mapped: rows of the files.
        alive: whether each of them is still in the table; None for all.
        added: vectors of the other rows of the table.
        ties: a number for each of the given rows, which orders rows with equal scores.
        """
        self._mapped, self._alive, self._ties = mapped, alive, ties
        self._added = ExactSearch(added, ties=lambda rows: ties(rows + len(mapped)))

    @property
    def recall(self) -> float | None:
        """The measured recall; None where every search is exact."""
        return self._mapped.recall

    def search(
        self, queries: NDArray[np.float32], k: int, allowed: NDArray[np.bool_] | None = None, *, exact: bool = False
    ) -> list[RowHits]:
        """The best k of the allowed rows for each query (Q, D) at unit length.

        Args:
            queries: at unit length.
            k: number of rows.
            allowed: whether each row may be found; None for all.
            exact: compare all rows.
        """
        count, present = len(self._mapped), self._alive
        if allowed is not None:
            present = allowed[:count] if present is None else allowed[:count] & present
        if exact:
            rows = None if present is None else np.flatnonzero(present)
            found = self._mapped.scan(queries, k, rows, self._ties)
        else:
            found = self._mapped.nearest(queries, k, present, self._ties)
        if not len(self._added.vectors):
            return found
        added = self._added.search(queries, k, None if allowed is None else allowed[count:])
        return [
            ranked_rows(
                np.concatenate((one.rows, two.rows + count)), np.concatenate((one.scores, two.scores)), k, self._ties
            )
            for one, two in zip(found, added, strict=True)
        ]


def contained(some: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each address is among the others."""
    if not len(others):
        return np.zeros(len(some), np.bool_)
    ordered = np.sort(others)
    places = np.minimum(np.searchsorted(ordered, some), len(ordered) - 1)
    return np.asarray(ordered[places] == some)


def row_addresses(table: Any) -> NDArray[np.uint64]:
    """The address of each row; the vector at an address never changes, and compaction gives rows new addresses."""
    found = table.search().select(["_rowid"]).with_row_id(True).to_arrow()["_rowid"].to_numpy()
    return np.asarray(found, np.uint64)


def row_batches(table: Any, dim: int) -> Iterator[RowBatch]:
    """All rows of a table."""
    query = table.search().select(["id", "vector"]).with_row_id(True)
    yield from (row_batch(batch, dim) for batch in query.to_batches(READ_BATCH_ROWS))


def taken_batches(table: Any, addresses: NDArray[np.uint64], dim: int) -> Iterator[RowBatch]:
    """The rows at some addresses."""
    for start in range(0, len(addresses), TAKEN_ROWS):
        query = table.take_row_ids(addresses[start : start + TAKEN_ROWS].tolist()).select(["id", "vector"])
        yield from (row_batch(batch, dim) for batch in query.with_row_id().to_arrow().to_batches())


def row_batch(batch: pa.RecordBatch, dim: int) -> RowBatch:
    """Rows that Lance has read."""
    vectors = batch["vector"].flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    return RowBatch(batch["id"], vectors, batch["_rowid"].to_numpy())


def in_memory(batches: Iterable[RowBatch], count: int, dim: int) -> RowBatch:
    """``count`` rows as one batch."""
    vectors, addresses = np.empty((count, dim), np.float16), np.empty(count, np.uint64)
    ids, start = [pa.array([], pa.string())], 0
    for batch in batches:
        part = slice(start, start + len(batch.ids))
        vectors[part], addresses[part] = batch.vectors, batch.addresses
        ids.append(batch.ids)
        start += len(batch.ids)
    return RowBatch(pa.concat_arrays(ids), vectors, addresses)


def changes_since(mapped: MappedVectors, table: Any) -> tuple[NDArray[np.bool_] | None, RowBatch]:
    """Whether each mapped row is still in the table (None for all), and the other rows of the table."""
    dim = mapped.vectors.shape[1]
    if mapped.holds_all_of(table.version, table.count_rows()):
        return None, in_memory((), 0, dim)
    now = row_addresses(table)
    alive, new = contained(mapped.addresses, now), now[~contained(now, mapped.addresses)]
    return None if alive.all() else alive, in_memory(taken_batches(table, new, dim), len(new), dim)


def is_outdated(mapped: MappedVectors, present: Addresses) -> bool:
    """Whether too many rows were added or deleted since the files were written; ``present`` are those of the table."""
    kept = int(np.count_nonzero(contained(mapped.addresses, present)))
    return len(mapped) - kept + len(present) - kept > mapping.MAX_CHANGED_SHARE * len(present)


def updated_files(
    base: Path,
    table: Any,
    mapped: MappedVectors | None,
    before: Addresses | None,
    queries: Callable[[], NDArray[np.float32]] | None,
    purge: bool,
    memory: int,
    track: Track,
) -> MappedVectors | None:
    """Files for a table that was compacted: new ones, or the same ones with the new addresses of their rows.

    Args:
        base: folder of the numbered folders.
        table: after compaction.
        mapped: the present files.
        before: addresses of the rows before the table was compacted.
        queries: gives vectors that are used as queries.
        purge: write new files if the present ones hold a deleted row.
        memory: bytes of the files that stay in the memory of this process.
        track: shows progress.
    """
    if table.count_rows() < mapping.MAPPED_ROWS:
        return None
    if mapped is not None and before is not None and not is_outdated(mapped, before):
        alive = contained(mapped.addresses, before)
        if alive.all() or not purge:
            same = mapped.record.version == table.version
            return mapped if same else mapped.with_addresses(moved_addresses(table, mapped, alive), table.version)
    dim = int(table.schema.field("vector").type.list_size)
    return write_mapped(
        base,
        row_batches(table, dim),
        (table.count_rows(), dim),
        table.version,
        queries=None if queries is None else queries(),
        trained=mapped if purge else None,
        memory=memory,
        track=track,
    )


def moved_addresses(table: Any, mapped: MappedVectors, alive: NDArray[np.bool_]) -> Addresses:
    """The addresses that mapped rows have now: compaction has moved rows, and changed nothing else."""
    import pyarrow.compute as pc

    now = table.search().select(["id"]).with_row_id(True).to_arrow()
    places = pc.index_in(mapped.ids, value_set=now["id"]).to_numpy(zero_copy_only=False)
    found = np.full(len(mapped), mapping.NO_ADDRESS)
    found[alive] = now["_rowid"].to_numpy()[places[alive].astype(np.int64)]
    return found
