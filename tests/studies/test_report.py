from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from calligram.studies.claims import Row, Study
from calligram.studies.report import study_tables, table
from calligram.studies.results import Result, row_key, settings_of

ROWS = (Row("plain", "vse"), Row("long", "vse", ("epochs=90",)), Row("wide", "vse", ("dim=4096",)))
STUDY = Study("paper", ROWS, (), {"Table 7: sizes": ("plain", "wide", "long"), "Table 8: none": ("long",)})


def line(row: Row, seed: int, rsum: float, **others: object) -> Result:
    recalls = {"r1": rsum / 10, "r5": rsum / 6, "r10": rsum / 4}
    known = {"settings": settings_of(row), "collection": "pictures", "study": row_key(STUDY, row), **others}
    return Result(
        "vse", seed=seed, split="test", i2t=recalls, t2i=recalls, rsum=rsum, seconds=1.0, hardware="x", commit="c",
        command="calligram", **known,
    )  # fmt: skip


def written(folder: Path, *lines: Result) -> Path:
    folder.mkdir()
    (folder / "paper.jsonl").write_text("".join(json.dumps(asdict(each)) + "\n" for each in lines))
    return folder


def test_a_table_has_means_standard_deviations_and_differences_from_the_first_row(tmp_path):
    plain, _, wide = ROWS
    results = written(tmp_path / "results", line(plain, 0, 100.0), line(plain, 1, 104.0), line(wide, 0, 101.96))
    found = study_tables({"paper": STUDY}, ["pictures", "other"], results)
    assert "### paper, pictures: Table 7: sizes\n" in found
    assert "| plain | 10.2 / 17.0 / 25.5 | 10.2 / 17.0 / 25.5 | 102.0 ± 2.8 |  | 2 |\n" in found
    assert "| wide | 10.2 / 17.0 / 25.5 | 10.2 / 17.0 / 25.5 | 102.0 | +0.0 | 1 |\n" in found
    assert "Not run: long.\n" in found
    assert "Table 8" not in found
    assert "other" not in found


def test_results_of_other_settings_belong_to_no_row(tmp_path):
    plain, _, wide = ROWS
    other = line(wide, 0, 500.0, settings={"dim": 8})
    assert not study_tables({"paper": STUDY}, ["pictures"], written(tmp_path / "results", line(plain, 0, 100.0), other))


def test_where_the_first_is_missing_there_are_no_differences():
    _, long, wide = ROWS
    found = table({"plain": [], "long": [line(long, 0, 90.0)], "wide": [line(wide, 0, 80.0)]})
    assert "| 90.0 |  | 1 |" in found
    assert "| 80.0 |  | 1 |" in found
    assert found.endswith("Not run: plain.\n")


def test_localization_results_are_compared_by_r1():
    boxes = [{"r1": r1, "r5": 60.0, "r10": 70.0} for r1 in (50.0, 47.5)]
    rows = {row.name: [line(row, 0, 0.0, localization=of)] for row, of in zip(ROWS, boxes, strict=False)}
    found = table(rows)
    assert "| row | boxes R@1/5/10 | R@1 | difference | seeds |" in found
    assert "| long | 47.5 / 60.0 / 70.0 | 47.5 | -2.5 | 1 |" in found


def test_a_table_of_rows_that_do_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"rows of a table or figure do not exist: \['tall'\]"):
        Study("paper", ROWS, (), {"Table 9": ("plain", "tall")})
