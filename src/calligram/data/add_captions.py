"""Add captions to an existing collection, remove the last addition, and assign splits to newly captioned images.

New captions are appended to their table with the number of their revision. Every earlier state is therefore the first
part of the present table, and ``remove_last_captions`` restores it.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calligram.data.collection import ADDED_REVISION, ADDED_TIME, SPLIT_REVISION, SPLITS, Collection
from calligram.data.readers.source import key_to_move, split_by_hash, split_key
from calligram.data.revision import next_revision, remove_old_tables, replace_manifest, write_lock, write_new_tables
from calligram.errors import UserError

# Splits of images that had none until people captioned them: what is captioned must be of use to training.

Ints = NDArray[np.int64]
MAX_CAPTION_CHARACTERS = 1000
"""maximum length of a caption"""
JOINER_CHARACTERS = "\u200c\u200d"
"""format characters that are part of words and emoji"""
INVISIBLE_CHARACTERS = "\u115f\u1160\u2800\u3164\uffa0"
"""letters and symbols without a visible shape"""
OLD_TABLE_SECONDS = 600.0
"""seconds for which replaced tables stay on disk, for processes that have the collection open"""


class NewCaption(NamedTuple):
    """A new caption of an existing image."""

    image: str
    """id of the image"""
    text: str
    split: str | None = None
    """split for an image without one; when None, ``assign_splits`` chooses it"""


class AddedCaptions(NamedTuple):
    """The result of ``add_new_captions``."""

    collection: Collection
    captions: int
    """number of captions added"""
    duplicates: int
    """number of captions that their image already had"""
    splits: Mapping[str, int]
    """number of images that were assigned to each split"""


class CaptionRevision(NamedTuple):
    """Captions that were added together, with the number and the time of their revision."""

    revision: int
    when: str
    captions: tuple[NewCaption, ...]


def clean_caption(text: str) -> str:
    """Normalise a caption to one line without control characters.

    Raises:
        UserError: when no letter, number or symbol is left, or the caption is too long.
    """
    visible = "".join(
        c for c in text if c.isspace() or c in JOINER_CHARACTERS or unicodedata.category(c) not in ("Cc", "Cf")
    )
    # JSON can escape half of a surrogate pair, and UTF-8 cannot encode it. It becomes a question mark, as in an import.
    cleaned = " ".join(visible.encode("utf-8", "replace").decode().split())
    # Marks and punctuation alone do not describe a picture.
    if not any(unicodedata.category(c)[0] in "LNS" and c not in INVISIBLE_CHARACTERS for c in cleaned):
        raise UserError("the caption is empty; describe the picture in one sentence")
    if len(cleaned) > MAX_CAPTION_CHARACTERS:
        raise UserError(
            f"the caption has {len(cleaned)} characters; "
            f"at most {MAX_CAPTION_CHARACTERS} are accepted: describe the picture in one sentence"
        )
    return cleaned


def add_new_captions(folder: Path, captions: Sequence[NewCaption]) -> AddedCaptions:
    """Add captions to the collection in ``folder``: all of them or, when one is refused, none.

    Writers wait for each other. Readers see the state before or after the addition, never a mixture. A caption that its
    image already has is skipped, so that a repeated call changes nothing. An image without a split is assigned to one,
    because training ignores images without a split.

    Raises:
        UserError: when an image is unknown, a requested split differs from the split of the image, or a caption is
            empty or too long.
    """
    cleaned = [new._replace(text=clean_caption(new.text)) for new in captions]
    with write_lock(folder):
        before = Collection.open(folder)
        rows = _image_rows(before, [new.image for new in cleaned])
        new_captions = _without_duplicates(before, cleaned, rows)
        requested, captioned = _requested_splits(cleaned, rows), [rows[new.image] for new in new_captions]
        check_requested_splits(before, requested, captioned)
        if not new_captions:
            return AddedCaptions(before, 0, len(cleaned), {})
        tables = _extended_tables(before, [(rows[new.image], new) for new in new_captions])
        given = assign_splits(before, captioned, requested)
        if given:
            tables["images"] = set_splits(before.table("images"), given, next_revision(before.manifest))
        splits = dict(Counter(given.values()))
        return AddedCaptions(
            _commit_tables(folder, before, tables), len(new_captions), len(cleaned) - len(new_captions), splits
        )


def caption_revisions(collection: Collection) -> list[CaptionRevision]:
    """Captions added since the import, in the order of their revisions."""
    table = collection.table("captions")
    if ADDED_REVISION not in table.column_names:
        return []
    numbers = collection.numbers("captions", ADDED_REVISION)
    image = np.full(len(table), -1, dtype=np.int64)
    image[collection.numbers("matches", "caption")] = collection.numbers("matches", "image")
    ids = collection.table("images").column("id")
    found = []
    for revision in sorted({int(n) for n in numbers if n >= 0}):
        rows = np.flatnonzero(numbers == revision)
        texts = table.column("text").take(pa.array(rows)).to_pylist()
        splits = splits_of_revision(collection, revision)
        captions = [
            NewCaption(ids[int(i)].as_py(), text, splits.get(int(i)))
            for i, text in zip(image[rows], texts, strict=True)
        ]
        found.append(CaptionRevision(revision, str(table.column(ADDED_TIME)[int(rows[0])].as_py()), tuple(captions)))
    return found


def remove_last_captions(folder: Path, keep: Callable[[CaptionRevision], None] | None = None) -> CaptionRevision:
    """Remove the captions of the last addition and the splits assigned with them. Returns the removed captions.

    Args:
        keep: called with the captions before the collection changes. When it raises, the collection does not change.

    Raises:
        UserError: when no captions were added since the import.
    """
    with write_lock(folder):
        before = Collection.open(folder)
        earlier = caption_revisions(before)
        if not earlier:
            raise UserError(f"no captions were added to {folder} since its import; there is nothing to remove")
        last = earlier[-1]
        if keep is not None:
            keep(last)
        stays = before.numbers("captions", ADDED_REVISION) != last.revision
        assert not stays[int(stays.sum()) :].any(), "the captions of the last addition must be the last rows"
        tables = {"captions": before.table("captions").slice(0, int(stays.sum()))}
        for name in ("matches", "also_true"):
            if before.has(name):
                table = before.table(name)
                tables[name] = table.filter(pc.less(table.column("caption"), int(stays.sum())))
        if splits_of_revision(before, last.revision):
            tables["images"] = clear_splits(before.table("images"), last.revision)
        _commit_tables(folder, before, tables)
        return last


def _image_rows(collection: Collection, ids: Sequence[str]) -> dict[str, int]:
    """The row of each image id; refuses unknown ids."""
    wanted, column = set(ids), collection.table("images").column("id")
    places = pc.index_in(pa.array(sorted(wanted), pa.string()), value_set=column.combine_chunks())
    rows = {name: row.as_py() for name, row in zip(sorted(wanted), places, strict=True)}
    unknown = [name for name in dict.fromkeys(ids) if rows[name] is None]
    if unknown:
        near = difflib.get_close_matches(unknown[0], column.to_pylist(), n=1)
        hint = f"did you mean '{near[0]}'?" if near else '"calligram suggest" lists image ids'
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UserError(f"there is no image '{unknown[0]}'{more} in {collection.folder}; {hint}")
    return rows


def _requested_splits(captions: Sequence[NewCaption], rows: Mapping[str, int]) -> dict[int, str]:
    """The requested split by image row, for images whose captions name a split."""
    requested: dict[int, str] = {}
    for new in captions:
        if new.split is not None and requested.setdefault(rows[new.image], new.split) != new.split:
            both = f"{requested[rows[new.image]]} and {new.split}"
            raise UserError(f"image '{new.image}' has the splits {both}; give one split for it, or none")
    return requested


def _without_duplicates(
    collection: Collection, captions: Sequence[NewCaption], rows: Mapping[str, int]
) -> list[NewCaption]:
    """Captions that their image does not have yet, each once."""
    image, caption = collection.numbers("matches", "image"), collection.numbers("matches", "caption")
    here = np.flatnonzero(np.isin(image, list(rows.values())))
    texts = collection.table("captions").column("text").take(pa.array(caption[here])).to_pylist()
    known = set(zip(image[here].tolist(), texts, strict=True))
    new_captions = []
    for new in captions:
        if (rows[new.image], new.text) not in known:
            known.add((rows[new.image], new.text))
            new_captions.append(new)
    return new_captions


def _extended_tables(before: Collection, new_captions: Sequence[tuple[int, NewCaption]]) -> dict[str, pa.Table]:
    """The tables of captions and matches with the new rows appended."""
    captions, revision = before.table("captions"), next_revision(before.manifest)
    first, when = len(captions), datetime.now(UTC).isoformat(timespec="seconds")
    taken = set(captions.column("id").to_pylist())
    ids: list[str] = []
    for number, (_, new) in enumerate(new_captions):
        name = f"{new.image}#r{revision}.{number}"
        while name in taken:
            name += "'"
        ids.append(name)
    added = pa.table(
        {
            "id": pa.array(ids, pa.string()),
            "text": pa.array([new.text for _, new in new_captions], pa.string()),
            ADDED_REVISION: pa.array([revision] * len(new_captions), pa.int64()),
            ADDED_TIME: pa.array([when] * len(new_captions), pa.string()),
        }
    )
    pairs = pa.table(
        {
            "image": pa.array([row for row, _ in new_captions], pa.int32()),
            "caption": pa.array(range(first, first + len(new_captions)), pa.int32()),
        }
    )
    made = {"captions": pa.concat_tables([captions, added], promote_options="default")}
    made["matches"] = pa.concat_tables([before.table("matches"), pairs])
    if before.has("also_true"):  # other images that a new caption is true of are not known
        made["also_true"] = pa.concat_tables([before.table("also_true"), pairs])
    return made


def _commit_tables(folder: Path, before: Collection, tables: Mapping[str, pa.Table]) -> Collection:
    manifest = write_new_tables(folder, before.manifest, tables)
    replace_manifest(folder, manifest)
    remove_old_tables(folder, before.manifest, manifest, keep_seconds=OLD_TABLE_SECONDS)
    return Collection.open(folder)


def assign_splits(collection: Collection, rows: Iterable[int], requested: Mapping[int, str]) -> dict[int, str]:
    """Choose a split for each of these image rows that has none.

    Where the source defines splits, the images go to train, so that dev and test stay as published. Otherwise a hash
    of the id decides, as in an import. If the hash leaves a split without a captioned image, one of these images goes
    there. Images of one identity stay together.

    Args:
        requested: split by image row, as given with the captions; it has priority.
    """
    splits, identity = collection.column("images", "split"), collection.numbers("images", "identity")
    free = sorted({row for row in rows if not splits[row]})
    if not free:
        return {}
    ids = collection.table("images").column("id")
    keys = {row: split_key(ids[row].as_py(), None if identity[row] < 0 else int(identity[row])) for row in free}
    named = {keys[row]: requested[row] for row in free if row in requested}
    known = {split_key("", int(i)): str(s) for i, s in zip(identity, splits, strict=True) if s and i >= 0} | named
    chosen = {key: known.get(key, "train") for key in keys.values()}
    if not _source_has_splits(collection, splits):
        chosen = {key: known.get(key) or split_by_hash(key) for key in keys.values()}
        captioned = {int(row) for row in collection.numbers("matches", "image") if splits[row]}
        held = {
            split_key(ids[row].as_py(), None if identity[row] < 0 else int(identity[row])): str(splits[row])
            for row in captioned
        }
        _fill_empty_splits(chosen, held, fixed=known)
    return {row: requested.get(row, chosen[keys[row]]) for row in free}


def set_splits(images: pa.Table, given: Mapping[int, str], revision: int) -> pa.Table:
    """The table of images with these splits, by image row, marked with the revision that assigned them."""
    splits, revisions = images.column("split").to_pylist(), _split_revisions(images)
    for row, split in given.items():
        splits[row], revisions[row] = split, revision
    return _replace_split_columns(images, splits, revisions)


def clear_splits(images: pa.Table, revision: int) -> pa.Table:
    """The table of images without the splits that a revision assigned."""
    splits, revisions = images.column("split").to_pylist(), _split_revisions(images)
    for row in np.flatnonzero(np.array([r == revision for r in revisions], dtype=bool)):
        splits[row], revisions[row] = None, None
    return _replace_split_columns(images, splits, revisions)


def splits_of_revision(collection: Collection, revision: int) -> dict[int, str]:
    """Splits that a revision assigned, by image row."""
    images = collection.table("images")
    if SPLIT_REVISION not in images.column_names:
        return {}
    splits = images.column("split")
    return {
        int(row): splits[int(row)].as_py() for row in np.flatnonzero(_split_revision_numbers(collection) == revision)
    }


def check_requested_splits(collection: Collection, requested: Mapping[int, str], captioned: Iterable[int]) -> None:
    """Refuse requested splits that cannot be assigned.

    Args:
        requested: requested split by image row.
        captioned: rows of images that get a new caption.

    Raises:
        UserError: when an image is in another split, or has no split and gets no new caption.
    """
    splits, ids, new = collection.column("images", "split"), collection.table("images").column("id"), set(captioned)
    for row, split in requested.items():
        if splits[row] and splits[row] != split:
            raise UserError(
                f"image '{ids[row].as_py()}' is in split {splits[row]}, not {split}; a caption cannot move an image to "
                "another split, leave its split empty"
            )
        if not splits[row] and row not in new:
            raise UserError(
                f"image '{ids[row].as_py()}' has this caption already and has no split; only a new caption can "
                "assign a split, leave it empty"
            )


def _source_has_splits(collection: Collection, splits: Sequence[object]) -> bool:
    given = _split_revision_numbers(collection)
    return any(split and given[row] < 0 for row, split in enumerate(splits))


def _fill_empty_splits(chosen: dict[str, str], held: Mapping[str, str], fixed: Mapping[str, str]) -> None:
    """Move keys in ``chosen`` to splits without a captioned image; images with earlier captions stay."""
    for name in SPLITS:
        counts = Counter({**held, **chosen}.values())
        movable = {key: split for key, split in chosen.items() if key not in fixed and counts[split] > 1}
        if not counts[name] and movable:
            chosen[key_to_move(movable)] = name


def _split_revision_numbers(collection: Collection) -> Ints:
    images = collection.table("images")
    if SPLIT_REVISION not in images.column_names:
        return np.full(len(images), -1, dtype=np.int64)
    return collection.numbers("images", SPLIT_REVISION)


def _split_revisions(images: pa.Table) -> list[int | None]:
    known = SPLIT_REVISION in images.column_names
    found: list[int | None] = images.column(SPLIT_REVISION).to_pylist() if known else [None] * len(images)
    return found


def _replace_split_columns(images: pa.Table, splits: list[str | None], revisions: list[int | None]) -> pa.Table:
    place = images.schema.get_field_index("split")
    made = images.set_column(place, images.schema.field(place), pa.array(splits, images.schema.field(place).type))
    if SPLIT_REVISION in made.column_names:
        made = made.drop_columns([SPLIT_REVISION])
    if any(revision is not None for revision in revisions):
        made = made.append_column(SPLIT_REVISION, pa.array(revisions, pa.int64()))
    return made
