"""``calligram suggest`` and ``calligram caption``: propose, fill in, add, take back."""

from __future__ import annotations

import csv
import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from calligram.cli.main import app
from calligram.data import add_captions
from calligram.data.add_captions import caption_revisions
from calligram.data.collection import Collection
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.recipes.parts.run import train_preset

SMALL = ("batch=6", "epochs=1", "dim=8", "image.size=16", "image.channels=4", "text.word_dim=6", "text.hidden=8")


def call(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def sources(tmp_path_factory, tiny_draft):
    """A run, and a draft of twelve images in train of which four have captions."""
    folder = tmp_path_factory.mktemp("suggest")
    (folder / "pictures").mkdir()
    draft = tiny_draft(folder / "pictures", 2)
    draft.captions = [c for c in draft.captions if not c.images[0].startswith("train") or c.images[0] < "train-2"]
    draft.phrases = []
    collection = write_draft(draft, folder / "whole")
    train_preset("vse", collection, folder / "run", *SMALL)
    return folder / "run", draft


@pytest.fixture
def given(sources, tmp_path):
    run, draft = sources
    return run, write_draft(draft, tmp_path / "collection")


def test_images_are_suggested_with_reasons_and_a_filled_in_list_is_added(given, tmp_path):
    run, collection = given
    before = set(collection.unannotated("train").ids)
    sheet, todo = tmp_path / "new" / "sheet.png", tmp_path / "new" / "todo.csv"
    done = call("suggest", run, collection.folder, "-n", 3, "--near", 2, "--out", sheet, "--out", todo)
    assert done.exit_code == 0, done.output
    assert f"3 of {len(before)} images without captions" in done.output
    assert "stands for" in done.output
    assert f"calligram caption {collection.folder} {todo}" in done.output.replace("\n", "")
    assert Image.open(sheet).size[0] > 900
    with todo.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len({row["image"] for row in rows} & before) == 3
    assert rows[0]["path"].endswith(".png")
    rows[0]["caption"], rows[2]["caption"] = 'a "quoted", disc', "  another  one"
    with todo.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    done = call("caption", collection.folder, todo)
    assert done.exit_code == 0, done.output
    assert f"2 captions added to {collection.folder}, 1 rows had no caption" in done.output.replace("\n", "")
    after = Collection.open(collection.folder)
    assert set(after.unannotated("train").ids) == before - {rows[0]["image"], rows[2]["image"]}
    assert after.column("captions", "text")[-2:] == ['a "quoted", disc', "another one"]
    assert "0 captions added" in call("caption", collection.folder, todo).output
    assert "revision 1" in call("caption", collection.folder, "--history").output
    done = call("caption", collection.folder, "--undo")
    assert "2 captions of" in done.output
    assert set(Collection.open(collection.folder).unannotated("train").ids) == before
    assert call("caption", collection.folder, collection.folder / "taken-back.1.csv").exit_code == 0
    assert [a.revision for a in caption_revisions(Collection.open(collection.folder))] == [3]


def test_json_has_the_numbers_of_the_reasons(given):
    run, collection = given
    done = call("suggest", run, collection.folder, "-n", 2, "--near", 2, "--json")
    found = json.loads(done.output)
    assert len(found["suggestions"]) == 2
    first = found["suggestions"][0]
    assert set(first) == {"image", "path", "why", "nearest", "uncertainty", "stands_for"}
    assert -1 <= first["nearest"] <= 1
    assert 0 <= first["uncertainty"] <= 1
    assert found["captioned"] + found["candidates"] == 12


def test_equal_images_are_suggested_once_and_this_is_printed(given):
    run, collection = given
    done = call("suggest", run, collection.folder, "-n", 12, "--near", 0.5)
    assert done.exit_code == 0, done.output
    assert "all others are nearly equal" in done.output


def test_nothing_is_printed_about_others_if_all_are_suggested(given):
    run, collection = given
    done = call("suggest", run, collection.folder, "-n", 1000, "--near", 2)
    bare = len(collection.unannotated("train"))
    assert f"{bare} of {bare} images without captions" in done.output
    assert "all others" not in done.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("image,caption,path,why\ntrain-5,night,,\ntrain-4,,,\n", r"todo.csv holds 1 caption, which would be lost"),
        ("image,caption,path,why\ntrain-5,night\n", r"todo.csv holds rows that cannot be read, which would be lost"),
        ("year,sum\n1999,3\n", r"todo.csv exists and is not a caption list; choose another name"),
    ],
)
def test_a_list_with_captions_is_not_overwritten(given, tmp_path, content, message):
    run, collection = given
    (tmp_path / "todo.csv").write_text(content)
    done = call("suggest", run, collection.folder, "-n", 2, "--near", 2, "--out", tmp_path / "todo.csv")
    with pytest.raises(UserError, match=message):
        raise done.exception
    assert (tmp_path / "todo.csv").read_text() == content


def test_an_empty_list_is_overwritten(given, tmp_path):
    run, collection = given
    for count in (2, 3):
        done = call("suggest", run, collection.folder, "-n", count, "--near", 2, "--out", tmp_path / "todo.csv")
        assert done.exit_code == 0, done.exception
        assert len((tmp_path / "todo.csv").read_text().splitlines()) == count + 1


def test_images_may_be_named_by_file(given, tmp_path):
    _, collection = given
    image = collection.unannotated("train").ids[0]
    path = collection.pictures.path(int(collection.unannotated("train").rows[0]))
    (tmp_path / "list.tsv").write_text(f"file\tcaption\n{path}\tby path\n{path.name}\tby name\n")
    assert call("caption", collection.folder, tmp_path / "list.tsv").exit_code == 0
    assert {(c.image, c.text) for c in caption_revisions(Collection.open(collection.folder))[0].captions} == {
        (image, "by path"),
        (image, "by name"),
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.csv", "image,caption\nnobody,here\n", r"list.csv line 2 is about 'nobody', but no image has"),
        ("list.csv", "image,caption\ntrain-5,\n", r"contains no captions; fill in its column 'caption'"),
        ("list.csv", f"image,caption\ntrain-5,{'x' * 1001}\n", r"list.csv line 2: the caption has 1001 characters"),
        ("list.csv", "who,caption\na,b\n", r"one must name the image"),
        (
            "list.csv",
            "image,caption,split\ntrain-5,night,holdout\n",
            r"line 2: unknown split 'holdout'; known: train",
        ),
        ("list.csv", "image,caption,split\ntrain-5,night,val\n", r"image 'train-5' is in split train, not dev"),
        (
            "list.jsonl",
            '{"image": "train-5", "caption": "night"}\nnot json\n{"image": "train-4", "caption": {"a": 1}}\n',
            r"is not added, .*line 2: unreadable row.*line 3: caption that is not text, {\"a\": 1} is no string",
        ),
        ("list.jsonl", '{"image": "train-5", "caption": 7}\n', r"line 1: caption that is not text, 7 is no string"),
        ("list.jsonl", '{"image": "train-5", "caption": ["x", 7]}\n', r"line 1: caption that is not text"),
        ("list.csv", "image,caption\ntrain-5,a\ntrain-4,b,c,d,e\n,x\n", r"line 4: row without an image"),
        ("list.csv", "image,caption\ntrain-5,night\ntrain-4,\u200b\n", r"line 3: the caption is empty"),
        ("list.txt", "a b\n", r"is not a caption list; accepted are files that end in .csv, .tsv, .jsonl"),
    ],
)
def test_invalid_lists_are_reported_and_nothing_is_written(given, tmp_path, name, content, message):
    _, collection = given
    (tmp_path / name).write_text(content, encoding="utf-8")
    done = call("caption", collection.folder, tmp_path / name)
    assert isinstance(done.exception, UserError)
    with pytest.raises(UserError, match=message):
        raise done.exception
    assert Collection.open(collection.folder).manifest == collection.manifest


def test_a_folder_without_captions_is_captioned_by_suggestions_and_trained_on(sources, tmp_path):
    run, _ = sources
    (tmp_path / "photos").mkdir()
    for n in range(8):
        Image.new("RGB", (40, 30), (30 * n, 90, 120)).save(tmp_path / "photos" / f"{n}.png")
    todo, collection = tmp_path / "todo.csv", tmp_path / "collection"
    assert call("import", "folder", tmp_path / "photos", collection).exit_code == 0
    assert Collection.open(collection).splits() == {"": 8}
    assert call("suggest", run, collection, "-n", 8, "--near", 2, "--out", todo).exit_code == 0
    with todo.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    lines = [f"{row['image']},what {row['image']} shows,{'test' if n == 5 else ''}" for n, row in enumerate(rows[:6])]
    todo.write_text("\n".join(["image,caption,split", *lines]))
    done = call("caption", collection, todo)
    assert done.exit_code == 0, done.output
    assert "images without a split are now in train (" in done.output
    after = Collection.open(collection)
    assert after.splits().keys() == {"train", "dev", "test", ""}
    assert (
        dict(zip(after.column("images", "id"), after.column("images", "split"), strict=True))[rows[5]["image"]]
        == "test"
    )
    changes = [part for change in (*SMALL, "text.min_count=1") for part in ("--set", change)]
    done = call("train", "vse", collection, "--out", tmp_path / "run", "--device", "cpu", *changes)
    assert done.exit_code == 0, (done.output, done.exception)


def test_a_failed_undo_changes_nothing_and_leaves_no_list(given, tmp_path, monkeypatch):
    _, collection = given
    (tmp_path / "list.csv").write_text("image,caption\ntrain-5,night\n")
    call("caption", collection.folder, tmp_path / "list.csv")
    before, kept = Collection.open(collection.folder).manifest, collection.folder / "taken-back.1.csv"
    there = []

    def fails(folder, manifest):
        there.append(kept.read_text())
        raise OSError("disk full")

    monkeypatch.setattr(add_captions, "replace_manifest", fails)
    assert isinstance(call("caption", collection.folder, "--undo").exception, OSError)
    assert "train-5,night" in there[0]  # before anything was taken back
    assert not kept.exists()
    assert Collection.open(collection.folder).manifest == before


def test_an_undo_that_fails_after_removal_leaves_the_list(given, tmp_path, monkeypatch):
    _, collection = given
    (tmp_path / "list.csv").write_text("image,caption\ntrain-5,night\n")
    call("caption", collection.folder, tmp_path / "list.csv")

    def fails(*_, **__):
        raise OSError("cannot remove")

    monkeypatch.setattr(add_captions, "remove_old_tables", fails)
    assert isinstance(call("caption", collection.folder, "--undo").exception, OSError)
    assert not caption_revisions(Collection.open(collection.folder))
    assert "train-5,night" in (collection.folder / "taken-back.1.csv").read_text()


def test_exactly_one_action_must_be_given(given):
    _, collection = given
    for arguments in ((), ("--undo", "--history"), ("list.csv", "--undo")):
        done = call("caption", collection.folder, *arguments)
        assert "give one of: a file of captions to add, --undo, or --history" in str(done.exception)
    assert "nothing to remove" in str(call("caption", collection.folder, "--undo").exception)
    assert "no captions were added" in call("caption", collection.folder, "--history").output


def test_an_output_of_another_type_is_refused_before_any_work(given, tmp_path):
    run, collection = given
    done = call("suggest", run, collection.folder, "--out", tmp_path / "list.xls")
    assert "neither a picture nor a list" in str(done.exception)
