"""Write files into uncompressed tars of a limited size. The same files give the same bytes."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from types import TracebackType

from calligram.data.draft import TarMember

SHARD_BYTES = 1_000_000_000
"""size from which a new tar is begun"""


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
