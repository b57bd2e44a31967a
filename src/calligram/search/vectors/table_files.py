"""The files of Lance tables: their checksums, noted at each commit and compared before a table is first read.

Lance writes a file once and never changes it, and does not notice when a disk does. So the manifest of a library lists
the files of each table. Files of earlier versions are listed as long as they exist; Lance deletes them later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from calligram.checksums import check_files, file_record
from calligram.errors import UserError

Records = Mapping[str, str]

SUFFIX = ".lance"
LISTED_FOLDERS = ("data", "_deletions", "_indices")
LAST_VERSION = 2**64 - 1
"""versions are counted down from here in the names of their files"""
MAGIC = b"LANC"
FOOTER = struct.Struct("<QQQIIHH4s")
"""of a file of Lance: where its metadata and its two tables of offsets begin, lengths of these, format, mark"""
FORMAT_VERSION = 2
"""the version of Lance's file format with this footer"""
OFFSET_BYTES = 16
"""of an entry of these tables"""
FREE_ATTRIBUTES = frozenset(("version", "checkout", "name", "schema", "list_versions", "restore"))
"""what can be asked of a table without reading its rows"""


class CheckedTable:
    """A table of Lance whose files are compared with their checksums before its rows are first read or written."""

    def __init__(self, table: Any, folder: Path, records: Records) -> None:
        """Use ``open_table``; ``folder`` is that of the database."""
        self._table, self._folder, self._records = table, folder, records

    def __getattr__(self, name: str) -> Any:
        if self._records and name not in FREE_ATTRIBUTES:
            check_table(self._folder, self._table.name, self._records)
            self._records = {}
        return getattr(self._table, name)

    def reopened(self, database: Any) -> CheckedTable:
        """Another handle of the table, at its latest version."""
        return CheckedTable(database.open_table(self._table.name), self._folder, self._records)


@contextlib.contextmanager
def refuse_deleted_version(folder: Path) -> Iterator[None]:
    """Raise a ``UserError`` where the version that is read inside has been deleted, as ``calligram forget`` does."""
    try:
        yield
    except (ValueError, RuntimeError, OSError) as error:
        if not any(words in str(error).lower() for words in ("not found", "no longer exists")):
            raise
        raise UserError(f"{folder} has changed since it was opened; run the command again") from error


def open_table(database: Any, folder: Path, name: str, records: Records) -> CheckedTable:
    """Open a table of the database in a folder.

    Args:
        database: as ``lance.connect`` returns it.
        folder: of the database.
        name: of the table.
        records: checksums of its files; empty for a library of an earlier version.

    Raises:
        DamagedFileError: when the file of its version is damaged.
        ValueError, RuntimeError, OSError: when Lance cannot open it.
    """
    first = {file: record for file, record in records.items() if file.startswith("_versions")}
    check_table(folder, name, first)
    return CheckedTable(database.open_table(name), folder, records)


def check_table(folder: Path, name: str, records: Records, *, again: bool = False) -> None:
    """Compare the files of a table with their checksums; Lance itself notices missing files.

    Raises:
        DamagedFileError: for the first file that differs.
    """
    check_files(folder / f"{name}{SUFFIX}", records, _what_to_do(folder), missing=True, again=again)


def check_tables(generation: Path, files: Mapping[str, Records]) -> None:
    """Compare all tables of a generation with the checksums of a manifest.

    Raises:
        DamagedFileError: for the first file that differs.
    """
    for place, records in files.items():
        folder, _, name = place.rpartition("/")
        check_table(generation / folder, name.removesuffix(SUFFIX), records)


def unreadable(folder: Path, name: str, error: BaseException) -> UserError:
    """The error for a table that Lance cannot read."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return UserError(f"table {name} in {folder} cannot be read ({line}); {_what_to_do(folder)}")


def _what_to_do(folder: Path) -> str:
    return f'"calligram check {shlex.quote(str(folder.parent.parent))} --repair" mends the library'


def table_records(
    generation: Path, versions: Mapping[str, int], known: Mapping[str, Records], old: Collection[str]
) -> dict[str, dict[str, str]]:
    """Checksums of the files of all tables of a generation, which is about to be committed.

    Args:
        generation: folder of the generation.
        versions: of each table, as in a manifest.
        known: the checksums of the last commit; these files are not read again.
        old: files that were there when the writer started, as ``all_files`` lists them. A file that is not whole was
            written by a process that was killed or failed, and is left out.

    Raises:
        OSError: when a file that was just written is not whole.
    """
    found = {}
    for name, version in versions.items():
        place = f"index/{name.removeprefix('index.')}" if name.startswith("index.") else f"tables/{name}"
        before = known.get(f"{place}{SUFFIX}", {})
        table = generation / f"{place}{SUFFIX}"
        files = list(_table_files(table, version))
        records = {f: before[f] if f in before else _record(table / f, f"{place}{SUFFIX}/{f}" in old) for f in files}
        found[f"{place}{SUFFIX}"] = {file: record for file, record in records.items() if record}
    return found


def _table_files(table: Path, version: int) -> Iterator[str]:
    for file in (f"_versions/{LAST_VERSION - version:020}.manifest", f"_versions/{version}.manifest"):
        if (table / file).exists():
            yield file
    for folder in LISTED_FOLDERS:
        for place, _, names in os.walk(table / folder):
            inside = os.path.relpath(place, table)
            yield from sorted(os.path.join(inside, name) for name in names if "#" not in name)  # else partly written


def all_files(generation: Path) -> frozenset[str]:
    """The files of all tables of a generation, by their paths within it."""
    return frozenset(
        os.path.relpath(os.path.join(place, name), generation)
        for folder in ("tables", "index")
        for place, _, names in os.walk(generation / folder)
        for name in names
    )


def _record(file: Path, old: bool) -> str:
    """The checksum of a file; an empty text for an old file that is not whole.

    A disk may write less than it was told to, and a program may not notice. So the offsets at the end of the file must
    fit its size.
    """
    record = file_record(file)
    size = int(record.split()[1])
    with file.open("rb") as stream:
        stream.seek(max(0, size - FOOTER.size))
        end = stream.read()
    whole = file.suffix not in (SUFFIX, ".manifest") or end.endswith(MAGIC)
    if whole and file.suffix == SUFFIX and len(end) == FOOTER.size and FOOTER.unpack(end)[5] == FORMAT_VERSION:
        _, columns, buffers, buffer_count, column_count, *_ = FOOTER.unpack(end)
        ends = columns + OFFSET_BYTES * column_count, buffers + OFFSET_BYTES * buffer_count + FOOTER.size
        whole = ends == (buffers, size)
    if not whole and old:
        return ""
    if not whole:
        raise OSError(errno.EIO, "the file is not whole after it was written", str(file))
    return record
