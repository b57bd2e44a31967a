from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PictureFile, Problems
from calligram.data.summary import sample_sheet, summarise_collection
from calligram.data.write_collection import write_draft


def test_a_summary_has_the_counts_of_the_collection(tiny: Collection) -> None:
    found = summarise_collection(tiny)
    assert found.counts["images"] == 18
    assert found.images_in_split == {"train": 6, "dev": 6, "test": 6}
    assert found.captions_in_split == {"train": 14, "dev": 14, "test": 14}
    assert (found.captions_of_image.minimum, found.captions_of_image.maximum) == (2, 3)
    assert (found.words_in_caption.minimum, found.words_in_caption.maximum) == (1, 5)
    # Six colours, "a disc", "the round thing is", "warm colour", "snow".
    assert found.vocabulary == 15
    assert found.identities == 2
    assert found.grounded_phrases == 18
    assert found.widths.median == 40
    assert found.repeated_captions == 28
    assert found.without_captions == 0
    assert ("train-0", "dev-0", "test-0") in found.same_pictures


def test_a_summary_is_printed_as_lines(tiny: Collection) -> None:
    lines = summarise_collection(tiny).lines()
    assert lines[0] == "tiny: 18 images, 42 captions, 18 regions, 18 phrases"
    assert lines[1].startswith("splits: train 6 (14 captions), dev 6")
    assert "pictures: width 40 to 40, median 40, height 32 to 32, median 32" in lines
    assert "the same picture: train-0 = dev-0 = test-0" in lines


def test_a_summary_lists_problems_and_missing_parts(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    made = Draft("made", [ImageRecord("a", PictureFile(tmp_path / "a.png")), ImageRecord("b", None)])
    made.images.append(ImageRecord("c", PictureFile(tmp_path / "none.png")))
    found = summarise_collection(write_draft(made, tmp_path / "c", Problems()))
    assert found.images_in_split == {"": 2}
    assert (found.without_captions, found.without_picture) == (2, 1)
    assert found.problems == ["1 skipped: unusable image (c)"]
    assert "problem: 1 skipped: unusable image (c)" in found.lines()


def test_the_sample_sheet_shows_pictures_and_draws_boxes(tmp_path: Path, tiny: Collection) -> None:
    sample_sheet(tiny, tmp_path / "deep/sheet.png", count=4)
    sheet = np.asarray(Image.open(tmp_path / "deep/sheet.png"))
    assert sheet.shape[1] > 1200
    assert (sheet == (230, 72, 79)).all(axis=-1).sum() > 100


def test_the_sample_sheet_is_the_same_for_the_same_seed(tmp_path: Path, tiny: Collection) -> None:
    for name in ("a.png", "b.png"):
        sample_sheet(tiny, tmp_path / name, count=3, seed=5)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_sample_sheet_works_without_pictures_and_captions(tmp_path: Path) -> None:
    long = "word " * 200
    images = [ImageRecord("a", None), ImageRecord("b", None)]
    made = Draft("made", images, [CaptionRecord("c", long, ("a",)), CaptionRecord("d", "x" * 300 + "\ny", ("b",))])
    sample_sheet(write_draft(made, tmp_path / "c"), tmp_path / "sheet.png")
    assert Image.open(tmp_path / "sheet.png").size[0] > 600
