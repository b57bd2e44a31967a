"""From a reader's draft to a collection on disk: every picture checked, every reference resolved, all or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq

from calligram.data.collection import FORMAT, MANIFEST, VERSION, Collection
from calligram.data.draft import Draft, FileAt, ImageRecord, MemberAt
from calligram.data.pictures import PictureError, Probe, probe
from calligram.data.placing import Placed, Placing
from calligram.data.problems import Problems
from calligram.data.replacing import put_in_place
from calligram.data.tables import Checked, tables
from calligram.errors import UserError
from calligram.progress import Track, silent


def write_collection(
    draft: Draft,
    folder: Path,
    problems: Problems | None = None,
    *,
    placing: Placing = "link",
    overwrite: bool = False,
    track: Track = silent,
    tell: Callable[[str], None] = lambda line: None,
) -> Collection:
    """Check a draft and store it in ``folder``; until the last step nothing is there, then everything is.

    Args:
        placing: ``link`` makes hard links where the file system can and copies elsewhere, ``copy`` always copies,
            ``reference`` leaves the pictures where they are and stores their absolute paths.
        overwrite: replace a collection that is there already; captions that people added to it are kept in a list.
        tell: is given lines on what was added to a collection that is replaced, and where it is kept.
    """
    problems = problems if problems is not None else Problems()
    refuse_existing(folder, overwrite)
    checked = _usable_images(draft, problems, track)
    if not checked.images:
        raise UserError(f"nothing to import from {draft.name}: " + ("; ".join(problems.summary()) or "no images found"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        _fill(partial, checked, Placed(partial, placing, draft.made), problems, track)
        partial.chmod(0o755)
        replaced = put_in_place(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for line in replaced:
        tell(line)
    return Collection.open(folder)


def _fill(folder: Path, checked: Checked, placed: Placed, problems: Problems, track: Track) -> None:
    """Write every table and the manifest."""
    draft, made = checked.draft, tables(checked, placed, problems, track)
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


def _usable_images(draft: Draft, problems: Problems, track: Track) -> Checked:
    """The records whose pictures decode, with their sizes."""

    def check(record: ImageRecord) -> Probe | PictureError | None:
        if record.at is None:
            return None
        try:
            return probe(_source(record.at))
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
    return Checked(draft, kept, probes)


def _source(at: FileAt | MemberAt) -> bytes | Path:
    if isinstance(at, FileAt):
        return at.path
    with at.tar.open("rb") as file:
        file.seek(at.offset)
        return file.read(at.size)
