"""Text inside pictures, read by RapidOCR, and names of places; added with the flag, later, and after a kill."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from PIL import ExifTags, Image, ImageDraw, ImageFont

from calligram.errors import UserError
from calligram.extras import install_command
from calligram.search.filters.columns import PLACE_COLUMN, TEXT_COLUMN
from calligram.search.indexing.added_columns import PlaceNames, TextInPictures, country_names, kilometres
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.query.searcher import Searcher

READ = {TEXT_COLUMN: True}


def sign(file: Path, *lines: str, place: tuple[int, int] | None = None) -> Path:
    """A picture with lines of text on it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (300, 40 + 50 * len(lines)), (250, 250, 240))
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((20, 20 + 50 * number), line, font=ImageFont.load_default(30), fill=(20, 20, 60))
    exif = Image.Exif()
    if place is not None:
        degrees = {1: "N", 2: (float(place[0]), 31.0, 12.0), 3: "E", 4: (float(place[1]), 24.0, 0.0)}
        exif.get_ifd(ExifTags.IFD.GPSInfo).update(degrees)
    image.save(file, exif=exif)
    return file


@pytest.fixture
def signs(tmp_path, photograph):
    folder = tmp_path / "signs"
    sign(folder / "1.jpg", "BAKERY", "daily")
    sign(folder / "2.jpg", "MUSEUM")
    photograph(folder / "3.jpg", 0)
    return folder


def texts(library: Path) -> dict[str, str | None]:
    opened = Library.open(library)
    return {item.name: item.metadata.get(TEXT_COLUMN) for item in opened.items(opened.sample(9))}


def test_text_inside_pictures_is_found_and_shown(signs, models, small_run, tmp_path, calligram, contents, same):
    library = tmp_path / "library"
    done = calligram("index", small_run, signs, "--out", library, "--read-text", "--device", "cpu")
    assert "3 read for text" in done.stdout, done.stderr
    assert texts(library) == {"1.jpg": "BAKERY\ndaily", "2.jpg": "MUSEUM", "3.jpg": None}
    first = Searcher.open(library).images("bakery daily", 1, all=True).hits[0]
    assert Path(first.path or "").name == "1.jpg"
    shown = calligram("search", library, "museum", "-k", "1")
    assert "MUSEUM" in shown.stdout
    found = json.loads(calligram("search", library, "museum", "-k", "1", "--json").stdout)
    assert found["hits"][0]["text_in_picture"] == "MUSEUM"
    assert len(Searcher.open(library).images("a", 9, where="text_in_picture ~ 'daily'", all=True).hits) == 1
    # The same is there if the text is read later, and a copy needs no reading.
    later = tmp_path / "later"
    index_source(models, signs, later)
    assert texts(later) == dict.fromkeys(texts(library))
    assert index_source(models, signs, later, added=READ).counts[TEXT_COLUMN] == 3
    assert same(contents(later), contents(library))
    (signs / "copy.jpg").write_bytes((signs / "1.jpg").read_bytes())
    sign(signs / "4.jpg", "PLATFORM")
    report = index_source(models, signs, later)
    assert report.counts[TEXT_COLUMN] == 1, "a library that has texts reads new pictures; a copy takes its text"
    assert texts(later)["copy.jpg"] == "BAKERY\ndaily"
    assert texts(later)["4.jpg"] == "PLATFORM"
    sign(signs / "2.jpg", "CLOSED")
    index_source(models, signs, later, added={TEXT_COLUMN: False})
    assert texts(later)["2.jpg"] is None, "what was read of the old content is no longer there"
    index_source(models, signs, later, rebuild=True)
    assert texts(later)["2.jpg"] == "CLOSED"


KILLED = """
import sys
from pathlib import Path
from calligram.search.indexing import added_columns
from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers
added_columns.COMMIT_ITEMS = 1
class Slow:
    name = "text_in_picture"
    def applies(self, metadata): return True
    def values(self, items, source):
        import time
        for number, (_, picture) in enumerate(items):
            print(number, flush=True)
            yield f"text {picture.key}"
            if number == 3:
                time.sleep(600)  # until it is killed
added_columns.TextInPictures = Slow
run, photos, out = map(Path, sys.argv[1:])
index_source(LibraryMatchers.load(run), photos, out, added={"text_in_picture": True})
"""


def test_a_killed_run_keeps_what_was_committed(small_run, models, tmp_path, photograph, preloaded):
    for number in range(6):
        photograph(tmp_path / "photos" / f"{number}.jpg", number)
    with preloaded.start(KILLED, small_run, tmp_path / "photos", tmp_path / "library") as process:
        while process.stdout.readline().strip() != "3":
            assert process.poll() is None
        time.sleep(0.1)
        process.kill()
    kept = {name: text for name, text in texts(tmp_path / "library").items() if text}
    assert 2 <= len(kept) < 6
    assert all(text == f"text {name}" for name, text in kept.items())
    assert index_source(models, tmp_path / "photos", tmp_path / "library").counts[TEXT_COLUMN] == 6 - len(kept)


def test_towns_are_named_from_coordinates(models, tmp_path, photograph, calligram, small_run):
    folder = tmp_path / "trip"
    sign(folder / "berlin.jpg", "a", place=(52, 13))
    sign(folder / "ocean.jpg", "b", place=(30, 175))
    photograph(folder / "nowhere.jpg", 0)
    library = tmp_path / "library"
    done = calligram("index", small_run, folder, "--out", library, "--towns", "--device", "cpu")
    assert "2 located" in done.stdout, done.stderr
    opened = Library.open(library)
    named = {item.name: item.metadata.get(PLACE_COLUMN) for item in opened.items(opened.sample(9))}
    assert named["berlin.jpg"] is not None
    assert named["berlin.jpg"].endswith("Berlin, Germany")
    assert named["nowhere.jpg"] is None
    found = Searcher.open(library).images("a", 9, where="town ~ 'Berlin'", all=True)
    assert [Path(hit.path or "").name for hit in found.hits] == ["berlin.jpg"]


def test_a_position_far_from_any_town_has_no_name():
    far, near = PlaceNames().values([({"latitude": 0.0, "longitude": -30.0}, None), ({"latitude": 48.2, "longitude": 16.37}, None)], None)  # fmt: skip  # noqa: E501
    assert far == ""
    assert near.endswith("Vienna, Austria")
    assert len(country_names()) == 246
    assert kilometres((0, 0), (0, 180)) == pytest.approx(20015, abs=1)


def test_what_to_install_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    monkeypatch.setitem(sys.modules, "reverse_geocoder", None)
    with pytest.raises(UserError, match="reading text inside pictures needs rapidocr; install it with") as error:
        TextInPictures()
    assert install_command("ocr") in str(error.value)
    with pytest.raises(UserError, match="names of places needs reverse-geocoder"):
        PlaceNames()
