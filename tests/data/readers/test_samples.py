"""Export to WebDataset, to Hugging Face datasets and to a table of CLIP, read by others, and import again."""

from __future__ import annotations

import csv
import io
import json

import pytest
from PIL import Image

from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PictureFile
from calligram.data.readers.catalog import import_collection
from calligram.data.readers.hugging_face import export_datasets
from calligram.data.readers.samples import export_csv
from calligram.data.readers.webdataset import export_webdataset
from calligram.data.write_collection import write_draft
from calligram.errors import UserError

webdataset = pytest.importorskip("webdataset")
EXPORTS = {"webdataset": export_webdataset, "datasets": export_datasets}


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets")


@pytest.fixture
def collection(tmp_path) -> Collection:
    """Five images: shared and missing captions, dots and slashes in ids, metadata, an identity, one without a split."""
    draft = Draft("mixed")
    facts = [("a.b/1.jpg", "train", 7), ("a.b/2.png", "train", None), ("3.webp", "dev", None), ("4.jpg", "test", 9)]
    for number, (name, split, identity) in enumerate([*facts, ("5.jpg", None, None)]):
        path = tmp_path / f"in-{number}{name[name.rindex('.') :]}"
        Image.new("RGB", (30 + number, 20), (40 * number, 9, 9)).save(path)
        place = {"place": f"Oslo {number}", "year": 2000 + number} if number % 2 else {}
        draft.images.append(ImageRecord(name, PictureFile(path), split, identity, dict(place)))
    draft.captions += [
        CaptionRecord("shared", "a dark square\non two lines", ("a.b/1.jpg", "a.b/2.png", "4.jpg"), {"by": "Ann"}),
        CaptionRecord("own", "ein Bild ☃", ("a.b/1.jpg",)),
        CaptionRecord("third", "three", ("3.webp",), {"by": "Bo"}),
    ]
    return write_draft(draft, tmp_path / "collection")


def content(collection: Collection) -> dict[str, object]:
    """Everything that a round trip keeps, by id."""
    ids, texts = collection.column("images", "id"), collection.column("captions", "id")
    columns = ("split", "identity", *collection.metadata_columns)
    pairs = zip(collection.numbers("matches", "image"), collection.numbers("matches", "caption"), strict=True)
    return {
        "images": {name: [collection.column("images", c)[row] for c in columns] for row, name in enumerate(ids)},
        "bytes": {name: collection.pictures.read(row) for row, name in enumerate(ids)},
        "captions": {
            name: [collection.column("captions", c)[row] for c in ("text", *collection.caption_metadata_columns)]
            for row, name in enumerate(texts)
        },
        "matches": {(ids[image], texts[caption]) for image, caption in pairs},
    }


@pytest.mark.parametrize("format", EXPORTS)
def test_a_round_trip_keeps_bytes_captions_splits_matches_and_metadata(collection, tmp_path, format, datasets):
    report = EXPORTS[format](collection, tmp_path / "out")
    assert (report.images, report.captions, report.problems, report.left_out) == (5, 3, [], [])
    made, problems = import_collection(format, tmp_path / "out", tmp_path / "again", split=None)
    assert not [problem for problem in problems.found if problem.skipped]
    assert content(made) == content(collection)
    with pytest.raises(UserError, match="exists; give the name of a new folder"):
        EXPORTS[format](collection, tmp_path / "out")


def test_a_table_of_clip_has_a_row_for_each_pair(collection, tmp_path):
    report = export_csv(collection, tmp_path / "out")
    assert (report.images, report.captions, report.problems) == (4, 5, [])
    assert report.left_out == ["images without captions"]
    rows = list(csv.DictReader((tmp_path / "out" / "pairs.csv").open(encoding="utf-8"), delimiter="\t"))
    assert {row["title"] for row in rows} == {"a dark square on two lines", "ein Bild ☃", "three"}
    assert all((tmp_path / "out" / row["filepath"]).is_file() for row in rows)
    made, problems = import_collection("csv", tmp_path / "out" / "pairs.csv", tmp_path / "again", split=None)
    assert not [problem for problem in problems.found if problem.skipped]
    assert made.splits() == {"train": 2, "dev": 1, "test": 1}
    assert len(made.table("matches")) == 5
    with pytest.raises(UserError, match="exists; give the name of a new folder"):
        export_csv(collection, tmp_path / "out")


def test_the_package_webdataset_reads_the_tars(collection, tmp_path):
    export_webdataset(collection, tmp_path / "out", shard_bytes=1)
    tars = sorted(path.name for path in (tmp_path / "out").iterdir())
    splits = ["dev-000000", "test-000000", "train-000000", "train-000001", "unassigned-000000"]
    assert tars == [f"{name}.tar" for name in splits]  # of one byte at least, so each sample has a tar
    export_webdataset(collection, tmp_path / "again", shard_bytes=1)
    assert all((tmp_path / "out" / t).read_bytes() == (tmp_path / "again" / t).read_bytes() for t in tars)
    files = [str(tmp_path / "out" / f"train-00000{n}.tar") for n in (0, 1)]
    samples = list(webdataset.WebDataset(files, shardshuffle=False, empty_check=False))
    assert [sample["__key__"] for sample in samples] == ["000000000", "000000001"]
    assert samples[0]["jpg"] == collection.pictures.read(0)
    assert samples[1]["png"] == collection.pictures.read(1)
    assert samples[0]["txt"].decode() == "a dark square on two lines\nein Bild ☃"
    assert json.loads(samples[1]["json"])["captions"] == ["a dark square\non two lines"]


def test_the_package_datasets_reads_the_folder(collection, tmp_path, datasets):
    export_datasets(collection, tmp_path / "out")
    loaded = datasets.load_from_disk(str(tmp_path / "out"))
    assert {name: len(table) for name, table in loaded.items()} == {
        "train": 2, "validation": 1, "test": 1, "unassigned": 1,
    }  # fmt: skip
    assert loaded["train"][0]["image"].size == (30, 20)
    assert loaded["train"][0]["captions"] == ["a dark square\non two lines", "ein Bild ☃"]


def test_images_without_pictures_are_listed_and_a_collection_of_them_is_refused(tmp_path):
    draft = Draft("features", [ImageRecord(name, None, "train") for name in ("x", "y")])
    made = write_draft(draft, tmp_path / "made")
    with pytest.raises(UserError, match=r"no image of .* has a picture, so there is nothing to export"):
        export_webdataset(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    Image.new("RGB", (9, 9)).save(tmp_path / "p.png")
    draft.images.append(ImageRecord("z", PictureFile(tmp_path / "p.png")))
    report = export_webdataset(write_draft(draft, tmp_path / "more"), tmp_path / "out")
    assert report.images == 1
    assert report.problems[0] == ("x", "image x has no picture, only features")


def test_folders_that_datasets_made_are_imported(tmp_path, datasets):
    def picture(shade: int) -> dict[str, object]:
        data = io.BytesIO()
        Image.new("RGB", (20, 20), (shade, 0, 0)).save(data, "PNG")
        return {"bytes": data.getvalue(), "path": f"{shade}.png"}

    kinds = {"image": datasets.Image(), "sentences": datasets.List({"sentence": datasets.Value("string")})}
    kinds |= {"label": datasets.ClassLabel(names=["cat", "dog"]), "img_id": datasets.Value("int64")}
    rows = {
        "image": [picture(10), picture(20), None, picture(30)],
        "sentences": [[{"sentence": "one"}, {"sentence": "two"}], [{"sentence": "three"}], [{"sentence": "no"}], []],
        "label": [0, 1, 1, None],
        "img_id": [5, 6, 7, 8],
    }
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds)).rename_column("sentences", "captions")
    table.save_to_disk(str(tmp_path / "saved"))
    made, problems = import_collection("datasets", tmp_path / "saved", tmp_path / "one", split=None)
    assert made.column("images", "id") == ["5", "6", "8"]
    assert made.column("images", "label") == ["cat", "dog", None]
    assert made.column("captions", "text") == ["one", "two", "three"]
    assert [p.item for p in problems.found if p.skipped] == ["train/7"]
    assert made.pictures.read(0) == picture(10)["bytes"]
    (tmp_path / "parquet").mkdir()
    table.to_parquet(str(tmp_path / "parquet/train-00000.parquet"))
    table.select([0]).to_parquet(str(tmp_path / "parquet/test-00000.parquet"))
    made, _ = import_collection("datasets", tmp_path / "parquet", tmp_path / "two")
    assert made.splits() == {"train": 3, "test": 1}
    table.remove_columns("image").save_to_disk(str(tmp_path / "blind"))
    with pytest.raises(UserError, match="none of them holds images"):
        import_collection("datasets", tmp_path / "blind", tmp_path / "three")


def test_a_folder_of_pictures_with_metadata_is_imported_as_datasets_reads_it(tmp_path, datasets):
    for split, name in (("train", "a"), ("train", "b"), ("test", "c")):
        (tmp_path / "in" / split).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20)).save(tmp_path / "in" / split / f"{name}.jpg")
    (tmp_path / "in/train/metadata.csv").write_text("file_name,text\na.jpg,one\nb.jpg,two\n")
    (tmp_path / "in/test/metadata.csv").write_text("file_name,text\nc.jpg,three\n")
    made, _ = import_collection("datasets", tmp_path / "in", tmp_path / "made")
    assert made.column("captions", "text") == ["one", "two", "three"]
    assert made.splits() == {"train": 2, "test": 1}


def test_a_hub_name_without_the_hub_is_one_line(tmp_path, datasets, monkeypatch):
    from calligram import hub

    monkeypatch.setattr(hub, "hub_answers", lambda: False)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(
        UserError, match=r"no data set could be loaded from 'nobody/nothing' \(.*Hub.*\); give a folder"
    ) as error:
        import_collection("datasets", type(tmp_path)("nobody/nothing"), tmp_path / "made")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "made").exists()
