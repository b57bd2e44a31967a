from __future__ import annotations

import base64

import numpy as np
import pytest

from calligram.errors import UserError

DIM = 2048


def line(image: object, width: int, height: int, boxes: list[list[float]], value: float) -> str:
    """One image of a file; every feature has the same value."""
    features = np.full((len(boxes), DIM), value, dtype=np.float32)
    encoded = [base64.b64encode(a.tobytes()).decode() for a in (np.array(boxes, dtype=np.float32), features)]
    return "\t".join([str(image), str(width), str(height), str(len(boxes)), *encoded]) + "\n"


BOXES = [[0.0, 0, 50, 40], [10, 10, 90, 60]]


@pytest.fixture
def source(tmp_path):
    """Five images of two boxes each. Each line is longer than the csv module would read."""
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [line(100 + n, 100, 60, BOXES * 9, n) for n in range(5)]
    assert len(lines[0]) > 131072
    (folder / "a.tsv").write_text("".join(lines[:3]))
    (folder / "b.tsv").write_text("".join(lines[3:]))
    return folder


def test_boxes_and_features_are_streamed_into_an_array(source, importer) -> None:
    made = importer("scan", source, placing="reference")
    stored = made.collection.features["regions"]
    assert stored.row_shape == (18, DIM)
    assert stored.take(np.array([4]))[0, 17, 0] == 4
    regions = made.collection.table("regions").to_pylist()
    assert len(regions) == 5 * 18
    assert [regions[1][k] for k in ("x0", "y0", "x1", "y1", "source")] == [10, 10, 90, 60, "bottom-up"]
    assert made.images("width")["104"] == 100
    assert [p.name for p in made.collection.folder.parent.iterdir()] == ["collection"]


def test_caption_files_are_joined_by_image_id(source, importer) -> None:
    (source / "train_caps.txt").write_text("one\ntwo\nthree\nfour\n")
    (source / "train_ids.txt").write_text("101\n101\n104\n104\n")
    made = importer("scan", source)
    assert made.captions_of("104") == ["three", "four"]
    assert made.collection.splits() == {"": 3, "train": 2}


def test_images_with_fewer_boxes_are_padded_with_zeros(tmp_path, importer) -> None:
    (tmp_path / "x.tsv").write_text(line("a", 100, 60, BOXES, 1) + line("b", 100, 60, BOXES[:1], 2))
    made = importer("scan", tmp_path / "x.tsv")
    assert made.collection.features["regions"].take(np.array([1]))[0, :, 0].tolist() == [2, 0]
    assert made.problems == [("images with fewer boxes", "a")]


def test_swapped_width_and_height_are_detected_from_the_boxes(tmp_path, importer) -> None:
    (tmp_path / "x.tsv").write_text(line("a", 60, 100, BOXES, 1))
    made = importer("scan", tmp_path / "x.tsv")
    assert (made.images("width"), made.images("height")) == ({"a": 100}, {"a": 60})
    assert made.problems == [("width and height swapped", "a")]


def test_bad_lines_are_skipped_and_reported(tmp_path, importer) -> None:
    good = line("a", 100, 60, BOXES, 1)
    cells = good.rstrip("\n").split("\t")
    spoiled = [
        "only\tthree\tcells\n",
        good,
        "\t".join(["b", *cells[1:3], "7", *cells[4:]]) + "\n",
        "\t".join(["c", *cells[1:4], "!" + cells[4][1:], cells[5]]) + "\n",
        line("d", 100, 60, BOXES, float("nan")),
        line("e", 100, 60, BOXES, 5),
    ]
    (tmp_path / "x.tsv").write_text("".join(spoiled))
    made = importer("scan", tmp_path / "x.tsv")
    assert list(made.images("id")) == ["a", "e"]
    assert made.collection.features["regions"].take(np.array([1]))[0, 0, 0] == 5
    assert made.problems == [
        ("unreadable row", "x.tsv line 1"),
        ("unreadable row", "x.tsv line 3"),
        ("unreadable row", "x.tsv: c"),
        ("features that are not numbers", "d"),
    ]


def test_a_file_without_usable_lines_is_refused(tmp_path, importer) -> None:
    (tmp_path / "x.tsv").write_text("a\tb\n")
    with pytest.raises(UserError, match=r"no line of x\.tsv has the six fields"):
        importer("scan", tmp_path / "x.tsv")
