from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calligram.data.collection import Collection
from calligram.data.pictures import PictureError
from calligram.data.readers.catalog import import_collection
from calligram.features.images import resize
from calligram.features.images.resize import BLOCK_PICTURES, decode_batches, decode_pictures, resize_picture
from calligram.scenes.generate import generate_scenes

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
    """Processes decode also on two cores, and few pictures; the list holds the first one of each call."""
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


@pytest.fixture
def asked(monkeypatch) -> list[bool]:
    """Blocks wait for the processes to start; the list says of each block whether a process decoded it."""
    found: list[bool] = []
    has_started, ask = resize._Decoder._has_started, resize._Decoder._ask

    def wait(self) -> bool:
        while not has_started(self):
            time.sleep(0.01)
        return True

    def note(self, images: list[int]) -> bool:
        found.append(ask(self, images))
        return found[-1]

    monkeypatch.setattr(resize._Decoder, "_has_started", wait)
    monkeypatch.setattr(resize._Decoder, "_ask", note)
    return found


def forked(process: subprocess.Popen) -> list[int]:
    """The processes that this one has forked."""
    return [int(n) for n in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def assert_same(found, visuals, rows, fit) -> None:
    assert len(found) == len(rows)
    assert all(
        (pixels == resize_picture(visuals.open(row), 32, fit)).all()
        for pixels, row in zip(found, rows.tolist(), strict=True)
    )


@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_processes_decode_the_same_pixels_in_the_same_order(collection, processes, asked, fit):
    visuals = collection.visuals(np.arange(PICTURES)[::-1])
    rows = np.concatenate([np.arange(5, PICTURES), [0, 0]])
    assert_same(list(decode_pictures(visuals, rows, 32, fit)), visuals, rows, fit)
    assert len(asked) == math.ceil(len(rows) / BLOCK_PICTURES)
    assert all(asked)
    assert processes[0].poll() is not None


def test_processes_read_from_shards(processes, asked, tmp_path):
    rows = np.arange(2 * BLOCK_PICTURES)
    visuals = generate_scenes(tmp_path / "scenes", images=len(rows), size=48).visuals(rows)
    assert visuals.pictures.path(0) is None
    assert_same(list(decode_pictures(visuals, rows, 32, "squash")), visuals, rows, "squash")
    assert asked
    assert all(asked)


def test_threads_decode_until_the_processes_have_started(collection, processes, monkeypatch):
    monkeypatch.setattr(resize.sys, "executable", "/bin/cat")  # starts, and never says that it has
    visuals, rows = collection.visuals(np.arange(PICTURES)), np.arange(PICTURES)
    assert_same(list(decode_pictures(visuals, rows, 32, "squash")), visuals, rows, "squash")
    assert len(processes) == 1


def test_pictures_of_killed_processes_are_decoded_here(collection, processes, asked):
    visuals, rows = collection.visuals(np.arange(PICTURES)), np.arange(PICTURES)
    decoded = decode_pictures(visuals, rows, 32, "squash")
    found = [next(decoded)]
    children = forked(processes[0])
    assert len(children) == 2
    for process in children:
        os.kill(process, signal.SIGKILL)
    assert_same(found + list(decoded), visuals, rows, "squash")


def test_the_processes_end_when_no_more_pictures_are_taken(collection, processes, asked):
    decoded = decode_pictures(collection.visuals(np.arange(PICTURES)), np.arange(PICTURES), 32, "squash")
    next(decoded)
    children = forked(processes[0])
    decoded.close()
    assert processes[0].poll() == 0
    assert len(children) == 2
    assert not any(map(is_running, children))


def test_the_processes_end_when_the_one_that_started_them_is_killed(collection):
    code = f"""
import os, signal, numpy as np
from pathlib import Path
from calligram.data.collection import Collection
from calligram.features.images import resize
resize.MIN_CORES = resize.MIN_PICTURES = 1
resize.core_share = lambda: 2
decoder = resize._Decoder
has_started = decoder._has_started
def wait(self):
    while not has_started(self):
        pass
    return True
decoder._has_started = wait
visuals = Collection.open(Path({str(collection.folder)!r})).visuals(np.arange({PICTURES}))
decoded = resize.decode_pictures(visuals, np.arange({PICTURES}), 32, "squash")
next(decoded)
me = os.getpid()
first = Path(f"/proc/{{me}}/task/{{me}}/children").read_text().split()[0]
print(first, Path(f"/proc/{{first}}/task/{{first}}/children").read_text(), flush=True)
os.kill(me, signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    running = [int(process) for process in done.stdout.split()]
    assert len(running) == 3
    latest = time.monotonic() + 20
    while any(map(is_running, running)) and time.monotonic() < latest:
        time.sleep(0.02)
    assert not any(map(is_running, running))


def test_a_damaged_picture_is_the_same_error_and_ends_the_processes(collection, processes, asked, tmp_path):
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
    assert sorted(asked) == [False, True]
    assert processes[0].poll() is not None


@pytest.mark.parametrize("ahead", [False, True])
def test_batches_have_the_same_pixels(collection, processes, asked, ahead):
    rows = np.arange(PICTURES)[::-1]
    batches = list(decode_batches(collection.visuals(rows), 32, "crop", 10, ahead=ahead))
    assert [len(batch) for batch in batches] == [10] * (PICTURES // 10) + [PICTURES % 10]
    assert_same(np.concatenate(batches), collection.visuals(np.arange(PICTURES)), rows, "crop")
    assert len(processes) == (1 if ahead else len(batches))


def test_few_pictures_and_few_cores_start_no_process(collection, processes, monkeypatch):
    visuals = collection.visuals(np.arange(PICTURES))
    monkeypatch.setattr(resize, "MIN_PICTURES", PICTURES)
    assert len(list(decode_pictures(visuals, np.arange(PICTURES), 32, "squash"))) == PICTURES
    monkeypatch.setattr(resize, "MIN_PICTURES", 1)
    monkeypatch.setattr(resize, "MIN_CORES", 3)
    assert len(list(decode_pictures(visuals, np.arange(PICTURES), 32, "squash"))) == PICTURES
    assert not processes


def test_a_process_imports_nothing_large():
    heavy = "{'torch', 'pandas', 'pyarrow', 'scipy'}"
    code = f"import sys, calligram.features.images.resize; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path.cwd()).returncode == 0
