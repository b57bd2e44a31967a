"""The pictures of a collection on disk, opened by row."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from calligram.data.pictures import PictureError, decode

if TYPE_CHECKING:
    from calligram.data.collection import Collection


class StoredPictures:
    """The pictures of a collection: files, or members of tar shards read at their offsets."""

    def __init__(self, collection: Collection) -> None:
        """Open nothing yet; shards are opened when first read, once in each process."""
        self._folder = collection.folder
        self.cache = collection.folder / "cache"
        table = collection.table("images")
        self._ids = table.column("id")
        self._paths = table.column("path")
        self._shard = collection.numbers("images", "shard")
        self._offset = collection.numbers("images", "offset")
        self._bytes = collection.numbers("images", "bytes")
        shards = collection.manifest.get("shards", [])
        assert isinstance(shards, list)
        self._shards = [str(s) for s in shards]
        self._open: dict[tuple[int, int], int] = {}

    def path(self, row: int) -> Path | None:
        """Where the picture lies as a file of its own, None when it is in a shard or there is none."""
        name = self._paths[row].as_py()
        return None if name is None or self._shard[row] >= 0 else self._folder / name

    def read(self, row: int) -> bytes:
        """The picture's bytes as they came."""
        name = self._paths[row].as_py()
        if name is None:
            raise PictureError(f"image {self._ids[row]} has no picture, only features")
        if self._shard[row] < 0:
            try:
                return (self._folder / str(name)).read_bytes()
            except OSError as error:
                raise PictureError(f"image {self._ids[row]}: {error.strerror}: {self._folder / name}") from error
        return os.pread(self._descriptor(int(self._shard[row])), int(self._bytes[row]), int(self._offset[row]))

    def _descriptor(self, shard: int) -> int:
        # Keyed by process: a forked reader must not share file objects with its parent.
        key = (os.getpid(), shard)
        if key not in self._open:
            try:
                self._open[key] = os.open(self._folder / self._shards[shard], os.O_RDONLY)
            except OSError as error:
                raise PictureError(f"shard {self._folder / self._shards[shard]}: {error.strerror}") from error
        return self._open[key]

    def open(self, row: int) -> Image.Image:
        """The image upright, as RGB."""
        data = self.read(row)
        try:
            return decode(data)
        except PictureError as error:
            raise PictureError(f"image {self._ids[row]}: {error}") from error
