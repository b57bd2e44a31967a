"""From a reader's draft to a collection on disk: every picture checked, every reference resolved, all or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from calligram.data.add_captions import NewCaption, caption_revisions
from calligram.data.caption_file import write_caption_list
from calligram.data.collection import FORMAT, MANIFEST, VERSION, Collection
from calligram.data.draft import Draft, ImageRecord, PictureFile, Problems, TarMember
from calligram.data.pictures import PictureError, Probe, probe
from calligram.data.readers.captions_table import TABLE_SUFFIXES
from calligram.data.revision import manifest_section, next_revision, to_disk, writing
from calligram.data.write_tables import CheckedDraft, FilePlacement, FilePlacer, build_tables
from calligram.errors import UserError, command
from calligram.progress import Track, silent

# A new collection in the place of an old one, without losing what people added to the old.

KEPT_CAPTION_COLUMNS = ("image", "caption", "split", "added")
DatedCaption = tuple[NewCaption, str]
"""a caption and when it was added"""


class _UnreadableCollection(NamedTuple):
    """An old collection that cannot be read, so that nobody knows what was added to it."""

    why: str


def install_collection(partial: Path, folder: Path) -> list[str]:
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
        carried = _carry_over(folder, partial)
        if isinstance(carried, _UnreadableCollection):
            aside = _unused_name(folder)
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


def _unused_name(folder: Path) -> Path:
    """A name beside the folder that nothing has."""
    number = 1
    while (found := folder.with_name(f"{folder.name}.unreadable.{number}")).exists():
        number += 1
    return found


def _carry_over(folder: Path, partial: Path) -> list[str] | _UnreadableCollection:
    """Write into ``partial`` what must outlive the collection in ``folder``; returns what to say of it."""
    try:
        old = Collection.open(folder)
        added = [(caption, one.when) for one in caption_revisions(old) for caption in one.captions]
    except UserError as error:
        return _UnreadableCollection(str(error))
    new, revision = Collection.open(partial), next_revision(old.manifest)
    for file in folder.iterdir():
        if file.suffix.lower() in TABLE_SUFFIXES and file.is_file():
            shutil.copy2(file, partial / file.name)
    # Numbers go on, so that lists of the old collection are never written over and a server sees that it was replaced.
    manifest = json.dumps({**new.manifest, "revision": revision}, indent=2, ensure_ascii=False)
    (partial / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
    lines = _write_missing_captions(added, new, folder, f"added-by-hand.{revision}") if added else []
    if regions := manifest_section(old.manifest, "proposals"):
        run = command("calligram", "regions", folder, "--proposals", "METHOD")
        lines.append(f"the regions that were added ({', '.join(regions)}) are gone; run {run} again")
    return lines


def _write_missing_captions(added: Sequence[DatedCaption], new: Collection, folder: Path, name: str) -> list[str]:
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
        _write_dated_captions(new.folder / f"{name}.csv", here)
        file = folder / f"{name}.csv"
        adds = command("calligram", "caption", folder, file)
        lines.append(f"{_caption_count(here)} added since the last import kept in {file}; {adds} adds them again")
    if gone:
        _write_dated_captions(new.folder / f"{name}.gone.csv", gone)
        file = folder / f"{name}.gone.csv"
        lines.append(f"{_caption_count(gone)} of images that are no longer there kept in {file}")
    return lines


def _caption_count(rows: Sequence[DatedCaption]) -> str:
    return f"{len(rows)} caption{'s' * (len(rows) != 1)}"


def _write_dated_captions(file: Path, rows: Sequence[DatedCaption]) -> None:
    write_caption_list(file, [(one.image, one.text, one.split, when) for one, when in rows], KEPT_CAPTION_COLUMNS)
    to_disk(file)


def write_draft(
    draft: Draft,
    folder: Path,
    problems: Problems | None = None,
    *,
    placing: FilePlacement = "link",
    overwrite: bool = False,
    track: Track = silent,
    report: Callable[[str], None] = lambda line: None,
) -> Collection:
    """Check a draft and store it in ``folder``; until the last step nothing is there, then everything is.

    Args:
        placing: ``link`` makes hard links where the file system can and copies elsewhere, ``copy`` always copies,
            ``reference`` leaves the pictures where they are and stores their absolute paths.
        overwrite: replace a collection that is there already; captions that people added to it are kept in a list.
        report: is given lines on what was added to a collection that is replaced, and where it is kept.
    """
    problems = problems if problems is not None else Problems()
    refuse_existing(folder, overwrite)
    checked = _usable_images(draft, problems, track)
    if not checked.images:
        raise UserError(f"nothing to import from {draft.name}: " + ("; ".join(problems.summary()) or "no images found"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        _write_files(partial, checked, FilePlacer(partial, placing, draft.reader_arrays), problems, track)
        partial.chmod(0o755)
        replaced = install_collection(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for line in replaced:
        report(line)
    return Collection.open(folder)


def _write_files(folder: Path, checked: CheckedDraft, placed: FilePlacer, problems: Problems, track: Track) -> None:
    """Write every table and the manifest."""
    draft, made = checked.draft, build_tables(checked, placed, problems, track)
    for name, table in made.items():
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "name": draft.name,
        "about": draft.about,
        "shards": placed.shards,
        "features": {name: [placed.array(name, f) for f in files] for name, files in draft.features.items()},
        "counts": {name: len(table) for name, table in made.items()},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Raise a UserError unless ``folder`` is free, or holds a collection that may be replaced."""
    if not folder.name or folder.name == "..":
        raise UserError(f"'{folder}' has no name of its own; give the folder to create")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} exists and is not a collection; choose another destination")
    if not overwrite:
        raise UserError(f"{folder} already holds a collection; choose another destination or give --overwrite")


def _usable_images(draft: Draft, problems: Problems, track: Track) -> CheckedDraft:
    """The records whose pictures decode, with their sizes."""

    def check(record: ImageRecord) -> Probe | PictureError | None:
        if record.picture is None:
            return None
        try:
            return probe(_picture_source(record.picture))
        except PictureError as error:
            return error

    kept: list[ImageRecord] = []
    probes: list[Probe | None] = []
    seen: set[str] = set()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        checked = zip(draft.images, pool.map(check, draft.images), strict=True)
        for record, found in track(checked, "checking images", len(draft.images)):
            if isinstance(found, PictureError):
                problems.skip("unusable image", record.id, str(found))
            elif record.id in seen:
                problems.skip("image id used twice", record.id, "the first is kept")
            else:
                seen.add(record.id)
                for note in found.notes if found else ():
                    problems.note(note, record.id)
                kept.append(record)
                probes.append(found)
    return CheckedDraft(draft, kept, probes)


def _picture_source(at: PictureFile | TarMember) -> bytes | Path:
    if isinstance(at, PictureFile):
        return at.path
    with at.tar.open("rb") as file:
        file.seek(at.offset)
        return file.read(at.size)
