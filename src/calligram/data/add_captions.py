"""Captions that people add to a collection that exists, and taking them back.

Captions are only ever added at the end of their table, each with the revision it came with, so every earlier state is
the beginning of the present one and can be had again by ``take_back``.
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

from calligram.data.collection import ADDED_REVISION as REVISION
from calligram.data.collection import ADDED_WHEN as WHEN
from calligram.data.collection import SPLIT_REVISION, SPLITS, Collection
from calligram.data.readers.source import key_to_move, split_by_hash, split_key
from calligram.data.revision import next_revision, remove_old_tables, replace_manifest, write_tables, writing
from calligram.errors import UserError

# Splits of images that had none until people captioned them: what is captioned must be of use to training.

Ints = NDArray[np.int64]


def assign_splits(collection: Collection, rows: Iterable[int], asked: Mapping[int, str]) -> dict[int, str]:
    """A split for each of these images that has none, now that they get captions.

    Where the source gave splits, that is train: the others are as the source wants them, and measure. Where it gave
    none, the hash that splits an import decides, and where that leaves a split without any captioned image, one of
    these goes there. Images of one identity stay together.

    Args:
        asked: the splits that people named, by image; they come first.
    """
    splits, identity = collection.column("images", "split"), collection.numbers("images", "identity")
    free = sorted({row for row in rows if not splits[row]})
    if not free:
        return {}
    ids = collection.table("images").column("id")
    keys = {row: split_key(ids[row].as_py(), None if identity[row] < 0 else int(identity[row])) for row in free}
    named = {keys[row]: asked[row] for row in free if row in asked}
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
    return {row: asked.get(row, chosen[keys[row]]) for row in free}


def set_splits(images: pa.Table, given: Mapping[int, str], revision: int) -> pa.Table:
    """The table of images with these splits, and the revision that they came with."""
    splits, revisions = images.column("split").to_pylist(), _split_revisions(images)
    for row, split in given.items():
        splits[row], revisions[row] = split, revision
    return _replace_split_columns(images, splits, revisions)


def clear_splits(images: pa.Table, revision: int) -> pa.Table:
    """The table of images without the splits that came with a revision."""
    splits, revisions = images.column("split").to_pylist(), _split_revisions(images)
    for row in np.flatnonzero(np.array([r == revision for r in revisions], dtype=bool)):
        splits[row], revisions[row] = None, None
    return _replace_split_columns(images, splits, revisions)


def splits_of_revision(collection: Collection, revision: int) -> dict[int, str]:
    """Images that got their split with a revision, and which."""
    images = collection.table("images")
    if SPLIT_REVISION not in images.column_names:
        return {}
    splits = images.column("split")
    return {
        int(row): splits[int(row)].as_py() for row in np.flatnonzero(_split_revision_numbers(collection) == revision)
    }


def check_requested_splits(collection: Collection, asked: Mapping[int, str], fresh: Iterable[int]) -> None:
    """Refuse splits that captions cannot bring.

    Args:
        asked: by image, the split that was named for it.
        fresh: images that get a caption they did not have.

    Raises:
        UserError: when an image is in another split, or in none and gets no caption that could bring one.
    """
    splits, ids, new = collection.column("images", "split"), collection.table("images").column("id"), set(fresh)
    for row, split in asked.items():
        if splits[row] and splits[row] != split:
            raise UserError(
                f"image '{ids[row].as_py()}' is in split {splits[row]}, not {split}; captions move no image, "
                "leave its split empty"
            )
        if not splits[row] and row not in new:
            raise UserError(
                f"image '{ids[row].as_py()}' has this caption already and is in no split; a split comes with a new "
                "caption, leave it empty"
            )


def _source_has_splits(collection: Collection, splits: Sequence[object]) -> bool:
    given = _split_revision_numbers(collection)
    return any(split and given[row] < 0 for row, split in enumerate(splits))


def _fill_empty_splits(chosen: dict[str, str], held: Mapping[str, str], fixed: Mapping[str, str]) -> None:
    """Move some of the chosen to splits that hold no captioned image; what was captioned before stays."""
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


MAX_CAPTION_CHARACTERS = 1000
"""characters of a caption"""
JOINER_CHARACTERS = "\u200c\u200d"
"""format characters that words and emoji are spelt with"""
INVISIBLE_CHARACTERS = "\u115f\u1160\u2800\u3164\uffa0"
"""letters and symbols that show nothing"""
OLD_TABLE_SECONDS = 600.0
"""seconds that replaced tables are kept for processes that have the collection open"""


class NewCaption(NamedTuple):
    """A text for an image that is there."""

    image: str
    """its id"""
    text: str
    split: str | None = None
    """where it goes when it is in no split; None to leave that to ``caption_splits.splits_for``"""


class AddedCaptions(NamedTuple):
    """What became of new captions."""

    collection: Collection
    captions: int
    """that were added"""
    duplicates: int
    """that were there already, with the same image"""
    splits: Mapping[str, int]
    """images that were in no split and now are, by split"""


class CaptionRevision(NamedTuple):
    """Captions that were added together."""

    revision: int
    when: str
    captions: tuple[NewCaption, ...]


def clean_caption(text: str) -> str:
    """A caption on one line, without characters that control how others are shown.

    Raises:
        UserError: when nothing is left that says something, or it is too long.
    """
    visible = "".join(
        c for c in text if c.isspace() or c in JOINER_CHARACTERS or unicodedata.category(c) not in ("Cc", "Cf")
    )
    # Halves of surrogate pairs, which JSON may escape and UTF-8 cannot hold, become question marks as at import.
    cleaned = " ".join(visible.encode("utf-8", "replace").decode().split())
    # Letters, numbers or symbols: marks and punctuation alone describe nothing.
    if not any(unicodedata.category(c)[0] in "LNS" and c not in INVISIBLE_CHARACTERS for c in cleaned):
        raise UserError("the caption is empty; say in a sentence what the picture shows")
    if len(cleaned) > MAX_CAPTION_CHARACTERS:
        raise UserError(
            f"the caption has {len(cleaned)} characters; "
            f"at most {MAX_CAPTION_CHARACTERS} are accepted: describe the picture in one sentence"
        )
    return cleaned


def add_new_captions(folder: Path, captions: Sequence[NewCaption]) -> AddedCaptions:
    """Add captions to the collection in ``folder``: all of them or, when one is refused, none.

    Writers wait for each other, and readers see the state before or the one after. A caption that its image has
    already is left alone, so that doing it twice changes nothing. Images of no split get one with their captions
    (``caption_splits``), since training would not see them otherwise.

    Raises:
        UserError: when an image is unknown or to be in another split than it is, or a caption empty or too long.
    """
    cleaned = [new._replace(text=clean_caption(new.text)) for new in captions]
    with writing(folder):
        before = Collection.open(folder)
        rows = _image_rows(before, [new.image for new in cleaned])
        fresh = _without_duplicates(before, cleaned, rows)
        asked, captioned = _requested_splits(cleaned, rows), [rows[new.image] for new in fresh]
        check_requested_splits(before, asked, captioned)
        if not fresh:
            return AddedCaptions(before, 0, len(cleaned), {})
        tables = _extended_tables(before, [(rows[new.image], new) for new in fresh])
        given = assign_splits(before, captioned, asked)
        if given:
            tables["images"] = set_splits(before.table("images"), given, next_revision(before.manifest))
        splits = dict(Counter(given.values()))
        return AddedCaptions(_commit_tables(folder, before, tables), len(fresh), len(cleaned) - len(fresh), splits)


def caption_revisions(collection: Collection) -> list[CaptionRevision]:
    """What was added since the collection was made, the first first."""
    table = collection.table("captions")
    if REVISION not in table.column_names:
        return []
    numbers = collection.numbers("captions", REVISION)
    image = np.full(len(table), -1, dtype=np.int64)
    image[collection.numbers("matches", "caption")] = collection.numbers("matches", "image")
    ids = collection.table("images").column("id")
    found = []
    for revision in sorted({int(n) for n in numbers if n >= 0}):
        rows = np.flatnonzero(numbers == revision)
        texts = table.column("text").take(pa.array(rows)).to_pylist()
        splits = splits_of_revision(collection, revision)
        together = [
            NewCaption(ids[int(i)].as_py(), text, splits.get(int(i)))
            for i, text in zip(image[rows], texts, strict=True)
        ]
        found.append(CaptionRevision(revision, str(table.column(WHEN)[int(rows[0])].as_py()), tuple(together)))
    return found


def remove_last_captions(folder: Path, keep: Callable[[CaptionRevision], None] | None = None) -> CaptionRevision:
    """Remove the captions that were added last, and the splits that came with them; returns them.

    Args:
        keep: is given them before anything changes; when it raises, nothing does.

    Raises:
        UserError: when none were added.
    """
    with writing(folder):
        before = Collection.open(folder)
        earlier = caption_revisions(before)
        if not earlier:
            raise UserError(f"no captions were added to {folder} since it was made; there is nothing to take back")
        last = earlier[-1]
        if keep is not None:
            keep(last)
        stays = before.numbers("captions", REVISION) != last.revision
        assert not stays[int(stays.sum()) :].any(), "captions that were added last stand last"
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
    wanted, column = set(ids), collection.table("images").column("id")
    places = pc.index_in(pa.array(sorted(wanted), pa.string()), value_set=column.combine_chunks())
    rows = {name: row.as_py() for name, row in zip(sorted(wanted), places, strict=True)}
    unknown = [name for name in dict.fromkeys(ids) if rows[name] is None]
    if unknown:
        near = difflib.get_close_matches(unknown[0], column.to_pylist(), n=1)
        hint = f"did you mean '{near[0]}'?" if near else 'ids are those that "calligram suggest" gives'
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UserError(f"there is no image '{unknown[0]}'{more} in {collection.folder}; {hint}")
    return rows


def _requested_splits(captions: Sequence[NewCaption], rows: Mapping[str, int]) -> dict[int, str]:
    """The split that is named for each image; some have none."""
    asked: dict[int, str] = {}
    for new in captions:
        if new.split is not None and asked.setdefault(rows[new.image], new.split) != new.split:
            both = f"{asked[rows[new.image]]} and {new.split}"
            raise UserError(f"image '{new.image}' is to be in {both}; name one split for it, or none")
    return asked


def _without_duplicates(
    collection: Collection, captions: Sequence[NewCaption], rows: Mapping[str, int]
) -> list[NewCaption]:
    """Those that are new to their image, each once."""
    image, caption = collection.numbers("matches", "image"), collection.numbers("matches", "caption")
    here = np.flatnonzero(np.isin(image, list(rows.values())))
    texts = collection.table("captions").column("text").take(pa.array(caption[here])).to_pylist()
    known = set(zip(image[here].tolist(), texts, strict=True))
    fresh = []
    for new in captions:
        if (rows[new.image], new.text) not in known:
            known.add((rows[new.image], new.text))
            fresh.append(new)
    return fresh


def _extended_tables(before: Collection, fresh: Sequence[tuple[int, NewCaption]]) -> dict[str, pa.Table]:
    """The tables of captions and of what matches what, with the new ones at the end."""
    captions, revision = before.table("captions"), next_revision(before.manifest)
    first, when = len(captions), datetime.now(UTC).isoformat(timespec="seconds")
    taken = set(captions.column("id").to_pylist())
    ids: list[str] = []
    for number, (_, new) in enumerate(fresh):
        name = f"{new.image}#r{revision}.{number}"
        while name in taken:
            name += "'"
        ids.append(name)
    added = pa.table(
        {
            "id": pa.array(ids, pa.string()),
            "text": pa.array([new.text for _, new in fresh], pa.string()),
            REVISION: pa.array([revision] * len(fresh), pa.int64()),
            WHEN: pa.array([when] * len(fresh), pa.string()),
        }
    )
    pairs = pa.table(
        {
            "image": pa.array([row for row, _ in fresh], pa.int32()),
            "caption": pa.array(range(first, first + len(fresh)), pa.int32()),
        }
    )
    made = {"captions": pa.concat_tables([captions, added], promote_options="default")}
    made["matches"] = pa.concat_tables([before.table("matches"), pairs])
    if before.has("also_true"):  # nobody asked of which other images a new caption is true
        made["also_true"] = pa.concat_tables([before.table("also_true"), pairs])
    return made


def _commit_tables(folder: Path, before: Collection, tables: Mapping[str, pa.Table]) -> Collection:
    manifest = write_tables(folder, before.manifest, tables)
    replace_manifest(folder, manifest)
    remove_old_tables(folder, before.manifest, manifest, readers=OLD_TABLE_SECONDS)
    return Collection.open(folder)
