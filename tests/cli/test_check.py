"""``calligram check``: damage of each kind is listed, what can be made again is mended, and answers are as before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from calligram.data.collection import Collection
from calligram.scenes.generate import generate_scenes

SMALL = ("epochs=1", "batch=8", "dim=8", "image.size=16", "image.channels=4", "text.hidden=8", "text.word_dim=8")


def flip(file: Path, place: float = 0.4) -> None:
    """Change one bit."""
    data = bytearray(file.read_bytes())
    data[int(place * len(data))] ^= 1
    file.write_bytes(data)


def hits(calligram, library: Path) -> object:
    """The hits of a search."""
    return json.loads(calligram("search", library, "a dog", "--json").stdout)["hits"]


def all_hits(calligram, library: Path) -> list[str]:
    """Ids of all pictures, the best first."""
    found = calligram("search", library, "a dog", "--all", "--json", "-k", "99").stdout
    return [hit["id"] for hit in json.loads(found)["hits"]]


@pytest.fixture(scope="module")
def made(made_once, calligram):
    def make(folder: Path) -> None:
        generate_scenes(folder / "scenes", images=30, size=24)
        settings = [word for size in SMALL for word in ("--set", size)]
        scenes, run, library = (str(folder / name) for name in ("scenes", "run", "library"))
        for words in (
            ["train", "vse", scenes, "--out", run, "--device", "cpu", *settings],
            ["index", run, scenes, "--out", library, "--device", "cpu"],
        ):
            done = calligram(*words)
            assert done.returncode == 0, done.stderr

    return made_once("checked", make)


@pytest.fixture
def copied(made, tmp_path):
    """Gives a copy of a folder."""
    return lambda name: Path(shutil.copytree(made / name, tmp_path / name))


@pytest.mark.parametrize("name", ["scenes", "run", "library"])
def test_without_damage_the_exit_code_is_0(made, calligram, name):
    done = calligram("check", made / name)
    assert (done.returncode, done.stdout) == (0, "no damage\n")


@pytest.mark.parametrize(
    "table", ["tables/items", "tables/thumbnails", "tables/captions", "index/images", "index/captions"]
)
def test_damaged_rows_of_a_library_are_encoded_again(copied, calligram, table):
    library = copied("library")
    wanted = hits(calligram, library)
    (damaged,) = (library / f"1/{table}.lance/data").iterdir()
    flip(damaged)
    listed = calligram("check", library)
    assert listed.returncode == 1
    assert f"damaged: {damaged}: its content is not what was written; up to" in listed.stdout
    mended = calligram("check", library, "--repair", "--device", "cpu")
    assert (mended.returncode, mended.stdout.splitlines()[-1]) == (0, "no damage"), mended.stdout + mended.stderr
    assert hits(calligram, library) == wanted
    assert calligram("check", library).returncode == 0


@pytest.mark.parametrize("kind", ["index of a table", "version", "gone"])
def test_a_library_is_mended_whatever_is_damaged(copied, calligram, kind):
    library = copied("library")
    table = library / "1/tables/items.lance"
    wanted = hits(calligram, library)
    if kind == "index of a table":
        flip(next(table.glob("_indices/*/part_0_invert.lance")))
    elif kind == "version":
        flip(sorted(table.glob("_versions/*.manifest"))[0])
    else:
        shutil.rmtree(table)
    assert calligram("search", library, "a dog").returncode == 2
    assert calligram("check", library).returncode == 1
    mended = calligram("check", library, "--repair", "--device", "cpu")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert hits(calligram, library) == wanted


def test_a_repair_removes_what_killed_processes_left(copied, calligram):
    library = copied("library")
    left = [library / ".library.json.partial", library / "1" / ".searches.json.partial", library / "7"]
    for file in left[:2]:
        file.write_text("{")
    left[2].mkdir()
    assert calligram("check", library).returncode == 0
    assert all(path.exists() for path in left)
    assert calligram("check", library, "--repair").returncode == 0
    assert not any(path.exists() for path in left)


def test_a_damaged_manifest_of_a_library_is_rebuilt_by_index(copied, made, calligram):
    library = copied("library")
    flip(library / "library.json")
    for words in (("search", library, "a dog"), ("check", library), ("check", library, "--repair")):
        refused = calligram(*words)
        assert refused.returncode in (1, 2)
        assert "mends what can be made again" not in refused.stdout
    done = calligram("index", made / "run", made / "scenes", "--out", library, "--rebuild", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert calligram("check", library).returncode == 0


def test_damaged_weights_are_copied_from_the_state(copied, made, calligram):
    run = copied("run")
    before = (run / "best.safetensors").read_bytes()
    flip(run / "best.safetensors", 0.9)
    refused = calligram("evaluate", run, made / "scenes", "--device", "cpu")
    assert refused.returncode == 2
    assert "best.safetensors is damaged" in refused.stderr
    assert calligram("check", run).returncode == 1
    assert calligram("check", run, "--repair").returncode == 0
    assert (run / "best.safetensors").read_bytes() == before


def test_a_damaged_state_is_refused_and_dropped(copied, made, calligram):
    run = copied("run")
    flip(next(run.glob("state/*/matcher.safetensors")), 0.9)
    resumed = calligram("train", "vse", made / "scenes", "--out", run, "--resume", "--device", "cpu")
    assert (resumed.returncode, "is damaged" in resumed.stderr) == (2, True)
    assert "the run is complete" in calligram("check", run).stdout
    assert calligram("check", run, "--repair").returncode == 0


@pytest.mark.parametrize("name", ["captions.parquet", "collection.json", "shards/0000-pictures-000.tar"])
def test_damage_of_a_collection_is_listed_and_is_no_answer(copied, calligram, name):
    scenes = copied("scenes")
    flip(scenes / name)
    listed = calligram("check", scenes, "--repair")
    assert listed.returncode == 1
    assert f"damaged: {scenes / name}" in listed.stdout
    if name != "shards/0000-pictures-000.tar":
        assert calligram("info", scenes).returncode == 2


def test_another_folder_is_an_error(tmp_path, calligram):
    done = calligram("check", tmp_path)
    assert (done.returncode, "is none of a collection, a run and a library" in done.stderr) == (2, True)


@pytest.mark.parametrize("rebuilt", [False, True])
def test_forgotten_pictures_stay_forgotten_when_their_list_is_damaged(copied, made, calligram, rebuilt):
    library = copied("library")
    assert calligram("forget", library, *all_hits(calligram, library)[:2]).returncode == 0
    wanted = all_hits(calligram, library)
    table = library / "1/tables/forgotten.lance"
    flip(next(table.glob("_versions/*.manifest")) if rebuilt else next((table / "data").iterdir()))
    listed = calligram("check", library)
    assert "the list of forgotten pictures is restored from forgotten.json" in listed.stdout
    mended = calligram("check", library, "--repair", "--device", "cpu")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert all_hits(calligram, library) == wanted
    assert rebuilt or "0 pictures were encoded again" in mended.stdout
    again = calligram("index", made / "run", made / "scenes", "--out", library, "--again", "--device", "cpu")
    assert again.returncode == 0, again.stderr
    assert len(all_hits(calligram, library)) == len(wanted) + 2
    assert calligram("check", library).returncode == 0


def test_damaged_copies_saved_searches_and_albums_are_listed_and_mended(copied, calligram):
    library = copied("library")
    assert calligram("albums", library, "Dogs", "--add").returncode == 0
    flip(library / "albums.json")
    assert calligram("forget", library, all_hits(calligram, library)[0]).returncode == 0
    assert calligram("search", library, "a dog", "--save", "dogs").returncode == 0
    flip(library / "searches.json")
    flip(library / "1/forgotten.json")
    listed = calligram("check", library)
    assert (listed.returncode, listed.stdout.count("damaged: ")) == (1, 3), listed.stdout
    mended = calligram("check", library, "--repair", "--device", "cpu")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert (library / "searches.json.damaged").is_file()
    assert (library / "albums.json.damaged").is_file()
    assert json.loads((library / "1/forgotten.json").read_text())["pictures"]
    assert calligram("check", library).returncode == 0


def test_a_damaged_library_does_not_change_when_its_source_is_empty(copied, made, calligram, tmp_path):
    scenes = Collection.open(made / "scenes")
    (tmp_path / "photos").mkdir()
    for row in range(4):
        scenes.pictures.open(row).convert("RGB").save(tmp_path / f"photos/{row}.png")
    words = ("index", made / "run", tmp_path / "photos", "--out", tmp_path / "photos.library", "--device", "cpu")
    assert calligram(*words).returncode == 0
    flip(next((tmp_path / "photos.library/1/tables/thumbnails.lance/data").iterdir()))
    before = (tmp_path / "photos.library/library.json").read_bytes()
    for file in (tmp_path / "photos").iterdir():
        file.unlink()
    done = calligram(*words)
    assert (done.returncode, "is damaged" in done.stderr) == (2, True)
    assert (tmp_path / "photos.library/library.json").read_bytes() == before
