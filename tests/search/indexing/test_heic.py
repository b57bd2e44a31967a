"""HEIC pictures in a folder: problems with advice where their reader is missing, items of the library where it is."""

from __future__ import annotations

import io

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from calligram import picture_formats
from calligram.extras import install_command
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.serve.guard import browser_picture, media_type, without_place


@pytest.fixture
def phone(tmp_path, photograph):
    """A JPEG, a HEIC, and a file with the name of a raw file that is none."""
    folder = tmp_path / "phone"
    photograph(folder / "a.jpg", 0)
    pillow_heif.register_heif_opener()
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (36, 48, 3), dtype=np.uint8)).save(folder / "b.HEIC")
    (folder / "c.NEF").write_bytes(b"not a picture")
    return folder


def test_a_folder_of_a_phone(phone, models, small_run, tmp_path, calligram, monkeypatch):
    library = tmp_path / "library"
    monkeypatch.setattr(picture_formats, "missing_modules", lambda *names: list(names))
    done = calligram("index", small_run, phone, "--out", library, "--device", "cpu")
    assert "files that could not be used: 2" in done.stdout, done.stderr
    listed = calligram("index", "--problems", library).stdout
    assert f"{phone / 'b.HEIC'}: HEIC pictures need pillow-heif; install it with: {install_command('heic')}" in listed
    assert f"raw pictures need rawpy; install it with: {install_command('raw')}" in listed
    monkeypatch.undo()
    assert index_source(models, phone, library).counts["added"] == 1
    opened = Library.open(library)
    assert [reason.partition(" (")[0] for _, reason in opened.problems()] == ["not a picture in a known format"]
    item = next(item for item in opened.items(opened.sample(9)) if item.name == "b.HEIC")
    shown = opened.thumbnail(item.id), browser_picture(opened.picture(item.id)), without_place(opened.picture(item.id))
    assert [Image.open(io.BytesIO(data)).format for data in shown] == ["JPEG"] * 3
    assert media_type(opened.picture(item.id)) == "image/heic"


def test_import_says_what_is_missing_and_reads_it_later(phone, tmp_path, calligram, monkeypatch):
    monkeypatch.setattr(picture_formats, "missing_modules", lambda *names: list(names))
    done = calligram("import", "folder", phone, tmp_path / "one")
    assert done.returncode == 0, done.stderr
    assert f"install it with: {install_command('heic')}" in calligram("info", tmp_path / "one", "--problems").stdout
    monkeypatch.undo()
    calligram("import", "folder", phone, tmp_path / "two")
    assert calligram("info", tmp_path / "two").stdout.startswith("phone: 2 images")
