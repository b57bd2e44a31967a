from __future__ import annotations

import tarfile

import pytest

from calligram.errors import UserError

IDS = ("100_aa", "200_bb", "300_cc", "400_dd", "500_ee")
XML = """<annotation><size><width>80</width><height>60</height></size><object><name>1</name>
<bndbox><xmin>41</xmin><ymin>31</ymin><xmax>80</xmax><ymax>60</ymax></bndbox></object></annotation>"""


@pytest.fixture
def packed(tmp_path, pictures):
    """Five images in two tars, two captions each, one image in no split."""
    folder = tmp_path / "in"
    pictures(tmp_path / "loose", *(f"{i}.webp" for i in IDS))
    folder.mkdir()
    for number, part in enumerate((IDS[:3], IDS[3:])):
        with tarfile.open(folder / f"images-{number}.tar", "w") as tar:
            for image in part:
                tar.add(tmp_path / f"loose/{image}.webp", f"{image}.webp")
    rows = [f'{i}\t0\tA grey dog {i} .\n{i}\t1\t"Quoted" cat\n' for i in IDS]
    (folder / "captions.tsv").write_text("id\tnumber\tcaption\n" + "".join(rows))
    (folder / "sizes.csv").write_text("id,width,height\n" + "".join(f"{i},80,60\n" for i in IDS))
    for split, ids in (("train", IDS[:2]), ("dev", IDS[2:3]), ("test", IDS[3:4])):
        (folder / f"{split}.txt").write_text("".join(f"{i}\n" for i in ids))
    return folder


@pytest.fixture
def original(tmp_path, pictures):
    """The text files as first published, with the caption of a file that never was."""
    folder = tmp_path / "in"
    pictures(folder / "Flicker8k_Dataset", *(f"{i}.jpg" for i in IDS))
    lines = [f"{i}.jpg#{n}\tA dog {i} {n} .\n" for i in IDS for n in range(2)]
    (folder / "Flickr8k_text").mkdir()
    (folder / "Flickr8k_text/Flickr8k.token.txt").write_text("".join(lines) + "100_aa.jpg.1#0\tA ghost .\n")
    for split, ids in (("train", IDS[:2]), ("dev", IDS[2:3]), ("test", IDS[3:4])):
        (folder / f"Flickr8k_text/Flickr_8k.{split}Images.txt").write_text("".join(f"{i}.jpg\n" for i in ids))
    return folder


def add_entities(folder, sentences: dict[str, str]) -> None:
    for part in ("Annotations", "Sentences"):
        (folder / part).mkdir()
    for key, text in sentences.items():
        (folder / f"Annotations/{key}.xml").write_text(XML)
        (folder / f"Sentences/{key}.txt").write_text(text)


def test_the_packed_layout_is_read(packed, importer) -> None:
    made = importer("flickr8k", packed)
    assert made.problems == []
    assert made.collection.splits() == {"train": 2, "dev": 1, "test": 1, "": 1}
    assert made.captions_of("400_dd") == ["A grey dog 400_dd .", '"Quoted" cat']
    assert made.collection.pictures.open(4).size == (40, 30)
    assert made.images("width")["100_aa"] == 40


def test_the_original_layout_gives_the_same_ids(original, importer) -> None:
    made = importer("flickr8k", original)
    assert tuple(made.images("id")) == IDS
    assert made.collection.splits() == {"train": 2, "dev": 1, "test": 1, "": 1}
    assert made.captions_of("100_aa") == ["A dog 100_aa 0 .", "A dog 100_aa 1 ."]
    assert made.problems == [
        ("missing image file", "100_aa.jpg.1"),
        ("caption without a usable image", "100_aa.jpg.1#0"),
    ]


def test_entities_are_joined_by_similar_sentences(packed, importer) -> None:
    """Sentences in another order and spelling; the caption's own words are kept."""
    lines = "[/EN#0/notvisual Quoted] [/EN#2/animals cat]\n[/EN#1/animals A gray dog] 100_aa .\n"
    add_entities(packed, {"100": lines})
    made = importer("flickr8k", packed)
    assert made.captions_of("100_aa")[0] == "A grey dog 100_aa ."
    rows = made.collection.table("phrases").to_pylist()
    assert [(r["text"], r["kind"], r["start"]) for r in rows] == [
        ("A grey dog", "animals", 0),
        ("Quoted", "notvisual", 1),
        ("cat", "animals", 9),
    ]
    pairing = made.collection.phrases("train")
    assert pairing.visuals.boxes is not None
    assert pairing.visuals.boxes.tolist() == [[20, 15, 40, 30]]
    assert pairing.texts.strings == ("A grey dog",)


def test_a_phrase_that_its_caption_does_not_contain_is_kept_without_a_position(packed, importer) -> None:
    add_entities(packed, {"100": '[/EN#1/animals A hound] sleeps in the sun all day\n"Quoted" cat\n'})
    made = importer("flickr8k", packed)
    assert ("phrase not found in its caption", "100_aa#0") in made.problems
    row = made.collection.table("phrases").to_pylist()[0]
    assert (row["text"], row["start"], row["end"]) == ("A hound", -1, -1)
    assert made.collection.phrases("train").texts.strings == ("A hound",)


def test_bad_rows_and_images_in_two_splits_are_reported(packed, importer) -> None:
    with (packed / "captions.tsv").open("a") as file:
        file.write("lonely\n999_zz\t0\tgone\n")
    (packed / "test.txt").write_text("100_aa\n100_aa\n")
    assert importer("flickr8k", packed).problems[:3] == [
        ("unreadable caption row", "captions.tsv line 12"),
        ("image in two splits", "100_aa"),
        ("missing image file", "999_zz"),
    ]


def test_a_truncated_tar_loses_only_truncated_pictures(packed, importer) -> None:
    tar = packed / "images-1.tar"
    with tarfile.open(tar) as opened:
        last = opened.getmember("500_ee.webp")
    tar.write_bytes(tar.read_bytes()[: last.offset_data + 10])
    made = importer("flickr8k", packed)
    assert len(made.images("id")) == 4
    assert made.problems[0][0] == "truncated tar"


def test_another_folder_is_refused_with_the_expected_files(tmp_path, importer) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match=r"no captions\.tsv or Flickr8k\.token\.txt in .*use the format 'folder'"):
        importer("flickr8k", tmp_path / "in")


@pytest.mark.slow
def test_the_real_flickr8k_has_its_known_counts(assets, importer) -> None:
    made = importer("flickr8k", assets / "flickr8k", placing="reference")
    assert made.collection.splits() == {"train": 6000, "dev": 1000, "test": 1000, "": 91}
    assert made.collection.manifest["counts"] == {
        "images": 8091, "captions": 40455, "matches": 40455,
        "regions": 52311, "phrases": 125930, "groundings": 147202, "problems": 12,
    }  # fmt: skip
    assert made.captions_of("1000268201_693b08cb0e")[1] == "A girl going into a wooden building ."
    assert {kind for kind, _ in made.problems} == {"phrase not found in its caption"}
    assert len({item for _, item in made.problems}) == 3
