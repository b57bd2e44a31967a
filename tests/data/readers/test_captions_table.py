from __future__ import annotations

import pytest

from calligram.data.summary import summarise_collection
from calligram.errors import UserError

FOUR = ("a.png", "b.png", "c.png", "d.png")


def table(folder, pictures, header: str, *rows: str) -> None:
    pictures(folder, *FOUR)
    (folder / "captions.csv").write_text("\n".join([header, *rows]))


def test_only_the_contradictory_cell_is_skipped_not_the_column(tmp_path, pictures, importer) -> None:
    table(
        tmp_path / "in", pictures, "file,caption,year,place",
        "a.png,one,1999,Oslo", "a.png,two,1998,Bergen", "b.png,three,2004,Rome", "c.png,,2005,Oslo", "d.png,four,,",
    )  # fmt: skip
    made = importer("folder", tmp_path / "in")
    assert list(made.images("place").values()) == ["Oslo", "Rome", "Oslo", None]
    assert list(made.images("year").values()) == [1999, 2004, 2005, None]
    found = [r for r in made.collection.table("problems").to_pylist() if "contradictory" in r["kind"]]
    assert [(r["kind"], r["item"], r["detail"]) for r in found] == [
        ("contradictory year", "captions.csv line 3", "a.png keeps 1999, not 1998"),
        ("contradictory place", "captions.csv line 3", "a.png keeps 'Oslo', not 'Bergen'"),
    ]
    assert all(r["skipped"] for r in found)


def test_a_table_of_a_spreadsheet_may_have_semicolons(tmp_path, pictures, importer) -> None:
    rows = ('a.png;"one; two"', "b.png;three, four", 'c.png;an "open', "d.png;x")
    table(tmp_path / "in", pictures, "file;caption", *rows)
    made = importer("folder", tmp_path / "in")
    assert {"one; two", "three, four", "x"} <= set(made.collection.column("captions", "text"))


@pytest.mark.parametrize("third", ["Ann", "Cy"])
def test_a_column_that_differs_in_half_of_the_images_becomes_caption_metadata(
    tmp_path, pictures, importer, third
) -> None:
    table(
        tmp_path / "in", pictures, "file,caption,by",
        "a.png,1,Ann", "a.png,2,Bo", "b.png,3,Ann", "b.png,4,Bo", "c.png,5,Ann", f"c.png,6,{third}", "d.png,,Bo",
        "d.png,,Bo",
    )  # fmt: skip
    made = importer("folder", tmp_path / "in")
    assert made.collection.caption_metadata_columns == ("by",)
    assert made.collection.metadata_columns == ()
    assert made.collection.column("captions", "by") == ["Ann", "Bo", "Ann", "Bo", "Ann", third]
    lost = [item for kind, item in made.problems if kind.startswith("by of a row that adds no caption: not stored")]
    assert lost == ["captions.csv line 8", "captions.csv line 9"]


def test_a_column_that_differs_in_fewer_than_half_of_the_images_stays_image_metadata(
    tmp_path, pictures, importer
) -> None:
    names = [f"{n}.png" for n in range(5)]
    pictures(tmp_path / "in", *names)
    rows = [f"{name},{k} of {name},{2000 + (k if name < '2' else 0)}" for name in names for k in range(2)]
    (tmp_path / "in/captions.csv").write_text("\n".join(["file,caption,year", *rows]))
    made = importer("folder", tmp_path / "in")
    assert set(made.images("year").values()) == {2000}
    assert [i for kind, i in made.problems if kind == "contradictory year"] == [
        f"captions.csv line {n}" for n in (3, 5)
    ]


def test_values_that_are_equal_as_numbers_are_no_contradiction(tmp_path, pictures, importer) -> None:
    table(tmp_path / "in", pictures, "file,caption,n", "a.png,1,2", "a.png,2,2.0", "b.png,3,nan", "b.png,4,nan")
    assert not [kind for kind, _ in importer("folder", tmp_path / "in").problems if "contradictory" in kind]


def test_strict_refuses_a_contradiction(tmp_path, pictures, importer) -> None:
    table(tmp_path / "in", pictures, "file,caption,year", "a.png,1,1999", "a.png,2,1998")
    with pytest.raises(UserError, match=r"contradictory year: captions\.csv line 3: a\.png keeps 1999, not 1998"):
        importer("folder", tmp_path / "in", strict=True)


def test_a_summary_counts_the_values_of_each_column(tmp_path, pictures, importer) -> None:
    table(
        tmp_path / "in", pictures, "file,caption,year,by",
        "a.png,1,1999,Ann", "a.png,2,1999,Bo", "b.png,3,,Ann", "b.png,4,,Bo", "c.png,5,1999,",
    )  # fmt: skip
    lines = summarise_collection(importer("folder", tmp_path / "in").collection).lines()
    assert "metadata of images (how many have a value): year 2" in lines
    assert "metadata of captions (how many have a value): by 4" in lines
