from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
import warnings
import zlib
from itertools import combinations
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from calligram.data.pictures import PictureError, decode, decode_with_size, exif_columns, probe
from calligram.data.sheet import letters
from calligram.picture_formats import PICTURE_FORMATS

LEFT, RIGHT = (250, 20, 20), (20, 20, 250)


def two_halves(width: int = 64, height: int = 32) -> Image.Image:
    """Red on the left, blue on the right."""
    picture = Image.new("RGB", (width, height), RIGHT)
    picture.paste(LEFT, (0, 0, width // 2, height))
    return picture


def encoded(picture: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b"\0" * 9))


def near(pixel: object, colour: tuple[int, int, int], slack: int = 40) -> bool:
    return bool(np.abs(np.array(pixel) - np.array(colour)).max() <= slack)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_a_valid_picture_is_decoded_to_rgb_with_its_size(kind: str) -> None:
    data = encoded(two_halves(), kind)
    assert (probe(data).width, probe(data).height) == (64, 32)
    image = decode(data)
    assert image.mode == "RGB"
    assert near(image.getpixel((4, 4)), LEFT)


def test_a_file_and_its_bytes_decode_to_the_same_image(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(encoded(two_halves(), "PNG"))
    assert np.array_equal(np.asarray(decode(file)), np.asarray(decode(file.read_bytes())))


def test_an_exif_rotated_picture_is_turned_upright() -> None:
    """Orientation 6: the camera was held so that the left of the stored pixels is up."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(two_halves(), "JPEG", exif=exif, quality=95)
    assert (probe(data).width, probe(data).height) == (32, 64)
    image = decode(data)
    assert image.size == (32, 64)
    assert near(image.getpixel((16, 8)), LEFT)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_truncated_picture_is_refused_by_probe_and_decode(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (128, 128, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    for read in (probe, decode):
        with pytest.raises(PictureError):
            read(data[: len(data) // 2])


def large_jpeg(width: int, height: int, **options: object) -> bytes:
    """A smooth picture with some edges, as photographs are."""
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([127 + 100 * np.sin(x / 90), 127 + 100 * np.cos(y / 70), (x // 200 + y // 150) % 2 * 200], axis=2)
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, "JPEG", quality=92, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("side", "size"), [(0, (1601, 1200)), (601, (1601, 1200)), (600, (801, 600)), (288, (401, 300)), (10, (201, 150))]
)
def test_a_large_jpeg_is_decoded_at_a_part_of_its_size_with_sides_of_at_least_so_many_pixels(
    side: int, size: tuple[int, int]
) -> None:
    data = large_jpeg(1601, 1200)
    found = decode(data, side)
    assert found.size == size
    assert found.mode == "RGB"
    whole = decode(data).resize(found.size, Image.Resampling.BOX)
    assert np.abs(np.asarray(found, dtype=float) - np.asarray(whole, dtype=float)).mean() < 3


def test_a_reduced_jpeg_is_upright_and_other_formats_are_whole() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = large_jpeg(1600, 800, exif=exif)
    assert decode(data, 200).size == (200, 400)
    for side in (0, 200, 2000):
        image, size = decode_with_size(data, side)
        assert size == (800, 1600)
        assert image == decode(data, side)
    assert decode_with_size(large_jpeg(160, 80), 200)[1] == (160, 80)
    stream = io.BytesIO()
    Image.new("RGB", (1600, 800)).save(stream, "PNG")
    assert decode(stream.getvalue(), 200).size == (1600, 800)


def test_a_truncated_large_jpeg_is_refused_at_every_size() -> None:
    data = large_jpeg(1600, 1200)
    for side in (0, 100, 500):
        with pytest.raises(PictureError):
            decode(data[: len(data) // 2], side)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    for source in (b"", tmp_path / "a.jpg"):
        with pytest.raises(PictureError, match="the file is empty"):
            probe(source)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="no such file"):
        decode(tmp_path / "none.jpg")


def test_a_file_that_is_not_a_picture_is_refused() -> None:
    with pytest.raises(PictureError, match="not a picture in a known format"):
        probe(b"hello, this is a letter")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"


def test_only_named_decoders_are_used_whatever_the_file_is_called(tmp_path: Path) -> None:
    assert "EPS" not in PICTURE_FORMATS
    (tmp_path / "a.jpg").write_bytes(EPS)
    with Image.open(tmp_path / "a.jpg") as opened:  # so Pillow would open it, and loading it starts Ghostscript
        assert opened.format == "EPS"
    with mock.patch("PIL.EpsImagePlugin.EpsImageFile", side_effect=AssertionError("an EPS decoder was made")):
        for read in (probe, decode):
            with pytest.raises(PictureError, match=r"not a picture in a known format \(JPEG, PNG"):
                read(tmp_path / "a.jpg")
        assert exif_columns(EPS + b"Exif") == {}


def test_pixels_that_are_not_numbers_are_black_and_a_picture_of_nothing_else_is_refused() -> None:
    grey = np.full((8, 8), 100, dtype=np.float32)
    grey[0, :4] = np.nan, np.inf, -np.inf, 1e38
    data = encoded(Image.fromarray(grey), "TIFF")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert probe(data).notes == ("pixels that are not numbers: black",)
        assert [decode(data).getpixel((x, 0))[0] for x in range(5)] == [0, 255, 0, 255, 100]
        for read in (probe, decode):
            with pytest.raises(PictureError, match="no pixel is a number"):
                read(encoded(Image.fromarray(np.full((8, 8), np.nan, dtype=np.float32)), "TIFF"))


def test_a_damaged_picture_writes_nothing_to_the_screen(tmp_path: Path) -> None:
    """Pillow warns, and libtiff writes by itself. In a process of its own, which has the filters of a user."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8))
    for turn, compression in enumerate(("tiff_lzw", "tiff_adobe_deflate", "jpeg", "raw")):
        whole = encoded(noise, "TIFF", compression=compression)
        for place in (9, 60, len(whole) // 2, len(whole) - 40, len(whole) - 100):
            damaged = whole[:place] + b"\xee\x77\x01" + whole[place + 3 :]
            (tmp_path / f"{turn}-{place}.tif").write_bytes(damaged)
            (tmp_path / f"{turn}-{place}-cut.tif").write_bytes(damaged[: 3 * len(damaged) // 4])
    code = """
import pathlib, sys
from calligram.data.pictures import PictureError, decode, exif_columns, probe
for file in pathlib.Path(sys.argv[1]).iterdir():
    for read in probe, decode, exif_columns:
        try:
            read(file.read_bytes())
        except PictureError:
            print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "refused" in done.stdout
    assert done.stderr == ""


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [12_500, 60_000])
def test_a_huge_picture_is_refused_before_it_is_decoded(side: int) -> None:
    with pytest.raises(PictureError, match="megapixels"):
        probe(png_header(side, side))


def test_a_large_picture_below_the_limit_gives_no_warning(tmp_path: Path) -> None:
    """In a process of its own, as pytest puts its own filters before every other."""
    (tmp_path / "large.png").write_bytes(png_header(11_000, 10_000))
    code = "import pathlib, sys; from calligram.data import pictures; pictures._open(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "large.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_an_animation_gives_its_first_frame_and_is_noted() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (LEFT, RIGHT)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert probe(data).notes == ("animated: the first frame is used",)
    assert near(decode(data).getpixel((3, 3)), LEFT)


def test_cmyk_becomes_rgb_and_is_noted() -> None:
    data = encoded(two_halves().convert("CMYK"), "JPEG", quality=95)
    assert probe(data).notes == ("CMYK: converted to RGB",)
    assert near(decode(data).getpixel((4, 4)), LEFT, slack=60)


def test_sixteen_bit_grey_is_scaled_and_not_clipped() -> None:
    grey = np.full((8, 8), 32768, dtype=np.uint16)
    grey[0, 0] = 65535
    data = encoded(Image.fromarray(grey), "PNG")
    assert probe(data).notes == ("16-bit: scaled to 8",)
    image = decode(data)
    assert image.getpixel((4, 4)) == (128, 128, 128)
    assert image.getpixel((0, 0)) == (255, 255, 255)


def test_transparency_is_blended_with_white() -> None:
    assert decode(encoded(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG")).getpixel((1, 1)) == (255, 255, 255)


def test_a_transparent_palette_is_blended_with_white() -> None:
    picture = Image.new("P", (4, 4), 0)
    picture.putpalette([0, 0, 0, 255, 255, 255])
    assert decode(encoded(picture, "GIF", transparency=0)).getpixel((1, 1)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P"])
def test_other_modes_become_rgb(mode: str) -> None:
    assert decode(encoded(two_halves().convert(mode), "PNG")).mode == "RGB"


@pytest.mark.filterwarnings("ignore:Tag data larger:UserWarning")
def test_damaged_bytes_raise_only_picture_errors() -> None:
    rng = np.random.default_rng(0)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"):
        whole = encoded(two_halves(), kind)
        for _ in range(25):
            data = bytearray(whole)
            for place in rng.integers(0, len(data), 6):
                data[place] = rng.integers(256)
            for read in (probe, decode):
                with contextlib.suppress(PictureError):
                    read(bytes(data))


def test_the_font_has_the_letters_of_european_languages():
    drawn = [bytes(letters(20).getmask(letter)) for letter in "eéöčşđłñøЖλ"]
    assert all(one != two for one, two in combinations(drawn, 2))
