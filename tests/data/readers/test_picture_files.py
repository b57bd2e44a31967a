from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from calligram.data.draft import Problems
from calligram.data.readers.picture_files import PictureIndex, tar_members
from calligram.errors import UserError

KIND = "picture found by its name alone"


@pytest.fixture
def root(tmp_path, pictures):
    pictures(tmp_path / "in", "ok0.jpg", "deep/er/d.png", "one/same.png", "two/same.png")
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("ok0.jpg", "ok0.jpg"),
        ("./ok0", "ok0.jpg"),
        ("d.png", "deep/er/d.png"),
        ("d", "deep/er/d.png"),
        ("deep/er/d", "deep/er/d.png"),
        ("deep\\er\\d.png", "deep/er/d.png"),
        ("in/deep/er/d.png", "deep/er/d.png"),
        ("two/same", "two/same.png"),
    ],
)
def test_file_names_and_correct_paths_are_found_without_a_report(root, name: str, path: str) -> None:
    problems = Problems(strict=True)
    assert PictureIndex(root, problems).find(name) == root / path
    assert PictureIndex(root, problems).find(str(root / path)) == root / path


def test_a_wrong_path_is_repaired_by_file_name_and_reported_once(root) -> None:
    problems = Problems()
    found = PictureIndex(root, problems)
    assert [found.find("elsewhere/ok0.jpg") for _ in range(5)] == [root / "ok0.jpg"] * 5
    assert [(p.kind, p.item, p.skipped) for p in problems.found] == [(KIND, "elsewhere/ok0.jpg", False)]
    assert "ok0.jpg is used instead" in problems.found[0].detail


def test_strict_refuses_a_wrong_path(root) -> None:
    with pytest.raises(UserError, match=rf"{KIND}: elsewhere/ok0\.jpg"):
        PictureIndex(root, Problems(strict=True)).find("elsewhere/ok0.jpg")


@pytest.mark.parametrize("name", ["same.png", "three/same.png", "elsewhere/none.jpg"])
def test_an_ambiguous_or_unknown_name_is_not_found(root, name: str) -> None:
    problems = Problems()
    assert PictureIndex(root, problems).find(name) is None
    assert not problems.found


def packed(folder: Path, mode: str = "w") -> Path:
    for name in ("a.bin", "b.bin", ".hidden"):
        (folder / name).write_bytes(name.encode() * 400)
    with tarfile.open(folder / "t.tar", mode) as tar:  # type: ignore[call-overload]
        for name in ("a.bin", "b.bin", ".hidden"):
            tar.add(folder / name, name)
    return folder / "t.tar"


def test_tar_members_are_found_at_their_offsets(tmp_path: Path) -> None:
    tar = packed(tmp_path)
    found = list(tar_members(tar, Problems()))
    assert [m.name for m in found] == ["a.bin", "b.bin"]
    data = tar.read_bytes()
    assert [data[m.offset : m.offset + m.size] for m in found] == [b"a.bin" * 400, b"b.bin" * 400]


def test_a_truncated_tar_gives_its_complete_members_and_a_report(tmp_path: Path) -> None:
    tar = packed(tmp_path)
    second = list(tar_members(tar, Problems()))[1]
    tar.write_bytes(tar.read_bytes()[: second.offset + 100])
    problems = Problems()
    assert [m.name for m in tar_members(tar, problems)] == ["a.bin"]
    assert {p.kind for p in problems.found} == {"truncated tar"}


def test_a_compressed_tar_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not an uncompressed tar .*gunzip or unpack it"):
        list(tar_members(packed(tmp_path, "w:gz"), Problems()))
