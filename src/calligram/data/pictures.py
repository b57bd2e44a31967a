"""Picture files: their pixels and their EXIF data, the pictures of a collection, and threads that decode them.

Files may be rotated, animated, 16-bit, CMYK, transparent, damaged or very large.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from ctypes import CDLL
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from calligram.checksums import check_files
from calligram.errors import UserError
from calligram.files import open_regular, read_regular
from calligram.memory import keep_freed_memory
from calligram.picture_formats import MAX_MEGAPIXELS, PICTURE_FORMATS, open_image, read_exif

if TYPE_CHECKING:
    from calligram.data.collection import Collection

MAX_PICTURE_BYTES = 1_000_000_000
"""larger files are refused before they are read; no picture of ``MAX_MEGAPIXELS`` with 8 bits a colour needs more"""
EXIF_DATE = re.compile(r"((?:18[3-9]|19\d|20\d|21\d)\d)[:-](\d{2})[:-](\d{2})[ T](\d{2}):(\d{2}):(\d{2})")
EXIF_SIGNATURES = (b"Exif", b"EXIF", b"eXIf", b"II*\x00", b"MM\x00*")
"""a file without any of them has no EXIF block"""
MAX_CAMERA_CHARACTERS = 100
ROTATED = (5, 6, 7, 8)
"""EXIF orientations of pictures that are stored lying on a side"""
JPEG_START = b"\xff\xd8"
PLAIN_STARTS = (JPEG_START, b"\x89PNG")
SCAN_MARKER = 0xDA
TORCHRUN_VARIABLE = "LOCAL_WORLD_SIZE"
"""environment variable in which ``torchrun`` writes the number of its processes on this machine"""

Item = TypeVar("Item")
Output = TypeVar("Output")

# Pillow warns of damage in files, and above 89 megapixels; libtiff writes each error to the screen. A file is used or
# refused here, and then the exception says why.
warnings.filterwarnings("ignore", module="PIL", append=True)
logging.getLogger("PIL").setLevel(logging.CRITICAL)
with suppress(KeyError, OSError, AttributeError):  # a Pillow without libtiff, or a system that looks in one file only
    CDLL(sys.modules["PIL._imaging"].__file__).TIFFSetErrorHandler(None)


class PictureError(UserError):
    """A picture cannot be read or decoded; the message says why."""


@dataclass(frozen=True)
class Probe:
    """The result of ``probe``: the size of the upright picture, and a note for each conversion that it needs."""

    width: int
    height: int
    notes: tuple[str, ...]


def decode(source: bytes | Path, side: int = 0) -> Image.Image:
    """Decode a picture to an upright RGB image.

    EXIF rotation is applied, transparent pixels are blended with white, 16-bit grey is scaled to 8 bits, and an
    animation gives its first frame. With ``side``, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, which saves most
    of the time, as long as both sides have at least so many pixels.

    Raises:
        PictureError: when the file is empty, damaged, truncated, not a picture, or larger than ``MAX_MEGAPIXELS``.
    """
    return decode_with_size(source, side)[0]


def decode_with_size(source: bytes | Path, side: int = 0) -> tuple[Image.Image, tuple[int, int]]:
    """The result of ``decode``, with width and height that the upright picture has in its file."""
    with _open(source) as image:
        try:
            size = image.size
            if side:
                image.draft("RGB", (side, side))
            if reduced := image.size != size:
                size = size[::-1] if image.getexif().get(0x0112, 1) in ROTATED else size
            ImageOps.exif_transpose(image, in_place=True)  # in place: most pictures are upright and need no copy
            found = _as_rgb(image)
        except Exception as error:  # decoders raise many types of exceptions for damaged bytes
            raise PictureError(str(error) or type(error).__name__) from error
    return found, size if reduced else found.size


def probe(source: bytes | Path) -> Probe:
    """Check that a picture can be decoded, and return its upright size.

    JPEGs are decoded at an eighth of their size: this reads all bytes and saves most of the arithmetic.
    """
    with _open(source) as image:
        width, height = image.size
        try:
            notes = _conversion_notes(image)
            rotated = image.getexif().get(0x0112, 1) in ROTATED
            image.draft("RGB", (max(1, width // 8), max(1, height // 8)))
            image.load()
            if image.mode == "F" and np.isnan(_values(image)).any():
                notes = (*notes, "pixels that are not numbers: black")
        except Exception as error:  # decoders raise many types of exceptions for damaged bytes
            raise PictureError(str(error) or type(error).__name__) from error
    return Probe(height, width, notes) if rotated else Probe(width, height, notes)


class StoredPictures:
    """The pictures of a collection, opened by image row: files, or members of tar shards read at their offsets."""

    def __init__(self, collection: Collection) -> None:
        """Read the tables only. Each process opens a shard when it first reads from it."""
        self.folder = collection.folder
        self.cache = collection.folder / "cache"
        table = collection.table("images")
        self._ids = table.column("id")
        self._paths = table.column("path")
        self._shard = collection.numbers("images", "shard")
        self._offset = collection.numbers("images", "offset")
        self._bytes = collection.numbers("images", "bytes")
        shards: Any = collection.manifest.get("shards", [])
        self._shards = [str(shard) for shard in shards]
        self._checksums: Any = collection.manifest.get("files", {})
        self._open: dict[tuple[int, int], int] = {}

    def path(self, row: int) -> Path | None:
        """Path of the picture file; None when the picture is in a shard or does not exist."""
        name = self._paths[row].as_py()
        return None if name is None or self._shard[row] >= 0 else self.folder / name

    def read(self, row: int) -> bytes:
        """The bytes of the picture file."""
        file, offset, size = self.place(row)
        if offset >= 0:
            return os.pread(self._descriptor(int(self._shard[row])), size, offset)
        try:
            return read_picture_file(Path(file))
        except PictureError as error:
            raise PictureError(f"image {self._ids[row]}: {error}: {file}") from error

    def place(self, row: int) -> tuple[str, int, int]:
        """The file that holds the picture, and offset and size in a shard, which is checked; -1 and 0 elsewhere."""
        name = self._paths[row].as_py()
        if name is None:
            raise PictureError(f"image {self._ids[row]} has no picture, only features")
        if (shard := int(self._shard[row])) < 0:
            return str(self.folder / name), -1, 0
        self._descriptor(shard)
        return str(self.folder / self._shards[shard]), int(self._offset[row]), int(self._bytes[row])

    def _descriptor(self, shard: int) -> int:
        # The key contains the process id, because a forked reader must not share file descriptors with its parent.
        key = (os.getpid(), shard)
        if key not in self._open:
            name = self._shards[shard]
            listed = {name: self._checksums[name]} if name in self._checksums else {}
            check_files(self.folder, listed, "import the collection again", missing=True)
            try:
                self._open[key] = open_regular(self.folder / name)
            except OSError as error:
                raise PictureError(f"shard {self.folder / self._shards[shard]}: {error.strerror}") from error
        return self._open[key]

    def open(self, row: int, side: int = 0) -> Image.Image:
        """The decoded image: upright, RGB; a large JPEG at a part of its size, see ``decode``."""
        data = self.read(row)
        try:
            return decode(data, side)
        except PictureError as error:
            raise PictureError(f"image {self._ids[row]}: {error}") from error


# Threads. One rule holds for the whole program: the threads of a pool, times the threads of torch in each of them, are
# at most this process's share of the cores.

_sibling_processes = 1
_open_pools, _torch_threads, _pools_lock = 0, 1, threading.Lock()


def share_cores(processes: int) -> None:
    """Note that so many processes, this one included, run side by side on this machine and divide its cores."""
    global _sibling_processes
    _sibling_processes = max(1, processes)


def core_share() -> int:
    """Return the number of cores that this process may use: all that it may run on, divided by processes beside it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get(TORCHRUN_VARIABLE, "")
    return max(1, cores // max(_sibling_processes, int(given) if given.isdecimal() else 1))


@contextmanager
def worker_threads() -> Iterator[ThreadPoolExecutor]:
    """One thread for each core of this process's share; torch uses one core in each of them.

    Torch would split an operation over all cores, and then wait for the cores that decode pictures.
    """
    global _open_pools, _torch_threads
    keep_freed_memory()
    torch = sys.modules.get("torch")
    if torch is None:
        with ThreadPoolExecutor(core_share()) as pool:
            yield pool
        return
    # In torch, the number of threads holds for the thread that sets it and for all threads that start later. So the
    # first of several pools keeps the number, and the last one restores it.
    with _pools_lock:
        _open_pools += 1
        _torch_threads = torch.get_num_threads() if _open_pools == 1 else _torch_threads
    try:
        with ThreadPoolExecutor(core_share(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        with _pools_lock:
            _open_pools -= 1
            if not _open_pools:
                torch.set_num_threads(_torch_threads)


def map_in_order(
    pool: ThreadPoolExecutor, function: Callable[[Item], Output], items: Iterable[Item], ahead: int
) -> Iterator[Output]:
    """Map in threads and yield the results in order, with at most ``ahead`` items started before one is taken."""
    running: deque[Future[Output]] = deque()
    try:
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) >= ahead:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()


def read_picture_file(file: Path, offset: int = -1, size: int = 0) -> bytes:
    """The bytes of a picture file, or ``size`` bytes from ``offset`` on of a file that holds several pictures.

    Raises:
        PictureError: when it cannot be read, is not a regular file, or is larger than ``MAX_PICTURE_BYTES``.
    """
    try:
        return read_regular(file, MAX_PICTURE_BYTES, offset, size)
    except FileNotFoundError as error:
        raise PictureError("no such file") from error
    except (OSError, ValueError) as error:  # a ValueError for a name that no file can have
        raise PictureError(getattr(error, "strerror", None) or str(error)) from error


def _open(source: bytes | Path) -> Image.Image:
    data = source if isinstance(source, bytes) else read_picture_file(source)
    if not data:
        raise PictureError("the file is empty")
    try:
        known = data.startswith(PLAIN_STARTS)  # most files: no other reader need be considered
        image = Image.open(io.BytesIO(data), formats=PICTURE_FORMATS) if known else open_image(data)
    except UserError as error:  # an extra is missing
        raise PictureError(str(error)) from error
    except UnidentifiedImageError as error:
        raise PictureError(f"not a picture in a known format ({', '.join(PICTURE_FORMATS)})") from error
    except Image.DecompressionBombError as error:
        raise PictureError(f"larger than {MAX_MEGAPIXELS} megapixels, the maximum") from error
    except Exception as error:  # as in ``decode``, for damaged headers
        raise PictureError(str(error) or type(error).__name__) from error
    if image.width * image.height > MAX_MEGAPIXELS * 1_000_000:
        image.close()
        raise PictureError(f"{image.width} x {image.height} pixels; at most {MAX_MEGAPIXELS} megapixels are accepted")
    return image


def _conversion_notes(image: Image.Image) -> tuple[str, ...]:
    notes = []
    if getattr(image, "n_frames", 1) > 1:
        notes.append("animated: the first frame is used")
    if image.mode.startswith("I"):
        notes.append("16-bit: scaled to 8")
    if image.mode == "CMYK":
        notes.append("CMYK: converted to RGB")
    return tuple(notes)


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode.startswith("I") or image.mode == "F":
        values = np.nan_to_num(_values(image), nan=0.0)
        top = 65535.0 if image.mode.startswith("I") and values.max(initial=0) > 255 else 255.0
        return Image.fromarray((values.clip(0, top) / top * 255 + 0.5).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _values(image: Image.Image) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        values = np.asarray(image, dtype=np.float64)
    if np.isnan(values).all():
        raise PictureError("no pixel is a number")
    return values


# EXIF data, and the segments of a JPEG file.


def exif_columns(data: bytes) -> dict[str, str | int | float]:
    """Date, year, camera and position from the EXIF block; missing and invalid values are left out."""
    if not _may_have_exif(data):
        return {}
    try:
        exif = read_exif(data) if not data.startswith(PLAIN_STARTS) else _open(data).getexif()
        inner = exif.get_ifd(ExifTags.IFD.Exif)
        place = exif.get_ifd(ExifTags.IFD.GPSInfo)
    except Exception:  # a damaged block must not exclude the picture, and decoders raise errors of any type
        return {}
    taken = _taken(inner.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime))
    found = {
        "taken": taken,
        "year": int(taken[:4]) if taken else None,
        "camera": _camera(exif.get(ExifTags.Base.Make), exif.get(ExifTags.Base.Model)),
        "latitude": _degrees(place, ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLatitudeRef, "S", 90),
        "longitude": _degrees(place, ExifTags.GPS.GPSLongitude, ExifTags.GPS.GPSLongitudeRef, "W", 180),
    }
    return {name: value for name, value in found.items() if value is not None}


def _may_have_exif(data: bytes) -> bool:
    """Whether the file may have an EXIF block; in a JPEG file, only the part before the pixels is searched."""
    before = next((place for marker, place in segments(data) if marker == SCAN_MARKER), len(data))
    return any(data.find(mark, 0, before) >= 0 for mark in EXIF_SIGNATURES)


def _taken(text: object) -> str | None:
    """``2020:05:01 12:30:00`` in ISO format; None for invalid dates and years, as of a clock that was not set."""
    match = EXIF_DATE.match(str(text)) if text else None
    if match is None:
        return None
    try:
        return datetime(*(int(part) for part in match.groups())).isoformat()  # type: ignore[arg-type]
    except ValueError:
        return None


def _camera(make: object, model: object) -> str | None:
    first, second = (_plain(part) for part in (make, model))
    if second.lower().startswith(first.lower()):  # many model names begin with the name of the maker
        return second or None
    return f"{first} {second}".strip() or None


def _plain(text: object) -> str:
    cleaned = str(text or "").replace("\x00", " ").encode("utf-8", "ignore").decode("utf-8")
    return " ".join(cleaned.split())[:MAX_CAMERA_CHARACTERS]


def _degrees(place: Mapping[int, Any], value: int, side: int, negative: str, most: float) -> float | None:
    try:
        degrees, minutes, seconds = (float(part) for part in place[value])
        found = degrees + minutes / 60 + seconds / 3600
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if not 0 <= found <= most or (degrees, minutes, seconds) == (0, 0, 0):
        return None
    return round(-found if str(place.get(side, "")).upper().startswith(negative) else found, 6)


def segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker and offset of each segment of a JPEG file, up to the first with pixels; none for other files."""
    place = len(JPEG_START) if data.startswith(JPEG_START) else len(data)
    while place + 10 < len(data) and data[place] == 0xFF:
        yield data[place + 1], place
        if data[place + 1] == SCAN_MARKER:
            return
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
