"""Putting pictures, tar shards and feature arrays into a collection's folder: linked, copied or left where they are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

from calligram.data.draft import FileAt, ImageRecord

Placing = Literal["link", "copy", "reference"]


class Placed:
    """Puts each file into the new folder once, and says where it went."""

    def __init__(self, folder: Path, placing: Placing, made: frozenset[Path] = frozenset()) -> None:
        """Args:
        made: files that are ours to move.
        """
        self.folder, self.placing, self.made = folder, placing, made
        self.shards: list[str] = []
        self._shard_of: dict[Path, int] = {}
        self._arrays: dict[Path, str] = {}
        self._taken: set[str] = set()

    def picture(self, record: ImageRecord) -> tuple[str | None, int, int, int]:
        """Path, shard, offset and size in bytes for the images table."""
        if record.at is None:
            return None, -1, 0, 0
        if isinstance(record.at, FileAt):
            return self._file(record.at.path, record.id), -1, 0, record.at.path.stat().st_size
        return record.at.name, self._shard(record.at.tar), record.at.offset, record.at.size

    def _file(self, path: Path, image_id: str) -> str:
        if self.placing == "reference":
            return str(path.resolve())
        name = image_id if Path(image_id).suffix.lower() == path.suffix.lower() else image_id + path.suffix
        # An id may hold anything; only plain relative names become paths.
        parts = [p for p in Path(name.replace("\\", "/")).parts if p not in ("/", "..", ".")]
        name = "/".join(parts) or path.name
        while name in self._taken:
            name = "_" + name
        self._taken.add(name)
        self._put(path, self.folder / "images" / name)
        return f"images/{name}"

    def _shard(self, tar: Path) -> int:
        if tar not in self._shard_of:
            self._shard_of[tar] = len(self.shards)
            if self.placing == "reference":
                self.shards.append(str(tar.resolve()))
            else:
                name = f"shards/{len(self.shards):04d}-{tar.name}"
                self._put(tar, self.folder / name)
                self.shards.append(name)
        return self._shard_of[tar]

    def array(self, name: str, file: Path) -> str:
        """Where the features file ends up, relative to the collection unless referenced."""
        if self.placing == "reference" and file not in self.made:
            return str(file.resolve())
        if file not in self._arrays:
            self._arrays[file] = f"features/{name}-{len(self._arrays):04d}.npy"
            self._put(file, self.folder / self._arrays[file])
        return self._arrays[file]

    def _put(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source in self.made:
            shutil.move(source, target)
            return
        if self.placing == "link":
            try:
                os.link(source.resolve(), target)
                return
            except OSError:
                pass
        shutil.copyfile(source, target)
