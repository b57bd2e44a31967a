"""Store of features on disk: computed once, appended in whole parts, found by a hash of the image content."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calligram.checksums import CHECKSUM_KEY, check_files, file_record, seal_is_right
from calligram.errors import UserError
from calligram.files import LOCK_FILE, content_hash, replace_file, replace_json, text_hash, wait_for_lock
from calligram.records import check_object, list_of, parse_json, record, text

Ints = NDArray[np.int64]
PART_SCHEMA = record({"keys": list_of(text()), "array": text()}, {CHECKSUM_KEY: text()})
"""of the file with the keys of a part"""
Halves = NDArray[np.float16]


def content_key(data: bytes) -> str:
    """Return the hash of a file's bytes, so that the same image under another path has the same key."""
    return content_hash(data, 16)


def read_part(keys_file: Path) -> tuple[list[str], NDArray[Any]]:
    """The keys and the rows of one part of a store.

    Raises:
        UserError: when a file is damaged.
    """
    array_file, todo = keys_file.with_suffix(".npy"), "remove it and its .npy file to compute these features again"
    try:
        keys: Any = parse_json(keys_file)
        if isinstance(keys, dict):  # else of an earlier version, without checksums
            check_object(keys_file, keys, PART_SCHEMA, todo)
            check_files(keys_file.parent, {array_file.name: keys["array"]}, todo)
            keys = keys["keys"] if seal_is_right(keys) else None
        list_of(text())(keys, "its content")
        # A plain array over the mapped memory: every index into a numpy.memmap makes a new object of that class.
        rows = np.load(array_file, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        if rows.ndim < 1 or len(rows) != len(keys):
            raise ValueError(f"{array_file.name} has another number of rows")
    except (OSError, ValueError) as error:
        raise UserError(f"{keys_file} is damaged ({error}); {todo}") from error
    return keys, rows


class FeatureStore:
    """Rows by content key, memory-mapped; in half precision, or in another type.

    A part is an array ``N.npy`` and the keys of its rows, ``N.json``. The keys are written last and atomically: a part
    without keys is incomplete and is ignored. A kill loses at most the part that was being written. Several processes
    may use a store: inside ``fill`` there is one writer.
    """

    def __init__(self, folder: Path, description: Mapping[str, object], dtype: type[np.generic] = np.float16) -> None:
        """Open or create the store for a description: everything that the features depend on.

        The store lies in a subfolder of ``folder`` that is named by the hash of the description.
        """
        plain = json.dumps(description, sort_keys=True)
        self.folder = folder / text_hash(plain, 8)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "about.txt").write_text(plain + "\n", encoding="utf-8")
        self._dtype = dtype
        self._parts: dict[str, NDArray[Any]] = {}
        self._positions: dict[str, tuple[NDArray[Any], int]] = {}
        """part and row of each key"""
        self._open_parts()

    def _open_parts(self) -> None:
        """Open the parts that are not open yet; another process may have written them."""
        for file in sorted(self.folder.glob("*.json")):
            if file.stem not in self._parts:
                self._open_part(file)

    def _open_part(self, keys_file: Path) -> None:
        keys, rows = read_part(keys_file)
        for row, key in enumerate(keys):
            self._positions[key] = (rows, row)
        self._parts[keys_file.stem] = rows

    def __contains__(self, key: str) -> bool:
        return key in self._positions

    def __len__(self) -> int:
        return len(self._positions)

    @contextlib.contextmanager
    def fill(self) -> Iterator[None]:
        """Wait until no other process fills this store, and open what it has written. Look for missing keys inside."""
        with wait_for_lock(self.folder / LOCK_FILE):
            self._open_parts()
            yield

    def append(self, keys: Sequence[str], rows: NDArray[Any]) -> None:
        """Write rows as one part."""
        number = 1 + max((int(file.stem) for file in self.folder.glob("*.npy")), default=-1)
        file = self.folder / f"{number:06d}.npy"
        with replace_file(file) as partial, partial.open("wb") as stream:
            np.save(stream, rows.astype(self._dtype))
        replace_json(file.with_suffix(".json"), {"keys": list(keys), "array": file_record(file)})
        self._open_part(file.with_suffix(".json"))

    def take(self, keys: Sequence[str]) -> NDArray[Any]:
        """Return a copy of the rows with these keys: (N, ...)."""
        out = np.empty((len(keys), *next(iter(self._parts.values())).shape[1:]), dtype=self._dtype)
        # One copy of each row. Indexing each part with a list of rows would copy twice, and takes longer.
        for number, key in enumerate(keys):
            part, row = self._positions[key]
            out[number] = part[row]
        return out


class MemoryFeatureStore(dict[str, Halves]):
    """Feature store in memory, for queries: nothing is written to disk."""

    def fill(self) -> contextlib.AbstractContextManager[None]:
        """Return a context without effect: no other process sees this store."""
        return contextlib.nullcontext()

    def append(self, keys: Sequence[str], rows: Halves) -> None:
        """Add rows."""
        self.update(zip(keys, rows, strict=True))

    def take(self, keys: Sequence[str]) -> Halves:
        """Return the rows with these keys: (N, ...)."""
        return np.stack([self[key] for key in keys])
