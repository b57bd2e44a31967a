"""Build Arrow tables from the records of a draft, and place its files in the folder of the collection.

References by id become row numbers. Boxes become pixels of the picture.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from calligram.data.collection import IMAGE_COLUMNS
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PhraseRecord, PictureFile, Problems, RegionRecord
from calligram.data.pictures import Probe
from calligram.progress import Track

FilePlacement = Literal["link", "copy", "reference"]
BOX_COLUMNS = ("x0", "y0", "x1", "y1")
IMAGE_TYPES = (
    *(pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.int32()),
    *(pa.string(), pa.int64()),
)
REGION_TYPES = {
    **{"id": pa.string(), "image": pa.int32()},
    **dict.fromkeys(BOX_COLUMNS, pa.float32()),
    **{"source": pa.string(), "label": pa.string(), "attribute": pa.string()},
    **{"score": pa.float32(), "identity": pa.int64()},
}
PHRASE_TYPES = {
    **{"id": pa.string(), "caption": pa.int32(), "start": pa.int32(), "end": pa.int32()},
    **{"text": pa.string(), "kind": pa.string(), "entity": pa.string()},
}
PROBLEM_TYPES = {"kind": pa.string(), "item": pa.string(), "detail": pa.string(), "skipped": pa.bool_()}


@dataclass
class CheckedDraft:
    """A draft, its usable images, and the probe of each picture."""

    draft: Draft
    images: list[ImageRecord]
    probes: list[Probe | None]
    """None for images without a picture"""


def build_tables(checked: CheckedDraft, placer: FilePlacer, problems: Problems, track: Track) -> dict[str, pa.Table]:
    """All tables of the collection, by name."""
    draft, image_row = checked.draft, {record.id: row for row, record in enumerate(checked.images)}
    captions, matches = _usable_captions(draft, image_row, problems)
    _note_images_without_captions(checked, {row for row, _ in matches}, problems)
    caption_row = {caption.id: row for row, caption in enumerate(captions)}
    made = {
        "images": _image_table(checked, placer, track),
        "captions": _table(
            {"id": [c.id for c in captions], "text": [c.text.strip() for c in captions]},
            {"id": pa.string(), "text": pa.string()},
            [c.metadata for c in captions],
        ),
        "matches": _pair_table(matches, "image", "caption"),
        **_region_tables(checked, image_row, captions, caption_row, problems),
    }
    if draft.also_true is not None:
        made["also_true"] = _also_true_table(draft, image_row, caption_row)
    rows = problems.rows()
    made["problems"] = _table({name: [row[name] for row in rows] for name in PROBLEM_TYPES}, PROBLEM_TYPES)
    return made


class FilePlacer:
    """Places pictures, tar shards and feature arrays in the folder of a collection, each file once.

    Files are linked, copied, or left in place and referenced.
    """

    def __init__(self, folder: Path, placing: FilePlacement, movable: frozenset[Path] = frozenset()) -> None:
        """Args:
        movable: files that the reader wrote, which are moved.
        """
        self.folder, self.placing, self.movable = folder, placing, movable
        self.shards: list[str] = []
        self._shard_of: dict[Path, int] = {}
        self._arrays: dict[Path, str] = {}
        self._taken: set[str] = set()

    def copied_bytes(self, images: Sequence[ImageRecord]) -> int:
        """Bytes to copy for these images: all of their files, or only files on another disk, which cannot be linked."""
        if self.placing == "reference":
            return 0
        places = (record.picture for record in images if record.picture is not None)
        files = {at.path if isinstance(at, PictureFile) else at.tar for at in places} - self.movable
        device, found = self.folder.stat().st_dev, [file.stat() for file in files]
        return sum(one.st_size for one in found if self.placing == "copy" or one.st_dev != device)

    def picture(self, record: ImageRecord) -> tuple[str | None, int, int, int]:
        """Place a picture; returns path, shard, offset and size in bytes for the table of images."""
        if record.picture is None:
            return None, -1, 0, 0
        if isinstance(record.picture, PictureFile):
            return self._file(record.picture.path, record.id), -1, 0, record.picture.path.stat().st_size
        return record.picture.name, self._shard(record.picture.tar), record.picture.offset, record.picture.size

    def _file(self, path: Path, image_id: str) -> str:
        if self.placing == "reference":
            return str(path.resolve())
        name = image_id if Path(image_id).suffix.lower() == path.suffix.lower() else image_id + path.suffix
        # An id may contain any characters. Absolute and parent parts are removed, so that the path stays in the folder.
        parts = [p for p in Path(name.replace("\\", "/")).parts if p not in ("/", "..", ".")]
        name = "/".join(parts) or path.name
        while name in self._taken:
            name = "_" + name
        self._taken.add(name)
        self._put(path, self.folder / "images" / name)
        return f"images/{name}"

    def _shard(self, tar: Path) -> int:
        if tar not in self._shard_of:
            self._shard_of[tar] = len(self.shards)
            if self.placing == "reference" and tar not in self.movable:
                self.shards.append(str(tar.resolve()))
            else:
                name = f"shards/{len(self.shards):04d}-{tar.name}"
                self._put(tar, self.folder / name)
                self.shards.append(name)
        return self._shard_of[tar]

    def array(self, name: str, file: Path) -> str:
        """Place a feature file; returns its path, relative to the collection unless it is referenced."""
        if self.placing == "reference" and file not in self.movable:
            return str(file.resolve())
        if file not in self._arrays:
            self._arrays[file] = f"features/{name}-{len(self._arrays):04d}.npy"
            self._put(file, self.folder / self._arrays[file])
        return self._arrays[file]

    def _put(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source in self.movable:
            shutil.move(source, target)
            return
        if self.placing == "link":
            try:
                os.link(source.resolve(), target)
                return
            except OSError:
                pass
        shutil.copyfile(source, target)


def _usable_captions(
    draft: Draft, image_row: dict[str, int], problems: Problems
) -> tuple[list[CaptionRecord], list[tuple[int, int]]]:
    """The usable captions, and (image, caption) row pairs."""
    captions: list[CaptionRecord] = []
    matches: list[tuple[int, int]] = []
    seen: set[str] = set()
    for caption in draft.captions:
        of = [image_row[i] for i in dict.fromkeys(caption.images) if i in image_row]
        if not of:
            problems.skip("caption without a usable image", caption.id, ", ".join(caption.images))
        elif caption.id in seen:
            problems.skip("caption id used twice", caption.id, "the first is kept")
        elif not caption.text.strip():
            problems.skip("empty caption", caption.id)
        else:
            seen.add(caption.id)
            if _encodable([caption.text])[0] != caption.text:
                problems.repair("broken character in a caption", caption.id, "replaced by a question mark")
            matches += [(row, len(captions)) for row in of]
            captions.append(caption)
    return captions, matches


def _note_images_without_captions(checked: CheckedDraft, described: set[int], problems: Problems) -> None:
    if not checked.draft.captions:
        return
    for row, record in enumerate(checked.images):
        if row not in described:
            problems.note("image without captions", record.id, "kept; only pseudo pairs (preset a3vse) use it")


def _also_true_table(draft: Draft, image_row: dict[str, int], caption_row: dict[str, int]) -> pa.Table:
    assert draft.also_true is not None
    image = np.array([image_row.get(r.id, -1) for r in draft.images], dtype=np.int64)
    caption = np.array([caption_row.get(c.id, -1) for c in draft.captions], dtype=np.int64)
    both = np.stack([image[draft.also_true[:, 0]], caption[draft.also_true[:, 1]]], axis=1)
    both = both[(both >= 0).all(axis=1)]
    return pa.table({"image": both[:, 0].astype("int32"), "caption": both[:, 1].astype("int32")})


def _image_table(checked: CheckedDraft, placer: FilePlacer, track: Track) -> pa.Table:
    images = checked.images
    at = [placer.picture(record) for record in track(images, "placing images", len(images))]
    sizes = [_picture_size(record, found) or (None, None) for record, found in zip(images, checked.probes, strict=True)]
    columns: dict[str, Sequence[object]] = {
        "id": [r.id for r in images],
        "path": [a[0] for a in at],
        "shard": [a[1] for a in at],
        "offset": [a[2] for a in at],
        "bytes": [a[3] for a in at],
        "width": [s[0] for s in sizes],
        "height": [s[1] for s in sizes],
        "split": [r.split for r in images],
        "identity": [r.identity for r in images],
    }
    types = dict(zip(IMAGE_COLUMNS, IMAGE_TYPES, strict=True))
    for name in checked.draft.features:
        columns[f"features.{name}"] = [r.feature_rows.get(name) for r in images]
        types[f"features.{name}"] = pa.int64()
    return _table(columns, types, [r.metadata for r in images])


def _picture_size(record: ImageRecord, found: Probe | None) -> tuple[int, int] | None:
    return (found.width, found.height) if found else record.size


def _region_tables(
    checked: CheckedDraft,
    image_row: dict[str, int],
    captions: Sequence[CaptionRecord],
    caption_row: dict[str, int],
    problems: Problems,
) -> dict[str, pa.Table]:
    draft = checked.draft
    regions = [r for r in draft.regions if r.image in image_row]
    for left in (r for r in draft.regions if r.image not in image_row):
        problems.note("region of a skipped image", left.id, f"{left.image}; left out with it")
    phrases = [p for p in draft.phrases if p.caption in caption_row]
    for lost in (p for p in draft.phrases if p.caption not in caption_row):
        problems.note("phrase of a skipped caption", lost.id, f"{lost.caption}; left out with it")
    region_row = {r.id: row for row, r in enumerate(regions)}
    grounded = [(row, region_row[r]) for row, p in enumerate(phrases) for r in p.regions if r in region_row]
    boxes = _pixel_boxes(checked, regions, image_row, problems)
    return {
        "regions": _table(
            {
                "id": [r.id for r in regions],
                "image": [image_row[r.image] for r in regions],
                **{axis: boxes[:, i].tolist() for i, axis in enumerate(BOX_COLUMNS)},
                **{c: [getattr(r, c) for r in regions] for c in ("source", "label", "attribute", "score", "identity")},
            },
            REGION_TYPES,
        ),
        "phrases": _phrase_table(phrases, captions, caption_row),
        "groundings": _pair_table(grounded, "phrase", "region"),
    }


def _pixel_boxes(
    checked: CheckedDraft, regions: Sequence[RegionRecord], image_row: dict[str, int], problems: Problems
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Boxes (N, 4), scaled from the annotated size to the size of the picture, and clipped to the picture."""
    boxes = np.array([r.box for r in regions], dtype=np.float64).reshape(-1, 4)
    pictures = [_picture_size(r, p) or (np.inf, np.inf) for r, p in zip(checked.images, checked.probes, strict=True)]
    actual = np.array(pictures, dtype=np.float64).reshape(-1, 2)
    stated = np.array([r.size or a for r, a in zip(checked.images, pictures, strict=True)], dtype=np.float64)
    scale = np.divide(actual, stated, out=np.ones_like(actual), where=np.isfinite(actual)).reshape(-1, 2)
    rows = np.array([image_row[r.image] for r in regions], dtype=np.int64)
    boxes *= np.tile(scale[rows], 2)
    cut = np.clip(boxes, 0, np.tile(actual[rows], 2))
    # Up to half a pixel beyond the edge is rounding, not an error of the source.
    for row in np.flatnonzero(np.abs(boxes - cut).max(axis=1, initial=0) > 0.5):
        problems.note("box reaches beyond its picture: cut", regions[int(row)].id)
    return cut


def _phrase_table(
    phrases: Sequence[PhraseRecord], captions: Sequence[CaptionRecord], caption_row: dict[str, int]
) -> pa.Table:
    of = [captions[caption_row[p.caption]].text for p in phrases]
    # Captions are stored without surrounding spaces, so character positions shift.
    shift = [len(text) - len(text.lstrip()) if p.start >= 0 else 0 for p, text in zip(phrases, of, strict=True)]
    return _table(
        {
            "id": [p.id for p in phrases],
            "caption": [caption_row[p.caption] for p in phrases],
            "start": [p.start - s for p, s in zip(phrases, shift, strict=True)],
            "end": [p.end - s for p, s in zip(phrases, shift, strict=True)],
            "text": [p.text or text[p.start : p.end] for p, text in zip(phrases, of, strict=True)],
            "kind": [p.kind for p in phrases],
            "entity": [p.entity for p in phrases],
        },
        PHRASE_TYPES,
    )


def _pair_table(pairs: Sequence[tuple[int, int]], first: str, second: str) -> pa.Table:
    return pa.table({name: pa.array([p[i] for p in pairs], pa.int32()) for i, name in enumerate((first, second))})


def _table(
    columns: dict[str, Sequence[object]], types: dict[str, pa.DataType], metadata: Iterable[Mapping[str, object]] = ()
) -> pa.Table:
    arrays = {name: pa.array(_encodable(values), types[name]) for name, values in columns.items()}
    rows = list(metadata)
    for name in dict.fromkeys(key for row in rows for key in row):
        values = _encodable([row.get(name) for row in rows])
        free = str(_encodable([name])[0])
        free = free if free not in arrays else f"source.{free}"
        try:
            arrays[free] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            # A metadata column with mixed types is stored as text.
            arrays[free] = pa.array([None if v is None else str(v) for v in values], pa.string())
    return pa.table(arrays)


def _encodable(values: Sequence[object]) -> Sequence[object]:
    """Values with question marks for halves of surrogate pairs, which JSON can escape and UTF-8 cannot encode."""
    return [v.encode("utf-8", "replace").decode() if isinstance(v, str) and not v.isascii() else v for v in values]
