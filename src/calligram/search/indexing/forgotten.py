"""The list of forgotten pictures, and a copy of it: without the list, forgotten pictures would come back.

The list is a table of the library. All other tables can be filled again from the pictures, this one cannot. So each
commit that changes it also writes ``forgotten.json`` next to the tables. The copy is used only where the table is
damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calligram.errors import UserError
from calligram.files import replace_json
from calligram.records import integer, list_of, read_object, record, text
from calligram.search.indexing.diff import forgotten_key
from calligram.search.library.manifest import Manifest
from calligram.search.library.tables import SCHEMAS, Tables, old_batches

log = logging.getLogger(__name__)

COPY_FILE = "forgotten.json"
"""in the folder of a generation"""
MAX_COPIED_ROWS = 200_000
"""about 30 MB; a longer list has no copy"""
COLUMNS = ("id", "source", "bytes", "mtime", "hash")
_ROW = record(
    {"id": text(), "source": integer(0), "bytes": integer(-1), "mtime": integer(-(2**63), 2**63), "hash": text()}
)
COPY_SCHEMA = record({"pictures": list_of(_ROW)})

assert set(COLUMNS) == set(SCHEMAS["forgotten"].names)


def write_copy(generation: Path, tables: Tables) -> None:
    """Copy the list; call it before the commit that changes the table."""
    count = tables.count("forgotten")
    if not count or count > MAX_COPIED_ROWS:
        (generation / COPY_FILE).unlink(missing_ok=True)
        return
    rows = [row for batch in tables.column("forgotten", COLUMNS) for row in batch.to_pylist()]
    replace_json(generation / COPY_FILE, {"pictures": rows})


def read_copy(generation: Path) -> list[dict[str, Any]] | None:
    """The rows of the copy; None where there is none.

    Raises:
        UserError: when it is damaged.
    """
    if not (generation / COPY_FILE).is_file():
        return None
    found = read_object(generation / COPY_FILE, "the next forget writes it again", COPY_SCHEMA)
    return list(found["pictures"])


def intact_copy(generation: Path) -> list[dict[str, Any]] | None:
    """The rows of the copy; None where there is none, or a damaged one."""
    try:
        return read_copy(generation)
    except (UserError, OSError):
        return None


def restore_from_copy(generation: Path, tables: Tables) -> None:
    """Put what the copy has, and the damaged table has not, back into the table.

    A process may have been killed between the copy and its commit, so pictures that are items are not forgotten.
    """
    rows = intact_copy(generation) or []
    items = tables.column("items", ("source", "key"))
    there = {forgotten_key(row["source"], row["key"]) for batch in items for row in batch.to_pylist()}
    tables.put("forgotten", [row for row in rows if row["id"] not in there])


def forgotten_rows(library: Path, manifest: Manifest) -> Sequence[Mapping[str, Any]]:
    """The list of a library that is rebuilt, from its table or from the copy."""
    batches = old_batches(library, manifest, "forgotten", COLUMNS)
    if batches is not None:
        return [row for batch in batches for row in batch.to_pylist()]
    rows = intact_copy(library / str(manifest.generation))
    if rows is None:
        log.warning("%s: which pictures were forgotten cannot be read, so they are indexed again", library)
    return rows or []


def drop_forgotten(tables: Tables, number: int) -> None:
    """Delete the list of forgotten pictures of a source, so that they are indexed again."""
    batches = tables.column("forgotten", ("id",), f"source = {number}")
    tables.drop("forgotten", [id for batch in batches for id in batch["id"].to_pylist()])
