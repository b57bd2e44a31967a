"""``calligram serve`` and the end of ``calligram demo``; what is served is tested in ``tests/serve``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from calligram.cli.serve import serve
from calligram.errors import UserError
from calligram.extras import install_command


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "is not a library"),
        ({"host": "0.0.0.0"}, "other machines can reach 0.0.0.0; protect it with --token"),
        (
            {"host": "0.0.0.0", "open_": True, "collection": Path("c")},
            "could write into the collection; protect it with --token",
        ),
        ({"host": "nowhere.invalid", "open_": True}, "cannot listen on nowhere.invalid"),
        ({"token": "abc"}, "the token has 3 characters; give one of 8 to 200 characters"),
        ({"budget": 0.0}, "a budget of 0 milliseconds is out of range; give more than 0 and at most 10000"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
    ],
)
def test_invalid_options_are_reported(options, message, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        serve(tmp_path, **{"host": "127.0.0.1", "port": 0, **options})


def test_without_the_extra_the_error_says_how_to_install_it(calligram, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)  # as if it was not installed
    done = calligram("serve", tmp_path)
    assert done.returncode == 2
    assert f"the server needs fastapi; install it with: {install_command('serve')}" in done.stderr
    assert "Traceback" not in done.stderr


SMALL = ["epochs=1", "batch=32", "dim=8", "text.hidden=8", "text.word_dim=8"]


def test_the_demo_makes_a_library_of_new_scenes(tmp_path, monkeypatch, calligram):
    from calligram.cli import serve as demo
    from calligram.search.library.library import Library

    monkeypatch.setattr(demo, "SCENES_SIDE", 24)
    monkeypatch.setattr(demo, "LIBRARY_IMAGES", 30)
    monkeypatch.setattr(demo, "LIBRARY_SIDE", 40)
    settings = [word for setting in (*SMALL, "image.channels=4") for word in ("--set", setting)]
    done = calligram("demo", "--out", tmp_path, "--images", 500, *settings, "--no-serve")
    assert done.returncode == 0, done.stderr
    assert len(Library.open(tmp_path / "library")) == 30
    assert re.findall(r"^(\d)\. .*\(\d+ s\)$", done.stdout, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert done.stdout.count("\n  calligram ") == 3
    assert "TensorBoard" not in done.stderr
    demo.index_library(tmp_path, demo.new_scenes(tmp_path, seed=0))
    assert len(Library.open(tmp_path / "library")) == 30


def test_the_demo_shows_real_photographs_where_they_are(tmp_path, monkeypatch, assets):
    from calligram.cli import serve as demo
    from calligram.search.library.library import Library

    monkeypatch.setattr(demo, "PHOTOGRAPHS", {"train": 12, "dev": 4, "test": 4})
    monkeypatch.setattr(demo, "LIBRARY_IMAGES", 6)
    demo.demo(tmp_path, photographs=assets, set_=SMALL, serve=False)
    library = Library.open(tmp_path / "flickr8k" / "library")
    assert len(library) == 6
    assert library.item(library.sample(1)[0]).captions
    with pytest.raises(UserError, match="leave out --photographs"):
        demo.demo(tmp_path / "other", photographs=tmp_path, serve=False)
