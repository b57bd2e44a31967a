"""The picture files of a folder, found by path, by name or by name without suffix; tar files, read and written."""

from __future__ import annotations

import io
import os
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType

from calligram.data.collection import MANIFEST
from calligram.data.draft import PictureFile, Problems, TarMember
from calligram.errors import UserError
from calligram.files import other_kind
from calligram.picture_formats import PICTURE_SUFFIXES
from calligram.text import printable

SHARD_BYTES = 1_000_000_000
"""size from which a new tar is begun"""


class PictureIndex:
    """An index of the pictures under a folder, by the names that caption files use."""

    def __init__(self, root: Path, problems: Problems) -> None:
        self.root = root
        self._starts = ("", f"{root.resolve().name}/", f"{root.resolve().as_posix()}/")
        self._problems = problems
        self._repaired: set[str] = set()
        self.files = list(walk_files(root, problems))
        self.paths = {path.relative_to(root).as_posix(): path for path in self.files if is_picture(path)}
        self.flat = not any("/" in name for name in self.paths)
        self._by_bare_path = _unique_names((name.removesuffix(path.suffix), path) for name, path in self.paths.items())
        self._by_name = _unique_names((path.name, path) for path in self.paths.values())
        self._by_stem = _unique_names((path.stem, path) for path in self.paths.values())

    def __len__(self) -> int:
        return len(self.paths)

    def find(self, name: str) -> Path | None:
        """Find a picture by path, with or without suffix; or by file name, if only one picture has this name.

        A path that does not exist is repaired to the only picture with the same file name, and reported.
        """
        plain = name.replace("\\", "/").removeprefix("./")
        at_path = self._at_path(plain)
        if at_path is not None:
            return at_path
        last = plain.rsplit("/", 1)[-1]
        named = self._by_name.get(last) or self._by_stem.get(last)
        if named is not None and last != plain and plain not in self._repaired:
            self._repaired.add(plain)
            detail = f"not in {self.root}; {named.relative_to(self.root).as_posix()} is used instead"
            self._problems.repair("picture found by its name alone", name, detail)
        return named

    def _at_path(self, plain: str) -> Path | None:
        """The picture at a path relative to the folder, or at a path that starts with the name or path of it."""
        for start in self._starts:
            if plain.startswith(start):
                inside = plain.removeprefix(start)
                found = self.paths.get(inside) or self._by_bare_path.get(inside)
                if found is not None:
                    return found
        return None

    def picture_file(self, name: str) -> PictureFile | None:
        """As ``find``, as the picture of an image record."""
        path = self.find(name)
        return PictureFile(path) if path else None


def find_pictures(folder: Path, named: Path | None, guesses: Iterable[str], problems: Problems) -> PictureIndex:
    """Index the pictures of the folder given by the user, or of the first usual folder that holds pictures.

    Args:
        folder: folder of the captions.
        named: folder given by the user.
        guesses: usual names of the picture folder, relative to ``folder``.

    Raises:
        UserError: when no pictures are found, with the searched folders.
    """
    if named is not None:
        if not named.is_dir():
            raise UserError(f"{named} is not a folder; --images takes the folder that holds the pictures")
        places = [named]
    else:
        places = [folder / guess for guess in guesses] + [folder]
    for place in places:
        if place.is_dir() and len(found := PictureIndex(place, problems)):
            return found
    raise UserError(f"no pictures found in {', '.join(str(p) for p in places)}; give their folder with --images FOLDER")


def walk_files(root: Path, problems: Problems) -> Iterator[Path]:
    """All regular files under ``root`` in a fixed order, except hidden files and the files of collections.

    Other files are reported with their kind and not opened: a named pipe or a device may never answer. Links to files
    are followed. Links to folders are not, because they may go round; they are reported.
    """

    def unreadable(error: OSError) -> None:
        problems.skip("unreadable folder", printable(str(error.filename)), str(error.strerror))

    def shown(path: Path) -> str:
        return printable(path.relative_to(root).as_posix())

    for folder, inside, files in os.walk(root, onerror=unreadable):
        inside[:] = sorted(d for d in inside if not d.startswith(".") and not Path(folder, d, MANIFEST).is_file())
        for path in (Path(folder, name) for name in inside):
            if path.is_symlink():
                problems.note("link to a folder: not read", shown(path), "replace it by the folder to read its files")
        for path in (Path(folder, name) for name in sorted(files) if not name.startswith(".")):
            try:
                kind = other_kind(path.stat().st_mode)
            except OSError as error:  # a link to nothing, or links that go round
                kind = str(error.strerror)
            if kind is None:
                yield path
            else:
                problems.skip("unreadable file", shown(path), kind)


def is_picture(path: Path) -> bool:
    """Whether the file name has the suffix of a picture format."""
    return path.suffix.lower() in PICTURE_SUFFIXES


def _unique_names(named: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    pairs = list(named)
    count = Counter(name for name, _ in pairs)
    return {name: path for name, path in pairs if count[name] == 1}


def tar_members(tar: Path, problems: Problems) -> Iterator[TarMember]:
    """The regular files in an uncompressed tar with their offsets, so that pictures can be read without unpacking.

    A truncated member is skipped and reported.

    Raises:
        UserError: when the file is not a tar, or is compressed.
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
                yield TarMember(tar, member.name, member.offset_data, member.size)
    except tarfile.ReadError as error:
        if looks_like_tar(tar):
            problems.skip("truncated tar", tar.name, str(error))
        else:
            raise UserError(f"{tar} is not an uncompressed tar ({error}); gunzip or unpack it") from error


def looks_like_tar(tar: Path) -> bool:
    """Whether the first block of the file is a tar header."""
    with tar.open("rb") as file:
        try:
            tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            return False
    return True


class TarShards:
    """Tars ``PREFIX-000000.tar``, ``PREFIX-000001.tar``, ... in a folder; a new one begins between two samples."""

    def __init__(self, folder: Path, prefix: str, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder, self._prefix, self._shard_bytes = folder, prefix, shard_bytes
        self._tar: tarfile.TarFile | None = None
        self.files: list[Path] = []

    def add(self, files: dict[str, bytes]) -> list[TarMember]:
        """Add the files of one sample, all to the same tar; returns their places."""
        if self._tar is None or self._tar.offset >= self._shard_bytes:
            self.close()
            self.files.append(self._folder / f"{self._prefix}-{len(self.files):06d}.tar")
            self._tar = tarfile.open(self.files[-1], "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        return [self._add_file(self._tar, name, data) for name, data in files.items()]

    def _add_file(self, tar: tarfile.TarFile, name: str, data: bytes) -> TarMember:
        about = tarfile.TarInfo(name)
        about.size, about.mode = len(data), 0o644
        tar.addfile(about, io.BytesIO(data))
        blocks = -(-len(data) // tarfile.BLOCKSIZE)
        return TarMember(self.files[-1], name, tar.offset - blocks * tarfile.BLOCKSIZE, len(data))

    def close(self) -> None:
        """Finish the current tar."""
        if self._tar is not None:
            self._tar.close()
            self._tar = None

    def __enter__(self) -> TarShards:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
