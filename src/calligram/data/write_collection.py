"""Write a reader's draft as a collection: check every picture, resolve every reference, and install it atomically.

When it replaces an existing collection, captions that people added to the old one are kept in lists.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from calligram.data.add_captions import NewCaption, caption_revisions
from calligram.data.caption_file import write_caption_list
from calligram.data.collection import FORMAT, MANIFEST, VERSION, Collection
from calligram.data.draft import Draft, ImageRecord, PictureFile, Problems, TarMember
from calligram.data.pictures import PictureError, Probe, probe, read_picture_file, worker_threads
from calligram.data.readers.captions_table import TABLE_SUFFIXES
from calligram.data.revision import manifest_section, next_revision, replace_manifest, with_checksums, write_lock
from calligram.data.write_tables import CheckedDraft, FilePlacement, FilePlacer, build_tables
from calligram.errors import UserError, command
from calligram.files import NEW_FOLDER, check_space, move_folder, replace_folder, scratch_folder, sync_file, sync_folder
from calligram.progress import Track, silent

KEPT_CAPTION_COLUMNS = ("image", "caption", "split", "added")
DatedCaption = tuple[NewCaption, str]
"""a caption and the time of its addition"""


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
    """Check a draft and store it in ``folder``. The last step renames the finished collection into place.

    Args:
        placing: ``link`` makes hard links where the file system supports them and copies otherwise, ``copy`` always
            copies, ``reference`` stores absolute paths and leaves the pictures in place.
        overwrite: replace an existing collection; captions that people added to it are kept in a list.
        report: called with lines about captions and regions that were added to a replaced collection.
    """
    problems = problems if problems is not None else Problems()
    refuse_existing(folder, overwrite)
    checked = _usable_images(draft, problems, track)
    if not checked.images:
        raise UserError(f"nothing to import from {draft.name}: " + ("; ".join(problems.summary()) or "no images found"))
    with scratch_folder(folder) as scratch:
        new = scratch / NEW_FOLDER
        new.mkdir()
        placer = FilePlacer(new, placing, draft.reader_arrays)
        check_space(folder.parent, placer.copied_bytes(checked.images))
        _write_files(new, checked, placer, problems, track)
        replaced = install_collection(scratch, folder)
    for line in replaced:
        report(line)
    return Collection.open(folder)


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Raise a UserError unless ``folder`` is missing or empty, or holds a collection and ``overwrite`` is set."""
    if not folder.name or folder.name == "..":
        raise UserError(f"'{folder}' does not name a folder; give the path of the folder to create")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} exists and is not a collection; choose another destination")
    if not overwrite:
        raise UserError(f"{folder} already holds a collection; choose another destination or give --overwrite")


def _usable_images(draft: Draft, problems: Problems, track: Track) -> CheckedDraft:
    """The records whose pictures can be decoded, with their sizes."""

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
    with worker_threads() as pool:
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
    return read_picture_file(at.tar, at.offset, at.size)


def _write_files(folder: Path, checked: CheckedDraft, placer: FilePlacer, problems: Problems, track: Track) -> None:
    """Write every table and the manifest."""
    draft, made = checked.draft, build_tables(checked, placer, problems, track)
    for name, table in made.items():
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": draft.name,
        "about": draft.about,
        "shards": placer.shards,
        "features": {name: [placer.array(name, f) for f in files] for name, files in draft.features.items()},
        "counts": {name: len(table) for name, table in made.items()},
    }
    features = {file for files in manifest["features"].values() for file in files}
    files = [*(f"{name}.parquet" for name in made), *placer.shards, *features]
    manifest = with_checksums(folder, manifest, [file for file in files if not Path(file).is_absolute()])
    replace_manifest(folder, manifest)


def install_collection(scratch: Path, folder: Path) -> list[str]:
    """Rename the collection ``new`` in a scratch folder to ``folder``, and replace a collection that exists there.

    Captions that people added to the old collection are written to a list in the new one, which ``calligram caption``
    accepts. Lists in the old folder are copied. An old collection that cannot be read is renamed, not deleted.

    Returns:
        Lines for the user about the replaced collection.
    """
    new = scratch / NEW_FOLDER
    if not (folder / MANIFEST).is_file():
        _sync_files(new)
        try:
            if folder.exists():
                folder.rmdir()  # it is empty: ``refuse_existing`` refuses any other folder
            move_folder(new, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise UserError(f"{folder} was made by another process meanwhile; choose another destination") from error
        return []
    # Another process adds captions either before this, to the old one, or after it, to the new one.
    with write_lock(folder):
        carried = _carry_over(folder, new)
        _sync_files(new)
        if isinstance(carried, _UnreadableCollection):
            kept = _unused_name(folder)
            replace_folder(scratch, folder, keep=kept, listed=False)
            return [f"the replaced collection cannot be read ({carried.why}); it is kept in {kept}"]
        replace_folder(scratch, folder, listed=False)
    return carried


def _sync_files(folder: Path) -> None:
    """Wait until tables, lists and manifest are on the disk: the old ones are deleted next. Pictures have a source."""
    for file in folder.iterdir():
        if file.is_file():
            sync_file(file)
    sync_folder(folder)


class _UnreadableCollection(NamedTuple):
    """The old collection cannot be read, so captions added to it cannot be listed."""

    why: str


def _unused_name(folder: Path) -> Path:
    """A path next to the folder that does not exist yet."""
    number = 1
    while (found := folder.with_name(f"{folder.name}.unreadable.{number}")).exists():
        number += 1
    return found


def _carry_over(folder: Path, partial: Path) -> list[str] | _UnreadableCollection:
    """Copy the caption lists of ``folder`` to ``partial``, and list captions added by people; returns report lines."""
    try:
        old = Collection.open(folder)
        added = [(caption, one.when) for one in caption_revisions(old) for caption in one.captions]
    except UserError as error:
        return _UnreadableCollection(str(error))
    new, revision = Collection.open(partial), next_revision(old.manifest)
    for file in folder.iterdir():
        if file.suffix.lower() in TABLE_SUFFIXES and file.is_file():
            shutil.copyfile(file, partial / file.name)
    # The revision number continues, so that file names of old lists are not reused and a server notices the change.
    replace_manifest(partial, {**new.manifest, "revision": revision})
    lines = _write_missing_captions(added, new, folder, f"added-by-hand.{revision}") if added else []
    if regions := manifest_section(old.manifest, "proposals"):
        run = command("calligram", "regions", folder, "--proposals", "METHOD")
        lines.append(f"the regions that were added ({', '.join(regions)}) are lost; run {run} again")
    return lines


def _write_missing_captions(added: Sequence[DatedCaption], new: Collection, folder: Path, name: str) -> list[str]:
    """Write added captions that the new collection lacks: one list for its images, one for images that it lacks."""
    ids = [str(image) for image in new.column("images", "id")]
    splits = dict(zip(ids, new.column("images", "split"), strict=True))
    texts = new.column("captions", "text")
    pairs = zip(new.numbers("matches", "image"), new.numbers("matches", "caption"), strict=True)
    known = {(ids[int(image)], texts[int(caption)]) for image, caption in pairs}
    missing = [row for row in added if (row[0].image, row[0].text) not in known]
    # An image with a split keeps it, because a list that names another split would be refused.
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
