from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import ExifTags, Image

from calligram.data.pictures import decode, exif_columns
from calligram.features.images.pixels import PixelInput
from calligram.search.filters.columns import EXIF_COLUMNS
from calligram.search.indexing.encode import PictureEncoder, is_plain_jpeg, thumbnail
from calligram.search.indexing.sources import FolderSource


def jpeg(
    tags: dict[int, object], place: dict[int, object] | None = None, inner: dict[int, object] | None = None
) -> bytes:
    exif = Image.Exif()
    for tag, value in tags.items():
        exif[tag] = value
    if place:
        exif.get_ifd(ExifTags.IFD.GPSInfo).update(place)
    if inner:
        exif.get_ifd(ExifTags.IFD.Exif).update(inner)
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG", exif=exif)
    return stream.getvalue()


def test_date_camera_and_position_are_read():
    place = {1: "S", 2: (33.0, 51.0, 24.0), 3: "E", 4: (151.0, 12.0, 36.0)}
    found = exif_columns(
        jpeg(
            {ExifTags.Base.Make: "Acme\x00", ExifTags.Base.Model: "Acme  Box 3"},
            place,
            {ExifTags.Base.DateTimeOriginal: "2021:06:30 08:09:10"},
        )
    )
    assert found == {
        "taken": "2021-06-30T08:09:10",
        "year": 2021,
        "camera": "Acme Box 3",
        "latitude": pytest.approx(-33.856667),
        "longitude": pytest.approx(151.21),
    }
    assert set(found) == set(EXIF_COLUMNS)


@pytest.mark.parametrize(
    "date",
    ["0000:00:00 00:00:00", "0001:01:01 00:00:00", "9999:12:31 23:59:59", "2021:13:01 00:00:00", "yesterday", "    "],
)
def test_a_date_that_is_none_is_left_out(date):
    assert exif_columns(jpeg({ExifTags.Base.DateTime: date})) == {}


def test_a_position_at_the_origin_or_off_the_globe_is_left_out():
    assert exif_columns(jpeg({}, {1: "N", 2: (0.0, 0.0, 0.0), 3: "E", 4: (200.0, 0.0, 0.0)})) == {}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_data_of_every_format_is_read(kind):
    exif = Image.Exif()
    exif[ExifTags.Base.Make] = "Acme"
    stream = io.BytesIO()
    Image.new("RGBA" if kind == "PNG" else "RGB", (8, 8)).save(stream, kind, exif=exif)
    assert exif_columns(stream.getvalue()) == {"camera": "Acme"}


@pytest.mark.parametrize("data", [b"", b"not a picture", jpeg({ExifTags.Base.Make: "x"})[:40]])
def test_what_cannot_be_read_has_no_facts(data):
    assert exif_columns(data) == {}


@pytest.mark.parametrize(
    ("size", "small"),
    [
        ((640, 320), (320, 160)),
        ((4000, 3000), (334, 250)),
        ((5, 4000), (1, 334)),
        ((500, 375), (250, 188)),
        ((30, 20),) * 2,
    ],
)
def test_a_thumbnail_keeps_the_aspect_ratio_and_has_no_metadata(size, small):
    made = Image.open(io.BytesIO(thumbnail(Image.new("RGB", size, "red"))))
    assert made.format == "JPEG"
    assert made.size == small
    assert not made.getexif()


@pytest.mark.parametrize(
    ("size", "made"), [((1280, 1280), (320, 320)), ((4000, 3000), (320, 240)), ((900, 3000), (96, 320))]
)
def test_a_thumbnail_from_what_the_matcher_reduced_looks_the_same(size, made):
    rows = np.linspace(0, 255, size[1])[:, None] * np.ones(size[0])
    columns = np.ones(size[1])[:, None] * np.linspace(0, 255, size[0])
    image = Image.fromarray(np.stack([rows, columns, 255 - rows], 2).astype(np.uint8))
    reduced = PixelInput(size=96).reduce(image)
    assert reduced.size != image.size
    found = Image.open(io.BytesIO(thumbnail(image, b"", reduced)))
    alone = Image.open(io.BytesIO(thumbnail(image))).resize(found.size)
    assert found.size == made
    assert np.abs(np.asarray(found, dtype=float) - np.asarray(alone, dtype=float)).mean() < 2


def test_too_little_is_not_made_into_a_thumbnail():
    image = Image.new("RGB", (1280, 960), "red")
    assert thumbnail(image, b"", image.reduce((8, 4))) == thumbnail(image)


def test_exif_is_searched_only_before_the_pixels(monkeypatch):
    data = encoded() + b"Exif"  # such bytes turn up among those of a large picture
    monkeypatch.setattr("calligram.data.pictures.Image.open", lambda _: pytest.fail("opened again"))
    assert exif_columns(data) == {}


def encoded(mode: str = "RGB", kind: str = "JPEG", size: tuple[int, int] = (40, 30), **options: object) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, kind, **options)
    return stream.getvalue()


def test_a_small_plain_jpeg_is_its_own_thumbnail():
    for data in (encoded(), encoded("L"), encoded(progressive=True), encoded(size=(470, 20))):
        assert thumbnail(decode(data), data) == data


@pytest.mark.parametrize(
    "data",
    [
        encoded(comment=b"secret"), encoded(icc_profile=b"secret profile"), encoded("CMYK"), encoded(kind="PNG"),
        encoded(size=(2000, 20)), encoded() + b"x" * 50_000, jpeg({ExifTags.Base.Make: "secret"}),
    ],
)  # fmt: skip
def test_any_other_is_compressed_again_and_tells_nothing(data):
    made = thumbnail(decode(data), data)
    assert made != data
    assert b"secret" not in made
    assert is_plain_jpeg(made)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\xff\xd8\xff\xe0", encoded()[:25], b"\xff\xd8" + b"\xff" * 40])
def test_a_beginning_is_no_jpeg(data):
    assert not is_plain_jpeg(data)


def test_a_large_jpeg_is_indexed_from_a_reduced_one_with_its_own_size_and_a_small_thumbnail(models, tmp_path):
    y, x = np.mgrid[:900, :1400]
    pixels = np.stack([127 + 100 * np.sin(x / 90), 127 + 100 * np.cos(y / 70), x % 256], axis=2).astype(np.uint8)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(pixels).save(tmp_path / "large.jpg", quality=90, exif=exif)
    Image.fromarray(pixels).transpose(Image.Transpose.ROTATE_270).save(tmp_path / "large.png")
    source = FolderSource(tmp_path)
    encoder = PictureEncoder.of(models, source, "cpu")
    assert encoder.encoder.least_side < 450
    found = {row["key"]: row for row in encoder.run(source.scan().entries, set())}
    small, whole = found["large.jpg"], found["large.png"]
    assert (small["width"], small["height"]) == (whole["width"], whole["height"]) == (900, 1400)
    one, two = (np.frombuffer(row["vector"], dtype=np.float32) for row in (small, whole))
    assert one @ two / np.linalg.norm(one) / np.linalg.norm(two) > 0.999
    assert 240 <= max(Image.open(io.BytesIO(small["jpeg"])).size) <= 480
