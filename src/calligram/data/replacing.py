"""A new collection in the place of an old one, without losing what people added to the old."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from calligram.data.caption_adding import NewCaption, additions
from calligram.data.caption_file import write_list
from calligram.data.collection import MANIFEST, Collection
from calligram.data.readers.captions_table import SUFFIXES
from calligram.data.revising import listed, next_revision, to_disk, writing
from calligram.errors import UserError, command

COLUMNS = ("image", "caption", "split", "added")
Row = tuple[NewCaption, str]
"""a caption and when it was added"""


class _Unknown(NamedTuple):
    """An old collection that cannot be read, so that nobody knows what was added to it."""

    why: str


def put_in_place(partial: Path, folder: Path) -> list[str]:
    """Rename the collection in ``partial`` to ``folder``; what is there gives way to it.

    Captions that people added to an old collection get into a list in the new one, which ``calligram caption`` takes;
    lists that lie in the old collection come along. An old collection that cannot be read is set aside, not deleted.

    Returns:
        What the user should know of what was replaced, in lines.
    """
    if not (folder / MANIFEST).is_file():
        if folder.exists():
            folder.rmdir()  # empty, or it would have been refused
        partial.rename(folder)
        return []
    with writing(folder):  # captions added while this goes on are in the old one before, or in the new one after
        carried = _carry(folder, partial)
        if isinstance(carried, _Unknown):
            aside = _free(folder)
            _swap(partial, folder, aside)
            return [f"the collection that was there cannot be read ({carried.why}); it is kept in {aside}"]
        trash = Path(tempfile.mkdtemp(prefix=f".{folder.name}.replaced-", dir=folder.parent))
        try:
            _swap(partial, folder, trash / folder.name)
        except BaseException:
            with suppress(OSError):  # not empty where the old collection could not be put back: it must stay
                trash.rmdir()
            raise
    shutil.rmtree(trash, ignore_errors=True)
    return carried


def _swap(partial: Path, folder: Path, aside: Path) -> None:
    folder.rename(aside)
    try:
        partial.rename(folder)
    except BaseException:
        aside.rename(folder)
        raise


def _free(folder: Path) -> Path:
    """A name beside the folder that nothing has."""
    number = 1
    while (found := folder.with_name(f"{folder.name}.unreadable.{number}")).exists():
        number += 1
    return found


def _carry(folder: Path, partial: Path) -> list[str] | _Unknown:
    """Write into ``partial`` what must outlive the collection in ``folder``; returns what to say of it."""
    try:
        old = Collection.open(folder)
        added = [(caption, one.when) for one in additions(old) for caption in one.captions]
    except UserError as error:
        return _Unknown(str(error))
    new, revision = Collection.open(partial), next_revision(old.manifest)
    for file in folder.iterdir():
        if file.suffix.lower() in SUFFIXES and file.is_file():
            shutil.copy2(file, partial / file.name)
    # Numbers go on, so that lists of the old collection are never written over and a server sees that it was replaced.
    manifest = json.dumps({**new.manifest, "revision": revision}, indent=2, ensure_ascii=False)
    (partial / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
    lines = _keep(added, new, folder, f"added-by-hand.{revision}") if added else []
    if regions := listed(old.manifest, "proposals"):
        run = command("calligram", "regions", folder, "--proposals", "METHOD")
        lines.append(f"the regions that were added ({', '.join(regions)}) are gone; run {run} again")
    return lines


def _keep(added: Sequence[Row], new: Collection, folder: Path, name: str) -> list[str]:
    """Lists of the captions that the new collection lacks: of its images, and of those that it does not have."""
    ids = [str(image) for image in new.column("images", "id")]
    splits = dict(zip(ids, new.column("images", "split"), strict=True))
    texts = new.column("captions", "text")
    pairs = zip(new.numbers("matches", "image"), new.numbers("matches", "caption"), strict=True)
    known = {(ids[int(image)], texts[int(caption)]) for image, caption in pairs}
    missing = [row for row in added if (row[0].image, row[0].text) not in known]
    # An image that has a split by now stays in it: a list that names another would be refused.
    here = [
        (one._replace(split=None if splits[one.image] else one.split), when)
        for one, when in missing
        if one.image in splits
    ]
    gone = [row for row in missing if row[0].image not in splits]
    lines = []
    if here:
        _write(new.folder / f"{name}.csv", here)
        file = folder / f"{name}.csv"
        adds = command("calligram", "caption", folder, file)
        lines.append(f"{_captions(here)} added since the last import kept in {file}; {adds} adds them again")
    if gone:
        _write(new.folder / f"{name}.gone.csv", gone)
        file = folder / f"{name}.gone.csv"
        lines.append(f"{_captions(gone)} of images that are no longer there kept in {file}")
    return lines


def _captions(rows: Sequence[Row]) -> str:
    return f"{len(rows)} caption{'s' * (len(rows) != 1)}"


def _write(file: Path, rows: Sequence[Row]) -> None:
    write_list(file, [(one.image, one.text, one.split, when) for one, when in rows], COLUMNS)
    to_disk(file)
