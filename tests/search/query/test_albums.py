"""Albums: they are stored durably, keep their order, count what left the library, and suggest pictures."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calligram.errors import UserError
from calligram.search.indexing.forget import forget_items
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.query import albums
from calligram.search.query.album_suggestions import (
    LibrarySample,
    album_direction,
    example_direction,
    name_weight,
    suggest_pictures,
)
from calligram.search.query.albums import (
    Album,
    album_items,
    change_album,
    delete_album,
    find_album,
    ids_of,
    read_albums,
    rename_album,
)
from calligram.search.query.searcher import Searcher


def test_an_album_is_begun_changed_renamed_and_deleted(tmp_path):
    assert read_albums(tmp_path) == []
    assert change_album(tmp_path, "Dogs", add=["b", "a", "b"]) == Album("Dogs", ("b", "a"))
    change_album(tmp_path, "Été 🏖")
    change_album(tmp_path, "Dogs", add=["c"], reject=["x", "b"])
    assert find_album(tmp_path, "Dogs") == Album("Dogs", ("a", "c"), ("x", "b"))
    change_album(tmp_path, "Dogs", add=["x"], remove=["b", "a", "never there"])
    assert find_album(tmp_path, "Dogs") == Album("Dogs", ("c", "x"))
    rename_album(tmp_path, "Dogs", "Cats")
    assert [album.name for album in read_albums(tmp_path)] == ["Cats", "Été 🏖"]
    assert delete_album(tmp_path, "Cats") == Album("Cats", ("c", "x"))
    assert read_albums(tmp_path) == [Album("Été 🏖")]


def test_an_unchanged_album_is_not_written_again(tmp_path):
    change_album(tmp_path, "Dogs", add=["a"])
    before = (tmp_path / "albums.json").stat()
    change_album(tmp_path, "Dogs", add=["a"], remove=["z"])
    rename_album(tmp_path, "Dogs", "Dogs")
    assert (tmp_path / "albums.json").stat().st_ino == before.st_ino


def test_unknown_and_wrong_names_are_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match="has no albums"):
        find_album(tmp_path, "Dogs")
    change_album(tmp_path, "Dogs")
    change_album(tmp_path, "Cats")
    for use in (delete_album, find_album, lambda folder, name: change_album(folder, name, reject=["a"])):
        with pytest.raises(UserError, match="unknown album 'Dog'; did you mean 'Dogs'"):
            use(tmp_path, "Dog")
    with pytest.raises(UserError, match="there is an album 'Cats' already"):
        rename_album(tmp_path, "Dogs", "Cats")
    for name in (" ", "x" * 101, "a\nb", "\ud800"):
        with pytest.raises(UserError, match="the name of an album has 1 to 100 printable characters"):
            change_album(tmp_path, name)


def test_there_are_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(albums, "MAX_ALBUMS", 2)
    monkeypatch.setattr(albums, "MAX_ALBUM_PICTURES", 3)
    monkeypatch.setattr(albums, "MAX_STORED_IDS", 5)
    change_album(tmp_path, "a", add=["1", "2", "3"])
    change_album(tmp_path, "b", reject=[], add=["1"])
    with pytest.raises(UserError, match="has 2 albums; delete some"):
        change_album(tmp_path, "c")
    with pytest.raises(UserError, match="at most 3 pictures"):
        change_album(tmp_path, "a", add=["4"])
    with pytest.raises(UserError, match="at most 5 pictures together"):
        change_album(tmp_path, "b", add=["2", "3"])
    assert [album.pictures for album in read_albums(tmp_path)] == [("1", "2", "3"), ("1",)]


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format": "calligram-albums", "version": 1, "albums": [{}]}',
     '{"format": "calligram-albums", "version": 1, "albums": [{"name": "a", "pictures": [3]}]}'],
)  # fmt: skip
def test_a_damaged_file_is_refused_and_stays(tmp_path, content):
    (tmp_path / "albums.json").write_text(content)
    for use in (lambda: read_albums(tmp_path), lambda: change_album(tmp_path, "Dogs")):
        with pytest.raises(UserError, match="damaged"):
            use()
    assert (tmp_path / "albums.json").read_text() == content


def test_a_file_of_a_newer_version_is_refused(tmp_path):
    (tmp_path / "albums.json").write_text(json.dumps({"format": "calligram-albums", "version": 2, "albums": []}))
    with pytest.raises(UserError, match="newer calligram"):
        change_album(tmp_path, "Dogs")


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: change_album(tmp_path, f"album {n % 2}", add=[str(n)]), range(40)))
    assert {id for album in read_albums(tmp_path) for id in album.pictures} == {str(n) for n in range(40)}


def test_a_killed_writer_loses_no_answer(tmp_path, preloaded):
    code = """
import sys
from pathlib import Path
from calligram.search.query.albums import change_album
for n in range(100_000):
    change_album(Path(sys.argv[1]), "Dogs", **{"reject" if n % 3 else "add": [str(n)]})
    print(n, flush=True)
"""
    with preloaded.start(code, tmp_path) as writer:
        for _ in range(40):
            assert writer.stdout.readline()
        writer.kill()
        told = 40 + len(writer.stdout.read().splitlines())
    album = find_album(tmp_path, "Dogs")
    stored = {int(id) for id in (*album.pictures, *album.rejected)}
    assert stored in (set(range(told)), set(range(told + 1)))
    change_album(tmp_path, "Dogs", add=["one more"])  # the lock of a dead process is free


# Albums and a library.


def test_indexing_rebuilding_and_forgetting_leave_albums(models, photos, indexed, by_path):
    ids = by_path(Library.open(indexed))
    chosen = [ids[path] for path in sorted(ids)[:4]]
    change_album(indexed, "Some", add=chosen)
    forget_items(indexed, [chosen[0]])
    gone = Library.open(indexed).item(chosen[1]).path
    content = gone.read_bytes()
    gone.unlink()
    index_source(models, photos, indexed)
    found = album_items(Library.open(indexed), find_album(indexed, "Some").pictures)
    assert ([item.id for item in found.items], found.missing) == (chosen[2:], 2)
    gone.write_bytes(content)
    index_source(models, photos, indexed)
    index_source(models, photos, indexed, rebuild=True)
    found = album_items(Library.open(indexed), find_album(indexed, "Some").pictures)
    assert ([item.id for item in found.items], found.missing) == (chosen[1:], 1)


@pytest.fixture
def searcher(indexed) -> Searcher:
    return Searcher.open(indexed, measure_costs=False)


def test_a_search_within_ids_equals_a_search_of_everything_that_is_filtered(searcher):
    ids = searcher.library.sample(12)
    inside = ids[1:9]
    for query, hybrid in (("a red disc", False), ("photo_3", None), ("trip", True), ("trip photo_1", None)):
        for where in (None, "folder = 'trip'"):
            whole = searcher.images(query, 12, where=where, all=True, hybrid=hybrid)
            found = searcher.images(query, 12, where=where, all=True, hybrid=hybrid, within=[*inside, "unknown"])
            scores = {hit.id: hit.score for hit in whole.hits if hit.id in inside}
            assert {hit.id: hit.score for hit in found.hits} == pytest.approx(scores, abs=1e-5)
            if hybrid is False:
                assert [hit.id for hit in found.hits] == [hit.id for hit in whole.hits if hit.id in inside]
            assert found.recall is None
    assert searcher.images("a red disc", 12, all=True, within=[]).hits == ()


def test_files_and_ids_name_pictures(searcher, photos, monkeypatch):
    library = searcher.library
    ids = library.sample(3)
    path = library.item(ids[0]).path
    monkeypatch.chdir(path.parent)
    assert ids_of(library, [path.name, ids[1], str(path)]) == [ids[0], ids[1]]
    with pytest.raises(UserError, match=r"no picture with the id or path 'no\.jpg'; nothing was changed"):
        ids_of(library, [ids[1], "no.jpg"])


# The classifier.


def clouds(dim: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors of a library, in which the first 30 of 300 are shifted; and the shift."""
    vectors = np.random.default_rng(0).normal(size=(300, dim))
    vectors[:30, -1] += 2.5
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), np.arange(300) < 30, np.eye(dim, dtype=np.float32)[-1]


def precision(direction: np.ndarray, vectors: np.ndarray, true: np.ndarray, without: list[int]) -> float:
    order = [row for row in np.argsort(-(vectors @ direction)) if row not in without]
    return float(true[order[:20]].mean())


def test_the_classifier_by_hand():
    """The sample has the mean (0, 0), and the scores of the name (1, 0) have the standard deviation 1 there."""
    usual = np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]], dtype=np.float32)
    examples, rejected = np.array([[2, 1], [4, 1]], dtype=np.float32), np.array([[2, 4]], dtype=np.float32)
    name = np.array([1, 0], dtype=np.float32)
    assert example_direction(usual, examples, rejected[:0]).tolist() == [3, 1]
    assert example_direction(usual, examples, rejected).tolist() == [3 - 1, 1 - 2]
    assert name_weight(usual, name, examples[:0]) == pytest.approx(1.5)
    assert name_weight(usual, name, examples) == pytest.approx((2 + 4 + 1.5) / 3)
    assert name_weight(usual, -name, examples) == 0  # the examples contradict it
    learnt = 0.5 * np.array([3, 1]) / np.sqrt(10)  # scores of (3, 1) over the sample: 4, -4, 2, -2
    wanted = np.array([2.5, 0]) + learnt
    found = album_direction(usual, name, examples, rejected[:0])
    assert found == pytest.approx(wanted / np.linalg.norm(wanted), abs=1e-6)


def test_examples_and_rejected_pictures_improve_the_direction():
    vectors, true, axis = clouds()
    none = vectors[:0]
    three = album_direction(vectors[30:], None, vectors[:3], none)
    ten = album_direction(vectors[30:], None, vectors[:10], none)
    assert np.linalg.norm(ten) == pytest.approx(1, abs=1e-5)
    assert ten @ axis > three @ axis > 0.5
    assert precision(ten, vectors, true, list(range(10))) > 0.5  # by chance 0.07
    wrong = [row for row in np.argsort(-(vectors @ three)) if not true[row]][:5]
    taught = album_direction(vectors[30:], None, vectors[:3], vectors[wrong])
    assert (vectors[wrong] @ taught).mean() < (vectors[wrong] @ three).mean()


def test_without_examples_the_name_is_the_direction_and_without_both_there_is_none():
    vectors, _, axis = clouds()
    none = vectors[:0]
    assert album_direction(vectors, axis, none, none) == pytest.approx(axis, abs=1e-6)
    assert album_direction(vectors, None, none, vectors[:2]) is None
    examples, other = vectors[:10], np.eye(8, dtype=np.float32)[0]
    alone = album_direction(vectors, None, examples, none)
    assert album_direction(vectors, axis, examples, none) @ axis > alone @ axis
    misled = album_direction(vectors, other, examples, none)
    assert misled @ axis > misled @ other  # a name that does not fit counts less than the examples
    assert name_weight(vectors, axis, examples) > 1 > 0.5 > name_weight(vectors, other, examples)


def test_suggestions_leave_out_what_is_answered_and_follow_the_name_at_first(searcher):
    library, sample = searcher.library, LibrarySample()
    first = suggest_pictures(searcher, Album("a red disc"), 12, sample)
    nearest = searcher.images("a red disc", 12, all=True, hybrid=False).hits
    assert (first.learnt_from, first.examples) == ("name", 0)
    assert [item.id for item in first.items] == [hit.id for hit in nearest]
    ids = [item.id for item in first.items]
    album = Album("a red disc", tuple(ids[:2]), tuple(ids[2:5]))
    second = suggest_pictures(searcher, album, 3, sample)
    assert (second.learnt_from, second.examples, second.rejected) == ("both", 2, 3)
    assert len(second.items) == 3
    assert not {item.id for item in second.items} & set(ids[:5])
    assert suggest_pictures(searcher, album, 3) == second  # the sample is kept, and is the same
    assert [item.score for item in second.items] == sorted((item.score for item in second.items), reverse=True)
    whole = Album("a red disc", tuple(library.sample(12)))
    assert suggest_pictures(searcher, whole, 3).items == []
    unknown = suggest_pictures(searcher, Album("zyzzyva"), 3)
    assert (unknown.learnt_from, unknown.items) == ("nothing", [])
    with pytest.raises(UserError, match="at least 1"):
        suggest_pictures(searcher, album, 0)


# The command line.


def test_albums_on_the_command_line(indexed, photos, tmp_path, calligram):
    assert "no albums" in calligram("albums", indexed).stdout
    found = calligram("search", indexed, "a red disc", "-k", 3, "--all", "--paths").stdout
    added = calligram("albums", indexed, "Discs", "-", "--add", input=found)
    assert (added.returncode, added.stdout) == (0, "Discs: 3 pictures\n"), added.stderr
    assert calligram("albums", indexed, "Discs").stdout == found
    paths = found.splitlines()
    assert calligram("albums", indexed, "Discs", paths[1], "--reject").stdout == "Discs: 2 pictures, 1 rejected\n"
    (listed,) = json.loads(calligram("albums", indexed, "--json").stdout)
    assert (listed["name"], len(listed["pictures"]), len(listed["rejected"])) == ("Discs", 2, 1)
    inside = json.loads(calligram("search", indexed, "a red disc", "--album", "Discs", "--all", "--json").stdout)
    assert [hit["path"] for hit in inside["hits"]] == [paths[0], paths[2]]
    done = calligram("export", indexed, "--album", "Discs", "--out", tmp_path / "out")
    assert (done.returncode, "2 pictures" in done.stdout) == (0, True), done.stderr
    suggested = calligram("albums", indexed, "Discs", "--suggest", 4).stdout.splitlines()
    assert len(suggested) == 4
    assert not set(suggested) & set(paths)
    assert calligram("albums", indexed, "Discs", "--rename", "Circles").returncode == 0
    assert "2 pictures stay" in calligram("albums", indexed, "Circles", "--delete").stdout
    assert read_albums(indexed) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--delete"], "which album"),
        (["Dogs", "a.jpg"], "give --add, --remove or --reject"),
        (["Dogs", "--delete", "--suggest", "3"], "give one of"),
        (["Dogs"], "has no albums"),
        (["Dogs", "no.jpg", "--add"], "no picture with the id or path 'no.jpg'"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(indexed, calligram, arguments, said):
    done = calligram("albums", indexed, *arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert read_albums(indexed) == []
