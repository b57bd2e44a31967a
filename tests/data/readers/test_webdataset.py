"""Tars that the package webdataset wrote, and folders that img2dataset wrote."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from calligram.errors import UserError

webdataset = pytest.importorskip("webdataset")
IMG2DATASET = Path(__file__).with_name("img2dataset.tar.xz")
"""six links, one of them dead, in the three layouts that img2dataset 1.47 writes"""


def picture(shade: int, kind: str = "JPEG") -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, 90, 120)).save(data, kind)
    return data.getvalue()


def write_tar(file: Path, samples: list[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(file)) as writer:
        for sample in samples:
            writer.write(sample)


@pytest.fixture
def shards(tmp_path):
    """Two tars in train and one in validation, with texts in both usual places."""
    folder = tmp_path / "in"
    write_tar(
        folder / "train-000.tar",
        [
            {"__key__": "a", "jpg": picture(10), "txt": "one\ntwo"},
            {"__key__": "b", "png": picture(20, "PNG"), "json": {"caption": "three", "place": "Oslo"}},
        ],
    )
    write_tar(folder / "train-001.tar", [{"__key__": "c", "jpg": picture(30), "txt": "four", "cls": 3}])
    write_tar(folder / "val-000.tar", [{"__key__": "a", "jpg": picture(40), "txt": "five", "json": ["five", "six"]}])
    return folder


def test_shards_of_a_folder_are_read_in_place_with_captions_splits_and_metadata(shards, importer):
    made = importer("webdataset", shards)
    assert list(made.images("id")) == ["train-000/a", "b", "c", "val-000/a"]  # a is in two shards
    assert made.images("split") == {"train-000/a": "train", "b": "train", "c": "train", "val-000/a": "dev"}
    assert made.images("place")["b"] == "Oslo"
    assert made.captions_of("train-000/a") == ["one", "two"]
    assert made.captions_of("b") == ["three"]
    assert made.captions_of("val-000/a") == ["five", "six"]  # the .json repeats the .txt
    assert made.problems == []
    assert made.collection.pictures.read(1) == picture(20, "PNG")
    assert (made.collection.folder / "shards/0000-train-000.tar").samefile(shards / "train-000.tar")


def test_a_tar_a_range_and_a_list_of_tars_are_sources(shards, importer, tmp_path):
    assert list(importer("webdataset", shards / "train-001.tar").images("id")) == ["c"]
    made = importer("webdataset", shards / "train-{000..001}.tar", overwrite=True)
    assert list(made.images("id")) == ["a", "b", "c"]
    assert made.collection.name == "train"
    (shards / "list.txt").write_text("val-000.tar\ntrain-001.tar\n")
    assert list(importer("webdataset", shards / "list.txt", overwrite=True).images("id")) == ["a", "c"]
    with pytest.raises(UserError, match=r"train-002.tar does not exist or lists nothing; give a folder with .tar"):
        importer("webdataset", shards / "train-{000..002}.tar", overwrite=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no .tar files in"):
        importer("webdataset", tmp_path / "empty", overwrite=True)


def test_malformed_samples_are_skipped_and_listed(tmp_path, importer):
    samples = [
        {"__key__": "fine", "jpg": picture(10), "txt": "fine"},
        {"__key__": "no-picture", "txt": "alone"},
        {"__key__": "broken", "jpg": b"not a picture", "txt": "broken"},
        {"__key__": "two", "jpg": picture(20), "png": picture(20, "PNG"), "txt": "two pictures"},
        {"__key__": "bad-json", "jpg": picture(30), "json": b"{", "txt": "kept"},
        {"__key__": "number", "jpg": picture(50), "json": {"caption": 3}},
        {"__key__": "record", "jpg": picture(60), "json": {"caption": "seen", "calligram": {"id": 3}}},
    ]
    write_tar(tmp_path / "in/0.tar", samples)
    data = (tmp_path / "in/0.tar").read_bytes()
    (tmp_path / "in/1.tar").write_bytes(data[:700])
    made = importer("webdataset", tmp_path / "in", split=None)
    assert sorted(made.images("id")) == ["bad-json", "fine", "number", "record", "two"]
    assert made.captions_of("bad-json") == ["kept"]
    assert made.captions_of("record") == ["seen"]
    kinds = {kind: item for kind, item in made.problems}
    assert kinds["sample without a picture"] == "0/no-picture"
    assert kinds["unusable image"] == "broken"
    assert kinds["second picture of a sample: not read"] == "0/two.png"
    assert kinds["unreadable .json of a sample"] == "0/bad-json"
    assert kinds["caption that is not text"] == "0/number"
    assert kinds["damaged record of an export"] == "0/record"
    assert "truncated tar" in kinds
    with pytest.raises(UserError, match="--strict"):
        importer("webdataset", tmp_path / "in", strict=True, overwrite=True)


@pytest.mark.parametrize("layout", ["webdataset", "parquet", "files"])
def test_every_layout_of_img2dataset_gives_the_same_collection(tmp_path, importer, layout):
    with tarfile.open(IMG2DATASET) as packed:
        packed.extractall(tmp_path, filter="data")
    made = importer("img2dataset", tmp_path / layout)
    assert sorted(made.images("id")) == [f"00000000{n}" for n in range(5)]
    assert made.captions_of("000000003") == ['picture 3, a "caption"']
    assert made.images("place")["000000003"] == "Oslo 3"
    assert made.images("original_width")["000000003"] == 300
    assert not {"status", "key", "error_message", "source.width"} & set(made.collection.metadata_columns)
    assert ("not downloaded", "00000/000000005") in made.problems
    row = list(made.images("id")).index("000000003")
    assert made.collection.pictures.read(row) == (tmp_path / "files/00000/000000003.jpg").read_bytes()


def test_pictures_of_parquet_files_are_kept_when_other_pictures_would_be_left_in_place(tmp_path, importer):
    with tarfile.open(IMG2DATASET) as packed:
        packed.extractall(tmp_path, filter="data")
    made = importer("img2dataset", tmp_path / "parquet", placing="reference")
    assert made.collection.manifest["shards"] == ["shards/0000-pictures-000000.tar"]
    assert made.collection.pictures.open(0).size == (64, 64)


def test_a_table_of_clip_names_pictures_at_any_path(tmp_path, pictures, importer):
    pictures(tmp_path / "pool", "x/a.jpg", "b.jpg", "unused.jpg")
    pictures(tmp_path / "else", "c.jpg")
    rows = [("x/a.jpg", 'says "hi", twice'), ("b.jpg", "two"), (tmp_path / "else/c.jpg", "three"), ("gone.jpg", "four")]
    table = tmp_path / "pool/train.csv"
    quoted = ((str(path), '"' + text.replace('"', '""') + '"') for path, text in rows)
    table.write_text("filepath\ttitle\n" + "".join(f"{path}\t{text}\n" for path, text in quoted))
    made = importer("csv", table, split=None)
    assert list(made.images("id")) == ["x/a.jpg", "b.jpg", str(tmp_path / "else/c.jpg")]
    assert made.captions_of("x/a.jpg") == ['says "hi", twice']
    assert [kind for kind, _ in made.problems] == ["row without its picture"]
    moved = tmp_path / "elsewhere.csv"
    moved.write_text("filepath,title\nb.jpg,again\n")
    assert list(importer("csv", moved, images=tmp_path / "pool", overwrite=True).images("id")) == ["b.jpg"]
    with pytest.raises(UserError, match="is a folder and no table; give the table"):
        importer("csv", tmp_path / "pool", overwrite=True)


def test_a_title_is_metadata_in_other_tables(tmp_path, pictures, importer):
    pictures(tmp_path / "in", "a.jpg")
    (tmp_path / "in/captions.jsonl").write_text(json.dumps({"file": "a.jpg", "title": "Dawn"}))
    made = importer("folder", tmp_path / "in")
    assert made.images("title") == {"a.jpg": "Dawn"}
    assert made.captions_of("a.jpg") == []
