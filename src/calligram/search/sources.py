"""Where pictures come from: a folder of files, or a collection."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from calligram.data.collection import MANIFEST, Collection
from calligram.data.pictures import PictureError
from calligram.errors import UserError
from calligram.search import columns
from calligram.search.manifest import Source
from calligram.search.metadata import Value
from calligram.search.scanning import Entry, Scan, scan_folder

PLACES = frozenset(("id", "path", "shard", "offset", "bytes", "width", "height"))
"""columns of a collection that say where a picture lies, which a library says in its own way"""


class About(NamedTuple):
    """What a source says about a picture, besides what is in the file."""

    columns: Mapping[str, Value]
    captions: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Changes when anything of it does."""
        plain = json.dumps([dict(self.columns), self.captions], ensure_ascii=False, sort_keys=True)
        return hashlib.blake2b(plain.encode("utf-8", "replace"), digest_size=8).hexdigest()


class CaptionAt(NamedTuple):
    """A caption of a source and the keys of its pictures."""

    key: str
    text: str
    pictures: tuple[str, ...]


class Pictures(Protocol):
    """A source as indexing sees it."""

    root: Path

    def scan(self) -> Scan:
        """Every picture there is now."""
        ...

    def read(self, entry: Entry) -> bytes | None:
        """A picture's bytes; None where there are only features.

        Raises:
            PictureError: when they cannot be read.
        """
        ...

    def features(self, name: str, entry: Entry) -> NDArray[np.float32]:
        """Stored features of a picture."""
        ...

    def about(self, entry: Entry) -> About:
        """What else is known about a picture."""
        ...

    def captions(self) -> Sequence[CaptionAt]:
        """All captions, of pictures that are there or not."""
        ...


class FolderPictures:
    """Picture files under a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def scan(self) -> Scan:
        """Walk the folder."""
        return scan_folder(self.root)

    def read(self, entry: Entry) -> bytes:
        """Read the file."""
        return read_file(self.root, entry)

    def features(self, name: str, entry: Entry) -> NDArray[np.float32]:
        """Refuse: files have none."""
        raise UserError(
            f"the matcher reads the stored features '{name}', and picture files have none; "
            "index the collection that has them, or use a matcher trained on pixels"
        )

    def about(self, entry: Entry) -> About:
        """Nothing but what the file says."""
        return About({}, ())

    def captions(self) -> Sequence[CaptionAt]:
        """None."""
        return ()


class CollectionPictures:
    """The images of a collection, as files or in shards, with its captions and columns."""

    def __init__(self, collection: Collection) -> None:
        self.root, self._collection = collection.folder.resolve(), collection
        table = collection.table("images")
        self._ids: list[str] = table.column("id").to_pylist()
        kept = [name for name in table.column_names if name not in PLACES and not name.startswith("features.")]
        self._names = columns.named(kept)
        self._columns = {name: table.column(name).to_pylist() for name in kept}

    def scan(self) -> Scan:
        """Look where each picture lies."""
        table, found, dates = self._collection.table("images"), Scan(), dict[str, os.stat_result]()
        shards = self._collection.manifest.get("shards", [])
        assert isinstance(shards, list)
        wanted = table.select(["path", "shard", "offset", "bytes"]).to_pylist()
        for row, (key, at) in enumerate(zip(self._ids, wanted, strict=True)):
            if at["path"] is None:
                found.entries.append(Entry(key, None, -1, 0, 0, row))
                continue
            in_shard = at["shard"] is not None and at["shard"] >= 0
            file = str(shards[at["shard"]]) if in_shard else str(at["path"])
            try:
                about = dates.get(file) or os.stat(self.root / file)
            except OSError as error:
                found.problems[key] = f"{error.strerror}: {file}"
                continue
            if in_shard:
                dates[file] = about
                found.entries.append(Entry(key, file, int(at["offset"]), int(at["bytes"]), about.st_mtime_ns, row))
            else:
                found.entries.append(Entry(key, file, -1, about.st_size, about.st_mtime_ns, row))
        return found

    def read(self, entry: Entry) -> bytes | None:
        """Read the file, or the shard at its place."""
        return None if entry.file is None else read_file(self.root, entry)

    def features(self, name: str, entry: Entry) -> NDArray[np.float32]:
        """The row of the collection's feature array."""
        if name not in self._collection.features:
            raise UserError(f"collection {self.root} has no features '{name}', which the matcher reads")
        rows: NDArray[np.float32] = self._collection.features[name].take(np.array([entry.row]))
        return np.asarray(rows[0])

    def about(self, entry: Entry) -> About:
        """The collection's columns and the picture's captions."""
        values = {name: columns.plain(self._columns[own][entry.row]) for own, name in self._names.items()}
        return About({k: v for k, v in values.items() if v is not None}, tuple(self._texts_of[entry.row]))

    @cached_property
    def _pairs(self) -> NDArray[np.int64]:
        numbers = self._collection.numbers
        return np.stack([numbers("matches", "image"), numbers("matches", "caption")], axis=1)

    @cached_property
    def _texts_of(self) -> list[list[str]]:
        texts = self._collection.column("captions", "text")
        found: list[list[str]] = [[] for _ in self._ids]
        for image, caption in self._pairs.tolist():
            found[image].append(str(texts[caption]))
        return found

    def captions(self) -> Sequence[CaptionAt]:
        """Every caption of the collection."""
        table = self._collection.table("captions")
        pictures: list[list[str]] = [[] for _ in range(len(table))]
        for image, caption in self._pairs.tolist():
            pictures[caption].append(self._ids[image])
        keys, texts = table.column("id").to_pylist(), table.column("text").to_pylist()
        return [CaptionAt(*row[:2], tuple(row[2])) for row in zip(keys, texts, pictures, strict=True)]


def open_source(path: Path) -> CollectionPictures | FolderPictures:
    """A collection, or any other folder as a folder of pictures.

    Raises:
        UserError: when there is no such folder.
    """
    if (path / MANIFEST).is_file():
        return CollectionPictures(Collection.open(path))
    if not path.is_dir():
        raise UserError(f"{path} is not a folder; SOURCE is a folder of pictures or a collection")
    return FolderPictures(path.resolve())


def reopen(source: Source) -> CollectionPictures | FolderPictures:
    """A source that a library names."""
    return open_source(Path(source.root))


def read_file(root: Path, entry: Entry) -> bytes:
    """The bytes of an entry that has a file."""
    assert entry.file is not None
    try:
        with (root / entry.file).open("rb") as stream:
            if entry.offset < 0:
                return stream.read()
            stream.seek(entry.offset)
            return stream.read(entry.size)
    except OSError as error:
        raise PictureError(f"{error.strerror}: {entry.file}") from error
