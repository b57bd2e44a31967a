"""``calligram index FOLDER`` without a matcher and without a library, with a cache of models and a data folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from PIL import Image

from calligram.cli.index import _trained
from calligram.errors import UserError
from calligram.search.library import defaults
from calligram.search.library.defaults import DEFAULT_MODEL, data_folder, default_matcher, find_library, library_of
from calligram.search.library.library import Library


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder with photographs."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # --offline sets it, and it is restored
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "photos").mkdir()
    for seed in range(3):
        pixels = np.random.default_rng(seed).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{seed}.png")
    return tmp_path


@pytest.fixture
def cache(home, tiny_clip, monkeypatch):
    """A cache of the hub that holds a tiny model under the name of the default one, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    folder = home / "hub" / f"models--{DEFAULT_MODEL.name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc123")
    shutil.copytree(tiny_clip, folder / "snapshots" / "abc123")


def test_a_folder_becomes_a_library_that_search_finds(home, cache, calligram):
    done = calligram("index", "photos", "--offline", "--device", "cpu", cwd=home)
    assert done.returncode == 0, done.stderr
    library = library_of(home / "photos")
    assert f"{library} contains 3 pictures" in done.stdout
    assert "downloading" not in done.stderr
    assert Library.open(library).manifest.matcher.source == DEFAULT_MODEL.name
    found = calligram("search", "a red dog", "--all", "--json", cwd=home)
    assert len(json.loads(found.stdout)["hits"]) == 3, found.stderr
    assert f"library: {library}" in found.stderr
    listed = json.loads(calligram("models", "--json").stdout)
    assert [model["default"] for model in listed] == [True, False, False]
    assert listed[0]["folder"] is not None
    assert listed[1]["folder"] is None
    printed = calligram("models").stdout
    assert DEFAULT_MODEL.name in printed
    assert "91.4 / 80.5" in printed
    assert "published in the table of CLIP_benchmark" in printed
    assert "measured by this project" in printed


def test_the_presets_that_models_lists_have_the_numbers_of_the_leaderboard():
    listed = _trained()
    assert [row[0].split()[0] for row in listed][:2] == ["best-ensemble", "best"]
    board = (Path(__file__).parents[2] / "docs" / "results" / "leaderboard.md").read_text().splitlines()
    for preset, recalls, rsum, seeds, _ in listed:
        first, second = recalls.split(" / ")
        row = next(line for line in board if line.startswith("| flickr8k") and f"| {rsum}" in line)
        assert [cell.split(" / ")[1] for cell in row.split(" | ")[2:4]] == [first, second], preset
        assert row.split(" | ")[6] == seeds
        assert ("†" in row) == ("†" in preset)


def test_a_library_keeps_its_matcher(home, tiny_clip, calligram):
    """``index Photos --out lib`` needs no matcher where the library has one."""
    done = calligram("index", tiny_clip, "photos", "--out", "lib", "--device", "cpu", cwd=home)
    assert done.returncode == 0, done.stderr
    Image.new("RGB", (32, 24), "red").save(home / "photos" / "red.png")
    done = calligram("index", "photos", "--out", "lib", "--device", "cpu", cwd=home)
    assert "1 new" in done.stdout, done.stderr
    assert Library.open(home / "lib").manifest.matcher.source == str(tiny_clip)


def test_offline_without_a_model_one_error_says_the_three_ways_on(home, calligram, monkeypatch):
    monkeypatch.setattr(defaults, "cached_folder", lambda name: None)
    done = calligram("index", "photos", "--offline", cwd=home)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    for way in ("(1) run the command again with a network", "(2) download the model elsewhere", "(3) train a matcher"):
        assert way in done.stderr
    monkeypatch.setattr(defaults, "hub_answers", lambda: False)
    with pytest.raises(UserError, match="the Hugging Face hub cannot be reached"):
        default_matcher(offline=False)
    monkeypatch.setattr(defaults, "hub_answers", lambda: True)
    assert default_matcher(offline=False) == (DEFAULT_MODEL.name, True)


def test_which_library_is_meant(home, tiny_clip, calligram, monkeypatch):
    done = calligram("search", "a dog", cwd=home)
    assert "a dog is not a library; no library is given, and there is none in" in done.stderr
    assert calligram("serve", cwd=home).returncode == 2
    shutil.copytree(home / "photos", home / "more")
    for name in ("photos", "more"):
        done = calligram("index", tiny_clip, name, "--device", "cpu", cwd=home)
        assert done.returncode == 0, done.stderr
    done = calligram("search", "a dog", cwd=home)
    assert "several libraries could be meant" in done.stderr
    assert str(home / "more") in done.stderr
    monkeypatch.chdir(home / "more")
    assert find_library() == library_of(home / "more")
    assert find_library(Path("other")) == Path("other")
    assert data_folder() == home / "data" / "calligram"
    done = calligram("index", library_of(home / "photos") / "nowhere")
    assert "SOURCE is a folder of pictures" in done.stderr
