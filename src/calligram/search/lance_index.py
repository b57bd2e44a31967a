"""An index in a folder, kept by Lance and searched in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.progress import Track, silent
from calligram.search.compiling import lance_literal
from calligram.search.condition import Condition
from calligram.search.filter_columns import checked_ids, stored_columns, unit
from calligram.search.index import Found
from calligram.search.lance_versions import prune, tidy
from calligram.search.snapshot import Snapshot
from calligram.search.tables import lancedb

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
        given, flat = checked_ids(ids), unit(vectors, self.dim).astype(np.float16)
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

    def search(self, vectors: NDArray[np.float32], k: int, where: Condition | None = None) -> list[list[Found]]:
        """The k nearest items of each query, exactly."""
        queries = unit(vectors, self.dim)
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

    def settle(self, track: Track = silent) -> None:
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

    def clean(self, keep: int | None = None) -> None:
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
