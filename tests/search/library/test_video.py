"""Frames of videos are items: found at their times, equal to decoding the whole video, and as safe as pictures."""

from __future__ import annotations

import io
import json
import sys

import cv2
import numpy as np
import pytest
from PIL import Image

from calligram.data.pictures import PictureError
from calligram.errors import UserError
from calligram.extras import install_command
from calligram.search.indexing.forget import forget_items
from calligram.search.indexing.run import index_source
from calligram.search.library import video
from calligram.search.library.library import Library
from calligram.search.library.matchers import load_encoders
from calligram.search.query.duplicates import find_duplicates
from calligram.search.query.searcher import Searcher
from calligram.search.query.selection import SelectedPicture, export_folder

RATE = 10


def make_video(file, seconds: float = 12, seed: int = 0, code: str = "mp4v"):
    """A tiny video with another colour in each frame."""
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter_fourcc(*code), RATE, (64, 48))
    assert writer.isOpened()
    for number in range(round(RATE * seconds)):
        pixels = np.full((48, 64, 3), (2 * number % 256, 255 - 2 * number % 256, (128 + 40 * seed) % 256), np.uint8)
        pixels[:20, :20] = np.random.default_rng(seed).integers(0, 255, 3)
        writer.write(pixels)
    writer.release()
    return file


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.float64)


@pytest.fixture
def filmed(models, tmp_path, photograph):
    """A library of three photographs and two videos."""
    folder = tmp_path / "media"
    for seed in range(3):
        photograph(folder / f"{seed}.jpg", seed)
    make_video(folder / "a.mp4", 12)
    make_video(folder / "trip" / "b.avi", 3, 1, "MJPG")
    report = index_source(models, folder, tmp_path / "library")
    return folder, tmp_path / "library", report


@pytest.mark.parametrize(("suffix", "code"), [(".mp4", "mp4v"), (".avi", "MJPG"), (".webm", "VP80")])
def test_a_frame_equals_that_of_the_whole_video_decoded(tmp_path, suffix, code):
    file = make_video(tmp_path / f"a{suffix}", code=code)
    capture, frames = cv2.VideoCapture(str(file)), []
    while (read := capture.read())[0]:
        frames.append(read[1][:, :, ::-1].astype(np.float64))
    assert len(frames) == 120
    for seconds, number in ((0, 0), (0.1, 1), (5, 50), (10, 100), (3.3, 33), (11.9, 119), (99, 119)):
        for read_one in (video.read_frame, video.read_next_frame):
            found = decoded(read_one(file, seconds))
            assert np.abs(found - frames[number]).mean() < 3  # it is compressed as a JPEG
            others = [abs(found[30:].mean() - f[30:].mean()) for f in frames]
            assert abs(found[30:, :, 1].mean() - frames[number][30:, :, 1].mean()) < 2, others
    video.close_video()
    assert video.frame_times(file) == [0.0, 5.0, 10.0]


def test_a_long_video_has_fewer_frames_than_the_limit(tmp_path, monkeypatch):
    file = make_video(tmp_path / "a.mp4", 12)
    monkeypatch.setattr(video, "MAX_FRAMES", 2)
    assert video.frame_times(file) == [0.0, 6.0]
    monkeypatch.setattr(video, "FRAME_SECONDS", 60)
    assert video.frame_times(file) == [0.0]


def test_keys_and_times_agree():
    for seconds in (0, 0.1, 59.9, 60, 3599.9, 3600, 360000.5):
        assert video.frame_time("x/a.MP4", video.frame_key("x/a.MP4", seconds)) == seconds
    assert video.frame_time("x/a.jpg", "x/a.jpg/00h00m00s0") is None
    assert video.frame_time(None, "00h00m00s0") is None


def test_frames_are_items_with_their_time(filmed):
    folder, place, report = filmed
    assert report.counts["added"] == 3 + 3 + 1
    library = Library.open(place)
    rows = {row["path"]: row for row in library.rows()}
    assert rows["a.mp4/00h00m05s0"]["time"] == 5.0
    assert rows["trip/b.avi/00h00m00s0"]["folder"] == "trip/b.avi"
    assert "time" not in rows["0.jpg"]
    item = library.item(rows["a.mp4/00h00m10s0"]["id"])
    assert (item.path, item.frame_time, item.width, item.height) == (folder / "a.mp4", 10.0, 64, 48)
    assert library.item(rows["0.jpg"]["id"]).frame_time is None
    assert np.abs(decoded(library.picture(item.id)) - decoded(video.read_frame(folder / "a.mp4", 10))).max() == 0
    found = Searcher.open(place).images("a red disc", 10, where="time > 4 and folder ~ 'a.mp4'", all=True)
    assert {hit.id for hit in found.hits} == {rows[f"a.mp4/00h00m{s}s0"]["id"] for s in ("05", "10")}


def test_videos_are_updated_moved_and_forgotten(filmed, models):
    folder, place, _ = filmed
    assert index_source(models, folder, place).counts["unchanged"] == 7
    (folder / "a.mp4").rename(folder / "renamed.mp4")
    moved = index_source(models, folder, place)
    assert (moved.counts["moved"], moved.counts["added"], moved.counts["gone"]) == (3, 0, 0)
    make_video(folder / "renamed.mp4", 7, seed=2)
    changed = index_source(models, folder, place)
    assert (changed.counts["changed"], changed.counts["gone"]) == (2, 1)
    assert forget_items(place, [str(folder / "renamed.mp4")]) == 3
    again = index_source(models, folder, place)
    assert again.counts["added"] == 0
    assert len(Library.open(place)) == 4


def test_files_that_are_no_videos_are_problems(models, tmp_path, photograph):
    folder = tmp_path / "media"
    photograph(folder / "0.jpg", 0)
    (folder / "playlist.mp4").write_text("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n")
    (folder / "empty.mov").write_bytes(b"")
    whole = make_video(folder / "cut.mp4").read_bytes()
    (folder / "cut.mp4").write_bytes(whole[:200])
    index_source(models, folder, tmp_path / "library")
    reasons = {path.rpartition("/")[2]: reason for path, reason in Library.open(tmp_path / "library").problems()}
    assert set(reasons) == {"playlist.mp4", "empty.mov", "cut.mp4"}
    assert "does not begin like a video" in reasons["playlist.mp4"]
    assert "damaged" in reasons["cut.mp4"]
    (folder / "cut.mp4").write_bytes(whole)
    assert index_source(models, folder, tmp_path / "library").counts["added"] == 3
    assert len(Library.open(tmp_path / "library").problems()) == 2


def test_without_opencv_videos_are_problems(models, small_run, tmp_path, photograph, monkeypatch, calligram):
    folder = tmp_path / "media"
    photograph(folder / "0.jpg", 0)
    make_video(folder / "a.mp4")
    monkeypatch.setattr(video, "missing_modules", lambda *names: list(names))
    done = calligram("index", small_run, folder, "--out", tmp_path / "library", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "files that could not be used: 1" in done.stdout
    listed = calligram("index", "--problems", tmp_path / "library").stdout
    assert install_command("video") in listed
    monkeypatch.undo()
    assert index_source(models, folder, tmp_path / "library").counts["added"] == 3
    assert Library.open(tmp_path / "library").problems() == []


def test_a_video_that_is_gone_is_one_line_of_error(filmed, by_path):
    folder, place, _ = filmed
    library = Library.open(place)
    (folder / "a.mp4").unlink()
    with pytest.raises(UserError, match=r"cannot be read: .*a\.mp4"):
        library.picture(by_path(library)["a.mp4/00h00m05s0"])
    with pytest.raises(PictureError):
        video.read_next_frame(folder / "a.mp4", 0)


def test_frames_are_no_duplicates_and_are_exported_as_pictures(models, tmp_path, photograph, by_path):
    folder = tmp_path / "media"
    photograph(folder / "0.jpg", 0)
    make_video(folder / "a.mp4", 12)
    (folder / "again.mp4").write_bytes((folder / "a.mp4").read_bytes())
    index_source(models, folder, tmp_path / "library")
    library = Library.open(tmp_path / "library")
    assert find_duplicates(library, load_encoders(library.folder, library.manifest)[0], threshold=-1).groups == ()
    ids = by_path(library)
    chosen = [SelectedPicture(ids[path]) for path in ("0.jpg", "a.mp4/00h00m05s0", "again.mp4/00h00m05s0")]
    export_folder(library, chosen, tmp_path / "out", placing="symlink")
    assert (tmp_path / "out" / "0.jpg").is_symlink()
    for name in ("a 00h00m05s0.jpg", "again 00h00m05s0.jpg"):
        assert decoded((tmp_path / "out" / name).read_bytes()).shape == (48, 64, 3)


def test_the_command_names_the_time_of_a_frame(filmed, calligram):
    _, place, _ = filmed
    done = calligram("search", place, "a red disc", "--where", "time = 5", "--all")
    assert "a.mp4 00h00m05s0" in done.stdout
    assert json.loads(calligram("search", place, "a red disc", "--where", "time = 5", "--all", "--json").stdout)["hits"]


def test_opencv_is_not_imported_without_videos(models, photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)  # an import would fail
    assert index_source(models, photos, tmp_path / "library").counts["added"] == 12
