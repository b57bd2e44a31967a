"""Reader of bottom-up attention ``.tsv`` files: boxes and features of regions in base64, one image per line."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calligram.data.draft import Draft, ImageRecord, Problems, RegionRecord
from calligram.data.readers.picture_files import PictureIndex
from calligram.data.readers.source import ImportSource
from calligram.errors import UserError
from calligram.files import named_disk_errors, reserve_space

REGION_FEATURES = "regions"
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BottomUpRow:
    """The position of an image's line in a file, and the sizes that the line gives."""

    file: Path
    offset: int
    image: str
    size: tuple[int, int]
    boxes: int
    width: int
    """dimension of the features of a box"""


def read_bottom_up(source: ImportSource, problems: Problems) -> Draft:
    """Read one ``.tsv`` or all ``.tsv`` files of a folder: one image per line, without captions.

    The files have tens of gigabytes, so they are read twice: first to count images and boxes, then to stream the
    features into an array. Images with fewer boxes than others are padded with zeros.

    Raises:
        UserError: when there is no such file or no usable line.
    """
    files = [source.path] if source.path.is_file() else sorted(source.path.glob("*.tsv"))
    if not files:
        raise UserError(
            f"no SPLIT_caps.txt and no .tsv in {source.path}; expected SCAN's or bottom-up attention's files"
        )
    assert source.scratch is not None, "streaming features needs a scratch folder"
    lines = _usable_rows(files, problems)
    if not lines:
        raise UserError(f"no line of {', '.join(f.name for f in files)} has the six fields of bottom-up attention")
    max_boxes = max(line.boxes for line in lines)
    if any(line.boxes < max_boxes for line in lines):
        problems.note("images with fewer boxes", lines[0].image, f"up to {max_boxes}; the others are padded with zeros")
    target = source.scratch / "bottom-up.npy"
    draft = Draft(source.path.stem, features={REGION_FEATURES: [target]}, reader_arrays=frozenset({target}))
    array = np.lib.format.open_memmap(target, "w+", np.float32, (len(lines), max_boxes, lines[0].width))
    with named_disk_errors(target), target.open("rb+") as stream:
        reserve_space(stream.fileno(), target.stat().st_size)
    found = PictureIndex(source.images, problems) if source.images else None
    for row, (line, boxes, features) in enumerate(_decode_rows(lines, problems)):
        array[row, : line.boxes] = features
        _add_image(draft, line, boxes, row, found, problems)
    array.flush()
    return draft


def _usable_rows(files: Sequence[Path], problems: Problems) -> list[BottomUpRow]:
    """Lines with six fields of consistent lengths, the first line of each image."""
    lines: dict[str, BottomUpRow] = {}
    for file in files:
        for number, (offset, cells) in enumerate(_read_cells(file), start=1):
            item = f"{file.name} line {number}"
            line = _parse_row(file, offset, cells)
            width = next(iter(lines.values())).width if lines else None
            if line is None or width not in (None, line.width):
                problems.skip("unreadable row", item, "not image_id, w, h, num_boxes, boxes, features of one width")
            elif line.image in lines:
                problems.skip("image id used twice", item, f"{line.image}; the first is kept")
            else:
                lines[line.image] = line
    return list(lines.values())


def _read_cells(file: Path) -> Iterator[tuple[int, list[bytes]]]:
    # The csv module refuses fields of this length.
    with file.open("rb") as opened:
        offset = 0
        for line in opened:
            if line.strip():
                yield offset, line.rstrip(b"\r\n").split(b"\t")
            offset += len(line)


def _parse_row(file: Path, offset: int, cells: Sequence[bytes]) -> BottomUpRow | None:
    try:
        image, (width, height, boxes) = cells[0].decode(), (int(c) for c in cells[1:4])
    except ValueError:
        return None
    if len(cells) != 6 or not image or min(width, height, boxes) < 1:
        return None
    values = _base64_length(cells[5]) / 4 / boxes
    if _base64_length(cells[4]) != boxes * 16 or values < 1 or values % 1:
        return None
    return BottomUpRow(file, offset, image, (width, height), boxes, int(values))


def _base64_length(text: bytes) -> int:
    return len(text) // 4 * 3 - text[-2:].count(b"=")


def _decode_rows(lines: Sequence[BottomUpRow], problems: Problems) -> Iterator[tuple[BottomUpRow, Floats, Floats]]:
    for line in lines:
        with line.file.open("rb") as opened:
            opened.seek(line.offset)
            cells = opened.readline().rstrip(b"\r\n").split(b"\t")
        try:
            boxes, features = (np.frombuffer(base64.b64decode(c, validate=True), dtype="<f4") for c in cells[4:6])
        except (binascii.Error, ValueError) as error:
            problems.skip("unreadable row", f"{line.file.name}: {line.image}", str(error))
            continue
        if not (np.isfinite(boxes).all() and np.isfinite(features).all()):
            problems.skip("features that are not numbers", line.image, "NaN or infinite")
            continue
        yield line, boxes.reshape(line.boxes, 4), features.reshape(line.boxes, line.width)


def _add_image(
    draft: Draft, line: BottomUpRow, boxes: Floats, row: int, found: PictureIndex | None, problems: Problems
) -> None:
    width, height = line.size
    right, bottom = boxes[:, 2:].max(axis=0)
    # Some forks write height before width; the boxes show it. One pixel of tolerance is for boxes that count from 1.
    if (right > width + 1 or bottom > height + 1) and right <= height + 1 and bottom <= width + 1:
        problems.note("width and height swapped", line.image, f"boxes reach {right:.0f}, {bottom:.0f}")
        width, height = height, width
    picture = found.picture_file(line.image) if found else None
    draft.images.append(ImageRecord(line.image, picture, feature_rows={REGION_FEATURES: row}, size=(width, height)))
    for number, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
        region = RegionRecord(f"{line.image}/box{number}", line.image, (x0, y0, x1, y1), source="bottom-up")
        draft.regions.append(region)
