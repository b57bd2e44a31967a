"""Picture formats: which decoders may open a file, by its content; HEIC and raw files need extras.

A decoder is chosen from a fixed list, whatever a file is called: other decoders of Pillow run programs.
"""

from __future__ import annotations

import io
import struct
from functools import cache
from importlib.util import find_spec
from pathlib import PurePath

import numpy as np
from PIL import ExifTags, Image

from calligram.errors import UserError
from calligram.extras import install_command, missing_modules

_AVIF = ("AVIF",) if find_spec("PIL.AvifImagePlugin") else ()  # only newer versions of Pillow have it
PICTURE_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", *_AVIF)
"""the only decoders of Pillow that are used, whatever a file is called: others run programs (EPS starts Ghostscript)"""
MAX_MEGAPIXELS = 150
"""larger pictures are refused, because decoding one takes more than half a gigabyte"""
HEIF_FORMAT = "HEIF"
"""name of the decoder of pillow-heif (extra ``heic``)"""
HEIF_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
RAW_SUFFIXES = frozenset({
    ".3fr", ".arw", ".cr2", ".cr3", ".dng", ".erf", ".iiq", ".nef", ".nrw", ".orf", ".pef", ".raf", ".rw2", ".sr2",
    ".srf", ".srw",
})  # fmt: skip
EXTRA_SUFFIXES = HEIF_SUFFIXES | RAW_SUFFIXES
"""of files that an extra reads"""
PICTURE_SUFFIXES = EXTRA_SUFFIXES | {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".ppm"}
HEIF_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))
CONTAINER_BRANDS = frozenset((b"mif1", b"mif2", b"msf1"))
"""brands of HEIC and AVIF files alike; the other brands of the file say which it is"""
RAW_STARTS = (b"FUJIFILMCCD-RAW", b"IIRO", b"IIRS", b"MMOR", b"IIU\x00")
"""first bytes of raw files of Fujifilm, Olympus and Panasonic"""
TIFF_STARTS = {b"II*\x00": "<", b"MM\x00*": ">"}
"""byte order by the first bytes; many raw formats are TIFF files"""
SUB_IFDS_TAG, PHOTOMETRIC_TAG, DNG_VERSION_TAG = 330, 262, 50706
SENSOR_DATA = frozenset((32803, 34892))
"""values of the photometric tag for pixels of a sensor, before colours are computed"""
MAX_DIRECTORIES = 16
"""of a TIFF file that are read to recognise a raw file"""
FLIP_TRANSPOSE = {
    3: Image.Transpose.ROTATE_180, 5: Image.Transpose.ROTATE_90, 6: Image.Transpose.ROTATE_270,
}  # fmt: skip
"""how the preview of a raw file without EXIF orientation is turned, by LibRaw's number"""


def missing_reader(name: str | PurePath) -> str | None:
    """Why files with this suffix cannot be read; None where their reader is installed.

    >>> missing_reader("photo.jpg")
    """
    suffix = PurePath(name).suffix.lower()
    if suffix in HEIF_SUFFIXES:
        return heif_problem()
    return raw_problem() if suffix in RAW_SUFFIXES else None


def heif_problem() -> str | None:
    """Why HEIC files cannot be read; None if they can."""
    if missing_modules("pillow_heif"):
        return "HEIC pictures need pillow-heif; install it with: " + install_command("heic")
    return None


def raw_problem() -> str | None:
    """Why raw files cannot be read; None if they can."""
    if missing_modules("rawpy"):
        return "raw pictures need rawpy; install it with: " + install_command("raw")
    return None


def open_image(data: bytes) -> Image.Image:
    """Open the bytes of a picture with the decoder for their content, without decoding the pixels.

    A raw file gives its embedded preview, or its developed pixels where it has none.

    Raises:
        UserError: when the format needs an extra that is not installed.
        UnidentifiedImageError: when no decoder of the list recognises the bytes.
    """
    if is_heif(data):
        if problem := heif_problem():
            raise UserError(problem)
        _register_heif()
        return Image.open(io.BytesIO(data), formats=(HEIF_FORMAT,))
    if is_raw(data):
        if problem := raw_problem():
            raise UserError(problem)
        return _raw_preview(data)
    return Image.open(io.BytesIO(data), formats=PICTURE_FORMATS)


def read_exif(data: bytes) -> Image.Exif:
    """The EXIF data of a picture file. Most raw files are TIFF files, which are read without their pixels."""
    if data[:4] in TIFF_STARTS and is_raw(data):
        exif = Image.Exif()
        exif.load(data)
        return exif
    with open_image(data) as image:
        exif = image.getexif()
        for directory in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
            exif.get_ifd(directory)  # read while the file is open
        return exif


def needs_conversion(data: bytes) -> bool:
    """Whether most browsers cannot show a file: HEIC and raw."""
    return is_heif(data) or is_raw(data)


def is_heif(data: bytes) -> bool:
    """Whether a file begins like HEIC. AVIF has the same container and other brands; Pillow reads it."""
    if data[4:8] != b"ftyp":
        return False
    size = min(int.from_bytes(data[:4], "big"), len(data), 256)
    brands = {data[8:12], *(data[place : place + 4] for place in range(16, size - 3, 4))}
    major = data[8:12]
    return major in HEIF_BRANDS or (major in CONTAINER_BRANDS and bool(brands & HEIF_BRANDS))


def is_raw(data: bytes) -> bool:
    """Whether a file has the pixels of a camera's sensor."""
    if data.startswith(RAW_STARTS) or data[4:12] == b"ftypcrx ":
        return True
    order = TIFF_STARTS.get(data[:4])
    if order is None:
        return False
    return data[8:10] == b"CR" or _has_sensor_data(data, order)


def _has_sensor_data(data: bytes, order: str) -> bool:
    """Whether a directory of a TIFF file, or one below it, has pixels of a sensor or the version of DNG."""
    waiting, visited = [_number(data, 4, 4, order)], set[int]()
    while waiting and len(visited) < MAX_DIRECTORIES:
        place = waiting.pop(0)
        if not 8 <= place <= len(data) - 2 or place in visited:
            continue
        visited.add(place)
        count = _number(data, place, 2, order)
        entries = place + 2
        for entry in range(entries, min(entries + 12 * count, len(data) - 11), 12):
            tag, kind, values = struct.unpack_from(f"{order}HHI", data, entry)
            if tag == DNG_VERSION_TAG:
                return True
            if tag == PHOTOMETRIC_TAG and _number(data, entry + 8, 2 if kind == 3 else 4, order) in SENSOR_DATA:
                return True
            if tag == SUB_IFDS_TAG:
                first = entry + 8 if values == 1 else _number(data, entry + 8, 4, order)
                waiting += [_number(data, first + 4 * n, 4, order) for n in range(min(values, MAX_DIRECTORIES))]
        waiting.append(_number(data, entries + 12 * count, 4, order))
    return False


def _number(data: bytes, place: int, size: int, order: str) -> int:
    return int.from_bytes(data[place : place + size], "little" if order == "<" else "big")


@cache
def _register_heif() -> None:
    """Add the decoder of pillow-heif to Pillow; only files that begin like HEIC are given to it."""
    import pillow_heif

    # Pictures are decoded in several threads already.
    pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)


def _raw_preview(data: bytes) -> Image.Image:
    """The embedded preview of a raw file, or its pixels at half size."""
    import rawpy

    with rawpy.imread(io.BytesIO(data)) as raw:
        try:
            found = raw.extract_thumb()
        except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError):
            if raw.sizes.raw_width * raw.sizes.raw_height > MAX_MEGAPIXELS * 1_000_000:
                raise UserError(f"larger than {MAX_MEGAPIXELS} megapixels, the maximum") from None
            return Image.fromarray(raw.postprocess(half_size=True, use_camera_wb=True))
        if found.format != rawpy.ThumbFormat.JPEG:
            preview = Image.fromarray(np.asarray(found.data))
        else:
            preview = Image.open(io.BytesIO(bytes(found.data)), formats=("JPEG",))
            if preview.getexif().get(0x0112) is not None:
                return preview
        turn = FLIP_TRANSPOSE.get(raw.sizes.flip)
        return preview if turn is None else preview.transpose(turn)
