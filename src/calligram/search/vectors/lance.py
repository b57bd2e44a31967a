"""A vector index in a folder: a Lance table that is read into memory for exact search."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.extras import require
from calligram.progress import Track, silent
from calligram.search.filters.columns import checked_ids, stored_columns
from calligram.search.filters.conditions import Condition, to_lance
from calligram.search.vectors.exact import ExactSearch
from calligram.search.vectors.index import VectorHit
from calligram.text import printable
from calligram.vectors import checked_unit_rows

READ_BATCH_ROWS = 8192
REFUSED_CHARACTERS = re.compile("[\\x00-\\x1f\\x7f\\ud800-\\udfff]")
"""characters that a path of Lance cannot have"""
CACHED_CONDITIONS = 32
"""conditions whose rows are cached: a page sends the same condition with every query"""
CONDITION_IDS = 2000
"""ids in one condition"""
KEEP_ALL_VERSIONS = timedelta(days=36_500)
KEEP_NO_VERSIONS = timedelta(milliseconds=1)
VERSION_AGE_MARGIN = timedelta(minutes=1)
"""versions are deleted by age, and some time passes until the deletion"""
MAX_OPTIMIZE_CALLS = 8


class Snapshot:
    """Ids and vectors of one version of the table in memory; the table evaluates conditions at the same version."""

    def __init__(self, table: Any, ids: pa.StringArray, rows: NDArray[np.uint64], search: ExactSearch):
        """Use ``read``."""
        self.version = int(table.version)
        self._table, self._ids, self._exact = table, ids, search
        self._order = np.argsort(rows)
        self._rows = rows[self._order]
        self._columns = frozenset(table.schema.names)
        self._allowed: OrderedDict[Condition, NDArray[np.bool_]] = OrderedDict()
        self._lock = Lock()

    @classmethod
    def read(cls, table: Any, dim: int) -> Snapshot:
        """Read the present version of a table."""
        count = table.count_rows()
        vectors, rows = np.empty((count, dim), np.float16), np.empty(count, np.uint64)
        ids, start = [], 0
        for batch in table.search().select(["id", "vector"]).with_row_id(True).to_batches(READ_BATCH_ROWS):
            part = slice(start, start + len(batch))
            vectors[part] = batch["vector"].flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
            rows[part] = batch["_rowid"].to_numpy()
            ids.append(batch["id"])
            start += len(batch)
        joined = pa.concat_arrays(ids) if ids else pa.array([], pa.string())
        return cls(table, joined, rows, ExactSearch(vectors, ties=lambda chosen: ranks_of(joined, chosen)))

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, queries: NDArray[np.float32], k: int, where: Condition | None) -> list[list[VectorHit]]:
        """The k nearest items of each query (Q, D) at unit length."""
        allowed = None if where is None else self._satisfying(where)
        return [
            [
                VectorHit(*pair)
                for pair in zip(
                    self._ids.take(pa.array(rows.tolist(), pa.int64())).to_pylist(), scores.tolist(), strict=True
                )
            ]
            for rows, scores in self._exact.search(queries, k, allowed)
        ]

    def _satisfying(self, where: Condition) -> NDArray[np.bool_]:
        """Whether each row satisfies a condition."""
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
            if len(self._allowed) > CACHED_CONDITIONS:
                self._allowed.popitem(last=False)
        return allowed


def ranks_of(ids: pa.StringArray, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each of the rows in the order of their ids."""
    ranks = np.empty(len(rows), np.int64)
    ranks[np.argsort(np.array(ids.take(pa.array(rows)).to_pylist()))] = np.arange(len(rows))
    return ranks


def compact(table: Any) -> None:
    """Merge small files and update the indexes of a table; earlier versions stay.

    ``optimize`` is repeated until it changes nothing: otherwise a later call would create another version.
    """
    for _ in range(MAX_OPTIMIZE_CALLS):
        before = table.version
        table.optimize(cleanup_older_than=KEEP_ALL_VERSIONS)
        if table.version == before:
            return


def drop_table_versions(table: Any, oldest: int) -> None:
    """Delete the versions before ``oldest`` and the files of interrupted writes; call ``compact`` first."""
    made = {int(version["version"]): version["timestamp"] for version in table.list_versions()}
    if oldest not in made or min(made) == oldest:
        return
    if oldest != table.version:
        age = datetime.now().astimezone() - made[oldest].astimezone() + VERSION_AGE_MARGIN
        table.optimize(cleanup_older_than=max(age, VERSION_AGE_MARGIN), delete_unverified=True)
        return
    table.optimize(cleanup_older_than=KEEP_ALL_VERSIONS)
    if table.version == oldest:  # else optimize found work, and a later call deletes the versions
        table.optimize(cleanup_older_than=KEEP_NO_VERSIONS, delete_unverified=True)


class LanceIndex:
    """A Lance table of ids, float16 vectors and filter columns.

    Each writing call creates one version of the table, so that a killed process leaves the last complete one. A search
    reads a version into memory, with three bytes for each number of a vector, and is exact; see ``exact``.
    """

    def __init__(self, database: Any, table: Any, pinned: bool):
        """Use ``open``."""
        self._database, self._table, self._pinned = database, table, pinned
        self._changing = threading.RLock()
        self._snapshot: Snapshot | None = None

    @classmethod
    def open(cls, folder: Path, name: str, *, dim: int | None = None, version: int | None = None) -> LanceIndex:
        """Open the table ``name`` in a folder; see ``tables.open_index``."""
        database = connect(folder)
        try:
            table = database.open_table(name)
            if version is not None:
                table.checkout(version)
        except (ValueError, RuntimeError, OSError) as error:
            if dim is None or version is not None:
                which = "" if version is None else f" at version {version}"
                raise UserError(f"there is no index {name!r}{which} in {folder}; index the collection again") from error
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
        """Add items, or replace items with the same id; columns that are not given are null."""
        given, flat = checked_ids(ids), checked_unit_rows(vectors, self.dim).astype(np.float16)
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
        """Change some columns of items."""
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
        """Remove items, all in one version."""
        with self._writing():
            if ids:
                self._table.delete(any_of(ids))

    def search(self, vectors: NDArray[np.float32], k: int, where: Condition | None = None) -> list[list[VectorHit]]:
        """The k nearest items of each query."""
        queries = checked_unit_rows(vectors, self.dim)
        if k < 1:
            raise UserError(f"k must be at least 1, got {k}")
        return self._read().search(queries, k, where)

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """The stored vectors in the order of ``ids``."""
        found: dict[str, NDArray[np.float32]] = {}
        for start in range(0, len(ids), CONDITION_IDS):
            query = self._table.search().where(any_of(ids[start : start + CONDITION_IDS])).select(["id", "vector"])
            rows = query.to_arrow().combine_chunks()
            flat = rows["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, self.dim)
            found |= dict(zip(rows["id"].to_pylist(), flat.astype(np.float32), strict=True))
        missing = [id for id in ids if id not in found]
        if missing:
            raise UserError(f"{len(missing)} ids are not in the index, the first is {missing[0]!r}")
        return np.stack([found[id] for id in ids]) if ids else np.empty((0, self.dim), np.float32)

    def __len__(self) -> int:
        read = self._snapshot
        return len(read) if read is not None and read.version == self.version else int(self._table.count_rows())

    def optimize(self, track: Track = silent) -> None:
        """Compact the table, and index the ids, which are looked up when items are replaced."""
        from lancedb.index import BTree

        with self._writing():
            for step in track(("ids", "files"), "optimizing the index", 2):
                if step == "ids" and len(self) and not self._table.list_indices():
                    self._table.create_index("id", config=BTree())
                elif step == "files":
                    compact(self._table)

    def restore(self, version: int | None) -> None:
        """Make an earlier version the present one."""
        with self._writing():
            if version is not None and version != self.version:
                self._table.checkout(version)
                self._table.restore()

    def drop_versions(self, keep: int | None = None) -> None:
        """Delete the versions before ``keep`` (by default the present one), and files that no version uses."""
        with self._writing():
            drop_table_versions(self._table, self.version if keep is None else keep)

    def _writing(self) -> threading.RLock:
        if self._pinned:
            raise UserError(f"the index was opened for reading at version {self.version}; open it without a version")
        return self._changing

    def _grow(self, columns: pa.Table) -> None:
        """Add the columns that the table does not have yet, in a version of their own."""
        schema = self._table.schema
        for field in columns.schema:
            if field.name in schema.names and schema.field(field.name).type != field.type:
                has = schema.field(field.name).type
                raise UserError(f"column {field.name.removeprefix('c_')!r} holds {has} in the index, not {field.type}")
        new = [field for field in columns.schema if field.name not in schema.names]
        if new:
            self._table.add_columns(new)

    def _read(self) -> Snapshot:
        """The present version in memory; it is read once for all threads."""
        with self._changing:
            if self._snapshot is None or self._snapshot.version != self.version:
                # A separate handle, because a search may still use this version after a writer has created the next.
                table = self._database.open_table(self._table.name)
                table.checkout(self.version)
                self._snapshot = Snapshot.read(table, self.dim)
            return self._snapshot


def schema_of(dim: int) -> pa.Schema:
    """Columns of a new index; filter columns are added with the items."""
    vector = pa.list_(pa.float16(), dim)
    return pa.schema([pa.field("id", pa.string(), False), pa.field("vector", vector, False)])


def any_of(ids: Iterable[str]) -> str:
    """A condition for rows with one of these ids."""
    return "id IN ({})".format(", ".join("'{}'".format(id.replace("'", "''")) for id in ids))


def connect(folder: Path) -> Any:
    """Open the Lance database of a folder.

    Raises:
        UserError: when the path has characters that Lance refuses.
    """
    path = str(folder.absolute())  # a relative path could be read as an address, such as s3:...
    if REFUSED_CHARACTERS.search(path):
        raise UserError(
            f"a library cannot be in {printable(path)!r}: the path has control characters or is not UTF-8; choose "
            "another folder"
        )
    return lancedb().connect(path)


def lancedb() -> Any:
    """Import ``lancedb``.

    Raises:
        UserError: when it is not installed.
    """
    try:
        import lancedb as package
    except ImportError:
        return require("lancedb", extra="search", purpose="a library")
    return package
