from __future__ import annotations

import json

import pytest

from calligram.data.draft import Problems
from calligram.data.readers.cuhk_pedes import _split_by_order

PEOPLE = (("cam_a/1.png", 1, "train"), ("cam_a/2.png", 1, "train"), ("CUHK01/3.png", 2, "val"),
          ("Market/4.png", 3, "test"), ("Market/5.png", 3, "test"))  # fmt: skip


@pytest.fixture
def source(tmp_path, pictures):
    folder = tmp_path / "in"
    pictures(folder / "imgs", *(path for path, _, _ in PEOPLE))
    records = [
        {"file_path": path, "id": person, "split": split, "captions": [f"person {person} once", f"at {path}"]}
        for path, person, split in PEOPLE
    ]
    (folder / "reid_raw.json").write_text(json.dumps(records))
    return folder


def without_splits(source) -> list[dict[str, object]]:
    records = json.loads((source / "reid_raw.json").read_text())
    (source / "reid_raw.json").unlink()
    return [{k: v for k, v in record.items() if k != "split"} for record in records]


def test_people_are_matched_across_their_pictures(source, importer) -> None:
    made = importer("cuhk-pedes", source)
    assert made.collection.splits() == {"train": 2, "dev": 1, "test": 2}
    assert made.captions_of("cam_a/2.png") == ["person 1 once", "at cam_a/2.png"]
    pairing = made.collection.identities("test")
    text = pairing.texts.strings.index("at Market/5.png")
    assert [pairing.visuals.ids[v] for v in pairing.matches.visuals_of(text)] == ["Market/4.png", "Market/5.png"]
    assert made.problems == []


def test_an_incomplete_file_without_splits_is_split_by_identity(source, importer) -> None:
    records = without_splits(source)
    (source / "caption_all.json").write_text(json.dumps(records))
    made = importer("cuhk-pedes", source)
    assert made.problems[0] == ("no splits", "caption_all.json")
    assert {kind for kind, _ in made.problems[1:]} <= {"image moved to another split than its hash says"}
    splits = made.images("split")
    assert set(splits.values()) == {"train", "dev", "test"}
    assert splits["cam_a/1.png"] == splits["cam_a/2.png"]
    assert None not in splits.values()


def test_a_complete_file_without_splits_is_split_in_its_order(tmp_path) -> None:
    records = [{"file_path": f"{n}.png"} for n in range(40206)]
    _split_by_order(records, tmp_path / "caption_all.json", Problems())
    assert [records[n]["split"] for n in (0, 34053, 34054, 37131, 37132, 40205)] == [
        "train", "train", "dev", "dev", "test", "test",
    ]  # fmt: skip


def test_bad_records_are_reported(source, importer) -> None:
    records = json.loads((source / "reid_raw.json").read_text())
    records[0]["id"] = "?"
    del records[1]["file_path"]
    records[2]["file_path"] = "gone.png"
    records[4]["split"] = "train"
    (source / "reid_raw.json").write_text(json.dumps(records))
    assert importer("cuhk-pedes", source).problems == [
        ("record without a person's id", "cam_a/1.png"),
        ("record without a file_path", "reid_raw.json record 1"),
        ("missing image file", "gone.png"),
        ("person in two splits", "3"),
    ]
