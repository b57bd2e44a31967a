from __future__ import annotations

from pathlib import Path

import pytest

from calligram.data.draft import Problems
from calligram.data.readers.text_files import read_json, read_lines, read_text
from calligram.errors import UserError


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_with_a_byte_order_mark_are_read_without_a_report(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_text("naïve\ncafé\n", encoding=encoding)
    problems = Problems()
    assert read_lines(tmp_path / "a.txt", problems) == ["naïve", "café"]
    assert not problems.found


def test_only_the_damaged_line_is_decoded_differently(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("naïve\n".encode() + b"caf\xe9 \x93so\x94\n" + "öl".encode())
    problems = Problems()
    assert read_text(tmp_path / "a.txt", problems) == "naïve\ncafé “so”\nöl"
    assert [p.item for p in problems.found] == ["a.txt line 2"]


def test_strict_refuses_a_damaged_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"not UTF-8: read as Western European: a\.txt line 1"):
        read_text(tmp_path / "a.txt", Problems(strict=True))


def test_invalid_json_is_refused_with_the_position(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"images": [')
    with pytest.raises(UserError, match=r"a\.json is not valid JSON .*is the file complete"):
        read_json(tmp_path / "a.json", Problems())
