from __future__ import annotations

import json

import pytest

from calligram.errors import UserError


def write(file, images: list[tuple[int, str]], captions: list[tuple[int, str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    value = {
        "images": [{"id": i, "file_name": name} for i, name in images],
        "annotations": [{"id": 10 * n, "image_id": i, "caption": text} for n, (i, text) in enumerate(captions)],
    }
    file.write_text(json.dumps(value))


@pytest.fixture
def source(tmp_path, pictures):
    """The release's folders: three images to train on, two to validate."""
    folder = tmp_path / "in"
    write(
        folder / "annotations/captions_train2014.json",
        [(0, "t0.jpg"), (1, "t1.jpg"), (2, "t2.jpg")],
        [(0, "zero"), (1, "one"), (1, "one again"), (2, "two")],
    )
    write(folder / "annotations/captions_val2014.json", [(7, "v7.jpg"), (8, "v8.jpg")], [(7, "seven"), (8, "eight ")])
    pictures(folder, *(f"train2014/t{n}.jpg" for n in range(3)), "val2014/v7.jpg", "val2014/v8.jpg")
    return folder


@pytest.mark.parametrize("inside", [".", "annotations"])
def test_each_file_is_a_split(source, importer, inside: str) -> None:
    made = importer("coco", source / inside)
    assert made.collection.splits() == {"train": 3, "dev": 2}
    assert made.captions_of("t1.jpg") == ["one", "one again"]
    assert made.captions_of("t0.jpg") == ["zero"]
    assert made.images("cocoid")["v8.jpg"] == 8
    assert made.problems == []


def test_a_single_file_can_be_the_source(source, importer) -> None:
    made = importer("coco", source / "annotations/captions_val2014.json")
    assert made.collection.splits() == {"dev": 2}


def test_missing_pictures_and_captions_of_unknown_images_are_reported(source, importer) -> None:
    (source / "val2014/v7.jpg").unlink()
    file = source / "annotations/captions_val2014.json"
    value = json.loads(file.read_text())
    value["annotations"].append({"id": 99, "image_id": 12345, "caption": "whose?"})
    file.write_text(json.dumps(value))
    assert importer("coco", source).problems == [
        ("missing image file", "v7.jpg"),
        ("caption of an unknown image", "99"),
        ("caption without a usable image", "v7.jpg#0"),
    ]


def test_a_file_of_an_unknown_split_gives_images_without_a_split(source, importer) -> None:
    file = source / "annotations/captions_val2014.json"
    file.rename(file.with_name("captions_extra2014.json"))
    made = importer("coco", source)
    assert made.collection.splits() == {"": 2, "train": 3}
    assert made.problems == [("unknown split", "captions_extra2014.json")]


def test_a_list_is_refused(source, importer) -> None:
    (source / "annotations/captions_val2014.json").write_text("[]")
    with pytest.raises(UserError, match="must be an object with 'images' and 'annotations', got list"):
        importer("coco", source)
