from __future__ import annotations

import tarfile

import numpy as np
import pytest

from calligram.errors import UserError

KEYS = ("100", "200", "300", "400", "500")
XML = """<annotation><size><width>80</width><height>60</height></size>
<object><name>1</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>40</xmax><ymax>30</ymax></bndbox></object>
<object><name>1</name><bndbox><xmin>41</xmin><ymin>31</ymin><xmax>80</xmax><ymax>60</ymax></bndbox></object>
</annotation>"""


@pytest.fixture
def source(tmp_path, pictures):
    """Five images at half the size that the annotations state."""
    folder = tmp_path / "in"
    for part in ("Annotations", "Sentences"):
        (folder / part).mkdir(parents=True)
    for key in KEYS:
        (folder / f"Annotations/{key}.xml").write_text(XML)
        (folder / f"Sentences/{key}.txt").write_text(
            f"[/EN#1/people A man] in [/EN#2/scene a park] number {key} .\n[/EN#0/notvisual Nothing] to see .\n"
        )
    pictures(folder / "flickr30k-images", *(f"{key}.jpg" for key in KEYS), size=(40, 30))
    (folder / "train.txt").write_text("100\n200\n300\n")
    (folder / "val.txt").write_text("400\n")
    (folder / "test.txt").write_text("500\n")
    return folder


def test_captions_phrases_and_boxes_are_read(source, importer) -> None:
    made = importer("entities", source)
    assert made.collection.manifest["counts"] == {
        "images": 5, "captions": 10, "matches": 10, "regions": 10, "phrases": 15, "groundings": 10, "problems": 0,
    }  # fmt: skip
    assert made.captions_of("100") == ["A man in a park number 100 .", "Nothing to see ."]
    assert made.collection.splits() == {"train": 3, "dev": 1, "test": 1}
    rows = made.collection.table("phrases").to_pylist()[:3]
    assert [(r["text"], r["kind"], r["entity"]) for r in rows] == [
        ("A man", "people", "1"),
        ("a park", "scene", "2"),
        ("Nothing", "notvisual", ""),
    ]


def test_boxes_are_scaled_to_the_pictures(source, importer) -> None:
    pairing = importer("entities", source).collection.phrases("dev")
    assert pairing.visuals.boxes is not None
    assert np.allclose(pairing.visuals.boxes, [[0, 0, 20, 15], [20, 15, 40, 30]])
    assert pairing.texts.strings == ("A man",)
    assert pairing.matches.visuals_of(0).tolist() == [0, 1]


def test_pictures_named_as_in_flickr8k_are_joined_by_the_part_before_the_underscore(source, pictures, importer) -> None:
    pictures(source.parent / "f8k", "100_abc.jpg", "500_def.jpg")
    made = importer("entities", source, images=source.parent / "f8k")
    assert made.images("split") == {"100_abc": "train", "500_def": "test"}
    assert made.captions_of("500_def")[0] == "A man in a park number 500 ."
    assert [p for p in made.problems if p[0] == "missing image file"] == [
        ("missing image file", key) for key in KEYS[1:4]
    ]


def test_unrelated_captions_are_kept_marked_and_noted(source, importer) -> None:
    (source / "UNRELATED_CAPTIONS").write_text("# format: <imageID> <sentence number>\n200 2\n")
    made = importer("entities", source)
    assert made.problems == [("caption listed as unrelated", "200#1")]
    marked = zip(made.collection.column("captions", "id"), made.collection.column("captions", "unrelated"), strict=True)
    assert [name for name, mark in marked if mark] == ["200#1"]


def test_a_tar_is_read_like_a_folder(source, importer) -> None:
    with tarfile.open(source / "entities.tar.gz", "w:gz") as tar:
        for part in ("Annotations", "Sentences"):
            tar.add(source / part, f"./{part}")
    made = importer("entities", source / "entities.tar.gz")
    assert made.collection.manifest["counts"]["phrases"] == 15


def test_a_missing_annotation_is_noted_and_a_damaged_one_is_skipped(source, importer) -> None:
    (source / "Annotations/100.xml").unlink()
    (source / "Annotations/200.xml").write_text("<annot")
    made = importer("entities", source)
    assert ("sentences without annotation", "100") in made.problems
    assert ("unreadable annotation", "Annotations/200.xml") in made.problems
    assert made.collection.manifest["counts"]["regions"] == 6


def test_a_truncated_archive_is_refused(source, importer) -> None:
    (source / "entities.tar.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    with pytest.raises(UserError, match=r"entities\.tar\.gz cannot be read .*is the file complete"):
        importer("entities", source / "entities.tar.gz")


def test_missing_pictures_are_refused_with_a_hint(source, importer) -> None:
    with pytest.raises(UserError, match=r"no pictures found in .*give their folder with --images FOLDER"):
        importer("entities", source, images=source / "Sentences")
