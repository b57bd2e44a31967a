"""Features computed once and kept on disk: added to in whole parts, found by what the picture contains."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError

Ints = NDArray[np.int64]
Halves = NDArray[np.float16]


def content_key(data: bytes) -> str:
    """The name of a picture by its bytes: the same picture under another path is found again."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class FeatureStore:
    """Rows of half-precision numbers by content key, memory-mapped.

    A part is an array ``N.npy`` and the keys of its rows, ``N.json``, written last and in one step: a part without keys
    was cut short and does not count. So a kill loses at most the part that was being written.
    """

    def __init__(self, folder: Path, about: Mapping[str, object]) -> None:
        """Open or begin the store for ``about``, everything the features depend on, in a folder named by its hash."""
        plain = json.dumps(about, sort_keys=True)
        self.folder = folder / hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "about.txt").write_text(plain + "\n", encoding="utf-8")
        self._parts: list[Halves] = []
        self._place: dict[str, tuple[int, int]] = {}
        for file in sorted(self.folder.glob("*.json")):
            self._take_in(file)

    def _take_in(self, keys_file: Path) -> None:
        try:
            keys = json.loads(keys_file.read_text(encoding="utf-8"))
            rows = np.load(keys_file.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{keys_file} is damaged ({error}); remove it and its .npy to compute them again"
            ) from error
        for row, key in enumerate(keys):
            self._place[key] = (len(self._parts), row)
        self._parts.append(rows)

    def __contains__(self, key: str) -> bool:
        return key in self._place

    def __len__(self) -> int:
        return len(self._place)

    def append(self, keys: Sequence[str], rows: Halves) -> None:
        """Add rows as one part."""
        number = 1 + max((int(file.stem) for file in self.folder.glob("*.npy")), default=-1)
        file = self.folder / f"{number:06d}.npy"
        with file.open("wb") as stream:
            np.save(stream, rows.astype(np.float16))
            stream.flush()
            os.fsync(stream.fileno())
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(list(keys)), encoding="utf-8")
        partial.replace(file.with_suffix(".json"))
        self._take_in(file.with_suffix(".json"))

    def take(self, keys: Sequence[str]) -> Halves:
        """Rows of these pictures, copied out: (N, ...)."""
        out = np.empty((len(keys), *self._parts[0].shape[1:]), dtype=np.float16)
        for place, key in enumerate(keys):
            part, row = self._place[key]
            out[place] = self._parts[part][row]
        return out


class MemoryFeatureStore(dict[str, Halves]):
    """The store of queries: nothing is written."""

    def append(self, keys: Sequence[str], rows: Halves) -> None:
        """Add rows."""
        self.update(zip(keys, rows, strict=True))

    def take(self, keys: Sequence[str]) -> Halves:
        """These rows, (N, ...)."""
        return np.stack([self[key] for key in keys])
