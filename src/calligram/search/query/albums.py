"""Albums of a library: pictures under a name, and the pictures that do not belong to it.

Albums are in ``albums.json`` in the folder of the library. As for saved searches, the file is not part of a commit:
indexing and rebuilding leave it as it is. It is replaced atomically, under a lock of its own. An album has ids. A
picture that leaves the library stays in its albums and is counted there: it may come back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from calligram.errors import UserError, unknown
from calligram.files import replace_json, wait_for_lock
from calligram.records import list_of, read_version, record, text
from calligram.search.library.library import Item, Library
from calligram.search.query.selection import SelectedPicture, check_name

ALBUMS_FILE = "albums.json"
ALBUMS_LOCK = ".albums.lock"
ALBUMS_FORMAT, ALBUMS_VERSION = "calligram-albums", 1
_IDS = list_of(text())
ALBUMS_SCHEMA = record(
    {"albums": list_of(record({"name": text()}, {"pictures": _IDS, "rejected": _IDS}, closed=False))}, closed=False
)
MAX_ALBUMS = 1000
MAX_ALBUM_PICTURES = 10_000
"""of one album; as many can be rejected"""
MAX_STORED_IDS = 200_000
"""of all albums: the file is written again with each change, and has then about 8 MB"""
READ_ROWS = 1000
"""items that are read at a time"""


@dataclass(frozen=True)
class Album:
    """Pictures under a name. An id is in one of the two lists, once."""

    name: str
    pictures: tuple[str, ...] = ()
    """ids in the order in which they were added"""
    rejected: tuple[str, ...] = ()
    """ids of pictures that do not belong to it: what people answered to suggestions"""

    def __post_init__(self) -> None:
        check_name(self.name, "an album")

    def changed(self, add: Sequence[str] = (), remove: Sequence[str] = (), reject: Sequence[str] = ()) -> Album:
        """The album after a change. A removed picture is neither in the album nor rejected.

        >>> Album("Dogs", ("a", "b"), ("c",)).changed(add=["c", "d"], reject=["a"])
        Album(name='Dogs', pictures=('b', 'c', 'd'), rejected=('a',))
        """
        wrong = {*remove, *reject}
        pictures = dict.fromkeys(id for id in (*self.pictures, *add) if id not in wrong)
        rejected = dict.fromkeys(id for id in (*self.rejected, *reject) if id not in pictures and id not in remove)
        if max(len(pictures), len(rejected)) > MAX_ALBUM_PICTURES:
            raise UserError(
                f"an album has at most {MAX_ALBUM_PICTURES:,} pictures, and as many that do not belong to it; remove "
                "some, or begin another album"
            )
        return replace(self, pictures=tuple(pictures), rejected=tuple(rejected))


def read_albums(library: Path) -> list[Album]:
    """All albums of the library in a folder, in the order in which they were begun.

    Raises:
        UserError: when the file cannot be read.
    """
    file, todo = library / ALBUMS_FILE, "correct it, or delete it to lose the albums only"
    content = read_version(file, ALBUMS_FORMAT, ALBUMS_VERSION, ALBUMS_SCHEMA, todo)
    try:
        return [
            Album(row["name"], tuple(row.get("pictures", ())), tuple(row.get("rejected", ())))
            for row in (content or {}).get("albums", ())
        ]
    except UserError as error:
        raise UserError(f"{file} is damaged ({error}); {todo}") from error


def find_album(library: Path, name: str) -> Album:
    """The album of this name.

    Raises:
        UserError: when there is none.
    """
    return _known({album.name: album for album in read_albums(library)}, name, library)


def change_album(
    library: Path, name: str, *, add: Sequence[str] = (), remove: Sequence[str] = (), reject: Sequence[str] = ()
) -> Album:
    """Add, remove and reject pictures, all at once; returns the album, which is begun if it does not exist.

    Args:
        library: folder of the library.
        name: of the album.
        add: ids of pictures that belong to the album; earlier answers that they do not belong are dropped.
        remove: ids of pictures that are neither in the album nor rejected afterwards.
        reject: ids of pictures that do not belong to the album.

    Raises:
        UserError: when there are too many albums or pictures, or there is no such album to remove pictures from.
    """

    def change(known: dict[str, Album]) -> Album:
        if name not in known and (remove or reject):
            _known(known, name, library)
        if name not in known and len(known) >= MAX_ALBUMS:
            raise UserError(f"{library} has {MAX_ALBUMS:,} albums; delete some before you begin others")
        known[name] = known.get(name, Album(name)).changed(add, remove, reject)
        return known[name]

    return _change(library, change)


def rename_album(library: Path, name: str, new: str) -> Album:
    """Give an album another name, at its place in the list.

    Raises:
        UserError: when there is none of this name, or the new name is taken.
    """

    def change(known: dict[str, Album]) -> Album:
        renamed = replace(_known(known, name, library), name=new)
        if new != name and new in known:
            raise UserError(f"there is an album '{new}' already; give another name, or delete that album before")
        albums = [renamed if album.name == name else album for album in known.values()]
        known.clear()
        known.update((album.name, album) for album in albums)
        return renamed

    return _change(library, change)


def delete_album(library: Path, name: str) -> Album:
    """Delete an album, and return it. The pictures stay in the library.

    Raises:
        UserError: when there is none of this name.
    """

    def change(known: dict[str, Album]) -> Album:
        return known.pop(_known(known, name, library).name)

    return _change(library, change)


def _known(known: Mapping[str, Album], name: str, library: Path) -> Album:
    if name not in known:
        raise unknown("album", name, known) if known else UserError(f"{library} has no albums")
    return known[name]


def _change(library: Path, change: Callable[[dict[str, Album]], Album]) -> Album:
    """Read the albums, change them, and write them again, under the lock; an unchanged list is not written."""
    with wait_for_lock(library / ALBUMS_LOCK):
        before = read_albums(library)
        known = {album.name: album for album in before}
        found = change(known)
        after = list(known.values())
        if after != before:
            _write(library, after)
        return found


def _write(library: Path, albums: Iterable[Album]) -> None:
    rows = [asdict(album) for album in albums]
    if sum(len(row["pictures"]) + len(row["rejected"]) for row in rows) > MAX_STORED_IDS:
        raise UserError(f"the albums of a library have at most {MAX_STORED_IDS:,} pictures together; delete some")
    replace_json(library / ALBUMS_FILE, {"format": ALBUMS_FORMAT, "version": ALBUMS_VERSION, "albums": rows}, indent=1)


# Albums and the pictures of a library.


class AlbumItems(NamedTuple):
    """The pictures of an album that a library has."""

    items: list[Item]
    """in the order of the album"""
    missing: int
    """number of pictures that are no longer in the library, or whose file is gone"""

    @property
    def selected(self) -> list[SelectedPicture]:
        """The pictures to export."""
        return [SelectedPicture(item.id) for item in self.items]


def album_items(library: Library, ids: Sequence[str]) -> AlbumItems:
    """The items of an album. A picture that is no longer there is counted, and no error."""
    found: dict[str, Item] = {}
    for start in range(0, len(ids), READ_ROWS):
        found |= {item.id: item for item in library.known_items(ids[start : start + READ_ROWS]) if not item.gone}
    items = [found[id] for id in ids if id in found]
    return AlbumItems(items, len(ids) - len(items))


def ids_of(library: Library, names: Sequence[str]) -> list[str]:
    """The ids of pictures that are named by an id or by the path of a file; that of a video names all its frames.

    Raises:
        UserError: for the first name that is neither.
    """
    found = {item.id: [item.id] for item in album_items(library, names).items}
    paths: dict[str, list[str]] = {os.path.abspath(name): [] for name in names if name not in found}
    if paths:
        for picture in library.present_pictures():
            if picture.path is not None and (path := os.path.abspath(picture.path)) in paths:
                paths[path].append(picture.id)
    chosen = [found.get(name) or paths.get(os.path.abspath(name), []) for name in names]
    if (missing := next((name for name, ids in zip(names, chosen, strict=True) if not ids), None)) is not None:
        raise UserError(f"{library.folder} has no picture with the id or path '{missing}'; nothing was changed")
    return list(dict.fromkeys(id for ids in chosen for id in ids))
