"""The pages of results are what ``calligram report`` makes of them, and short enough to be read."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from calligram.studies.catalog import STUDIES
from calligram.studies.claims import Grid, Table
from calligram.studies.report import PAGES, write_report
from calligram.studies.results import append_result, judge_results, read_results, row_key, settings_of

ROOT = Path(__file__).parent.parent
MAX_LINES = 400
TABLES = [(study.paper, title) for study in STUDIES.values() for title in study.tables]
RECALLS = {"r1": 1.0, "r5": 2.0, "r10": 3.0, "medr": 4.0, "oracle": 9.0}


def test_the_pages_have_the_results_that_there_are(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "results", tmp_path / "results")
    monkeypatch.chdir(tmp_path)  # pictures are named relative to the working folder
    for page in write_report(Path("results"), Path("docs")):
        same = page.read_text(encoding="utf-8") == (ROOT / page).read_text(encoding="utf-8")
        assert same, f'{page} is not what the results say; run "calligram report"'
    assert {file.name for file in (ROOT / "docs" / "results").iterdir()} == {
        file.name for file in Path("docs/results").iterdir()
    }


def test_the_pages_are_short():
    count = sum(len(page.read_text(encoding="utf-8").splitlines()) for page in (ROOT / "docs" / "results").iterdir())
    print(f"{count} lines")
    assert count <= MAX_LINES


def test_the_pages_are_short_if_everything_is_run(tmp_path):
    """Three seeds of all rows of all studies, with every claim decided."""
    results = tmp_path / "results"
    results.mkdir()
    for name in ("published.json", "advice.json", "proposals.json"):
        shutil.copy(ROOT / "results" / name, results)
    example = read_results(ROOT / "results")[0]
    collections = {line.study.partition(": ")[0]: line.collection for line in read_results(ROOT / "results")}
    for study in STUDIES.values():
        for place, row in enumerate(study.rows):
            line = replace(
                example, recipe=row.preset, settings=settings_of(row), study=row_key(study, row), pictures=[]
            )
            line = replace(
                line, collection=collections.get(study.paper, "flickr8k"), i2t=RECALLS, t2i=RECALLS, t2t=RECALLS
            )
            line = replace(line, localization=RECALLS if row.name.startswith("phrases: ") else None)
            for seed in range(3):
                append_result(results / "all.jsonl", replace(line, seed=seed, rsum=100.0 + place + seed))
    judge_results(STUDIES, results)
    pages = write_report(results, tmp_path / "docs")
    count = sum(len(page.read_text(encoding="utf-8").splitlines()) for page in pages)
    print(f"{count} lines")
    assert count <= MAX_LINES
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    for study in STUDIES.values():
        for row in study.rows:
            assert row.name in text or isinstance(next(iter(study.tables.values())), Grid), row.name


def test_folds_are_one_line_of_html_and_tables_are_complete():
    for page in sorted((ROOT / "docs" / "results").iterdir()):
        lines = page.read_text(encoding="utf-8").splitlines()
        assert all(line.count("<details>") == line.count("</details>") for line in lines)
        for before, line in zip(["", *lines], lines, strict=False):
            if line.startswith("|") and before.startswith("|"):
                assert line.count("|") == before.count("|"), f"{page.name}: {line}"
            if line.startswith("| ") and not before.startswith("|"):
                assert before == "", f"{page.name}: no empty line before a table"


@pytest.mark.parametrize(("paper", "title"), TABLES)
def test_a_table_has_a_meaning_and_sources_that_are_published(paper, title):
    table = STUDIES[paper].tables[title]
    published = json.loads((ROOT / "results" / "published.json").read_text(encoding="utf-8"))
    assert table.meaning.endswith(".")
    assert set(table.sources) <= set(published.get(paper, {}))
    assert table.sources or title.startswith("Ours: ") or paper in PAGES["others"].studies
    assert isinstance(table, Table | Grid)


def test_published_numbers_belong_to_rows_and_are_recalls():
    published = json.loads((ROOT / "results" / "published.json").read_text(encoding="utf-8"))
    for paper, tables in published.items():
        rows = {row.name for row in STUDIES[paper].rows}
        used = {name for table in STUDIES[paper].tables.values() for name in table.sources}
        assert set(tables) == used
        for table in tables.values():
            assert set(table) == {"data", "rows"}
            assert set(table["rows"]) <= rows
            for row in table["rows"].values():
                assert row["row"]
                for side in row.keys() - {"row", "on", "rsum"}:
                    recalls = [value for value in row[side] if value is not None]
                    assert len(row[side]) == 3
                    assert recalls == sorted(recalls)
                    assert all(0 < value <= 100 for value in recalls)


def test_advice_names_claims():
    advice = json.loads((ROOT / "results" / "advice.json").read_text(encoding="utf-8"))
    claims = {(study.paper, claim.text) for study in STUDIES.values() for claim in study.claims}
    assert [each for each in advice if (each["study"], each["claim"]) not in claims] == []
    assert len({each["advice"] for each in advice}) == len(advice)
    assert not [each for each in advice if re.search(r"[.|]$", each["advice"])]


def test_overlap_of_two_rows_is_withdrawn():
    lines = [json.loads(line) for line in (ROOT / "results" / "withdrawn.jsonl").read_text("utf-8").splitlines()]
    assert all(line["reason"] for line in lines)
    wrong = [line for line in lines if line["reason"].startswith("S (overlap) of a two-branch embedding")]
    named = {(line["study"], line["commit"]) for line in wrong}
    assert {study for study, _ in named} == {"a3vse: two-branch, 10% x 1", "a3vse: two-branch + s, 10% x 1"}
    found = [line for line in read_results(ROOT / "results") if (line.study, line.commit) in named]
    assert all(line.overlap is None for line in found)
