"""Sources of pictures: a folder of picture files, or a collection."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from calligram.data.collection import MANIFEST, Collection
from calligram.data.collection import MANIFEST as COLLECTION
from calligram.data.pictures import PictureError, read_picture_file
from calligram.data.readers.folder import PREFERRED_TABLE_NAMES, captions_tables
from calligram.errors import UserError
from calligram.files import other_kind, refuse_other_encoding, text_hash
from calligram.picture_formats import EXTRA_SUFFIXES, PICTURE_SUFFIXES, missing_reader
from calligram.search.filters import columns
from calligram.search.filters.columns import ColumnValue
from calligram.search.library.manifest import MANIFEST as LIBRARY
from calligram.search.library.manifest import SourceRecord
from calligram.search.library.video import frame_key, frame_time, frame_times, is_video, read_next_frame
from calligram.text import printable

if TYPE_CHECKING:
    from calligram.search.library.matchers import LibraryMatchers

log = logging.getLogger(__name__)

TIME_COLUMN = "time"
"""second of a frame in its video"""
LOCATION_COLUMNS = frozenset(("id", "path", "shard", "offset", "bytes", "width", "height"))
"""columns of a collection that locate a picture; a library has its own columns for that"""


class PictureFacts(NamedTuple):
    """Columns and captions that a source has for a picture, without those read from the file itself."""

    columns: Mapping[str, ColumnValue]
    captions: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A hash that changes with any column or caption."""
        plain = json.dumps([dict(self.columns), self.captions], ensure_ascii=False, sort_keys=True)
        return text_hash(plain, 8)


EMPTY_FACTS = PictureFacts({}, ())
EMPTY_DIGEST = EMPTY_FACTS.digest


class ScannedPicture(NamedTuple):
    """A picture of a source at the time of the scan."""

    key: str
    """its path within the folder, or its id in the collection"""
    file: str | None
    """the file that holds it, relative to the source; None where there are only features"""
    offset: int
    """where it begins within the file; -1 where it is the whole file"""
    size: int
    mtime: int
    """nanoseconds"""
    row: int = -1
    """its row in a collection"""
    digest: str = EMPTY_DIGEST
    """of its facts"""


def date_of(about: os.stat_result) -> int:
    """The date of a file in nanoseconds; tables hold dates up to 2262, and a wrong clock writes later ones."""
    return min(about.st_mtime_ns, 2**63 - 1)


@dataclass
class FolderScan:
    """The pictures of a source, and what could not be scanned."""

    entries: list[ScannedPicture] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """folders that could not be read; items below them do not count as gone"""
    problems: dict[str, str] = field(default_factory=dict)
    """reason by key"""


def scan_folder(root: Path) -> FolderScan:
    """Every picture under ``root`` in a fixed order, from names, sizes and dates alone; videos are opened.

    Hidden files and folders are left out, and so are libraries and collections. Links are followed, and each folder is
    visited once.
    """
    found, visited = FolderScan(), set[tuple[int, int]]()
    waiting, links = [""], list[str]()
    while waiting or links:
        # Linked folders come last, so that a picture has its own path as key where it is reached both ways.
        folder = waiting.pop() if waiting else links.pop()
        real, linked = _visit(root, folder, found, visited)
        waiting += reversed(real)
        links += reversed(linked)
    found.entries.sort()
    return found


def _visit(root: Path, folder: str, found: FolderScan, visited: set[tuple[int, int]]) -> tuple[list[str], list[str]]:
    """Add the pictures of one folder to the scan; returns its folders, and its links to folders."""
    place = os.path.join(root, folder)
    try:
        about = os.stat(place)
        if (about.st_dev, about.st_ino) in visited:
            return [], []
        visited.add((about.st_dev, about.st_ino))
        with os.scandir(place) as inside:
            listed = sorted(inside, key=lambda entry: entry.name)
    except OSError as error:
        found.unread.append(folder)
        found.problems[printable(folder)] = f"unreadable folder: {error.strerror}"
        return [], []
    names = {entry.name for entry in listed}
    if folder and (LIBRARY in names or COLLECTION in names):
        return [], []
    real, linked = list[str](), list[str]()
    for entry in listed:
        if entry.name.startswith("."):
            continue
        key = f"{folder}/{entry.name}" if folder else entry.name
        try:
            is_folder = entry.is_dir()
        except OSError as error:  # such as links that go round; behind it may be a folder with items
            found.unread.append(key)
            found.problems[printable(key)] = str(error.strerror)
            continue
        if is_folder:
            (linked if entry.is_symlink() else real).append(key)
        elif os.path.splitext(entry.name)[1].lower() in PICTURE_SUFFIXES or is_video(entry.name):
            _note(entry, key, found)
    return real, linked


def _note(entry: os.DirEntry[str], key: str, found: FolderScan) -> None:
    shown = printable(key)
    if shown != key:
        found.problems[shown] = "the name is not valid Unicode; rename the file"
        return
    try:
        about = entry.stat()
    except OSError as error:
        found.problems[key] = str(error.strerror)
        return
    if kind := other_kind(about.st_mode):
        found.problems[key] = kind
    elif is_video(key):
        _note_frames(entry, key, about, found)
    elif os.path.splitext(key)[1].lower() in EXTRA_SUFFIXES and (reason := missing_reader(key)):
        found.problems[key] = reason  # noted at the scan, so that the file is read once its reader is installed
    else:
        found.entries.append(ScannedPicture(key, key, -1, about.st_size, date_of(about)))


def _note_frames(entry: os.DirEntry[str], key: str, about: os.stat_result, found: FolderScan) -> None:
    """Add the frames of a video, or the reason why it cannot be read."""
    try:
        times = frame_times(Path(entry.path))
    except PictureError as error:
        found.problems[key] = str(error)
        return
    for seconds in times:
        digest = PictureFacts({TIME_COLUMN: seconds}, ()).digest
        stamp = about.st_size, date_of(about)
        found.entries.append(ScannedPicture(frame_key(key, seconds), key, -1, *stamp, digest=digest))


def below(folders: list[str], key: str) -> bool:
    """Whether a path lies in one of these folders."""
    return any(not folder or key.startswith(f"{folder}/") for folder in folders)


def shard_of(pictures: Iterable[ScannedPicture], number: int, count: int) -> list[ScannedPicture]:
    """The pictures of shard ``number`` (from 1) of ``count``, chosen by a hash of the key."""
    from zlib import crc32

    return [picture for picture in pictures if crc32(picture.key.encode()) % count == number - 1]


class SourceCaption(NamedTuple):
    """A caption of a source and the keys of its pictures."""

    key: str
    text: str
    pictures: tuple[str, ...]


class PictureSource(Protocol):
    """What indexing needs of a source."""

    root: Path

    def scan(self) -> FolderScan:
        """Every picture of the source, with the digest of its facts."""
        ...

    def read(self, picture: ScannedPicture) -> bytes | None:
        """The bytes of a picture; None where there are only features.

        Raises:
            PictureError: when they cannot be read.
        """
        ...

    def features(self, name: str, picture: ScannedPicture) -> NDArray[np.float32]:
        """Stored features of a picture."""
        ...

    def about(self, picture: ScannedPicture) -> PictureFacts:
        """Columns and captions of a picture."""
        ...

    def captions(self) -> Sequence[SourceCaption]:
        """All captions, also those of pictures that are missing."""
        ...


class FolderSource:
    """Picture files under a folder, and frames of its video files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def scan(self) -> FolderScan:
        """Walk the folder."""
        return scan_folder(self.root)

    def read(self, picture: ScannedPicture) -> bytes:
        """Read the file, or a frame of it as a JPEG."""
        seconds = frame_time(picture.file, picture.key)
        if seconds is not None and picture.file is not None:
            return read_next_frame(self.root / picture.file, seconds)
        return read_file(self.root, picture)

    def features(self, name: str, picture: ScannedPicture) -> NDArray[np.float32]:
        """Raise an error: picture files have no features."""
        raise UserError(
            f"the matcher reads the stored features '{name}', and picture files have none; "
            "index the collection that has them, or use a matcher trained on pixels"
        )

    def about(self, picture: ScannedPicture) -> PictureFacts:
        """The time of a frame of a video; other facts come from the EXIF data of the files."""
        seconds = frame_time(picture.file, picture.key)
        return EMPTY_FACTS if seconds is None else PictureFacts({TIME_COLUMN: seconds}, ())

    def captions(self) -> Sequence[SourceCaption]:
        """No captions."""
        return ()


class CollectionSource:
    """The images of a collection, as files or in shards, with its captions and columns."""

    def __init__(self, collection: Collection) -> None:
        self.root, self._collection = collection.folder.resolve(), collection
        table = collection.table("images")
        self._ids: list[str] = table.column("id").to_pylist()
        kept = [
            name for name in table.column_names if name not in LOCATION_COLUMNS and not name.startswith("features.")
        ]
        self._names = columns.library_names(kept)
        self._columns = {name: table.column(name).to_pylist() for name in kept}

    def scan(self) -> FolderScan:
        """Locate each picture of the collection."""
        table, found, dates = self._collection.table("images"), FolderScan(), dict[str, os.stat_result]()
        shards = self._collection.manifest.get("shards", [])
        assert isinstance(shards, list)
        self._collection.check(map(str, shards))
        _ = self._collection.pictures  # refuses shards that the manifest does not name
        wanted = table.select(["path", "shard", "offset", "bytes"]).to_pylist()
        for row, (key, place) in enumerate(zip(self._ids, wanted, strict=True)):
            digest = self._facts(row).digest
            if place["path"] is None:
                found.entries.append(ScannedPicture(key, None, -1, 0, 0, row, digest))
                continue
            in_shard = place["shard"] is not None and place["shard"] >= 0
            file = str(shards[place["shard"]]) if in_shard else str(place["path"])
            try:
                about = dates.get(file) or os.stat(self.root / file)
            except (OSError, ValueError) as error:  # a ValueError for a name that no file can have
                found.problems[key] = f"{getattr(error, 'strerror', None) or error}: {file}"
                continue
            if kind := other_kind(about.st_mode):
                found.problems[key] = f"{kind}: {file}"
                continue
            if in_shard:
                dates[file] = about
                offset, size = int(place["offset"]), int(place["bytes"])
            else:
                offset, size = -1, about.st_size
            found.entries.append(ScannedPicture(key, file, offset, size, date_of(about), row, digest))
        return found

    def read(self, picture: ScannedPicture) -> bytes | None:
        """Read the file, or its bytes within the shard."""
        return None if picture.file is None else read_file(self.root, picture)

    def features(self, name: str, picture: ScannedPicture) -> NDArray[np.float32]:
        """The row of the collection's feature array."""
        if name not in self._collection.features:
            raise UserError(f"collection {self.root} has no features '{name}', which the matcher reads")
        rows: NDArray[np.float32] = self._collection.features[name].take(np.array([picture.row]))
        return np.asarray(rows[0])

    def about(self, picture: ScannedPicture) -> PictureFacts:
        """The collection's columns and the picture's captions."""
        return self._facts(picture.row)

    def _facts(self, row: int) -> PictureFacts:
        values = {name: columns.scalar(self._columns[own][row]) for own, name in self._names.items()}
        return PictureFacts({k: v for k, v in values.items() if v is not None}, tuple(self._texts_of[row]))

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

    def captions(self) -> Sequence[SourceCaption]:
        """Every caption of the collection."""
        table = self._collection.table("captions")
        pictures: list[list[str]] = [[] for _ in range(len(table))]
        for image, caption in self._pairs.tolist():
            pictures[caption].append(self._ids[image])
        keys, texts = table.column("id").to_pylist(), table.column("text").to_pylist()
        return [SourceCaption(*row[:2], tuple(row[2])) for row in zip(keys, texts, pictures, strict=True)]


Source = CollectionSource | FolderSource


def open_source(path: Path) -> Source:
    """Open a collection, or any other folder as a folder of pictures.

    Raises:
        UserError: when there is no such folder, or its path is not UTF-8.
    """
    refuse_other_encoding(path)
    if (path / MANIFEST).is_file():
        return CollectionSource(Collection.open(path))
    if not path.is_dir():
        raise UserError(f"{path} is not a folder; SOURCE is a folder of pictures or a collection")
    return FolderSource(path.resolve())


def warn_of_captions_table(source: Source) -> None:
    """Warn that a table of captions in a folder of pictures is not read."""
    tables = captions_tables(source.root) if isinstance(source, FolderSource) else []
    if tables and tables[0].stem.lower() in PREFERRED_TABLE_NAMES:
        log.warning(
            '%s is not read: index reads only the pictures of a folder; "calligram import folder %s COLLECTION" makes '
            "a collection, which is indexed with its captions and columns",
            tables[0].name,
            source.root,
        )


def check_readable(models: LibraryMatchers, source: Source) -> None:
    """Refuse a folder of pictures for a matcher that needs stored features."""
    for stored in (models.matcher, models.reranker):
        name = stored.inputs.images.stored_name if stored else None
        if name is not None and isinstance(source, FolderSource):
            raise UserError(
                f"matcher {stored.source if stored else ''} reads the stored features '{name}', and picture files have "
                "none; index the collection that has them, or use a matcher trained on pixels"
            )


def reopen(source: SourceRecord) -> Source:
    """Open a source that a library names."""
    return open_source(Path(source.root))


def read_file(root: Path, picture: ScannedPicture) -> bytes:
    """The bytes of a picture that has a file."""
    assert picture.file is not None
    try:
        return read_picture_file(root / picture.file, picture.offset, picture.size)
    except PictureError as error:
        raise PictureError(f"{error}: {picture.file}") from error
