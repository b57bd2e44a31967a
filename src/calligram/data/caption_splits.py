"""Splits of images that had none until people captioned them: what is captioned must be of use to training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from calligram.data.collection import SPLIT_REVISION, SPLITS, Collection
from calligram.data.readers.splits import by_hash, key_of, spare
from calligram.errors import UserError

Ints = NDArray[np.int64]


def splits_for(collection: Collection, rows: Iterable[int], asked: Mapping[int, str]) -> dict[int, str]:
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
    keys = {row: key_of(ids[row].as_py(), None if identity[row] < 0 else int(identity[row])) for row in free}
    named = {keys[row]: asked[row] for row in free if row in asked}
    known = {key_of("", int(i)): str(s) for i, s in zip(identity, splits, strict=True) if s and i >= 0} | named
    chosen = {key: known.get(key, "train") for key in keys.values()}
    if not _source_has_splits(collection, splits):
        chosen = {key: known.get(key) or by_hash(key) for key in keys.values()}
        captioned = {int(row) for row in collection.numbers("matches", "image") if splits[row]}
        held = {
            key_of(ids[row].as_py(), None if identity[row] < 0 else int(identity[row])): str(splits[row])
            for row in captioned
        }
        _fill_empty(chosen, held, fixed=known)
    return {row: asked.get(row, chosen[keys[row]]) for row in free}


def with_splits(images: pa.Table, given: Mapping[int, str], revision: int) -> pa.Table:
    """The table of images with these splits, and the revision that they came with."""
    splits, revisions = images.column("split").to_pylist(), _revisions(images)
    for row, split in given.items():
        splits[row], revisions[row] = split, revision
    return _with(images, splits, revisions)


def without_splits(images: pa.Table, revision: int) -> pa.Table:
    """The table of images without the splits that came with a revision."""
    splits, revisions = images.column("split").to_pylist(), _revisions(images)
    for row in np.flatnonzero(np.array([r == revision for r in revisions], dtype=bool)):
        splits[row], revisions[row] = None, None
    return _with(images, splits, revisions)


def split_of_revision(collection: Collection, revision: int) -> dict[int, str]:
    """Images that got their split with a revision, and which."""
    images = collection.table("images")
    if SPLIT_REVISION not in images.column_names:
        return {}
    splits = images.column("split")
    return {int(row): splits[int(row)].as_py() for row in np.flatnonzero(_numbers(collection) == revision)}


def refuse_other_splits(collection: Collection, asked: Mapping[int, str], fresh: Iterable[int]) -> None:
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
    given = _numbers(collection)
    return any(split and given[row] < 0 for row, split in enumerate(splits))


def _fill_empty(chosen: dict[str, str], held: Mapping[str, str], fixed: Mapping[str, str]) -> None:
    """Move some of the chosen to splits that hold no captioned image; what was captioned before stays."""
    for name in SPLITS:
        counts = Counter({**held, **chosen}.values())
        movable = {key: split for key, split in chosen.items() if key not in fixed and counts[split] > 1}
        if not counts[name] and movable:
            chosen[spare(movable)] = name


def _numbers(collection: Collection) -> Ints:
    images = collection.table("images")
    if SPLIT_REVISION not in images.column_names:
        return np.full(len(images), -1, dtype=np.int64)
    return collection.numbers("images", SPLIT_REVISION)


def _revisions(images: pa.Table) -> list[int | None]:
    known = SPLIT_REVISION in images.column_names
    found: list[int | None] = images.column(SPLIT_REVISION).to_pylist() if known else [None] * len(images)
    return found


def _with(images: pa.Table, splits: list[str | None], revisions: list[int | None]) -> pa.Table:
    place = images.schema.get_field_index("split")
    made = images.set_column(place, images.schema.field(place), pa.array(splits, images.schema.field(place).type))
    if SPLIT_REVISION in made.column_names:
        made = made.drop_columns([SPLIT_REVISION])
    if any(revision is not None for revision in revisions):
        made = made.append_column(SPLIT_REVISION, pa.array(revisions, pa.int64()))
    return made
