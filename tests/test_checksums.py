"""Checksums: any changed byte is found, what was checked is not read again, and old folders open."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calligram import checksums
from calligram.checksums import (
    CHECKED_FILE,
    DamagedFileError,
    check_files,
    check_listed,
    file_record,
    read_list,
    seal_is_right,
    sealed,
)
from calligram.errors import UserError
from calligram.files import NEW_FOLDER, replace_file, replace_folder, replace_json, scratch_folder

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(content=st.dictionaries(st.text(), JSON, max_size=4))
def test_a_sealed_object_is_right_after_a_file_and_wrong_after_a_change(content):
    read = json.loads(json.dumps(sealed(content)))
    assert seal_is_right(read)
    assert not seal_is_right({**read, "one more": 1})
    assert seal_is_right({key: value for key, value in content.items() if key != "checksum"}), "of an earlier version"


def old(file: Path) -> Path:
    """Give a file the date of an hour ago, so that it counts as settled."""
    os.utime(file, (time.time() - 3600,) * 2)
    return file


def test_every_flipped_byte_is_found(tmp_path):
    file = tmp_path / "a.bin"
    data = os.urandom(300)
    file.write_bytes(data)
    record = {"a.bin": file_record(file)}
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(DamagedFileError, match=r"a\.bin is damaged .*; do this"):
            check_files(tmp_path, record, "do this")
    for wrong in (data[:-1], data + b"\0", b""):
        file.write_bytes(wrong)
        with pytest.raises(DamagedFileError):
            check_files(tmp_path, record, "do this")
    file.write_bytes(data)
    check_files(tmp_path, record, "do this")


def test_a_missing_file_and_a_pipe_are_damage(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("gone", "it is missing"), ("pipe", "not a regular file")):
        with pytest.raises(DamagedFileError, match=why):
            check_files(tmp_path, {name: "00000000 0"}, "")
    check_files(tmp_path, {"gone": "00000000 0"}, "", missing=True)


def test_what_was_checked_is_not_read_again_until_its_date_changes(tmp_path, monkeypatch):
    file = tmp_path / "a.bin"
    file.write_bytes(b"abc" * 100)
    record = {"a.bin": file_record(old(file))}
    read: list[Path] = []
    monkeypatch.setattr(checksums, "file_record", lambda file: read.append(file) or file_record(file))
    monkeypatch.setattr(checksums, "MIN_REMEMBERED_BYTES", 1)
    for expected in (1, 1):
        check_files(tmp_path, record, "")
        assert len(read) == expected
    monkeypatch.setattr(checksums, "_checked", {})  # as in another process
    check_files(tmp_path, record, "")
    assert len(read) == 1
    check_files(tmp_path, record, "", again=True)
    assert len(read) == 2
    file.write_bytes(b"abd" * 100)
    with pytest.raises(DamagedFileError):
        check_files(tmp_path, record, "")
    monkeypatch.setattr(checksums, "_checked", {})
    (tmp_path / CHECKED_FILE).write_bytes(b"\xff{")
    file.write_bytes(b"abc" * 100)
    check_files(tmp_path, record, "")


def test_a_file_that_was_just_written_is_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "MIN_REMEMBERED_BYTES", 1)
    (tmp_path / "a").write_bytes(b"abc")
    check_files(tmp_path, {"a": file_record(tmp_path / "a")}, "")
    assert not (tmp_path / CHECKED_FILE).exists()


def test_a_folder_that_cannot_be_written_to_is_checked_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "MIN_REMEMBERED_BYTES", 1)
    monkeypatch.setattr(checksums, "write_quickly", lambda *_: (_ for _ in ()).throw(PermissionError()))
    (tmp_path / "a").write_bytes(b"abc")
    check_files(tmp_path, {"a": file_record(old(tmp_path / "a"))}, "")


def test_weights_are_listed_when_they_are_replaced_and_right_at_every_moment(tmp_path):
    file = tmp_path / "best.safetensors"
    file.write_bytes(b"of an earlier version")
    for content in (b"first", b"second", b"third"):
        with replace_file(file) as partial:
            partial.write_bytes(content)
            before = file.read_bytes()
        assert before != file.read_bytes()
        check_listed(tmp_path, None, "")
        # A process that is killed before the file takes its name leaves the new list and the old content.
        file.write_bytes(before)
        check_listed(tmp_path, None, "")
        file.write_bytes(content)
    file.write_bytes(b"other")
    with pytest.raises(DamagedFileError):
        check_listed(tmp_path, ["best.safetensors"], "")


def test_a_folder_that_is_replaced_as_a_whole_is_listed(tmp_path):
    with scratch_folder(tmp_path / "inputs") as scratch:
        (scratch / NEW_FOLDER / "inner").mkdir(parents=True)
        (scratch / NEW_FOLDER / "inner" / "a.txt").write_text("a")
        replace_folder(scratch, tmp_path / "inputs")
    assert list(read_list(tmp_path / "inputs")) == ["inner/a.txt"]
    check_listed(tmp_path / "inputs", None, "")
    (tmp_path / "inputs" / "inner" / "a.txt").write_text("b")
    with pytest.raises(DamagedFileError):
        check_listed(tmp_path / "inputs", None, "")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"files": 3}', '{"files": {"a": [1]}}', "[" * 5000, "\xff"])
def test_a_damaged_list_is_an_error_that_names_it(tmp_path, text):
    (tmp_path / "checksums.json").write_text(text)
    with pytest.raises(UserError, match=r"checksums\.json is damaged"):
        read_list(tmp_path)


def test_objects_get_their_checksum_and_lists_do_not(tmp_path):
    replace_json(tmp_path / "a.json", {"b": "\ud800", "c": 0.1})
    assert seal_is_right(json.loads((tmp_path / "a.json").read_text()))
    replace_json(tmp_path / "l.json", [1])
    assert json.loads((tmp_path / "l.json").read_text()) == [1]


def test_a_gigabyte_takes_less_than_a_second(tmp_path):
    file = tmp_path / "large"
    file.write_bytes(os.urandom(1 << 26))
    seconds = min(_seconds(file) for _ in range(10))
    print(f"{(1 << 26) / 1e9 / seconds:.1f} GB a second")
    assert seconds < (1 << 26) / 1e9


def _seconds(file: Path) -> float:
    start = time.thread_time()
    file_record(file)
    return time.thread_time() - start
