from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord
from calligram.data.pictures import PictureError
from calligram.data.write_collection import write_draft
from calligram.errors import UserError


def test_sentences_hold_a_split_and_only_its_captions(tiny: Collection) -> None:
    pairing = tiny.sentences("dev")
    assert len(pairing.visuals) == 6
    assert len(pairing.texts) == 14
    assert all(i.startswith("dev") for i in pairing.visuals.ids + pairing.texts.ids)
    shared = pairing.texts.ids.index("dev-shared")
    assert [pairing.visuals.ids[v] for v in pairing.matches.visuals_of(shared)] == ["dev-0", "dev-3"]


def test_the_split_all_has_every_image(tiny: Collection) -> None:
    assert len(tiny.sentences("all").visuals) == 18


def test_an_unknown_split_is_refused_with_the_nearest_name(tiny: Collection) -> None:
    with pytest.raises(UserError, match="unknown split 'tests'; did you mean 'test'"):
        tiny.sentences("tests")


def test_an_empty_split_is_refused_with_a_hint(tiny_draft, tmp_path) -> None:
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    for image in draft.images:
        image.split = None
    collection = write_draft(draft, tmp_path / "collection")
    with pytest.raises(UserError, match=r"unknown split 'train'; known: all\. Give a captions file a column 'split'"):
        collection.sentences("train")


def test_identities_match_every_image_of_the_same_person(tiny: Collection) -> None:
    pairing = tiny.identities("test")
    text = pairing.texts.ids.index("test-1#0")
    assert [pairing.visuals.ids[v] for v in pairing.matches.visuals_of(text)] == ["test-1", "test-3", "test-5"]


def test_phrases_pair_regions_with_the_words_that_refer_to_them(tiny: Collection) -> None:
    pairing = tiny.phrases("train")
    assert (len(pairing.visuals), len(pairing.texts)) == (6, 6)
    assert pairing.texts.strings[0] == "red disc"
    assert pairing.visuals.open(0).size == (25, 25)


def test_a_folder_without_a_collection_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a collection .* make one with"):
        Collection.open(tmp_path)


def test_a_collection_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "collection.json").write_text(json.dumps({"format": "calligram-collection", "version": 99}))
    with pytest.raises(UserError, match="has collection version 99"):
        Collection.open(tmp_path)


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "collection.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        Collection.open(tmp_path)


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    made = write_draft(Draft("made", [ImageRecord("a", None)]), tmp_path / "c")
    (made.folder / "images.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"images\.parquet is damaged"):
        Collection.open(made.folder).table("images")


def test_an_image_without_a_picture_is_refused_with_the_reason(tmp_path: Path) -> None:
    made = write_draft(Draft("made", [ImageRecord("a", None)]), tmp_path / "c")
    with pytest.raises(PictureError, match="image a has no picture, only features"):
        made.pictures.open(0)


def test_a_missing_picture_file_is_reported_with_its_image(tmp_path: Path, tiny: Collection) -> None:
    path = tiny.pictures.path(0)
    assert path is not None
    moved = path.rename(tmp_path / "elsewhere.png")
    try:
        with pytest.raises(PictureError, match="image train-0: no such file"):
            tiny.pictures.open(0)
    finally:
        moved.rename(path)


def test_features_are_taken_by_image_across_files(tmp_path: Path) -> None:
    files = [tmp_path / "0.npy", tmp_path / "1.npy"]
    np.save(files[0], np.zeros((2, 3), dtype=np.float32))
    np.save(files[1], np.ones((1, 3), dtype=np.float64))
    images = [ImageRecord(str(n), None, "train", feature_rows={"images": 2 - n}) for n in range(3)]
    made = write_draft(Draft("made", images, features={"images": files}), tmp_path / "c")
    stored = made.sentences("train").visuals.features["images"]
    assert stored.row_shape == (3,)
    assert stored.take(np.array([0, 2, 0]))[:, 0].tolist() == [1, 0, 1]


def test_images_without_stored_features_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.zeros((1, 3), dtype=np.float32))
    images = [ImageRecord("a", None, feature_rows={"images": 0}), ImageRecord("b", None)]
    made = write_draft(Draft("made", images, features={"images": [tmp_path / "0.npy"]}), tmp_path / "c")
    with pytest.raises(UserError, match="1 of 2 images have no stored features"):
        made.features["images"].take(np.array([0, 1]))


def test_images_without_a_split_are_counted_under_the_empty_name(tmp_path: Path) -> None:
    images = [ImageRecord("a", None, "train"), ImageRecord("b", None)]
    made = write_draft(Draft("made", images, [CaptionRecord("c", "x", ("a",))]), tmp_path / "c")
    assert made.splits() == {"train": 1, "": 1}


def test_a_listed_table_without_its_file_is_reported_as_missing(tmp_path: Path) -> None:
    draft = Draft("lost", [ImageRecord("a", None)], [CaptionRecord("c", "x", ("a",))])
    made = write_draft(draft, tmp_path / "made")
    (tmp_path / "made/captions.parquet").unlink()
    with pytest.raises(UserError, match=r"captions\.parquet is missing, yet .* import the collection again"):
        made.table("captions")
    with pytest.raises(UserError, match="has no also_true"):
        made.table("also_true")
