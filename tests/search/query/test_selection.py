"""Saved searches survive writers, kills and rebuilds; exports have every picture, once, with its table."""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from calligram.errors import UserError
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.query import selection
from calligram.search.query.query import ItemId, Query, QueryTerm
from calligram.search.query.selection import (
    SavedSearch,
    SelectedPicture,
    delete_search,
    export_folder,
    find_search,
    save_search,
    saved_searches,
    select_by_condition,
    zip_parts,
)

DOGS = SavedSearch("Dogs", "two dogs", ("2:snow",), ("person",), ("abc",), where="year > 2010", all=True)


def test_a_saved_search_comes_back_and_gives_its_query(tmp_path):
    assert saved_searches(tmp_path) == []
    assert save_search(tmp_path, DOGS) is False
    assert saved_searches(tmp_path) == [DOGS] == [find_search(tmp_path, "Dogs")]
    terms = QueryTerm("two dogs"), QueryTerm(ItemId("abc")), QueryTerm("snow", 2.0), QueryTerm("person", -1.0)
    assert DOGS.query() == Query(terms)
    assert save_search(tmp_path, replace(DOGS, q="a dog")) is True
    save_search(tmp_path, SavedSearch("Été 🏖", where="year = 2020"))
    assert [search.q for search in saved_searches(tmp_path)] == ["a dog", ""]
    delete_search(tmp_path, "Dogs")
    assert [search.name for search in saved_searches(tmp_path)] == ["Été 🏖"]


def test_unknown_names_are_refused_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match="has no saved searches"):
        find_search(tmp_path, "Dogs")
    save_search(tmp_path, DOGS)
    with pytest.raises(UserError, match="did you mean 'Dogs'"):
        delete_search(tmp_path, "Dog")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": " "},
        {"name": "x" * 101},
        {"name": "a\nb"},
        {"q": "\ud800"},
        {"plus": "snow"},
        {"q": 3},
        {"like": (3,)},
    ],
)
def test_a_search_that_is_no_text_is_refused(wrong):
    with pytest.raises(UserError):
        replace(DOGS, **wrong)


def test_an_empty_search_is_refused():
    with pytest.raises(UserError, match="empty"):
        SavedSearch("nothing", minus=("dog",))


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "calligram-searches", "version": 1, "searches": [{}]}'])
def test_a_damaged_file_is_refused_and_stays(tmp_path, content):
    file = tmp_path / "searches.json"
    file.write_text(content)
    for use in (lambda: saved_searches(tmp_path), lambda: save_search(tmp_path, DOGS)):
        with pytest.raises(UserError, match="damaged"):
            use()
    assert file.read_text() == content


def test_a_file_of_a_newer_version_is_refused(tmp_path):
    content = {"format": "calligram-searches", "version": 2, "searches": []}
    (tmp_path / "searches.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="newer calligram"):
        save_search(tmp_path, DOGS)


def test_there_is_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "MAX_SAVED_SEARCHES", 1)
    save_search(tmp_path, DOGS)
    save_search(tmp_path, DOGS)
    with pytest.raises(UserError, match="delete some"):
        save_search(tmp_path, SavedSearch("Cats", "cats"))


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: save_search(tmp_path, SavedSearch(f"search {n}", "a dog")), range(40)))
    assert {search.name for search in saved_searches(tmp_path)} == {f"search {n}" for n in range(40)}


def test_a_killed_writer_leaves_a_whole_file(tmp_path, preloaded):
    code = """
import sys
from pathlib import Path
from calligram.search.query.selection import SavedSearch, save_search
for n in range(100_000):
    save_search(Path(sys.argv[1]), SavedSearch(f"search {n % 50}", "a dog " * 50))
    print(n, flush=True)
"""
    with preloaded.start(code, tmp_path) as writer:
        for _ in range(60):
            assert writer.stdout.readline()
        writer.kill()
    assert len(saved_searches(tmp_path)) == 50
    save_search(tmp_path, DOGS)  # the lock of a dead process is free
    assert find_search(tmp_path, "Dogs") == DOGS


def test_indexing_and_rebuilding_leave_saved_searches(models, photos, indexed):
    save_search(indexed, DOGS)
    (photos / "photo_0.jpg").unlink()
    index_source(models, photos, indexed)
    index_source(models, photos, indexed, rebuild=True)
    assert saved_searches(indexed) == [DOGS]


# Exports.


@pytest.fixture
def library(indexed) -> Library:
    return Library.open(indexed)


def all_of(library: Library) -> list[SelectedPicture]:
    rows = sorted(library.rows(), key=lambda row: row["path"])
    return [SelectedPicture(row["id"], rank, 1 / rank) for rank, row in enumerate(rows, 1)]


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_condition_selects_as_a_filter_does(library):
    chosen = select_by_condition(library, "year >= 2014 and folder = 'trip'")
    wanted = {row["id"] for row in library.rows() if (row.get("year") or 0) >= 2014 and row["folder"] == "trip"}
    assert {picture.id for picture in chosen} == wanted
    assert len(chosen) == len(wanted) > 0
    with pytest.raises(UserError):
        select_by_condition(library, "no_such_column = 1")


@pytest.mark.parametrize("placing", ["copy", "link", "symlink"])
def test_an_export_has_every_picture_and_a_table(library, photos, tmp_path, placing):
    out = tmp_path / "out"
    report = export_folder(library, all_of(library), out, placing=placing)
    assert (report.pictures, report.problems) == (12, ())
    rows = table((out / "selection.csv").read_text())
    assert {row["file"] for row in rows} | {"selection.csv", "selection.json"} == {file.name for file in out.iterdir()}
    for row in rows:
        file = out / row["file"]
        original = library.item(row["id"]).path
        assert file.read_bytes() == original.read_bytes()
        assert file.is_symlink() == (placing == "symlink")
        assert os.path.samefile(file, original) == (placing != "copy")
    assert [float(row["score"]) for row in rows] == pytest.approx([1 / rank for rank in range(1, 13)])
    records = json.loads((out / "selection.json").read_text())["pictures"]
    assert [record["id"] for record in records] == [row["id"] for row in rows]
    assert records[2]["metadata"] == library.item(records[2]["id"]).metadata


def test_equal_names_get_a_number_and_missing_files_are_reported(models, tmp_path, photograph, by_path):
    photos = tmp_path / "photos"
    for seed, name in enumerate(("a/dog.jpg", "b/dog.jpg", "c/DOG.jpg", "c/selection.csv.jpg", "gone.jpg")):
        photograph(photos / name, seed)
    index_source(models, photos, tmp_path / "library")
    library = Library.open(tmp_path / "library")
    (photos / "gone.jpg").unlink()
    report = export_folder(library, [*all_of(library), SelectedPicture("unknown")], tmp_path / "out")
    assert report.pictures == 4
    names = {file.name for file in (tmp_path / "out").iterdir()} - {"selection.csv", "selection.json"}
    assert names == {"dog.jpg", "dog (2).jpg", "DOG (3).jpg", "selection.csv.jpg"}
    assert {id for id, _ in report.problems} == {"unknown", by_path(library)["gone.jpg"]}
    problems = json.loads((tmp_path / "out" / "selection.json").read_text())["problems"]
    assert len(problems) == 2


def test_a_folder_that_is_not_empty_is_refused(library, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not an empty folder"):
        export_folder(library, all_of(library), tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_full_disk_leaves_no_folder(library, tmp_path, full_disk):
    with full_disk(), pytest.raises(OSError):
        export_folder(library, all_of(library), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_a_zip_has_the_files_of_the_folder(library, tmp_path):
    export_folder(library, all_of(library), tmp_path / "out")
    parts = list(zip_parts(library, all_of(library), hidden=("year",)))
    assert len(parts) == 13  # a part for each picture, and the end
    with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as archive:
        assert archive.testzip() is None
        assert set(archive.namelist()) == {file.name for file in (tmp_path / "out").iterdir()}
        for name in archive.namelist():
            if name.endswith(".jpg"):
                assert archive.read(name) == (tmp_path / "out" / name).read_bytes()
        shown, hidden = table((tmp_path / "out" / "selection.csv").read_text()), archive.read("selection.csv").decode()
        assert "year" in shown[0]
        assert "year" not in table(hidden)[0]


def test_texts_of_the_table_are_no_formulas():
    assert [selection.plain_cell(text) for text in ("=cmd()", "@x", "a=b", 3, -1.5, None)] == [
        "'=cmd()", "'@x", "a=b", 3, -1.5, None,
    ]  # fmt: skip


# The command line.


def test_searches_are_saved_run_listed_and_deleted(indexed, calligram):
    saved = calligram("search", indexed, "2:a red disc", "--minus", "snow", "--all", "--save", "Discs", "--json")
    assert saved.returncode == 0, saved.stderr
    again = calligram("search", indexed, "--saved", "Discs", "--json")
    assert json.loads(again.stdout)["hits"] == json.loads(saved.stdout)["hits"] != []
    (listed,) = json.loads(calligram("searches", indexed, "--json").stdout)
    assert (listed["q"], listed["plus"], listed["minus"], listed["all"]) == ("", ["2:a red disc"], ["snow"], True)
    assert "Discs" in calligram("searches", indexed).stdout
    assert calligram("search", indexed, "snow", "--saved", "Discs").returncode == 2
    assert calligram("searches", indexed, "--delete", "Discs").returncode == 0
    assert "no saved searches" in calligram("searches", indexed).stdout
    refused = calligram("searches", indexed.parent)
    assert refused.returncode == 2
    assert "not a library" in refused.stderr


def test_a_picture_cannot_be_saved(indexed, photos, calligram):
    done = calligram("search", indexed, "--image", photos / "photo_0.jpg", "--save", "Mine")
    assert done.returncode == 2
    assert "no pictures" in done.stderr
    assert saved_searches(indexed) == []


def test_export_takes_a_query_a_condition_or_a_saved_search(indexed, tmp_path, calligram):
    found = json.loads(calligram("search", indexed, "a red disc", "-k", 5, "--all", "--json").stdout)["hits"]
    done = calligram("export", indexed, "--query", "a red disc", "-k", 5, "--all", "--out", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    assert "5 pictures" in done.stdout
    rows = table((tmp_path / "a" / "selection.csv").read_text())
    assert [(row["id"], float(row["score"])) for row in rows] == [(hit["id"], hit["score"]) for hit in found]
    assert calligram("export", indexed, "--where", "folder = 'trip'", "--out", tmp_path / "b").returncode == 0
    assert len(table((tmp_path / "b" / "selection.csv").read_text())) == 8
    save_search(indexed, SavedSearch("Trip", where="folder = 'trip'"))
    done = calligram("export", indexed, "--saved", "Trip", "--out", tmp_path / "c", "--placing", "symlink")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c" / "selection.csv").read_text() == (tmp_path / "b" / "selection.csv").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "x"], "nothing is selected"),
        (["--query", "dog"], "give --onnx FOLDER for a run, --webdataset"),
        (["--onnx", "y", "--out", "x"], "give --onnx FOLDER for a run, --webdataset"),
        (["--out", "x", "--saved", "a", "--query", "dog"], "leave out --query"),
        (["--out", "x", "--saved", "a"], "has no saved searches"),
    ],
)
def test_export_refuses_what_it_cannot_do(indexed, tmp_path, calligram, arguments, said):
    done = calligram("export", indexed, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "x").exists()
