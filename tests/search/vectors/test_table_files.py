"""Files of Lance tables: what a commit lists, what it refuses, and which rows are in which file."""

from __future__ import annotations

from datetime import timedelta

import lancedb
import pyarrow as pa
import pytest
from lancedb.index import BTree

from calligram.checksums import DamagedFileError
from calligram.errors import UserError
from calligram.search.indexing.repair import fragments_of
from calligram.search.vectors.table_files import all_files, open_table, refuse_deleted_version, table_records


@pytest.fixture
def table(tmp_path):
    """A table of three fragments in the folder of a library's generation."""
    made = lancedb.connect(tmp_path / "1" / "tables").create_table("items", pa.table({"id": ["0", "1"]}))
    for number in (1, 2):
        made.add(pa.table({"id": [f"{number}.0", f"{number}.1"]}))
    return made


def records(tmp_path, table, known=None, old=()):
    return table_records(tmp_path / "1", {"items": table.version}, known or {}, old)["tables/items.lance"]


def data_files(tmp_path):
    return sorted((tmp_path / "1/tables/items.lance/data").iterdir())


def test_a_commit_lists_data_deletions_indexes_and_the_version(tmp_path, table):
    table.delete("id = '1.0'")
    table.create_index("id", config=BTree())
    found = {name.split("/")[0] for name in records(tmp_path, table)}
    assert found == {"data", "_deletions", "_indices", "_versions"}
    assert sum(name.startswith("_versions") for name in records(tmp_path, table)) == 1


@pytest.mark.parametrize("lost", [1, 17, 200])
def test_a_file_that_lacks_bytes_is_refused_when_it_is_new_and_left_out_when_it_is_old(tmp_path, table, lost):
    file = data_files(tmp_path)[0]
    data = file.read_bytes()
    for short in (data[:-lost], data[:50] + data[50 + lost :]):  # at the end, and in the middle
        file.write_bytes(short)
        with pytest.raises(OSError, match="not whole after it was written"):
            records(tmp_path, table)
        assert f"data/{file.name}" not in records(tmp_path, table, old=all_files(tmp_path / "1"))


def test_a_version_that_was_deleted_meanwhile_is_one_line(tmp_path, table):
    reading = open_table(lancedb.connect(tmp_path / "1" / "tables"), tmp_path / "1" / "tables", "items", {})
    table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
    with pytest.raises(UserError, match="has changed since it was opened"), refuse_deleted_version(tmp_path):
        reading.checkout(1)
    with pytest.raises(ValueError, match="other"), refuse_deleted_version(tmp_path):
        raise ValueError("other")


def test_a_known_file_is_not_read_again(tmp_path, table):
    before = records(tmp_path, table)
    data_files(tmp_path)[0].write_bytes(b"")
    assert records(tmp_path, table, {"tables/items.lance": before}) == before


def test_a_table_is_checked_before_its_rows_are_read(tmp_path, table):
    listed, folder = records(tmp_path, table), tmp_path / "1" / "tables"
    file = data_files(tmp_path)[1]
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    opened = open_table(lancedb.connect(folder), folder, "items", listed)
    assert opened.version == table.version
    for _ in range(2):
        with pytest.raises(DamagedFileError, match=r"--repair\" mends the library"):
            opened.search()


def test_rows_are_found_by_the_file_that_holds_them(tmp_path, table):
    found = fragments_of(tmp_path / "1/tables/items.lance", table.version)
    assert sorted(found.values()) == [0, 1, 2]
    assert {file.name for file in data_files(tmp_path)} == set(found)
    rows = table.search().select(["id"]).with_row_id(True).to_arrow().to_pylist()
    assert [row["_rowid"] >> 32 for row in rows] == [0, 0, 1, 1, 2, 2]
