from __future__ import annotations

import pytest

from calligram.data.readers.catalog import READERS, import_collection
from calligram.errors import UserError


def test_the_catalogue_has_every_documented_format() -> None:
    ours = {"folder", "flickr8k", "karpathy", "coco", "entities", "cuhk-pedes", "scan"}
    assert set(READERS) == ours | {"csv", "webdataset", "img2dataset", "datasets"}


def test_an_unknown_format_is_refused_with_the_nearest(tmp_path) -> None:
    with pytest.raises(UserError, match="unknown format 'cocoa'; did you mean 'coco'"):
        import_collection("cocoa", tmp_path, tmp_path / "c")


def test_a_source_that_does_not_exist_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="does not exist; give the file or folder to import"):
        import_collection("folder", tmp_path / "none", tmp_path / "c")


def test_a_destination_that_contains_the_source_is_refused(tmp_path) -> None:
    (tmp_path / "c/photos").mkdir(parents=True)
    with pytest.raises(UserError, match="holds the source"):
        import_collection("folder", tmp_path / "c/photos", tmp_path / "c")


def test_an_existing_destination_is_refused_before_the_source_is_read(tmp_path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/notes.txt").write_text("mine")
    (tmp_path / "photos").mkdir()
    with pytest.raises(UserError, match="exists and is not a collection"):
        import_collection("folder", tmp_path / "photos", tmp_path / "c")


@pytest.mark.parametrize("format", sorted(READERS))
def test_an_empty_folder_is_refused_with_a_message(tmp_path, format: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match=r"no |must hold"):
        import_collection(format, tmp_path / "in", tmp_path / "c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.5), (1.2, -0.1, -0.1)])
def test_shares_that_do_not_sum_to_one_are_refused(tmp_path, pictures, shares) -> None:
    pictures(tmp_path / "in", "a.png")
    with pytest.raises(UserError, match="sum to 1"):
        import_collection("folder", tmp_path / "in", tmp_path / "c", split=shares)
