from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calligram.data.collection import Collection
from calligram.data.draft import (
    CaptionRecord,
    Draft,
    ImageRecord,
    PhraseRecord,
    PictureFile,
    Problems,
    RegionRecord,
    TarMember,
)
from calligram.data.write_collection import write_draft
from calligram.errors import UserError


def picture(path: Path, size: tuple[int, int] = (40, 20)) -> PictureFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "teal").save(path)
    return PictureFile(path)


def draft(folder: Path, *names: str) -> Draft:
    """An image and a caption for each name."""
    made = Draft("made")
    for name in names:
        made.images.append(ImageRecord(name, picture(folder / name), "train"))
        made.captions.append(CaptionRecord(f"{name}#0", f"this is {name}", (name,)))
    return made


def kinds(problems: Problems) -> list[tuple[str, str]]:
    return [(p.kind, p.item) for p in problems.found]


def test_a_damaged_picture_is_skipped_with_its_caption_and_both_are_reported(tmp_path: Path) -> None:
    made = draft(tmp_path, "a.png", "b.png")
    (tmp_path / "a.png").write_bytes(b"")
    problems = Problems()
    collection = write_draft(made, tmp_path / "c", problems)
    assert collection.column("images", "id") == ["b.png"]
    assert kinds(problems) == [("unusable image", "a.png"), ("caption without a usable image", "a.png#0")]
    assert [r["item"] for r in collection.table("problems").to_pylist()] == ["a.png", "a.png#0"]


def test_strict_refuses_a_damaged_picture_and_writes_nothing(tmp_path: Path) -> None:
    made = draft(tmp_path / "in", "a.png", "b.png")
    (tmp_path / "in/a.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"unusable image: a\.png: the file is empty"):
        write_draft(made, tmp_path / "c", Problems(strict=True))
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_ids_used_twice_and_empty_captions_are_skipped(tmp_path: Path) -> None:
    made = draft(tmp_path, "a.png")
    made.images.append(made.images[0])
    made.captions += [CaptionRecord("a.png#0", "again", ("a.png",)), CaptionRecord("a.png#1", "  ", ("a.png",))]
    problems = Problems()
    collection = write_draft(made, tmp_path / "c", problems)
    assert collection.column("captions", "text") == ["this is a.png"]
    assert [kind for kind, _ in kinds(problems)] == ["image id used twice", "caption id used twice", "empty caption"]


def test_a_draft_without_usable_images_is_refused_with_the_reasons(tmp_path: Path) -> None:
    made = draft(tmp_path, "a.png")
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"nothing to import from made: 1 skipped: unusable image \(a\.png\)"):
        write_draft(made, tmp_path / "c")


def test_an_existing_collection_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    made = draft(tmp_path, "a.png")
    write_draft(made, tmp_path / "c")
    with pytest.raises(UserError, match="already holds a collection; choose another destination or give --overwrite"):
        write_draft(made, tmp_path / "c")
    write_draft(draft(tmp_path, "b.png"), tmp_path / "c", overwrite=True)
    assert Collection.open(tmp_path / "c").column("images", "id") == ["b.png"]


def test_a_folder_that_is_not_a_collection_is_never_replaced(tmp_path: Path) -> None:
    made = draft(tmp_path / "in", "a.png")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="exists and is not a collection"):
        write_draft(made, tmp_path / "c", overwrite=True)
    assert (tmp_path / "c/thesis.txt").exists()


def test_boxes_are_scaled_from_the_annotated_size_to_the_picture(tmp_path: Path) -> None:
    """Stated 400 x 100 and stored 40 x 20: x shrinks to a tenth, y to a fifth."""
    made = draft(tmp_path, "a.png")
    made.images[0].size = (400, 100)
    made.regions.append(RegionRecord("r", "a.png", (100, 10, 200, 50)))
    collection = write_draft(made, tmp_path / "c")
    row = collection.table("regions").to_pylist()[0]
    assert [row[k] for k in ("x0", "y0", "x1", "y1")] == [10, 2, 20, 10]
    image = collection.table("images").to_pylist()[0]
    assert (image["width"], image["height"]) == (40, 20)


def test_boxes_without_an_annotated_size_are_clipped_and_not_scaled(tmp_path: Path) -> None:
    made = draft(tmp_path, "a.png")
    made.regions += [RegionRecord("in", "a.png", (1, 2, 3, 4)), RegionRecord("out", "a.png", (30, -5, 50, 10))]
    problems = Problems()
    rows = write_draft(made, tmp_path / "c", problems).table("regions").to_pylist()
    assert [[r[k] for k in ("x0", "y0", "x1", "y1")] for r in rows] == [[1, 2, 3, 4], [30, 0, 40, 10]]
    assert kinds(problems) == [("box reaches beyond its picture: cut", "out")]


def test_boxes_of_an_image_without_a_picture_stay_in_annotated_pixels(tmp_path: Path) -> None:
    made = Draft("made", [ImageRecord("a", None, size=(400, 100)), ImageRecord("b", None)])
    made.regions += [RegionRecord("r", "a", (1, 2, 3, 4)), RegionRecord("s", "b", (5, 6, 700, 800))]
    collection = write_draft(made, tmp_path / "c")
    assert collection.column("regions", "x1") == [3, 700]
    assert collection.column("images", "width") == [400, None]


def test_phrases_keep_their_words_when_spaces_around_a_caption_are_removed(tmp_path: Path) -> None:
    made = draft(tmp_path, "a.png")
    made.captions = [CaptionRecord("c", "  a red kite ", ("a.png",))]
    made.phrases = [PhraseRecord("p", "c", 4, 12), PhraseRecord("q", "c", -1, -1, text="the toy")]
    rows = write_draft(made, tmp_path / "c").table("phrases").to_pylist()
    assert [(r["start"], r["end"], r["text"]) for r in rows] == [(2, 10, "red kite"), (-1, -1, "the toy")]


def test_pictures_in_a_tar_are_read_at_their_offsets(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", (7, 5))
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        tar.add(tmp_path / "a.png", "a.png")
    with tarfile.open(tmp_path / "s.tar") as tar:
        member = tar.getmember("a.png")
    at = TarMember(tmp_path / "s.tar", "a.png", member.offset_data, member.size)
    collection = write_draft(Draft("made", [ImageRecord("a", at)]), tmp_path / "c")
    assert collection.pictures.open(0).size == (7, 5)
    assert collection.pictures.path(0) is None


@pytest.mark.parametrize("placing", ["link", "copy", "reference"])
def test_pictures_open_for_every_placement(tmp_path: Path, placing: str) -> None:
    collection = write_draft(draft(tmp_path / "in", "x/a.png"), tmp_path / "c", placing=placing)  # type: ignore[arg-type]
    path = collection.pictures.path(0)
    assert path is not None
    assert collection.pictures.open(0).size == (40, 20)
    assert path.is_relative_to(tmp_path / "c") == (placing != "reference")
    assert (path.stat().st_nlink > 1) == (placing == "link")


def test_ids_that_look_like_paths_stay_inside_the_collection(tmp_path: Path) -> None:
    made = Draft("made", [ImageRecord(i, picture(tmp_path / "in/a.png")) for i in ("../../a", "/etc/a", "b/../a")])
    collection = write_draft(made, tmp_path / "c")
    for row in range(3):
        path = collection.pictures.path(row)
        assert path is not None
        assert path.resolve().is_relative_to(tmp_path / "c/images")


@pytest.mark.parametrize("placing", ["copy", "reference"])
def test_arrays_written_by_the_reader_are_moved_even_when_pictures_are_referenced(tmp_path: Path, placing: str) -> None:
    array = tmp_path / "scratch.npy"
    np.save(array, np.arange(6, dtype=np.float32).reshape(2, 3))
    made = Draft("made", [ImageRecord("a", None, feature_rows={"regions": 1})], features={"regions": [array]})
    made.reader_arrays = frozenset({array})
    collection = write_draft(made, tmp_path / "c", placing=placing)  # type: ignore[arg-type]
    assert not array.exists()
    assert collection.features["regions"].take(np.array([0])).tolist() == [[3, 4, 5]]


def test_metadata_of_mixed_types_is_stored_as_text_and_never_replaces_standard_columns(tmp_path: Path) -> None:
    made = draft(tmp_path, "a.png", "b.png")
    made.images[0].metadata = {"width": "wide", "year": 1999}
    made.images[1].metadata = {"year": "unknown"}
    collection = write_draft(made, tmp_path / "c")
    assert collection.column("images", "source.width") == ["wide", None]
    assert collection.column("images", "year") == ["1999", "unknown"]
    assert collection.metadata_columns == ("source.width", "year")


def test_a_caption_with_half_a_surrogate_pair_is_repaired(tmp_path: Path) -> None:
    made = draft(tmp_path, "a.png")
    made.captions[0].text = "a dog \ud83d"
    problems = Problems()
    assert write_draft(made, tmp_path / "c", problems).column("captions", "text") == ["a dog ?"]
    assert kinds(problems) == [("broken character in a caption", "a.png#0")]


def test_true_pairs_are_renumbered_when_an_image_is_skipped(tmp_path: Path) -> None:
    made = draft(tmp_path, "a.png", "b.png", "c.png")
    made.also_true = np.array([[0, 0], [1, 1], [2, 2], [2, 1], [0, 2]])
    (tmp_path / "a.png").write_bytes(b"")
    collection = write_draft(made, tmp_path / "c", Problems())
    assert collection.table("also_true").to_pylist() == [
        {"image": 0, "caption": 0}, {"image": 1, "caption": 1}, {"image": 1, "caption": 0},
    ]  # fmt: skip


def test_the_problem_summary_counts_images_regions_and_phrases(tmp_path: Path) -> None:
    made, problems = draft(tmp_path / "in", "a.png"), Problems()
    made.images += [ImageRecord(name, picture(tmp_path / "in" / name), "train") for name in ("b.png", "c.png")]
    made.regions += [RegionRecord(f"gone/{n}", "gone.png", (0, 0, 1, 1)) for n in range(4)]
    made.phrases += [PhraseRecord(f"gone#{n}", "gone#0", 0, 1) for n in range(5)]
    write_draft(made, tmp_path / "out", problems)
    counts = {line.split(" (")[0] for line in problems.summary()}
    assert counts == {
        "2 noted: image without captions",
        "4 noted: region of a skipped image",
        "5 noted: phrase of a skipped caption",
    }
    assert problems.found[0].detail == "kept; only pseudo pairs (preset a3vse) use it"
