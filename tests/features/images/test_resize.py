from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calligram.data.collection import Collection
from calligram.data.pictures import PictureError
from calligram.data.readers.catalog import import_collection
from calligram.features.images import resize
from calligram.features.images.resize import BLOCK_PICTURES, decode_pictures, resize_picture

PICTURES = 3 * BLOCK_PICTURES + 5


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> Collection:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    (folder / "files").mkdir()
    for number in range(PICTURES):
        pixels = rng.integers(0, 256, (60 + number, 90, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "files" / f"{number:03d}.jpg")
    return import_collection("folder", folder / "files", folder / "collection")[0]


@pytest.fixture
def processes(monkeypatch) -> list[subprocess.Popen]:
    """Processes decode also on two cores, and few pictures; the list holds those that were started."""
    started: list[subprocess.Popen] = []

    class Noted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(resize, "MIN_CORES", 1)
    monkeypatch.setattr(resize, "MIN_PICTURES", 1)
    monkeypatch.setattr(resize, "core_share", lambda: 2)
    monkeypatch.setattr(resize.subprocess, "Popen", Noted)
    return started


@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_processes_decode_the_same_pixels_in_the_same_order(collection, processes, fit):
    visuals = collection.visuals(np.arange(PICTURES)[::-1])
    rows = np.concatenate([np.arange(5, PICTURES), [0, 0]])
    found = list(decode_pictures(visuals, rows, 32, fit))
    assert len(found) == len(rows)
    assert all(
        (pixels == resize_picture(visuals.open(row), 32, fit)).all()
        for pixels, row in zip(found, rows.tolist(), strict=True)
    )
    assert len(processes) == 2
    assert all(process.poll() is not None for process in processes)


def test_pictures_of_a_killed_process_are_decoded_here(collection, processes):
    visuals = collection.visuals(np.arange(PICTURES))
    decoded = decode_pictures(visuals, np.arange(PICTURES), 32, "squash")
    found = [next(decoded)]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    found += list(decoded)
    assert len(found) == PICTURES
    assert all((pixels == resize_picture(visuals.open(row), 32, "squash")).all() for row, pixels in enumerate(found))


def test_a_damaged_picture_is_the_same_error_and_ends_the_processes(collection, processes, tmp_path):
    (tmp_path / "files").mkdir()
    for number in range(BLOCK_PICTURES + 1):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / "files" / f"{number:03d}.png")
    other = import_collection("folder", tmp_path / "files", tmp_path / "collection")[0]
    visuals = other.visuals(np.arange(BLOCK_PICTURES + 1))
    visuals.pictures.path(BLOCK_PICTURES).write_bytes(b"no picture")
    with pytest.raises(PictureError) as here:
        visuals.open(BLOCK_PICTURES)
    with pytest.raises(PictureError) as there:
        list(decode_pictures(visuals, np.arange(BLOCK_PICTURES + 1), 32, "squash"))
    assert str(there.value) == str(here.value)
    assert all(process.poll() is not None for process in processes)


def test_few_pictures_and_few_cores_start_no_process(collection, processes, monkeypatch):
    visuals = collection.visuals(np.arange(PICTURES))
    monkeypatch.setattr(resize, "MIN_PICTURES", PICTURES)
    assert len(list(decode_pictures(visuals, np.arange(PICTURES), 32, "squash"))) == PICTURES
    monkeypatch.setattr(resize, "MIN_PICTURES", 1)
    monkeypatch.setattr(resize, "MIN_CORES", 3)
    assert len(list(decode_pictures(visuals, np.arange(PICTURES), 32, "squash"))) == PICTURES
    assert not processes


def test_a_process_imports_no_torch():
    code = "import sys, calligram.features.images.resize; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path.cwd()).returncode == 0
