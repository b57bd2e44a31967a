"""Copies of pictures: which are found, which are not, and that nothing is deleted."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from types import SimpleNamespace

import pytest
from PIL import Image, ImageEnhance, ImageOps

from calligram.errors import UserError
from calligram.scenes.generate import generate_scenes
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers, load_encoders
from calligram.search.query.duplicates import ReducedPicture, are_copies, find_duplicates

SCENES = 40


@pytest.fixture(scope="module")
def copied(small_run, tmp_path_factory):
    """A library of scenes, of which some have copies."""
    folder = tmp_path_factory.mktemp("copied")
    scenes, photos = generate_scenes(folder / "scenes", images=SCENES, size=200), folder / "photos"
    photos.mkdir()
    pictures = [scenes.pictures.open(row).convert("RGB") for row in range(SCENES)]
    for row, picture in enumerate(pictures):
        picture.save(photos / f"{row:02}.png")
    pictures[0].resize((90, 90)).save(photos / "00 small.png")
    pictures[0].resize((400, 400)).save(photos / "00 large.jpg", quality=90)
    pictures[1].save(photos / "01 compressed.jpg", quality=25)
    pictures[2].crop((12, 5, 195, 180)).save(photos / "02 cropped.png")
    for name in ("03 again.png", "03 once more.png"):
        shutil.copy(photos / "03.png", photos / name)
    pictures[4].crop((0, 0, 180, 200)).resize((120, 133)).save(photos / "04 cropped and small.jpg", quality=50)
    shutil.copy(photos / "04.png", photos / "04 again.png")
    ImageOps.mirror(pictures[5]).save(photos / "05 mirrored.png")
    pictures[6].crop((100, 100, 200, 200)).save(photos / "06 detail.png")
    index_source(LibraryMatchers.load(small_run), photos, folder / "library")
    library = Library.open(folder / "library")
    return SimpleNamespace(folder=folder, photos=photos, library=library, pictures=pictures)


EXPECTED = {
    ("00 large.jpg", "00.png", "00 small.png"),
    ("01.png", "01 compressed.jpg"),
    ("02.png", "02 cropped.png"),
    ("03 again.png", "03 once more.png", "03.png"),
    ("04 again.png", "04.png", "04 cropped and small.jpg"),
}


def encoder_of(library: Library):
    return load_encoders(library.folder, library.manifest)[0]


def names(found) -> set[tuple[str, ...]]:
    return {tuple(picture.name for picture in group.pictures) for group in found.groups}


def test_copies_are_grouped_with_the_largest_first(copied):
    found = find_duplicates(copied.library, encoder_of(copied.library))
    assert names(found) == EXPECTED
    assert found.trials == 3 * 32
    assert 0 < found.threshold < 1
    by_first = {group.pictures[0].name: group for group in found.groups}
    assert by_first["03 again.png"].same_bytes == (True, True, True)
    assert by_first["04 again.png"].same_bytes == (True, True, False)
    assert by_first["00 large.jpg"].same_bytes == (False, False, False)
    sizes = [group.copied_bytes for group in found.groups]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == sum(sum((copied.photos / name).stat().st_size for name in group[1:]) for group in EXPECTED)


def test_the_groups_are_those_of_comparing_all_pairs(copied):
    files = sorted(copied.photos.iterdir())
    reduced = {file.name: ReducedPicture(Image.open(file)) for file in files}
    pairs = {frozenset(pair) for pair in combinations(reduced, 2) if are_copies(*(reduced[name] for name in pair))}
    inside = {frozenset(pair) for group in EXPECTED for pair in combinations(group, 2)}
    assert pairs == inside


def test_a_high_threshold_compares_nothing_but_equal_files_are_found(copied):
    found = find_duplicates(copied.library, encoder_of(copied.library), threshold=1.0)
    assert {("03 again.png", "03 once more.png", "03.png"), ("04 again.png", "04.png")} <= names(found)
    assert (found.threshold, found.trials) == (1.0, 0)
    with pytest.raises(UserError, match="the threshold is a cosine, from -1 to 1, got 3"):
        find_duplicates(copied.library, encoder_of(copied.library), threshold=3)


def test_more_copies_than_candidates_are_one_group(small_run, tmp_path, copied):
    (tmp_path / "photos").mkdir()
    for row in (0, 1):
        for size in range(100, 140):
            copied.pictures[row].resize((size, size)).save(tmp_path / "photos" / f"{row} {size}.png")
    index_source(LibraryMatchers.load(small_run), tmp_path / "photos", tmp_path / "library")
    library = Library.open(tmp_path / "library")
    found = find_duplicates(library, encoder_of(library))
    assert sorted((group.pictures[0].name, len(group.pictures)) for group in found.groups) == [
        ("0 139.png", 40),
        ("1 139.png", 40),
    ]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda picture: picture, True),
        (lambda picture: picture.convert("P"), True),
        (lambda picture: picture.resize((31, 77)), True),
        (lambda picture: picture.crop((30, 30, 190, 190)), True),
        (lambda picture: ImageEnhance.Brightness(picture).enhance(0.9), True),
        (lambda picture: picture.rotate(90), False),
        (lambda picture: picture.crop((0, 0, 100, 200)), False),
        (lambda picture: Image.new("RGB", picture.size, "white"), False),
    ],
)
def test_what_counts_as_a_copy(copied, change, same):
    picture = copied.pictures[7]
    assert are_copies(ReducedPicture(picture), ReducedPicture(change(picture))) is same
    assert are_copies(ReducedPicture(change(picture)), ReducedPicture(picture)) is same


def test_pictures_of_one_colour_are_copies_if_it_is_the_same():
    red, dark, blue = (ReducedPicture(Image.new("RGB", (50, 40), colour)) for colour in ("red", "#fe0000", "blue"))
    assert are_copies(red, dark)
    assert not are_copies(red, blue)


def test_the_command_prints_groups_and_deletes_nothing(copied, calligram):
    before = {file: file.read_bytes() for file in copied.photos.iterdir()}
    done = calligram("duplicates", copied.folder / "library", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    first = next(place for place, line in enumerate(lines) if "largest" in line and "00 large.jpg" in line)
    assert lines[first - 1].startswith("group ")
    assert "3 pictures, copies take" in lines[first - 1]
    assert "400 x 400" in lines[first]
    assert "copy" in lines[first + 1]
    assert "5 groups with 8 copies" in done.stdout
    assert "95% of 96 copies" in done.stdout
    found = json.loads(calligram("duplicates", copied.folder / "library", "--json", "--device", "cpu").stdout)
    groups = {tuple(picture["name"] for picture in group["pictures"]) for group in found["groups"]}
    assert groups == EXPECTED
    for group in found["groups"]:
        assert [picture["largest"] for picture in group["pictures"]] == [True] + [False] * (len(group["pictures"]) - 1)
        assert all(picture["path"] == str(copied.photos / picture["name"]) for picture in group["pictures"])
    assert {file: file.read_bytes() for file in copied.photos.iterdir()} == before
    assert len(Library.open(copied.folder / "library")) == len(before)
