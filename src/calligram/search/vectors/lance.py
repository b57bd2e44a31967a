"""A vector index in a folder: a Lance table that is read into memory for exact search, or mapped where it is large."""

from __future__ import annotations

import logging
import re
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.checksums import DamagedFileError
from calligram.errors import UserError
from calligram.extras import require
from calligram.progress import Track, silent
from calligram.search.filters.columns import checked_ids, stored_columns
from calligram.search.filters.conditions import Condition, to_lance
from calligram.search.vectors import mapped as mapping
from calligram.search.vectors import mapped_table
from calligram.search.vectors.exact import ExactSearch, ranks_of
from calligram.search.vectors.index import VectorHit
from calligram.search.vectors.mapped import MappedRecord, MappedVectors, unnamed
from calligram.search.vectors.table_files import CheckedTable, open_table, refuse_deleted_version
from calligram.text import printable
from calligram.vectors import checked_unit_rows

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]
IdsOfRows = Callable[[NDArray[np.int64]], list[str]]
REFUSED_CHARACTERS = re.compile("[\\x00-\\x1f\\x7f\\ud800-\\udfff]")
"""characters that a path of Lance cannot have"""
CONDITION_IDS = 2000
"""ids in one condition"""
READ_BATCH_ROWS = 8192
CACHED_CONDITIONS = 32
"""conditions whose rows are cached: a page sends the same condition with every query"""
KEEP_ALL_VERSIONS = timedelta(days=36_500)
KEEP_NO_VERSIONS = timedelta(milliseconds=1)
VERSION_AGE_MARGIN = timedelta(minutes=1)
"""versions are deleted by age, and some time passes until the deletion"""
MAX_OPTIMIZE_CALLS = 8


class Snapshot:
    """Ids and vectors of one version of the table; the table evaluates conditions at the same version."""

    def __init__(
        self, table: Any, ids_of: IdsOfRows, rows: NDArray[np.uint64], search: ExactSearch | mapped_table.MappedSearch
    ) -> None:
        """Use ``read`` or ``of_mapped``; ``rows`` are the addresses of the rows of ``search`` in the table."""
        self.version = int(table.version)
        self._table, self._ids_of, self._search = table, ids_of, search
        self._count = int(table.count_rows())
        self._order = np.argsort(rows)
        self._rows = rows[self._order]
        self._columns = frozenset(table.schema.names)
        self._allowed: OrderedDict[Condition, NDArray[np.bool_]] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def read(cls, table: Any, dim: int) -> Snapshot:
        """Read the present version of a table."""
        count = table.count_rows()
        vectors, rows = np.empty((count, dim), np.float16), np.empty(count, np.uint64)
        ids, start = [pa.array([], pa.string())], 0
        for batch in table.search().select(["id", "vector"]).with_row_id(True).to_batches(READ_BATCH_ROWS):
            part = slice(start, start + len(batch))
            vectors[part] = batch["vector"].flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
            rows[part] = batch["_rowid"].to_numpy()
            ids.append(batch["id"])
            start += len(batch)
        joined = pa.concat_arrays(ids)

        def ids_of(chosen: NDArray[np.int64]) -> list[str]:
            return list(joined.take(pa.array(chosen)).to_pylist())

        return cls(table, ids_of, rows, ExactSearch(vectors, ties=lambda chosen: ranks_of(ids_of(chosen))))

    @classmethod
    def of_mapped(cls, table: Any, mapped: MappedVectors) -> Snapshot:
        """Use mapped files of this table, and read the rows that were added since they were written."""
        alive, added = mapped_table.changes_since(mapped, table)
        ids_of = mapping.JoinedIds(mapped.ids, added.ids).take
        search = mapped_table.MappedSearch(mapped, alive, added.vectors, lambda rows: ranks_of(ids_of(rows)))
        return cls(table, ids_of, np.concatenate((mapped.addresses, added.addresses)), search)

    def __len__(self) -> int:
        return self._count

    def search(
        self, queries: NDArray[np.float32], k: int, where: Condition | None, exact: bool = False
    ) -> list[list[VectorHit]]:
        """The k nearest items of each query (Q, D) at unit length."""
        allowed = None if where is None else self._satisfying(where)
        if isinstance(self._search, mapped_table.MappedSearch):
            found = self._search.search(queries, k, allowed, exact=exact)
        else:
            found = self._search.search(queries, k, allowed)
        return [
            [VectorHit(*pair) for pair in zip(self._ids_of(rows), scores.tolist(), strict=True)]
            for rows, scores in found
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
    reads a version into memory, with three bytes for each number of a vector, and is exact; see ``exact``. From
    ``mapped.MAPPED_ROWS`` rows on, ``optimize`` copies the vectors into files, and a search maps them; see ``mapped``.
    """

    def __init__(self, database: Any, table: Any, pinned: bool, files: Path, memory: int):
        """Use ``open``."""
        self._database, self._table, self._pinned, self._files = database, table, pinned, files
        self._memory = memory
        # Asking Lance takes a millisecond.
        self._dim = int(table.schema.field("vector").type.list_size)
        self._pinned_version = int(table.version) if pinned else None
        self._mapped: MappedVectors | None = None
        self._changing = threading.RLock()
        self._snapshot: Snapshot | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        name: str,
        *,
        dim: int | None = None,
        version: int | None = None,
        mapped: Mapping[str, Any] | None = None,
        memory: int | None = None,
        files: Mapping[str, str] | None = None,
    ) -> LanceIndex:
        """Open the table ``name`` in a folder; see ``tables.open_index``."""
        database = connect(folder)
        try:
            table = open_table(database, folder, name, files or {})
            if version is not None:
                table.checkout(version)
        except (ValueError, RuntimeError, OSError) as error:
            if dim is None or version is not None:
                which = "" if version is None else f" at version {version}"
                raise UserError(f"there is no index {name!r}{which} in {folder}; index the collection again") from error
            table = CheckedTable(database.create_table(name, schema=schema_of(dim)), folder, {})
        found = cls(database, table, version is not None, folder / f"{name}.mapped", memory or mapping.MEMORY_BYTES)
        if dim not in (None, found.dim):
            raise UserError(f"index {name!r} in {folder} holds vectors of {found.dim} dimensions, not {dim}")
        if mapped is not None:
            found._map(mapped)
        return found

    def _map(self, record: Mapping[str, Any]) -> None:
        """Map the files of a record. Without them, everything is read from the table, which is slow and right."""
        try:
            self._mapped = MappedVectors(self._files, MappedRecord.from_json(record), self.dim, self._memory)
        except (OSError, ValueError, TypeError, KeyError, DamagedFileError) as error:
            log.warning("%s cannot be used (%s); the next calligram index writes it again", self._files, error)

    @property
    def mapped(self) -> Mapping[str, Any] | None:
        """The record of the mapped files."""
        return None if self._mapped is None else self._mapped.record.to_json()

    @property
    def recall(self) -> float | None:
        """The measured recall of approximate search; None where searches are exact."""
        return None if self._mapped is None else self._mapped.recall

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return self._dim

    @property
    def version(self) -> int:
        """The version of the table that is read."""
        return int(self._table.version) if self._pinned_version is None else self._pinned_version

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

    def search(
        self, vectors: NDArray[np.float32], k: int, where: Condition | None = None, *, exact: bool = False
    ) -> list[list[VectorHit]]:
        """The k nearest items of each query."""
        queries = checked_unit_rows(vectors, self.dim)
        if k < 1:
            raise UserError(f"k must be at least 1, got {k}")
        return self._read().search(queries, k, where, exact)

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

    @property
    def unfinished(self) -> bool:
        """Whether ``optimize`` would write mapped files, or delete those of a writer that was killed."""
        if self._mapped is None:
            return len(self) >= mapping.MAPPED_ROWS
        rows = mapped_table.row_addresses(self._table)
        return mapped_table.is_outdated(self._mapped, rows) or bool(unnamed(self._files, self._mapped.record))

    def optimize(
        self, track: Track = silent, *, queries: Callable[[], Floats] | None = None, purge: bool = False
    ) -> None:
        """Compact the table, index the ids, which are looked up when items are replaced, and update mapped files."""
        from lancedb.index import BTree

        with self._writing():
            before = None if self._mapped is None else mapped_table.row_addresses(self._table)
            for step in track(("ids", "files"), "optimizing the index", 2):
                if step == "ids" and len(self) and not self._table.list_indices():
                    self._table.create_index("id", config=BTree())
                elif step == "files":
                    compact(self._table)
            if self._mapped is not None or len(self) >= mapping.MAPPED_ROWS:
                self._mapped = mapped_table.updated_files(
                    self._files, self._table, self._mapped, before, queries, purge, self._memory, track
                )

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
            record = None if self._mapped is None else self._mapped.record
            for path in unnamed(self._files, record) if self._files.is_dir() else ():
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def _writing(self) -> threading.RLock:
        if self._pinned:
            raise UserError(f"the index was opened for reading at version {self.version}; open it without a version")
        return self._changing

    def _grow(self, columns: pa.Table) -> None:
        """Add the columns that the table does not have yet, in a version of their own."""
        schema = self._table.schema
        for field in columns.schema:
            if field.name in schema.names and (has := schema.field(field.name).type) != field.type:
                raise UserError(f"column {field.name.removeprefix('c_')!r} holds {has} in the index, not {field.type}")
        new = [field for field in columns.schema if field.name not in schema.names]
        if new:
            self._table.add_columns(new)

    def _read(self) -> Snapshot:
        """The present version in memory; it is read once for all threads."""
        with self._changing:
            if self._snapshot is None or self._snapshot.version != self.version:
                # A separate handle: a search may still use this version after a writer has created the next.
                table, kept = self._table.reopened(self._database), self._mapped
                with refuse_deleted_version(self._files.parent):
                    table.checkout(self.version)
                    self._snapshot = Snapshot.read(table, self.dim) if kept is None else Snapshot.of_mapped(table, kept)
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
