from __future__ import annotations

import json

import pytest

from calligram.errors import UserError

SPLITS = ("train", "restval", "val", "test", "odd")


@pytest.fixture
def source(tmp_path, pictures):
    """Five images, one of each split, the first with seven captions."""
    folder = tmp_path / "in"
    images = []
    for number, split in enumerate(SPLITS):
        sentences = [{"raw": f"caption {number}.{n}", "tokens": ["caption"]} for n in range(7 if not number else 2)]
        images.append(
            {"filename": f"{number}.jpg", "filepath": "val2014", "imgid": number, "cocoid": 900 + number,
             "split": split, "sentences": sentences}
        )  # fmt: skip
        pictures(folder, f"val2014/{number}.jpg")
    (folder / "dataset_coco.json").write_text(json.dumps({"dataset": "coco", "images": images}))
    return folder


def edit(source, change) -> None:
    file = source / "dataset_coco.json"
    value = json.loads(file.read_text())
    change(value["images"])
    file.write_text(json.dumps(value))


def test_splits_and_all_captions_are_read(source, importer) -> None:
    made = importer("karpathy", source)
    assert made.collection.name == "coco"
    assert list(made.images("split").values()) == ["train", "train", "dev", "test", None]
    assert len(made.captions_of("val2014/0.jpg")) == 7
    assert made.images("cocoid")["val2014/3.jpg"] == 903
    assert made.problems == [("unknown split", "val2014/4.jpg")]


def test_pictures_can_be_in_one_flat_folder_elsewhere(source, pictures, importer, tmp_path) -> None:
    pictures(tmp_path / "flat", *(f"{n}.jpg" for n in range(5)))
    made = importer("karpathy", source / "dataset_coco.json", images=tmp_path / "flat")
    assert made.captions_of("val2014/3.jpg") == ["caption 3.0", "caption 3.1"]
    assert made.problems == [("unknown split", "val2014/4.jpg")]


def test_bad_records_are_skipped_and_reported(source, importer) -> None:
    def spoil(images) -> None:
        images[0]["filename"] = "gone.jpg"
        del images[1]["filename"]
        images[2]["sentences"] = [None, {"tokens": ["two", "words"]}, {"raw": ""}]
        images.append("what")

    edit(source, spoil)
    made = importer("karpathy", source)
    assert made.problems[:4] == [
        ("unreadable record", "dataset_coco.json record 5"),
        ("missing image file", "val2014/gone.jpg"),
        ("record without a filename", "dataset_coco.json image 1"),
        ("unreadable caption", "val2014/2.jpg#0"),
    ]
    assert ("empty caption", "val2014/2.jpg#2") in made.problems
    assert made.captions_of("val2014/2.jpg") == ["two words"]


@pytest.mark.parametrize("text", ["[]", '{"images": 3}', '{"annotations": []}'])
def test_json_of_another_structure_is_refused(source, importer, text: str) -> None:
    (source / "dataset_coco.json").write_text(text)
    with pytest.raises(UserError, match=r"must be a list of objects|nothing to import"):
        importer("karpathy", source)


def test_two_datasets_in_a_folder_are_refused(source, importer) -> None:
    (source / "dataset_flickr8k.json").write_text("{}")
    with pytest.raises(UserError, match=r"it holds dataset_coco\.json, dataset_flickr8k\.json; give the file"):
        importer("karpathy", source)
