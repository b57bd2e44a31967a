"""HEIC, AVIF and raw files, written and read by the real libraries; and what is said where these are missing."""

from __future__ import annotations

import io
import struct
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import ExifTags, Image

from calligram import picture_formats
from calligram.data.pictures import PictureError, decode, exif_columns, probe
from calligram.extras import install_command
from calligram.picture_formats import PICTURE_FORMATS, is_heif, is_raw, missing_reader, needs_conversion

SHORT, LONG, BYTE, TEXT = 3, 4, 1, 2
SIZES = {SHORT: 2, LONG: 4, BYTE: 1, TEXT: 1}


def picture(width: int = 96, height: int = 64) -> Image.Image:
    """Red on the left, blue on the right."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = 220
    pixels[:, width // 2 :, 2] = 220
    return Image.fromarray(pixels)


def exif_block(orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = "Apple", "iPhone 15"
    exif[ExifTags.Base.Orientation] = orientation
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2023:07:14 09:30:00"
    exif.get_ifd(ExifTags.IFD.GPSInfo).update({1: "N", 2: (52.0, 31.0, 12.0), 3: "E", 4: (13.0, 24.0, 0.0)})
    return exif.tobytes()


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    if kind == "HEIF":
        pillow_heif.register_heif_opener()
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def tiff(directories: list[list[tuple[int, int, tuple[int, ...] | bytes]]], blobs: list[bytes]) -> bytes:
    """A TIFF file; the first directory names the others as its sub-directories, and tag 273 or 513 names a blob."""
    starts, place = [], 8
    for tags in directories:
        starts.append(place)
        extra = sum(len(v) * SIZES[k] for _, k, v in tags if len(v) * SIZES[k] > 4)
        place += 2 + 12 * len(tags) + 4 + extra
    offsets = [place + sum(len(blob) for blob in blobs[:number]) for number in range(len(blobs))]
    data = b"II*\0" + struct.pack("<I", 8)
    for start, tags in zip(starts, directories, strict=True):
        entries, extra, end = b"", b"", start + 2 + 12 * len(tags) + 4
        for tag, kind, values in sorted(tags):
            if tag == 330:
                values = tuple(starts[1:])
            if tag == 273:
                values = (offsets[values[0]],)
            content = (
                values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{'HI'[kind == LONG]}", *values)
            )
            if len(content) > 4:
                field, extra = struct.pack("<I", end + len(extra)), extra + content
            else:
                field = content.ljust(4, b"\0")
            entries += struct.pack("<HHI", tag, kind, len(values)) + field
        data += struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0) + extra
    return data + b"".join(blobs)


def sensor(image: Image.Image) -> bytes:
    """The pixels of an image behind a Bayer filter: red, green / green, blue."""
    rgb = np.asarray(image).astype(np.uint16) * 257
    mosaic = rgb[:, :, 1].copy()
    mosaic[0::2, 0::2], mosaic[1::2, 1::2] = rgb[0::2, 0::2, 0], rgb[1::2, 1::2, 2]
    return mosaic.astype("<u2").tobytes()


def dng(*, preview: bool = True, orientation: int = 1) -> bytes:
    """A DNG file, with a JPEG preview in its first directory or without one."""
    image = picture(256, 160)
    mosaic, jpeg = sensor(image), saved(picture(128, 80), "JPEG", quality=92)
    about = [
        (254, LONG, (1,)), (256, LONG, (128,)), (257, LONG, (80,)), (258, SHORT, (8, 8, 8)), (259, SHORT, (7,)),
        (262, SHORT, (6,)), (273, LONG, (1,)), (277, SHORT, (3,)), (278, LONG, (80,)), (279, LONG, (len(jpeg),)),
        (330, LONG, (0,)),
    ]  # fmt: skip
    common = [
        (271, TEXT, b"Leica Camera AG\0"), (272, TEXT, b"LEICA Q\0"), (274, SHORT, (orientation,)),
        (306, TEXT, b"2021:03:02 08:00:00\0"), (50706, BYTE, b"\x01\x04\0\0"), (50708, TEXT, b"LEICA Q\0"),
    ]  # fmt: skip
    raw = [
        (254, LONG, (0,)), (256, LONG, (256,)), (257, LONG, (160,)), (258, SHORT, (16,)), (259, SHORT, (1,)),
        (262, SHORT, (32803,)), (273, LONG, (0,)), (277, SHORT, (1,)), (278, LONG, (160,)),
        (279, LONG, (len(mosaic),)), (33421, SHORT, (2, 2)), (33422, BYTE, b"\x00\x01\x01\x02"),
    ]  # fmt: skip
    if preview:
        return tiff([[*about, *common], raw], [mosaic, jpeg])
    return tiff([[*raw, *common]], [mosaic])


def sides(image: Image.Image) -> tuple[str, str]:
    """The strongest colour at the left and at the right."""
    pixels = np.asarray(image.convert("RGB")).astype(int)
    width = pixels.shape[1]
    halves = pixels[:, : width // 3], pixels[:, -width // 3 :]
    left, right = (["red", "green", "blue"][half.mean((0, 1)).argmax()] for half in halves)
    return left, right


def test_heic_is_read_upright_with_its_exif_data():
    data = saved(picture(), "HEIF", quality=90, exif=exif_block())
    assert is_heif(data)
    assert not is_raw(data)
    image = decode(data)
    assert (image.mode, image.size, sides(image)) == ("RGB", (96, 64), ("red", "blue"))
    assert (probe(data).width, probe(data).height) == (96, 64)
    found = exif_columns(data)
    assert found["taken"] == datetime(2023, 7, 14, 9, 30).isoformat()
    assert found["camera"] == "Apple iPhone 15"
    assert (found["latitude"], found["longitude"]) == (52.52, 13.4)


def test_avif_needs_no_extra(monkeypatch):
    monkeypatch.setattr(picture_formats, "missing_modules", lambda *names: list(names))
    data = saved(picture(), "AVIF")
    assert "AVIF" in PICTURE_FORMATS
    assert not is_heif(data)
    assert sides(decode(data)) == ("red", "blue")


@pytest.mark.parametrize("preview", [True, False])
def test_a_raw_file_gives_its_preview_or_its_pixels(preview):
    data = dng(preview=preview)
    assert is_raw(data)
    image = decode(data)
    assert image.size == (128, 80), "the preview, or the pixels at half size"
    assert sides(image) == ("red", "blue")
    found = exif_columns(data)
    assert (found["year"], found["camera"]) == (2021, "Leica Camera AG LEICA Q")
    turned = decode(dng(preview=preview, orientation=3))
    assert sides(turned) == ("blue", "red")
    assert decode(dng(preview=preview, orientation=6)).size == (80, 128)


def test_only_files_with_the_content_of_a_format_reach_its_decoder(monkeypatch):
    """A TIFF or a JPEG that is called photo.nef is opened as what it is."""
    reached: list[str] = []
    monkeypatch.setattr(picture_formats, "_raw_preview", lambda data: reached.append("raw"))
    monkeypatch.setattr(picture_formats, "_register_heif", lambda: reached.append("heif"))
    for kind in ("TIFF", "JPEG", "PNG", "AVIF", "WEBP"):
        data = saved(picture(), kind)
        assert not needs_conversion(data)
        decode(data)
    for other in (b"", b"II*\0", b"MM\0*" + b"\xff" * 40, b"\0\0\0\x18ftypmp42" + bytes(20), b"%!PS-Adobe-3.0 EPSF"):
        assert not needs_conversion(other)
    assert reached == []
    starts = [b"FUJIFILMCCD-RAW 0201", b"IIRO\x08\0", b"IIU\0\x18", b"\0\0\0\x18ftypcrx \0", b"II*\0\x10\0\0\0CR\x02\0"]
    assert all(is_raw(start) for start in starts)


def test_directories_of_a_tiff_file_that_go_round_end():
    around = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 1) + struct.pack("<HHII", 330, 4, 1, 8)
    assert not is_raw(around + struct.pack("<I", 8))


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_are_picture_errors(seed):
    random = np.random.default_rng(seed)
    whole = [saved(picture(), "HEIF", quality=90), dng(), dng(preview=False)][seed % 3]
    data = bytearray(whole[: random.integers(20, len(whole))] if seed % 2 else whole)
    for place in random.integers(0, min(len(data), 600), 12):
        data[place] = random.integers(0, 256)
    with suppress(PictureError):  # any other exception fails
        decode(bytes(data))
    exif_columns(bytes(data))


def test_what_to_install_is_said_where_a_reader_is_missing(monkeypatch):
    assert [missing_reader(name) for name in ("a.heic", "b.NEF", "c.jpg", "d.avif")] == [None] * 4
    monkeypatch.setattr(picture_formats, "missing_modules", lambda *names: list(names))
    assert (
        missing_reader(Path("a.HEIC")) == f"HEIC pictures need pillow-heif; install it with: {install_command('heic')}"
    )
    assert missing_reader("b.NEF") == f"raw pictures need rawpy; install it with: {install_command('raw')}"
    assert missing_reader("c.jpg") is None
    with pytest.raises(PictureError, match="need pillow-heif"):
        decode(saved(picture(), "HEIF"))
    with pytest.raises(PictureError, match="need rawpy"):
        decode(dng())
