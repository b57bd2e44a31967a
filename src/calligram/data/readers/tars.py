"""Members of uncompressed tars by their offsets, so that pictures can be read without unpacking."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from calligram.data.draft import MemberAt
from calligram.data.problems import Problems
from calligram.errors import UserError


def members(tar: Path, problems: Problems) -> Iterator[MemberAt]:
    """Every plain file in the tar; one whose bytes are not all there is skipped and reported.

    Raises:
        UserError: when it is no tar, or a compressed one.
    """
    length = tar.stat().st_size
    try:
        with tarfile.open(tar, "r:") as opened:
            for member in opened:
                if not member.isreg() or PurePosixPath(member.name).name.startswith("."):
                    continue
                if member.offset_data + member.size > length:
                    problems.skip("truncated tar", f"{tar.name}/{member.name}", f"{tar} ends inside it")
                    continue
                yield MemberAt(tar, member.name, member.offset_data, member.size)
    except tarfile.ReadError as error:
        if tarfile_starts(tar):
            problems.skip("truncated tar", tar.name, str(error))
        else:
            raise UserError(f"{tar} is not an uncompressed tar ({error}); gunzip or unpack it") from error


def tarfile_starts(tar: Path) -> bool:
    """Whether the file begins as a tar does, whatever follows."""
    with tar.open("rb") as file:
        try:
            tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            return False
    return True
