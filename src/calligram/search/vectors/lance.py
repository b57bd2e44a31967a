"""An index in a folder, kept by Lance and searched in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.extras import lancedb
from calligram.progress import Track, silent
from calligram.search.filters.columns import checked_ids, checked_vectors, stored_columns
from calligram.search.filters.conditions import Condition, lance_literal, to_lance
from calligram.search.vectors.exact import Nearest
from calligram.search.vectors.index import VectorHit

# One version of a Lance table in memory, as searches read it.

READ_BATCH_ROWS = 8192
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
        for batch in table.search().select(["id", "vector"]).with_row_id(True).to_batches(READ_BATCH_ROWS):
            here = slice(at, at + len(batch))
            vectors[here] = batch["vector"].flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
            rows[here] = batch["_rowid"].to_numpy()
            ids.append(batch["id"])
            at += len(batch)
        return cls(table, pa.concat_arrays(ids) if ids else pa.array([], pa.string()), rows, Nearest(vectors))

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, queries: NDArray[np.float32], k: int, where: Condition | None) -> list[list[VectorHit]]:
        """The k nearest items of each query (Q, D) of length one."""
        allowed = None if where is None else self._that_hold(where)
        return [
            [
                VectorHit(*pair)
                for pair in zip(
                    self._ids.take(pa.array(rows.tolist(), pa.int64())).to_pylist(), scores.tolist(), strict=True
                )
            ]
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


# Tidying a Lance table without losing a version that somebody names.

NEVER = timedelta(days=36_500)
PRUNED_VERSIONS = timedelta(milliseconds=1)
MARGIN = timedelta(minutes=1)
"""versions are deleted by age, and time passes between the question and the deed"""
TURNS = 8


def tidy(table: Any) -> None:
    """Join small pieces and bring indexes up to date, until there is nothing left to do; old versions stay.

    One call of ``optimize`` leaves work for the next, which would make a new version when it is least expected.
    """
    for _ in range(TURNS):
        before = table.version
        table.optimize(cleanup_older_than=NEVER)
        if table.version == before:
            return


def prune(table: Any, oldest: int) -> None:
    """Delete versions before ``oldest`` and what an interrupted write left; ``tidy`` it before naming ``oldest``."""
    made = {int(version["version"]): version["timestamp"] for version in table.list_versions()}
    if oldest not in made or min(made) == oldest:
        return
    if oldest != table.version:
        age = datetime.now().astimezone() - made[oldest].astimezone() + MARGIN
        table.optimize(cleanup_older_than=max(age, MARGIN), delete_unverified=True)
        return
    table.optimize(cleanup_older_than=NEVER)
    if table.version == oldest:  # else there was work left after all, and it is cleaned another time
        table.optimize(cleanup_older_than=PRUNED_VERSIONS, delete_unverified=True)


ASKED = 2000
"""ids named in one condition"""


class LanceIndex:
    """A Lance table of ids, vectors in sixteen bits and filter columns.

    Each call that writes makes one new version of the table, so that a killed process leaves the last one. Searches
    read a version into memory, three bytes for each number of a vector, and are exact; see ``nearest``.
    """

    def __init__(self, database: Any, table: Any, pinned: bool):
        """Use ``open``."""
        self._database, self._table, self._pinned = database, table, pinned
        self._changing = threading.RLock()
        self._snapshot: Snapshot | None = None

    @classmethod
    def open(cls, folder: Path, name: str, *, dim: int | None = None, version: int | None = None) -> LanceIndex:
        """Open the table ``name`` in a folder; see ``choosing.open_index``."""
        database = lancedb().connect(str(folder))
        try:
            table = database.open_table(name)
            if version is not None:
                table.checkout(version)
        except (ValueError, RuntimeError, OSError) as error:
            if dim is None or version is not None:
                at = "" if version is None else f" at version {version}"
                raise UserError(f"there is no index {name!r}{at} in {folder}; index the collection again") from error
            table = database.create_table(name, schema=schema_of(dim))
        found = cls(database, table, version is not None)
        if dim not in (None, found.dim):
            raise UserError(f"index {name!r} in {folder} holds vectors of {found.dim} dimensions, not {dim}")
        return found

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return int(self._table.schema.field("vector").type.list_size)

    @property
    def version(self) -> int:
        """The version of the table that is read."""
        return int(self._table.version)

    def add(self, ids: Sequence[str], vectors: NDArray[np.float32], columns: pa.Table) -> None:
        """Add items or replace them whole; columns that are not given are missing."""
        given, flat = checked_ids(ids), checked_vectors(vectors, self.dim).astype(np.float16)
        if len(flat) != len(given):
            raise UserError(f"{len(given)} ids with {len(flat)} vectors; there must be one vector for each id")
        stored = stored_columns(columns, len(given))
        with self._writing():
            if not given:
                return
            self._grow(stored)
            rows = {
                "id": pa.array(given),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), self.dim),
            }
            rows |= {field.name: pa.nulls(len(given), field.type) for field in list(self._table.schema)[2:]}
            rows |= {name: stored[name] for name in stored.column_names}
            merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(pa.table(rows, schema=self._table.schema))

    def update(self, ids: Sequence[str], columns: pa.Table) -> None:
        """Give items other values in some columns."""
        given, stored = checked_ids(ids), stored_columns(columns, len(ids))
        with self._writing():
            if not given or not stored.num_columns:
                return
            self._grow(stored)
            before = self.version
            rows = stored.add_column(0, pa.field("id", pa.string(), False), pa.array(given))
            changed = self._table.merge_insert("id").when_matched_update_all().execute(rows)
            if changed.num_updated_rows != len(given):
                self.restore(before)
                raise UserError(f"{len(given) - changed.num_updated_rows} ids of {len(given)} are not in the index")

    def remove(self, ids: Sequence[str]) -> None:
        """Take items out, all in one version."""
        with self._writing():
            if ids:
                self._table.delete(any_of(ids))

    def search(self, vectors: NDArray[np.float32], k: int, where: Condition | None = None) -> list[list[VectorHit]]:
        """The k nearest items of each query, exactly."""
        queries = checked_vectors(vectors, self.dim)
        if k < 1:
            raise UserError(f"k must be at least 1, got {k}")
        return self._read().search(queries, k, where)

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """The stored vectors in the order of ``ids``."""
        found: dict[str, NDArray[np.float32]] = {}
        for start in range(0, len(ids), ASKED):
            query = self._table.search().where(any_of(ids[start : start + ASKED])).select(["id", "vector"])
            rows = query.to_arrow().combine_chunks()
            flat = rows["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, self.dim)
            found |= dict(zip(rows["id"].to_pylist(), flat.astype(np.float32), strict=True))
        lacking = [id for id in ids if id not in found]
        if lacking:
            raise UserError(f"{len(lacking)} ids are not in the index, the first is {lacking[0]!r}")
        return np.stack([found[id] for id in ids]) if ids else np.empty((0, self.dim), np.float32)

    def __len__(self) -> int:
        held = self._snapshot
        return len(held) if held is not None and held.version == self.version else int(self._table.count_rows())

    def optimize(self, track: Track = silent) -> None:
        """Join small pieces, and index the ids, which are looked up when items are replaced."""
        from lancedb.index import BTree

        with self._writing():
            for step in track(("ids", "pieces"), "settling the index", 2):
                if step == "ids" and len(self) and not self._table.list_indices():
                    self._table.create_index("id", config=BTree())
                elif step == "pieces":
                    tidy(self._table)

    def restore(self, version: int | None) -> None:
        """Make an earlier version the present one."""
        with self._writing():
            if version is not None and version != self.version:
                self._table.checkout(version)
                self._table.restore()

    def drop_versions(self, keep: int | None = None) -> None:
        """Delete the versions before ``keep`` (the present one when None) and files that no version has."""
        with self._writing():
            prune(self._table, self.version if keep is None else keep)

    def _writing(self) -> threading.RLock:
        if self._pinned:
            raise UserError(f"the index was opened for reading at version {self.version}; open it without a version")
        return self._changing

    def _grow(self, columns: pa.Table) -> None:
        """Make room for columns that the table does not have yet; a version of its own, which changes no row."""
        schema = self._table.schema
        for field in columns.schema:
            if field.name in schema.names and schema.field(field.name).type != field.type:
                has = schema.field(field.name).type
                raise UserError(f"column {field.name.removeprefix('c_')!r} holds {has} in the index, not {field.type}")
        new = [field for field in columns.schema if field.name not in schema.names]
        if new:
            self._table.add_columns(new)

    def _read(self) -> Snapshot:
        """The present version in memory, read once however many threads ask."""
        with self._changing:
            if self._snapshot is None or self._snapshot.version != self.version:
                # A handle of its own, since a search may still use it when a writer has moved on.
                table = self._database.open_table(self._table.name)
                table.checkout(self.version)
                self._snapshot = Snapshot.read(table, self.dim)
            return self._snapshot


def schema_of(dim: int) -> pa.Schema:
    """Columns of a new index; those to filter by come with the items."""
    vector = pa.list_(pa.float16(), dim)
    return pa.schema([pa.field("id", pa.string(), False), pa.field("vector", vector, False)])


def any_of(ids: Sequence[str]) -> str:
    """A condition for rows with one of these ids."""
    return f"id IN ({', '.join(lance_literal(id) for id in ids)})"
