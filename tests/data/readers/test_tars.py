from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from calligram.data.draft import Problems
from calligram.data.readers.picture_files import tar_members
from calligram.errors import UserError


def packed(folder: Path, mode: str = "w") -> Path:
    for name in ("a.bin", "b.bin", ".hidden"):
        (folder / name).write_bytes(name.encode() * 400)
    with tarfile.open(folder / "t.tar", mode) as tar:  # type: ignore[call-overload]
        for name in ("a.bin", "b.bin", ".hidden"):
            tar.add(folder / name, name)
    return folder / "t.tar"


def test_members_are_found_at_their_bytes(tmp_path: Path) -> None:
    tar = packed(tmp_path)
    found = list(tar_members(tar, Problems()))
    assert [m.name for m in found] == ["a.bin", "b.bin"]
    data = tar.read_bytes()
    assert [data[m.offset : m.offset + m.size] for m in found] == [b"a.bin" * 400, b"b.bin" * 400]


def test_a_truncated_tar_gives_what_is_whole_and_says_so(tmp_path: Path) -> None:
    tar = packed(tmp_path)
    second = list(tar_members(tar, Problems()))[1]
    tar.write_bytes(tar.read_bytes()[: second.offset + 100])
    problems = Problems()
    assert [m.name for m in tar_members(tar, problems)] == ["a.bin"]
    assert {p.kind for p in problems.found} == {"truncated tar"}


def test_a_compressed_tar_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not an uncompressed tar .*gunzip or unpack it"):
        list(tar_members(packed(tmp_path, "w:gz"), Problems()))
