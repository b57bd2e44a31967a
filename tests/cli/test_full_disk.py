"""A disk that is full, read-only or broken is one line of error in every verb that writes, and nothing is lost."""

from __future__ import annotations

import errno
import shutil
import tempfile

import numpy as np
import pytest

from calligram import files
from calligram.data.collection import Collection
from calligram.errors import UserError, disk_error_number
from calligram.evaluation.recall import score_array
from calligram.features.regions.extract import _join_features
from calligram.files import named_disk_errors


@pytest.fixture
def folder(tiny, tmp_path):
    """A collection to write to, pictures, and captions for it."""
    shutil.copytree(tiny.folder, tmp_path / "c")
    shutil.copytree(tiny.folder / "images", tmp_path / "in")
    (tmp_path / "captions.csv").write_text("image,caption\ntrain-0,a new caption\n")
    return tmp_path


VERBS = {
    "train": ("train", "vse", "c", "--out", "run"),
    "import": ("import", "folder", "in", "new"),
    "import over another": ("import", "folder", "in", "c", "--overwrite"),
    "scenes": ("scenes", "new", "--images", "10", "--size", "16"),
    "caption": ("caption", "c", "captions.csv"),
    "regions": ("regions", "c", "--proposals", "grid"),
    "index": ("index", "TRAINED", "in", "--out", "library"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk_is_one_line_of_error(verb, calligram, small, trained, folder, full_disk):
    arguments = [str(trained[0]) if word == "TRAINED" else word for word in VERBS[verb]]
    before = Collection.open(folder / "c").fingerprint
    with full_disk():
        done = calligram(*arguments, *(small if verb == "train" else ()), cwd=folder)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert errors == [done.stderr.splitlines()[-1]]
    assert "File too large; choose a folder on a disk that accepts larger files" in errors[0]
    assert any(name in errors[0] for name in ("run", "new", "c", "library"))
    assert Collection.open(folder / "c").fingerprint == before
    again = calligram(*arguments, *(small if verb == "train" else ()), cwd=folder)
    assert again.returncode == 0, again.stderr


def test_a_complete_run_is_resumed_on_a_full_disk(calligram, small, tiny, trained, tmp_path, full_disk):
    shutil.copytree(trained[0], tmp_path / "run")
    with full_disk():
        done = calligram(
            "train", "vse", tiny.folder, "--out", tmp_path / "run", "--set", "epochs=2", *small, "--resume"
        )
    assert done.returncode == 0, done.stderr
    for file in trained[0].rglob("*"):
        if file.is_file() and file.name != files.LOCK_FILE:
            assert (tmp_path / "run" / file.relative_to(trained[0])).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.EROFS, "Read-only file system", "c"),
         "c: Read-only file system; choose a folder on another disk, or make this one writable"),
        (OSError(errno.EIO, "Input/output error", "c"),
         "c: Input/output error; the disk may be broken; check it, and choose a folder on another one"),
        (OSError(errno.ENOSPC, "No space left on device", "in/a.png", None, "c/a.png"),
         "c/a.png: No space left on device; free some space, and run the command again"),
        (RuntimeError("lance error: Unable to copy data: No space left on device (os error 28), somewhere.rs"),
         "No space left on device; free some space, and run the command again"),
    ],
)  # fmt: skip
def test_errors_of_disks_name_the_file_and_say_what_to_do(calligram, monkeypatch, error, line):
    def fails(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("calligram.data.collection.Collection.open", fails)
    done = calligram("info", "c")
    assert (done.returncode, done.stderr) == (2, f"error: {line}\n")


def test_errors_of_libraries_are_recognised_and_others_pass(tmp_path, full_disk):
    with full_disk(), pytest.raises(OSError, match="requested and 0 written") as of_numpy:
        np.zeros(100_000).tofile(tmp_path / "a.npy")  # as np.save does for a file that is open
    assert disk_error_number(of_numpy.value) == errno.ENOSPC
    assert disk_error_number(ValueError("not a number")) is None
    assert disk_error_number(FileNotFoundError(errno.ENOENT, "No such file", "a")) is None
    with (
        pytest.raises(OSError, match=r"No space left on device: .*a\.npy") as named,
        named_disk_errors(tmp_path / "a.npy"),
    ):
        raise of_numpy.value
    assert named.value.filename == str(tmp_path / "a.npy")
    with pytest.raises(UserError, match="Input/output error"), named_disk_errors(tmp_path):
        raise UserError("a picture cannot be read: Input/output error")


def test_mapped_arrays_reserve_their_space_because_writing_without_it_ends_the_process(tmp_path, monkeypatch):
    def fails(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, f"no space for {size} bytes")

    monkeypatch.setattr(files.os, "posix_fallocate", fails)
    with pytest.raises(OSError, match="No space left") as scores:
        score_array((5, 4), budget=1)
    with pytest.raises(OSError, match="No space left") as features:
        _join_features(tmp_path, 3, (2, 4))
    assert [scores.value.filename, features.value.filename] == [tempfile.gettempdir(), str(tmp_path / "joined.npy")]


def test_space_is_checked_before_pictures_are_copied(calligram, folder, monkeypatch):
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: (10**9, 10**9, 1000))
    done = calligram("import", "folder", "in", "new", "--placing", "copy", cwd=folder)
    size = sum(file.stat().st_size for file in (folder / "in").iterdir())
    assert done.returncode == 2
    assert f"No space left on device: {size:,} bytes needed, 1,000 bytes free; free some space" in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["c", "captions.csv", "in"]
    assert calligram("import", "folder", "in", "new", cwd=folder).returncode == 0  # links need no space
