"""Reader of SCAN's ``*_precomp`` folders: captions, image ids and region features of each split, without pictures.

Arrays and lists of ids may have one row per image or one row per caption; the format does not say which. The reader
finds out, and does not assume five captions per image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, Problems
from calligram.data.readers.bottom_up import REGION_FEATURES, read_bottom_up
from calligram.data.readers.picture_files import PictureIndex
from calligram.data.readers.source import ImportSource, canonical_split
from calligram.data.readers.text_files import read_json, read_lines, read_text
from calligram.errors import UserError

Ints = NDArray[np.int64]
COMPARED_VALUES = 16
"""number of values at the start of a row that are compared with the previous row, to find repeated rows"""
WHOLE_IMAGE_FEATURES = "images"
"""name of stored features without regions"""


def read_scan(source: ImportSource, problems: Problems) -> Draft:
    """Read every split of a precomp folder, bottom-up ``.tsv`` files, or ``.tsv`` files with caption files.

    The arrays stay on disk and are memory-mapped. With a folder of pictures and ``id_mapping.json`` (id to file name)
    the images get their pictures too. Unlike SCAN's own loader, this reader does not cut ``dev`` to 5,000 captions.
    """
    if source.path.is_file() or not list(source.path.glob("*_caps.txt")):
        return read_bottom_up(source, problems)
    splits = _splits(source.path, problems)
    if list(source.path.glob("*.tsv")) and not list(source.path.glob("*_ims.npy")):
        draft = read_bottom_up(source, problems)
        for split in splits:
            _join_captions(draft, source.path, split, problems)
        return draft
    draft = Draft(source.path.resolve().name, about={"source": "SCAN precomputed features"})
    pictures = _PictureNames(
        _file_names(source.path, problems), PictureIndex(source.images, problems) if source.images else None
    )
    start = 0
    for split in splits:
        start += _read_split(draft, source.path, split, start, pictures, problems)
    if len(draft.features) > 1:
        raise UserError(f"{source.path}: some features have regions and some do not; import the splits separately")
    return draft


def _splits(folder: Path, problems: Problems) -> list[str]:
    found = sorted(path.name.removesuffix("_caps.txt") for path in folder.glob("*_caps.txt"))
    if {"test", "testall"} <= set(found):
        # COCO's test (1,000 images) is the first part of testall (5,000 images): reading both would duplicate images.
        problems.note("split not read", "test", "testall contains it")
        found.remove("test")
    return sorted(found, key=lambda name: (name != "train", name.startswith("test"), name))


@dataclass
class _PictureNames:
    """File names of images by id, and the index of the pictures, if there is one."""

    names: dict[str, str]
    found: PictureIndex | None

    def record(self, key: str, split: str | None, feature_rows: dict[str, int]) -> ImageRecord:
        name = self.names.get(key, key)
        return ImageRecord(
            name, self.found.picture_file(name) if self.found else None, split, feature_rows=feature_rows
        )


def _file_names(folder: Path, problems: Problems) -> dict[str, str]:
    file = folder / "id_mapping.json"
    value = read_json(file, problems) if file.is_file() else {}
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}


def _read_split(draft: Draft, folder: Path, split: str, start: int, pictures: _PictureNames, problems: Problems) -> int:
    """Add one split; returns the number of rows of its array, which is the offset of the next split."""
    file = folder / f"{split}_ims.npy"
    array = _array(file)
    captions, ids = _captions(folder, split, problems), _ids(folder, split, problems)
    layout = split_layout(split, len(captions), array, ids)
    kind = REGION_FEATURES if array.ndim == 3 else WHOLE_IMAGE_FEATURES
    known = _split_name(split, problems)
    records = [
        pictures.record(layout.ids[n] if layout.ids else f"{split}/{n}", known, {kind: start + int(row)})
        for n, row in enumerate(layout.rows)
    ]
    draft.images += records
    for number, (text, of) in enumerate(zip(captions, layout.image_of_caption, strict=True)):
        draft.captions.append(CaptionRecord(f"{split}#{number}", text, (records[int(of)].id,)))
    draft.features.setdefault(kind, []).append(file)
    return len(array)


def _join_captions(draft: Draft, folder: Path, split: str, problems: Problems) -> None:
    """Add the captions of one split to images that the draft already has, by id."""
    captions, ids = _captions(folder, split, problems), _ids(folder, split, problems)
    if ids is None:
        raise UserError(f"{folder / split}_ids.txt is missing; captions of .tsv files need the ids of their images")
    distinct = list(dict.fromkeys(ids))
    layout = split_layout(split, len(captions), np.empty((len(distinct), 1)), ids)
    known = _split_name(split, problems)
    wanted = set(distinct)
    for record in draft.images:
        if record.id in wanted:
            record.split = known
    for number, (text, of) in enumerate(zip(captions, layout.image_of_caption, strict=True)):
        draft.captions.append(CaptionRecord(f"{split}#{number}", text, (distinct[int(of)],)))


def _split_name(split: str, problems: Problems) -> str | None:
    return canonical_split("test" if split == "testall" else split, f"{split}_caps.txt", problems)


def _captions(folder: Path, split: str, problems: Problems) -> list[str]:
    # Empty lines stay, because the line number gives the image of a caption.
    text = read_text(folder / f"{split}_caps.txt", problems)
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def _ids(folder: Path, split: str, problems: Problems) -> list[str] | None:
    file = folder / f"{split}_ids.txt"
    return read_lines(file, problems) if file.is_file() else None


def _array(file: Path) -> NDArray[np.generic]:
    if not file.is_file():
        raise UserError(f"{file} is missing; a precomp folder has SPLIT_caps.txt and SPLIT_ims.npy for each split")
    try:
        array: NDArray[np.generic] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{file} is not a whole .npy array of numbers ({error})") from error
    if array.ndim not in (2, 3) or not len(array) or array.dtype.kind != "f":
        raise UserError(
            f"{file} must hold floats of shape (images, regions, D) or (images, D), got {array.dtype} {array.shape}"
        )
    return array


class SplitLayout(NamedTuple):
    """The array row of each image of a split, and the image of each caption."""

    rows: Ints
    image_of_caption: Ints
    ids: tuple[str, ...] | None


def split_layout(split: str, captions: int, array: NDArray[np.generic], ids: Sequence[str] | None) -> SplitLayout:
    """Determine the layout of one split.

    Args:
        captions: number of captions.
        array: the features, memory-mapped; only the start of each row is read, and only if there are no ids.
        ids: lines of the file of ids, if there is one.

    Raises:
        UserError: when the numbers of rows, ids and captions are not consistent.
    """
    rows = len(array)
    if ids is not None and len(ids) == captions and len(ids) != rows:
        return _layout_from_caption_ids(split, ids, rows)
    if ids is not None and len(ids) not in (rows, captions):
        raise UserError(
            f"{split}: {len(ids)} ids for {rows} rows of features and {captions} captions; "
            "give one id per row or one id per caption"
        )
    if rows == captions:
        labels = np.array(ids) if ids is not None else _labels_of_repeats(array)
        return _layout_from_labels(labels, ids)
    if captions % rows:
        raise UserError(
            f"{split}: {captions} captions cannot be divided evenly among {rows} rows of features; "
            f"add {split}_ids.txt with an image id for each caption"
        )
    each = np.repeat(np.arange(rows), captions // rows)
    return SplitLayout(np.arange(rows), each, tuple(ids) if ids is not None else None)


def _layout_from_caption_ids(split: str, ids: Sequence[str], rows: int) -> SplitLayout:
    """The layout for one id per caption and one row per image."""
    order = {name: number for number, name in enumerate(dict.fromkeys(ids))}
    if len(order) != rows:
        raise UserError(
            f"{split}: {len(order)} different ids for {rows} rows of features; they must be equal in number"
        )
    return SplitLayout(np.arange(rows), np.array([order[name] for name in ids], dtype=np.int64), tuple(order))


def _layout_from_labels(labels: NDArray[np.generic], ids: Sequence[str] | None) -> SplitLayout:
    """The layout for one row per caption: rows with equal labels are one image, and its first row is used."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    rows = np.sort(first).astype(np.int64)
    names = tuple(ids[row] for row in rows) if ids is not None else None
    return SplitLayout(rows, place[inverse.reshape(-1)].astype(np.int64), names)


def _labels_of_repeats(array: NDArray[np.generic]) -> Ints:
    """A label for each row; it changes where a row differs from the previous row."""
    heads = array.reshape(len(array), -1)[:, :COMPARED_VALUES]
    differs = np.ones(len(array), dtype=bool)
    differs[1:] = (np.asarray(heads[1:]) != np.asarray(heads[:-1])).any(axis=1)
    return np.cumsum(differs).astype(np.int64)
