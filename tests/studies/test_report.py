from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from calligram.studies.catalog import STUDIES
from calligram.studies.claims import Grid, Row, Study, Table, Verdict
from calligram.studies.report import (
    EQUAL,
    HELPS,
    HURTS,
    MISSING,
    OPEN,
    advice_section,
    leaderboard,
    what_helps,
    write_report,
)
from calligram.studies.results import Result, row_key, settings_of
from calligram.studies.tables import table_reports

ROWS = (
    Row("plain", "vse"),
    Row("long", "vse", ("epochs=90",)),
    Row("wide", "vse", ("dim=4096",)),
    Row("new, 10%", "vse", ("dim=8",)),
    Row("old, 10%", "vse", ("dim=16",)),
)
PLAIN, LONG, WIDE, NEW, OLD = ROWS
TABLE = Table((("plain", "wide", "long"),), "Wider is better in the paper.", (("wide", "long"),), ("Table 7",))
GRID = Grid({"new": "new, {}", "old": "old, {}"}, ("10%",), "Levels.")
STUDY = Study("paper", ROWS, (), {"Table 7: sizes": TABLE, "Table 8: levels": GRID})
PAPER_ROWS = {
    "plain": {"row": "d = 1", "i2t": [70.0, 80.0, 90.0], "t2i": [40.0, 50.0, 60.0]},
    "wide": {"row": "d = 2", "i2t": [71.0, None, 91.0], "t2i": [41.0, None, 61.0], "on": "COCO"},
}
PUBLISHED = {"paper": {"Table 7": {"data": "Flickr30K", "rows": PAPER_ROWS}}}


def line(row: Row, seed: int, rsum: float, **others: object) -> Result:
    recalls = {"r1": rsum / 10, "r5": rsum / 6, "r10": rsum / 4, "medr": 3.0}
    known = {"settings": settings_of(row), "collection": "pictures", "study": row_key(STUDY, row), "hardware": "x"}
    return Result(
        "vse", seed=seed, split="test", i2t=recalls, t2i=recalls, rsum=rsum, seconds=1.0, commit="c",
        command="calligram", **{**known, **others},
    )  # fmt: skip


def seeds(row: Row, *values: float, **others: object) -> list[Result]:
    return [line(row, seed, value, **others) for seed, value in enumerate(values)]


@pytest.fixture
def section(tmp_path):
    """The text of the first table of a study with some results."""

    def text(*lines: Result, study: Study = STUDY, place: int = 0) -> str:
        folder = tmp_path / "results"
        folder.mkdir(exist_ok=True)
        (folder / "published.json").write_text(json.dumps(PUBLISHED))
        (folder / "paper.jsonl").write_text("".join(json.dumps(asdict(each)) + "\n" for each in lines))
        title, report = list(table_reports(study, "pictures", folder).items())[place]
        return report.section(title)

    return text


def test_a_table_has_the_numbers_of_the_paper_ours_the_paired_difference_and_a_verdict(section):
    found = section(*seeds(PLAIN, 100.0, 104.0, 108.0), *seeds(WIDE, 103.0, 106.0, 111.0))
    assert "## Table 7: sizes\nPaper: Flickr30K; ours: pictures. Wider is better in the paper." in found
    assert "| row | paper R@1 | paper rsum | R@1 | med r | rsum | seeds | difference | verdict |\n" in found
    assert "| plain | 70.0 / 40.0 | 390.0 | 10.4 / 10.4 | 3 / 3 | 104.0 ± 4.0 | 3 |  | first row |\n" in found
    assert "| wide | 71.0 / 41.0 (COCO) |  | 10.7 / 10.7 | 3 / 3 | 106.7 ± 4.0 | 3 | +2.7 ± 0.3 | better |\n" in found
    assert "**Ours**: Better: wide (+2.7). Not run: 1 of 2." in found
    assert "<details><summary>1 not run</summary>Not run: long.</details>" in found


def test_a_row_with_one_seed_is_not_decided(section):
    found = section(*seeds(PLAIN, 100.0), *seeds(WIDE, 150.0), *seeds(LONG, 90.0))
    assert "| 150.0 | 1 | +50.0 | not decided |\n" in found
    assert "better" not in found.partition("**Ours**")[2]
    assert "long: 90.0, 1 seed; against wide: -60.0, not decided" in found


def test_runs_on_other_hardware_have_no_difference(section):
    found = section(*seeds(PLAIN, 100.0), *seeds(WIDE, 150.0, hardware="y"))
    assert "| 150.0 | 1 |  | not decided |\n" in found


def test_a_row_of_the_paper_without_results_is_named_as_not_run(section):
    found = section(*seeds(PLAIN, 100.0), *seeds(LONG, 90.0))
    assert "| wide | 71.0 / 41.0 (COCO) |  |  |  |  |  |  | not run |\n" in found


def test_a_table_without_rows_says_so(section):
    found = section(
        *seeds(PLAIN, 100.0), study=Study("paper", ROWS, (), {"Ours": Table((("wide", "long"),), "Sizes.")})
    )
    assert "No row of this table has been run.\n" in found
    assert "|---" not in found
    assert "<details><summary>2 not run</summary>Not run: long; wide.</details>" in found


def test_a_row_that_collapsed_is_marked(section):
    found = section(*seeds(PLAIN, 100.0, 101.0, 102.0), *seeds(WIDE, 9.0, 9.0, 9.0, collapsed=True))
    assert "| collapsed |\n" in found


def test_results_of_other_settings_belong_to_no_row(section):
    found = section(*seeds(PLAIN, 100.0), line(LONG, 0, 500.0, settings={"dim": 8}))
    assert "500.0" not in found


def test_a_grid_has_a_line_for_each_level_and_compares_the_first_two_models(section):
    found = section(*seeds(NEW, 100.0, 101.0, 102.0), *seeds(OLD, 90.0, 91.0, 92.5), place=1)
    assert "| level | paper new | paper old | new | old | med r | new - old | verdict |\n" in found
    assert "| 10% |  |  | 101.0 ± 1.0 | 91.2 ± 1.3 | 3 / 3 | +9.8 ± 0.2 | better |\n" in found


def test_localization_results_are_compared_by_r1(section):
    table = Table((("plain", "wide"),), metric="localization.r1")
    boxes = [{"r1": r1, "r5": 60.0, "r10": 70.0} for r1 in (50.0, 47.5)]
    lines = [line(row, 0, 0.0, localization=of) for row, of in zip((PLAIN, WIDE), boxes, strict=True)]
    found = section(*lines, study=Study("paper", ROWS, (), {"Boxes": table}))
    assert "| row | R@1/5/10 | R@1 | seeds | difference | verdict |\n" in found
    assert "| wide | 47.5 / 60.0 / 70.0 | 47.5 | 1 | -2.5 | not decided |\n" in found


def test_a_row_that_is_the_first_of_a_later_group_is_not_repeated(section):
    table = Table((("plain", "wide"), ("wide", "long")))
    lines = [*seeds(PLAIN, 100.0), *seeds(WIDE, 101.0), *seeds(LONG, 103.0)]
    found = section(*lines, study=Study("paper", ROWS, (), {"Groups": table}))
    assert found.count("| wide |") == 1
    assert "| long (against wide) | 10.3 / 10.3 | 3 / 3 | 103.0 | 1 | +2.0 | not decided |\n" in found


def test_a_table_of_rows_that_do_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"rows of a table or figure do not exist: \['tall'\]"):
        Study("paper", ROWS, (), {"Table 9": Table((("plain", "tall"),))})


@pytest.mark.parametrize(
    ("word", "numbers", "section"),
    [
        ("holds", {"difference": 3.0}, HELPS),
        ("fails", {"difference": -3.0}, HURTS),
        ("noise", {"difference": 0.1}, EQUAL),
        ("equivalent", {"difference": 0.1}, EQUAL),
        ("undecided", {"difference": 50.0}, OPEN),
        ("collapsed baseline", {}, OPEN),
        ("a verdict of another version", {}, OPEN),
        ("not run", {}, MISSING),
        ("holds", {"difference": 0.4, "band": 2.0}, EQUAL),
        ("fails", {"difference": -9.0, "band": 2.0}, HURTS),
        ("fails", {"difference": 9.0, "band": 2.0}, HELPS),
    ],
)
def test_advice_is_sorted_by_its_verdict(word, numbers, section):
    assert advice_section(Verdict("paper", "claim", word, {"metric": "rsum", **numbers})) == section


def test_advice_has_points_and_undecided_advice_is_no_help(tmp_path):
    study, shared = "mmca", {"study": "mmca", "collection": "c"}
    advice = [{**shared, "claim": "a", "advice": "Do this"}, {**shared, "claim": "b", "advice": "Do that"}]
    (tmp_path / "advice.json").write_text(json.dumps([*advice, {**shared, "claim": "c", "advice": "Do more"}]))
    numbers = {"metric": "t2i.r1", "difference": 2.0, "standard_error": 0.5}
    verdicts = [Verdict(study, "a", "holds", numbers, "c"), Verdict(study, "b", "one seed", {**numbers}, "c")]
    text = what_helps(tmp_path / "advice.json", verdicts)
    helps, _, rest = text.partition("## Does not help")
    assert "| Do this | +2.0 ± 0.5 R@1 text to image | [mmca](mmca.md) |" in helps
    assert "Do that" not in helps
    assert "<br>Do that (+2.0 ± 0.5 R@1 text to image)" in rest.partition("## Not decided")[2]
    assert "<br>Do more" in rest.partition("## Not run")[2]
    others = sum(len(study.claims) for name, study in STUDIES.items() if name not in {v.paper for v in verdicts})
    assert f"All {2 + others} claims of the studies" in rest
    assert f": {others} not run, 1 holds, 1 one seed." in rest


def test_an_ensemble_of_marked_rows_is_marked_in_the_leaderboard():
    one = replace(seeds(PLAIN, 100.0)[0], study="", recipe="ensemble", collection="flickr8k")
    for row, marked in (("best--one-vse", True), ("frozen", False)):
        runs = [f"runs/mmca-{row}-flickr8k-{seed}" for seed in (0, 1)]
        line = next(
            line for line in leaderboard([replace(one, settings={"runs": runs})]).splitlines() if "runs=" in line
        )
        assert ("†" in line) == marked


def test_the_leaderboard_is_sorted_by_rsum_and_shows_median_ranks():
    found = leaderboard([*seeds(PLAIN, 100.0, 102.0), *seeds(WIDE, 150.0)])
    assert found.index("paper: wide") < found.index("paper: plain")
    row = "| pictures | paper: plain | 10.1 / 16.8 / 25.2 | 10.1 / 16.8 / 25.2 | 3 / 3 | 101.0 ± 1.4 | 2 | 1 s, x |"
    assert row in found


def test_figures_of_a_study_are_shown_or_linked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictures = Path("results") / "pictures"
    pictures.mkdir(parents=True)
    for name in ("aoq-bfan-compared-pictures.png", "a3vse-levels-pictures.png", "aoq-bfan-pictures-0-curves.png"):
        (pictures / name).touch()
    single = str(pictures / "aoq-bfan-pictures-0-curves.png")
    result = line(PLAIN, 0, 9.0, study="aoq: bfan", pictures=[single, "results/pictures/gone.png"])
    (Path("results") / "aoq.jsonl").write_text(json.dumps(asdict(result)) + "\n")
    pages = {page.stem: page.read_text() for page in write_report(Path("results"), Path("docs"))}
    assert "![aoq-bfan-compared-pictures](../../results/pictures/aoq-bfan-compared-pictures.png)" in pages["aoq"]
    assert "![a3vse-levels-pictures](../../results/pictures/a3vse-levels-pictures.png)" in pages["a3vse"]
    assert f'<a href="../../{single}">aoq-bfan-pictures-0-curves</a>' in pages["aoq"]
    assert "gone" not in pages["aoq"]
