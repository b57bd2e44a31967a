"""The Lance tables of a library, read at the versions its manifest names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from calligram.errors import UserError
from calligram.extras import lancedb
from calligram.search.vectors.lance import prune, tidy

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
"""``shelf`` keeps the vectors of items whose file is gone, for when it comes back; ``forgotten`` names pictures that
must not come back, by hashes of their path and content"""
WORDS = "words"
CHUNK = 500
"""ids named in one condition"""
AT_ONCE = 16_384
"""rows that a scan hands over at a time"""


class KeywordHit(NamedTuple):
    """An item that words were found in."""

    id: str
    score: float
    """by BM25; not the matcher's"""
    words: str
    """all its words: captions and path"""


class Tables:
    """The tables in a folder: by ``open`` for reading at given versions, by ``write`` at the end of them."""

    def __init__(self, opened: Mapping[str, Any]) -> None:
        """Use ``open`` or ``write``."""
        self._opened = opened

    @classmethod
    def open(cls, folder: Path, versions: Mapping[str, int]) -> Tables:
        """As they were at these versions; nothing that is written later is seen."""
        database, opened = lancedb().connect(str(folder)), {}
        for name in SCHEMAS:
            try:
                opened[name] = database.open_table(name)
                opened[name].checkout(versions[name])
            except (ValueError, KeyError, RuntimeError, OSError) as error:
                raise UserError(f"table {name} in {folder} cannot be read ({_first_line(error)})") from error
        return cls(opened)

    @classmethod
    def write(cls, folder: Path, versions: Mapping[str, int]) -> Tables:
        """For writing, put back to these versions where a run was cut short after them."""
        database, opened = lancedb().connect(str(folder)), {}
        for name, schema in SCHEMAS.items():
            if name not in versions:
                database.drop_table(name, ignore_missing=True)
                opened[name] = database.create_table(name, schema=schema)
                continue
            opened[name] = table = database.open_table(name)
            if table.version != versions[name]:
                table.checkout(versions[name])
                table.restore()
        return cls(opened)

    def versions(self) -> dict[str, int]:
        """Where each table stands."""
        return {name: int(table.version) for name, table in self._opened.items()}

    def count(self, name: str, where: str | None = None) -> int:
        """Rows of a table."""
        return int(self._opened[name].count_rows(where))

    def column(self, name: str, columns: Sequence[str], where: str | None = None) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows, in pieces."""
        query = self._opened[name].search().select(list(columns))
        if where is not None:
            query = query.where(where)
        yield from query.to_batches(batch_size=AT_ONCE)

    def take(self, name: str, ids: Sequence[str], columns: Sequence[str] | None = None) -> pa.Table:
        """Rows with these ids, in no order; ids that are not there are passed over."""
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
        """Add rows, or replace those whose id is there.

        Args:
            new: ids that are surely not there, and need not be looked for.
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

    def find_words(self, query: str, k: int) -> list[KeywordHit]:
        """Items that are there and whose words match, best first by BM25."""
        from lancedb.query import MatchQuery

        match: Any = MatchQuery  # its type stub takes its defaults for required
        asked = k
        while True:
            # Lance would test the state of every item first; few are gone, so those found are tested instead.
            search = self._opened["items"].search(match(query, WORDS), query_type="fts").limit(asked)
            rows = search.select(["id", "state", WORDS, "_score"]).to_arrow().to_pylist()
            there = [KeywordHit(row["id"], row["_score"], row[WORDS]) for row in rows if row["state"] == "present"]
            if len(there) >= k or len(rows) < asked:
                return there[:k]
            asked *= 4

    def optimize(self) -> None:
        """Join small pieces and index what is looked up: ids, and words. Old versions stay."""
        from lancedb.index import FTS, BTree

        for name, table in self._opened.items():
            indexed = {column for index in table.list_indices() for column in index.columns}
            if "id" not in indexed and table.count_rows():
                table.create_index("id", config=BTree())
            if name == "items" and WORDS not in indexed:
                table.create_index(WORDS, config=FTS(language="English", stem=True, remove_stop_words=False))
            tidy(table)

    def drop_versions(self, oldest: Mapping[str, int]) -> None:
        """Delete versions before these, and what an interrupted write left behind."""
        for name, table in self._opened.items():
            prune(table, oldest[name])


def any_of(ids: Iterable[str]) -> str:
    """A condition for rows with one of these ids."""
    return "id IN ({})".format(", ".join("'{}'".format(i.replace("'", "''")) for i in ids))


def chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """A list of ids in lists that fit into a condition."""
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
