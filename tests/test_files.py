"""Atomic replacement, locks and hashes; processes that are killed are tested with what they write."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import threading
import time

import filelock
import pytest
import torch

from calligram.checksums import folder_parts
from calligram.data.readers.source import hash_fraction
from calligram.errors import UserError
from calligram.files import (
    LOCK_FILE,
    NEW_FOLDER,
    content_hash,
    exchange_names,
    lock_folder,
    lock_holder,
    parts_hash,
    remove_leftovers,
    replace_file,
    replace_folder,
    replace_json,
    replace_text,
    scratch_folder,
    text_hash,
    try_lock,
    wait_for_lock,
)
from calligram.vectors import tensor_parts

HOLD = """
import sys, time
from pathlib import Path
from calligram.files import try_lock
with try_lock(Path(sys.argv[1])) as locked:
    print(locked, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def test_a_file_is_replaced_when_the_block_succeeds_and_stays_when_it_fails(tmp_path):
    file = tmp_path / "a.txt"
    replace_text(file, "old\n")
    with replace_file(file) as partial:
        partial.write_text("new\n")
        assert file.read_text() == "old\n"
    assert file.read_text() == "new\n"
    with pytest.raises(FileExistsError), replace_file(file) as partial:
        partial.touch(exist_ok=partial.write_text("half") == 0)
    assert file.read_text() == "new\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_json_keeps_letters_and_ends_with_a_line_break(tmp_path):
    replace_json(tmp_path / "a.json", {"straße": [1, 2]})
    assert re.fullmatch(r'\{"straße": \[1, 2\], "checksum": "\w+"\}\n', (tmp_path / "a.json").read_text("utf-8"))


def test_content_is_on_the_disk_before_the_file_has_its_name(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append("fsync"))
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append("replace"), real(*paths)))
    replace_text(tmp_path / "a.txt", "text")
    assert events == ["fsync", "replace", "fsync"]


def test_a_lock_has_one_holder_and_the_error_names_it(tmp_path):
    with lock_folder(tmp_path / "folder", "library"):
        with try_lock(tmp_path / "folder" / LOCK_FILE) as locked:
            assert not locked
        with (
            pytest.raises(UserError, match=rf"library .*folder is being written to by process {os.getpid()} on "),
            lock_folder(tmp_path / "folder", "library"),
        ):
            pass
    with try_lock(tmp_path / "folder" / LOCK_FILE) as locked:
        assert locked


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    file = tmp_path / LOCK_FILE
    command = [sys.executable, "-c", HOLD, str(file), "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        with try_lock(file) as locked:
            assert not locked
        assert lock_holder(file).startswith(f"process {process.pid} on ")
        process.kill()
        process.wait()
        with try_lock(file) as locked:
            assert locked


def test_a_scratch_folder_is_removed_with_its_process_and_not_before(tmp_path):
    target = tmp_path / "a[1]"
    with scratch_folder(target) as scratch:
        with scratch_folder(target) as second:
            assert scratch.parent == second.parent == tmp_path
            assert sorted(tmp_path.iterdir()) == sorted((scratch, second))
        remove_leftovers(target)
        assert list(tmp_path.iterdir()) == [scratch]
        (scratch / NEW_FOLDER).mkdir()
        replace_folder(scratch, target)
    assert list(tmp_path.iterdir()) == [target]
    (tmp_path / scratch.name).mkdir()
    remove_leftovers(target)
    assert list(tmp_path.iterdir()) == [target]


def test_names_are_exchanged_or_the_caller_is_told_that_they_cannot_be(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if exchange_names(tmp_path / "a", tmp_path / "b"):
        assert [(tmp_path / "a" / "b").exists(), (tmp_path / "b" / "a").exists()] == [True, True]
        with pytest.raises(FileNotFoundError, match="missing"):
            exchange_names(tmp_path / "a", tmp_path / "missing")
    monkeypatch.setattr(ctypes, "CDLL", lambda *names, **options: None)
    assert not exchange_names(tmp_path / "a", tmp_path / "b")


def test_a_writer_waits_until_the_lock_is_free(tmp_path):
    order = []

    def wait() -> None:
        with wait_for_lock(tmp_path / LOCK_FILE):
            order.append("second")

    with wait_for_lock(tmp_path / LOCK_FILE):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_the_lock_is_that_of_the_folder_that_has_the_name_when_it_is_acquired(tmp_path, monkeypatch):
    folder, replacement = tmp_path / "c", tmp_path / "next"
    folder.mkdir()
    replacement.mkdir()
    acquire = filelock.FileLock.acquire

    def replaced_meanwhile(lock, **options):
        if replacement.exists():
            folder.rename(tmp_path / "moved")
            replacement.rename(folder)
            lock = filelock.FileLock(tmp_path / "moved" / LOCK_FILE)
        return acquire(lock, **options)

    monkeypatch.setattr(filelock.FileLock, "acquire", replaced_meanwhile)
    with try_lock(folder / LOCK_FILE) as locked:
        assert locked
        with try_lock(folder / LOCK_FILE) as again:
            assert not again
        assert not (tmp_path / "moved" / LOCK_FILE).read_text()


def test_hashes_keep_the_values_of_libraries_and_caches_on_disk(tmp_path):
    assert content_hash(b"calligram", 8) == "ed73cea3ef5aefe5"
    assert text_hash("calligram", 8) == content_hash(b"calligram", 8)
    assert text_hash("\udcff", 4) == content_hash(b"?", 4)
    assert parts_hash([b"calli", b"gram"], 8) == content_hash(b"calligram", 8)
    assert hash_fraction("1.jpg") == 0.2979514140375614
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.json").write_text(json.dumps([1]))
    (tmp_path / "a.txt").write_text("x")
    assert b"".join(folder_parts(tmp_path)) == b"a.txtxb/c.json[1]"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_tensors_are_hashed_by_their_values_in_order(dtype):
    values = torch.arange(6).view(2, 3).to(dtype)
    parts = list(tensor_parts({"b": values.T, "a": values[0, 1]}))
    assert parts == [b"a" + values[0, 1].numpy().tobytes(), b"b" + values.T.numpy().tobytes()]


def test_tensors_that_numpy_does_not_know_have_a_hash():
    assert len(b"".join(tensor_parts({"w": torch.zeros(3, dtype=torch.bfloat16)}))) == 7
