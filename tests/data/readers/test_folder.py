from __future__ import annotations

import json
import os

import pytest

from calligram.errors import UserError

FIVE = ("a.png", "b.jpg", "c.webp", "deep/er/d.png", "e.gif")


def test_sidecar_files_give_one_caption_per_line_and_are_optional(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    (tmp_path / "in/a.txt").write_text("a first\n\n  a second \n")
    (tmp_path / "in/deep/er/d.png.txt").write_text("far down")
    made = importer("folder", tmp_path / "in")
    assert made.collection.manifest["counts"]["images"] == 5  # type: ignore[index]
    assert made.captions_of("a.png") == ["a first", "a second"]
    assert made.captions_of("deep/er/d.png") == ["far down"]
    assert made.problems == [
        ("too few captioned images to make splits", "in"),
        *(("image without captions", name) for name in ("b.jpg", "c.webp", "e.gif")),
    ]
    assert made.collection.name == "in"


def test_a_folder_without_any_captions_is_a_collection_without_splits(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    made = importer("folder", tmp_path / "in")
    assert made.collection.splits() == {"": 5}
    assert made.problems == []


def test_hidden_files_and_nested_collections_are_not_read(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE, ".trash/x.png", "._a.png", "old/images/y.png")
    (tmp_path / "in/old/collection.json").write_text("{}")
    assert len(importer("folder", tmp_path / "in").images("id")) == 5


def test_other_files_are_reported(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    (tmp_path / "in/x.svg").write_bytes(b"?")
    (tmp_path / "in/y.svg").write_bytes(b"?")
    kind = ".svg files without a picture: not read"
    assert importer("folder", tmp_path / "in").problems == [(kind, "x.svg"), (kind, "y.svg")]


def test_files_that_never_answer_are_listed_with_their_kind_and_not_opened(
    tmp_path, pictures, importer, odd_files
) -> None:
    pictures(tmp_path / "in", "a.jpg", "deep/b.jpg")
    odd_files(tmp_path / "in")
    os.mkfifo(tmp_path / "in/a.txt")
    (tmp_path / "in/again").symlink_to(tmp_path / "in/deep")
    made = importer("folder", tmp_path / "in")
    assert sorted(made.images("id")) == ["a.jpg", "deep/b.jpg"]
    assert ("link to a folder: not read", "again") in made.problems
    odd = {item for kind, item in made.problems if kind == "unreadable file"}
    assert odd == {
        *("a.txt", "pipe.jpg", "linked-pipe.jpg", "socket.jpg", "null.jpg", "loop", "back.jpg", "there.jpg"),
    }
    assert len(made.problems) == len(set(made.problems))


def test_files_that_are_too_large_are_listed_and_not_read(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", "a.jpg")
    for name in ("huge.jpg", "a.txt"):
        with (tmp_path / "in" / name).open("wb") as stream:
            stream.truncate(20_000_000_000)
    made = importer("folder", tmp_path / "in")
    assert sorted(made.images("id")) == ["a.jpg"]
    assert made.problems == [("unreadable caption file", "a.txt"), ("unusable image", "huge.jpg")]


def test_a_table_that_is_a_pipe_is_refused(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", "a.jpg")
    os.mkfifo(tmp_path / "in/captions.csv")
    with pytest.raises(UserError, match=r"captions.csv: a named pipe, not a regular file"):
        importer("folder", tmp_path / "in")


def test_a_caption_file_of_two_pictures_is_used_for_the_first_and_the_second_is_reported(
    tmp_path, pictures, importer
) -> None:
    pictures(tmp_path / "in", "a.jpg", "a.png", "b.jpg", "b.png")
    for name in ("a.txt", "b.txt", "b.png.txt"):
        (tmp_path / "in" / name).write_text(f"from {name}")
    made = importer("folder", tmp_path / "in")
    assert made.captions_of("a.jpg") == ["from a.txt"]
    assert made.captions_of("b.png") == ["from b.png.txt"]
    assert [item for kind, item in made.problems if kind == "caption file of two pictures"] == ["a.png"]
    assert ("image without captions", "a.png") in made.problems


def test_an_image_in_two_splits_is_reported_once(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    rows = [
        "a.png,1,train",
        "a.png,2,dev",
        "a.png,3,test",
        "b.jpg,4,test",
        "b.jpg,5,train",
        "c.webp,6,x",
        "c.webp,7,dev",
    ]
    (tmp_path / "in/captions.csv").write_text("\n".join(["file,caption,split", *rows]))
    made = importer("folder", tmp_path / "in")
    assert [item for kind, item in made.problems if kind == "image in two splits"] == ["a.png", "b.jpg"]
    assert [made.images("split")[name] for name in ("a.png", "b.jpg", "c.webp")] == ["train", "test", "dev"]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_a_table_gives_captions_splits_identities_and_metadata(tmp_path, pictures, importer, suffix) -> None:
    pictures(tmp_path / "in", *FIVE)
    rows = [
        ("a.png", "one", "train", "7", "1999", "x"),
        ("a.png", "two", "train", "7", "1999", "y"),
        ("b.jpg", "three", "val", "9", "2004", "z"),
        ("b.jpg", "four", "val", "9", "2004", "x"),
    ]
    names = ("image", "caption", "split", "identity", "year", "author")
    if suffix == "jsonl":
        text = "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    else:
        text = "\n".join(("," if suffix == "csv" else "\t").join(row) for row in (names, *rows))
    (tmp_path / f"in/captions.{suffix}").write_text("\ufeff" + text, encoding="utf-8")
    made = importer("folder", tmp_path / "in")
    assert made.captions_of("a.png") == ["one", "two"]
    assert made.images("split")["b.jpg"] == "dev"
    assert made.images("split")["c.webp"] is None
    assert made.images("identity")["a.png"] == 7
    # The year is the image's; the author differs between captions of one image.
    assert made.images("year")["b.jpg"] == 2004
    assert made.collection.column("captions", "author") == ["x", "y", "z", "x"]


def test_jsonl_may_list_several_captions_and_nested_values(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    row = {"file_name": "a.png", "captions": ["one", "two"], "tags": ["x", "y"], "good": True}
    (tmp_path / "in/metadata.jsonl").write_text(json.dumps(row) + "\nnot json\n[1]\n")
    made = importer("folder", tmp_path / "in")
    assert made.captions_of("a.png") == ["one", "two"]
    assert made.images("tags")["a.png"] == '["x", "y"]'
    assert made.images("good")["a.png"] is True
    assert made.problems[:2] == [
        ("unreadable row", "metadata.jsonl line 2"),
        ("unreadable row", "metadata.jsonl line 3"),
    ]


def test_bad_rows_are_skipped_and_reported(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    lines = [
        "file,caption,split",
        "a.png,one,train",
        "a.png,one,train",
        "gone.png,lost,train",
        ",nobody,train",
        "b.jpg,,train",
        "c.webp,three,holdout",
        "e.gif,too,many,cells",
    ]
    (tmp_path / "in/captions.csv").write_text("\n".join(lines))
    made = importer("folder", tmp_path / "in")
    assert made.problems[:6] == [
        ("row without an image", "captions.csv line 5"),
        ("row without a caption", "captions.csv line 6"),
        ("unreadable row", "captions.csv line 8"),
        ("caption given twice", "captions.csv line 3"),
        ("row without its picture", "captions.csv line 4"),
        ("unknown split", "captions.csv line 7"),
    ]
    assert made.captions_of("c.webp") == ["three"]
    assert made.images("split")["c.webp"] is None


def test_strict_refuses_the_first_bad_row(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    (tmp_path / "in/captions.csv").write_text("file,caption\ngone.png,lost\n")
    with pytest.raises(UserError, match=r"row without its picture: captions\.csv line 2: gone\.png is not in"):
        importer("folder", tmp_path / "in", strict=True)


def test_a_caption_with_an_unquoted_comma_is_joined_again(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    (tmp_path / "in/captions.csv").write_text("file,caption\na.png,red, white and blue\n")
    made = importer("folder", tmp_path / "in")
    assert made.captions_of("a.png") == ["red, white and blue"]
    assert made.problems[0] == ("unquoted separator in a caption", "captions.csv line 2")


def test_an_unbalanced_quote_affects_only_its_line(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    (tmp_path / "in/captions.csv").write_text('file,caption\na.png,"open\nb.jpg,two\nc.webp,three\n')
    made = importer("folder", tmp_path / "in")
    assert made.captions_of("b.jpg") == ["two"]
    assert made.captions_of("c.webp") == ["three"]
    assert ("unreadable row", "captions.csv line 2") in made.problems


def test_quotes_in_a_tsv_are_plain_characters(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    (tmp_path / "in/captions.tsv").write_text('file\tcaption\na.png\t"open\nb.jpg\tsays "no"\n')
    made = importer("folder", tmp_path / "in")
    assert (made.captions_of("a.png"), made.captions_of("b.jpg")) == (['"open'], ['says "no"'])


def test_a_table_without_the_needed_columns_is_refused_with_their_names(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    (tmp_path / "in/captions.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"has the columns a, b; one must name the image .*file_name.*caption"):
        importer("folder", tmp_path / "in")


def test_two_tables_are_refused_unless_one_is_given(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    for name in ("x.csv", "y.csv"):
        (tmp_path / "in" / name).write_text(f"file,caption\na.png,from {name}\n")
    with pytest.raises(UserError, match=r"holds x\.csv, y\.csv; give the one with the captions as the source"):
        importer("folder", tmp_path / "in")
    assert importer("folder", tmp_path / "in/y.csv").captions_of("a.png") == ["from y.csv"]


def test_pictures_can_be_in_another_folder_and_be_named_without_path_or_suffix(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "photos", *FIVE)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/captions.csv").write_text("id,text\nd,deep\nb.jpg,bee\n./a.png,ay\n")
    made = importer("folder", tmp_path / "in", images=tmp_path / "photos")
    assert made.captions_of("deep/er/d.png") == ["deep"]
    assert made.captions_of("b.jpg") == ["bee"]
    assert made.captions_of("a.png") == ["ay"]


def test_splits_come_from_top_folders_when_all_have_split_names(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", "train/a.png", "val/b.png", "test/c.png")
    (tmp_path / "in/train/a.txt").write_text("one")
    assert importer("folder", tmp_path / "in").collection.splits() == {"train": 1, "dev": 1, "test": 1}


def test_hashed_splits_never_move_when_images_are_added(tmp_path, pictures, importer) -> None:
    names = [f"{n}.png" for n in range(30)]
    pictures(tmp_path / "in", *names)
    (tmp_path / "in/0.txt").write_text("zero")
    before = importer("folder", tmp_path / "in")
    splits = before.images("split")
    assert before.collection.manifest["about"] == {"splits": "by hash of the id, 0.8/0.1/0.1"}
    pictures(tmp_path / "in", *(f"new{n}.png" for n in range(10)))
    after = importer("folder", tmp_path / "in", overwrite=True).images("split")
    assert {name: after[name] for name in names} == splits


def test_splits_can_be_disabled(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", "a.png")
    (tmp_path / "in/a.txt").write_text("one")
    assert importer("folder", tmp_path / "in", split=None).collection.splits() == {"": 1}


def test_file_names_that_are_not_utf8_are_skipped_and_reported(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", *FIVE)
    (tmp_path / "in/a.png").rename(tmp_path / "in" / "caf\udce9.png")
    made = importer("folder", tmp_path / "in")
    assert made.problems == [("file name is not UTF-8", "'caf\\udce9.png'")]
    assert len(made.images("id")) == 4


def test_every_kind_of_bad_picture_is_skipped_or_noted(tmp_path, pictures, importer) -> None:
    pictures(tmp_path / "in", "good.png")
    whole = (tmp_path / "in/good.png").read_bytes()
    (tmp_path / "in/empty.png").touch()
    (tmp_path / "in/half.png").write_bytes(whole[: len(whole) - 30])
    (tmp_path / "in/letter.jpg").write_text("dear all")
    made = importer("folder", tmp_path / "in")
    assert list(made.images("id")) == ["good.png"]
    assert sorted(made.problems) == [("unusable image", n) for n in ("empty.png", "half.png", "letter.jpg")]
