"""Pictures as members of uncompressed tars, so that a collection is a few files and not thousands."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from types import TracebackType

from calligram.data.draft import MemberAt

PER_SHARD = 5000


class Shards:
    """Appends pictures to tars in a folder. Owner and time are left blank: equal pictures give equal tars."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tar: tarfile.TarFile | None = None
        self._count = 0

    def add(self, name: str, picture: bytes) -> MemberAt:
        """Store a picture; returns where it lies."""
        path = self._folder / f"pictures-{self._count // PER_SHARD:03d}.tar"
        if self._count % PER_SHARD == 0:
            self.close()
            self._tar = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115  closed by close()
        assert self._tar is not None
        member = tarfile.TarInfo(name)
        member.size = len(picture)
        # A USTAR header is one block; the data follow it.
        start = self._tar.offset + tarfile.BLOCKSIZE
        self._tar.addfile(member, io.BytesIO(picture))
        self._count += 1
        return MemberAt(path, name, start, len(picture))

    def close(self) -> None:
        """Finish the tar that is being written."""
        if self._tar is not None:
            self._tar.close()

    def __enter__(self) -> Shards:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
