"""Store of features on disk: computed once, appended in whole parts, found by a hash of the image content."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.files import content_hash, replace_file, replace_json, text_hash

Ints = NDArray[np.int64]
Halves = NDArray[np.float16]


def content_key(data: bytes) -> str:
    """Return the hash of a file's bytes, so that the same image under another path has the same key."""
    return content_hash(data, 16)


class FeatureStore:
    """Half-precision rows by content key, memory-mapped.

    A part is an array ``N.npy`` and the keys of its rows, ``N.json``. The keys are written last and atomically: a part
    without keys is incomplete and is ignored. A kill loses at most the part that was being written.
    """

    def __init__(self, folder: Path, description: Mapping[str, object]) -> None:
        """Open or create the store for a description: everything that the features depend on.

        The store lies in a subfolder of ``folder`` that is named by the hash of the description.
        """
        plain = json.dumps(description, sort_keys=True)
        self.folder = folder / text_hash(plain, 8)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "about.txt").write_text(plain + "\n", encoding="utf-8")
        self._parts: list[Halves] = []
        self._positions: dict[str, tuple[int, int]] = {}
        for file in sorted(self.folder.glob("*.json")):
            self._open_part(file)

    def _open_part(self, keys_file: Path) -> None:
        try:
            keys = json.loads(keys_file.read_text(encoding="utf-8"))
            rows = np.load(keys_file.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{keys_file} is damaged ({error}); remove it and its .npy file to compute these features again"
            ) from error
        for row, key in enumerate(keys):
            self._positions[key] = (len(self._parts), row)
        self._parts.append(rows)

    def __contains__(self, key: str) -> bool:
        return key in self._positions

    def __len__(self) -> int:
        return len(self._positions)

    def append(self, keys: Sequence[str], rows: Halves) -> None:
        """Write rows as one part."""
        number = 1 + max((int(file.stem) for file in self.folder.glob("*.npy")), default=-1)
        file = self.folder / f"{number:06d}.npy"
        with replace_file(file) as partial, partial.open("wb") as stream:
            np.save(stream, rows.astype(np.float16))
        replace_json(file.with_suffix(".json"), list(keys))
        self._open_part(file.with_suffix(".json"))

    def take(self, keys: Sequence[str]) -> Halves:
        """Return a copy of the rows with these keys: (N, ...)."""
        out = np.empty((len(keys), *self._parts[0].shape[1:]), dtype=np.float16)
        for number, key in enumerate(keys):
            part, row = self._positions[key]
            out[number] = self._parts[part][row]
        return out


class MemoryFeatureStore(dict[str, Halves]):
    """Feature store in memory, for queries: nothing is written to disk."""

    def append(self, keys: Sequence[str], rows: Halves) -> None:
        """Add rows."""
        self.update(zip(keys, rows, strict=True))

    def take(self, keys: Sequence[str]) -> Halves:
        """Return the rows with these keys: (N, ...)."""
        return np.stack([self[key] for key in keys])
