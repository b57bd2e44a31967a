"""The tables and the vector indexes of a library, opened at the versions that its manifest names."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from calligram.errors import UserError
from calligram.search.library.manifest import Manifest, check_address
from calligram.search.library.word_lists import (
    MAX_LISTED_ITEMS,
    SEARCHES_BEFORE_LISTS,
    WORDS_COLUMN,
    KeywordHit,
    WordLists,
)
from calligram.search.vectors.index import Index
from calligram.search.vectors.lance import any_of, compact, connect, drop_table_versions
from calligram.search.vectors.table_files import open_table, unreadable

if TYPE_CHECKING:
    from calligram.search.vectors.milvus import PendingChanges

SCHEMAS: Mapping[str, pa.Schema] = {
    "items": pa.schema(
        {
            **{"id": pa.string(), "source": pa.int32(), "key": pa.string(), "file": pa.string(), "offset": pa.int64()},
            **{"name": pa.string(), "folder": pa.string(), "bytes": pa.int64(), "mtime": pa.int64()},
            **{"hash": pa.string(), "width": pa.int32(), "height": pa.int32(), "state": pa.string()},
            **{"metadata": pa.string(), "digest": pa.string()},
            **{"captions": pa.list_(pa.string()), "words": pa.string()},
        }
    ),
    "captions": pa.schema(
        {
            "id": pa.string(),
            "source": pa.int32(),
            "key": pa.string(),
            "text": pa.string(),
            "items": pa.list_(pa.string()),
        }
    ),
    "thumbnails": pa.schema({"id": pa.string(), "jpeg": pa.binary()}),
    "parts": pa.schema(
        {"id": pa.string(), "vector": pa.binary(), "parts": pa.binary(), "count": pa.int32(), "mask": pa.binary()}
    ),
    "shelf": pa.schema({"id": pa.string(), "vector": pa.binary()}),
    "problems": pa.schema(
        {"id": pa.string(), "source": pa.int32(), "key": pa.string(), "reason": pa.string()}
        | {"bytes": pa.int64(), "mtime": pa.int64()}
    ),
    "forgotten": pa.schema(
        {"id": pa.string(), "source": pa.int32(), "bytes": pa.int64(), "mtime": pa.int64()} | {"hash": pa.string()}
    ),
}
"""``shelf`` keeps the vectors of items whose file is gone, in case it returns; ``forgotten`` lists the pictures that
indexing leaves out, by hashes of their path and content"""
log = logging.getLogger(__name__)

CONDITION_IDS = 500
"""ids in one condition"""
READ_BATCH_ROWS = 16_384
MAX_TIE_FACTOR = 32
"""so many times the wanted number of items are compared, to find all with the score of the last one"""
INDEXES = ("index.images", "index.captions")
"""names of the two vector indexes in the versions of a manifest"""


class Tables:
    """The tables in a folder: ``open`` reads them at given versions, ``write`` changes the latest version."""

    def __init__(self, opened: Mapping[str, Any]) -> None:
        """Use ``open`` or ``write``."""
        self._opened = opened
        self._searches, self._lists = 0, None
        self._lock = threading.Lock()

    _lists: WordLists | None

    @classmethod
    def open(
        cls,
        folder: Path,
        versions: Mapping[str, int],
        files: Mapping[str, Mapping[str, str]],
        names: Iterable[str] = SCHEMAS,
    ) -> Tables:
        """Open some tables or all for reading at these versions; ``files`` are the checksums of a manifest."""
        database, opened = connect(folder), {}
        for name in names:
            try:
                opened[name] = open_table(database, folder, name, files.get(f"tables/{name}.lance", {}))
                opened[name].checkout(versions[name])
            except (ValueError, KeyError, RuntimeError, OSError) as error:
                raise unreadable(folder, name, error) from error
        return cls(opened)

    @classmethod
    def write(cls, folder: Path, versions: Mapping[str, int], files: Mapping[str, Mapping[str, str]]) -> Tables:
        """Open the tables for writing, after undoing what an interrupted run wrote after these versions."""
        database, opened = connect(folder), dict[str, Any]()
        for name, schema in SCHEMAS.items():
            if name not in versions:
                database.drop_table(name, ignore_missing=True)
                opened[name] = database.create_table(name, schema=schema)
                continue
            try:
                opened[name] = table = open_table(database, folder, name, files.get(f"tables/{name}.lance", {}))
                if table.version != versions[name]:
                    table.checkout(versions[name])
                    table.restore()
            except (ValueError, RuntimeError) as error:
                raise unreadable(folder, name, error) from error
        return cls(opened)

    def versions(self) -> dict[str, int]:
        """The present version of each table."""
        return {name: int(table.version) for name, table in self._opened.items()}

    def count(self, name: str, where: str | None = None) -> int:
        """Number of rows of a table."""
        return int(self._opened[name].count_rows(where))

    def column(self, name: str, columns: Sequence[str], where: str | None = None) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, in batches."""
        query = self._opened[name].search().select(list(columns))
        if where is not None:
            query = query.where(where)
        yield from query.to_batches(batch_size=READ_BATCH_ROWS)

    def take(self, name: str, ids: Sequence[str], columns: Sequence[str] | None = None) -> pa.Table:
        """Rows with these ids, in no order; unknown ids are skipped."""
        wanted = list(columns) if columns is not None else SCHEMAS[name].names
        pieces = [
            self._opened[name].search().where(any_of(chunk)).select(wanted).limit(len(chunk)).to_arrow()
            for chunk in chunks(ids)
        ]
        return pa.concat_tables(pieces) if pieces else SCHEMAS[name].empty_table().select(wanted)

    def add(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows whose ids are new."""
        if rows:
            self._opened[name].add(pa.Table.from_pylist(list(rows), schema=SCHEMAS[name]))

    def put(self, name: str, rows: Sequence[Mapping[str, Any]], new: AbstractSet[str] = frozenset()) -> None:
        """Add rows, or replace the rows with the same id.

        Args:
            name: of the table.
            rows: to write.
            new: ids that the table does not have, which need not be looked up.
        """
        self.add(name, [row for row in rows if row["id"] in new])
        if rest := [row for row in rows if row["id"] not in new]:
            table = pa.Table.from_pylist(rest, schema=SCHEMAS[name])
            merge = self._opened[name].merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(table)

    def drop(self, name: str, ids: Iterable[str]) -> None:
        """Delete rows by id."""
        for chunk in chunks(list(ids)):
            self._opened[name].delete(any_of(chunk))

    def keyword_search(self, query: str, k: int) -> list[KeywordHit]:
        """The k present items whose words match best by BM25; items with equal scores are ordered by id.

        The first searches ask Lance. Later ones use lists of single words in memory, which give the same hits.
        """
        with self._lock:
            self._searches += 1
            if self._searches == SEARCHES_BEFORE_LISTS and self.count("items") <= MAX_LISTED_ITEMS:
                self._lists = WordLists(self._opened["items"])
        found = None if self._lists is None else self._lists.search(query.split(" "), k)
        return self.search_by_lance(query, k) if found is None else found

    @property
    def keywords_in_memory(self) -> bool:
        """Whether keyword search uses lists, so that it takes about a millisecond."""
        return self._lists is not None

    def search_by_lance(self, query: str, k: int) -> list[KeywordHit]:
        """As ``keyword_search``.

        If more than ``MAX_TIE_FACTOR`` k items have the score of the last one or a better one, Lance chooses some.
        """
        from lancedb.query import MatchQuery

        match: Any = MatchQuery  # its type stub declares its optional arguments as required
        limit = 2 * k
        while True:
            # A condition would make Lance test the state of every item first; few are gone, so test the hits instead.
            search = self._opened["items"].search(match(query, WORDS_COLUMN), query_type="fts").limit(limit)
            rows = search.select(["id", "state", WORDS_COLUMN, "_score"]).to_arrow().to_pylist()
            hits = [KeywordHit(r["id"], r["_score"], r[WORDS_COLUMN]) for r in rows if r["state"] == "present"]
            hits.sort(key=lambda hit: (-hit.score, hit.id))
            # Of items with equal scores, Lance returns any. Those with the score of the last one are all needed.
            complete = len(hits) >= k and (
                hits[k - 1].score > min(row["_score"] for row in rows) or limit >= MAX_TIE_FACTOR * k
            )
            if complete or len(rows) < limit:
                return hits[:k]
            limit *= 4

    def optimize(self) -> None:
        """Compact the tables and index their ids and words; earlier versions stay."""
        from lancedb.index import FTS, BTree

        for name, table in self._opened.items():
            indexed = {column for index in table.list_indices() for column in index.columns}
            if "id" not in indexed and table.count_rows():
                table.create_index("id", config=BTree())
            if name == "items" and WORDS_COLUMN not in indexed:
                table.create_index(WORDS_COLUMN, config=FTS(language="English", stem=True, remove_stop_words=False))
            compact(table)

    def drop_versions(self, oldest: Mapping[str, int]) -> None:
        """Delete the versions before these, and the files of interrupted writes."""
        for name, table in self._opened.items():
            drop_table_versions(table, oldest[name])


def old_batches(
    library: Path, manifest: Manifest, name: str, columns: Sequence[str], where: str | None = None
) -> list[pa.RecordBatch] | None:
    """Rows of one table of a library that is replaced; None where the table is damaged or gone."""
    try:
        folder = library / str(manifest.generation) / "tables"
        return list(Tables.open(folder, manifest.versions, manifest.files, (name,)).column(name, columns, where))
    except (UserError, ValueError, RuntimeError, OSError):
        return None


def chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """A list of ids in parts that fit into a condition."""
    for start in range(0, len(ids), CONDITION_IDS):
        yield ids[start : start + CONDITION_IDS]


def open_index(
    uri: str | Path,
    name: str,
    *,
    dim: int | None = None,
    version: int | None = None,
    mapped: Mapping[str, Any] | None = None,
    memory: int | None = None,
    files: Mapping[str, str] | None = None,
) -> Index:
    """Open or create an index; the address names the engine.

    Args:
        uri: a folder (Lance); ``milvus://[token@]host:port``, ``milvuss://`` over TLS, or ``milvus:PATH`` (embedded).
        name: of the index at this address: letters, digits and ``_``.
        dim: dimensions of the vectors; with it, a missing index is created.
        version: open the index for reading at this version; engines without versions ignore it.
        mapped: the value of ``Index.mapped`` when this version was written.
        memory: bytes of mapped files that stay in the memory of this process; None for ``mapped.MEMORY_BYTES``.
        files: checksums of the files of the index; see ``vectors.table_files``.

    Raises:
        UserError: when there is no index and no ``dim``, its dimension differs, or the engine is not installed.
    """
    address = str(uri)
    if "://" in address and not address.startswith(("milvus://", "milvuss://")):
        raise UserError(f"{address!r} is no address of an index; write milvus://host:19530, or leave it out")
    if address.startswith(("milvus:", "milvuss:")):
        from calligram.search.vectors.milvus import MilvusIndex

        return MilvusIndex.open(address, name, dim=dim)
    from calligram.search.vectors.lance import LanceIndex

    return LanceIndex.open(Path(uri), name, dim=dim, version=version, mapped=mapped, memory=memory, files=files)


def open_indexes(
    generation: Path, manifest: Manifest, *, writing: bool = False, memory: int | None = None
) -> tuple[Index, Index]:
    """Open the index of images and the index of captions at the versions of the manifest.

    Args:
        generation: folder of the library's generation.
        manifest: of the library.
        writing: open them for writing, after undoing what was written after the manifest.
        memory: see ``open_index``.
    """
    images, captions = (_open_index(generation, manifest, name, writing, memory) for name in INDEXES)
    return images, captions


def _open_index(generation: Path, manifest: Manifest, name: str, writing: bool, memory: int | None) -> Index:
    version, mapped = manifest.versions.get(name), manifest.mapped.get(name)
    # A server may hold several libraries, and two generations of one.
    short = name.removeprefix("index.")
    label = short if manifest.index is None else f"calligram_{manifest.label}_{manifest.generation}_{short}"
    place, files = manifest.index or generation / "index", manifest.files.get(f"index/{short}.lance")
    if not writing:
        return open_index(place, label, version=version, mapped=mapped, memory=memory, files=files)
    index = open_index(place, label, dim=manifest.dim, mapped=mapped, files=files)
    if version is not None and index.version != version:
        index.restore(version)
    return index


def empty_indexes(generation: Path, manifest: Manifest, given: str | None) -> None:
    """Delete a library's vectors from a server; an index in the library's folder is deleted with the folder.

    Vectors at another address than the ``given`` one stay, because the user has not named it.
    """
    if manifest.index is None or not manifest.versions:
        return
    try:
        check_address(generation.parent, manifest, given)
    except UserError:
        log.warning("the old vectors stay there: delete calligram_%s_%d_*", manifest.label, manifest.generation)
        return
    tables = Tables.open(generation / "tables", manifest.versions, manifest.files)
    images, captions = open_indexes(generation, manifest, writing=True)
    for name, index in (("items", images), ("captions", captions)):
        for batch in tables.column(name, ("id",)):
            index.remove(batch.column("id").to_pylist())


class DirectChanges:
    """Changes to an index with versions: the manifest names the valid one, so nothing has to be undone."""

    def note(self, ids: Sequence[str]) -> None:
        """Nothing has to be noted."""

    def remove(self, index: Index, ids: Sequence[str]) -> None:
        """Remove items from the index."""
        index.remove(ids)

    def done(self, index: Index) -> None:
        """Nothing is left to do after a commit."""

    def undo(self, index: Index, present: Callable[[Sequence[str]], set[str]]) -> None:
        """Nothing has to be undone."""


def open_changes(generation: Path, manifest: Manifest) -> DirectChanges | PendingChanges:
    """What a writer needs to change the index of a library so that a kill loses nothing."""
    if manifest.index is None:
        return DirectChanges()
    from calligram.search.vectors.milvus import PendingChanges

    return PendingChanges(generation / "pending.json")
