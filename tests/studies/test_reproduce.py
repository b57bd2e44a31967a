from __future__ import annotations

import json
from pathlib import Path

import pytest

from calligram.errors import UserError
from calligram.recipes.catalog import find_preset
from calligram.recipes.parts.config import resolve
from calligram.studies import rows as row_module
from calligram.studies.catalog import STUDIES
from calligram.studies.claims import Claim, Row, Study
from calligram.studies.report import write_report
from calligram.studies.reproduce import reproduce_study
from calligram.studies.results import Result, append_result, judge_claims, read_results, recorded_command
from calligram.studies.rows import with_row_folder

SMALL = (
    "batch=6", "dim=8", "image.size=16", "image.channels=4", "text.word_dim=6", "text.hidden=8", "text.min_count=1",
    "epochs=1",
)  # fmt: skip
STUDY = Study(
    "paper",
    (
        Row("new", "vse"),
        Row("old", "vse", ("terms=ranking", "ranking.top_k=none")),
        Row("truth", "vse", ("ignore_also_true=true",), "also_true"),
    ),
    (
        Claim("new beats old", "new", "old"),
        Claim("truth helps", "truth", "new"),
        Claim("on COCO it does too", "", "", needs="MS-COCO"),
    ),
)


@pytest.mark.parametrize("paper", STUDIES)
def test_rows_of_studies_are_valid_before_anything_is_run(paper):
    for row in STUDIES[paper].rows:
        resolve(find_preset(row.preset).defaults, [*row.changes, "seed=1"])


def test_a_claim_about_rows_that_do_not_exist_is_refused():
    with pytest.raises(ValueError, match="compares rows that do not exist"):
        Study("p", (Row("a", "vse"),), (Claim("a beats b", "a", "b"),))


def test_a_pattern_that_matches_no_row_is_refused(tiny, tmp_path):
    with pytest.raises(UserError, match=r"unknown row of paper 'odl'; did you mean 'old'"):
        reproduce_study(STUDY, tiny, results=tmp_path / "results", runs=tmp_path / "runs", only=("new", "odl"))


def test_rows_are_run_once_and_within_the_budget(tiny, tmp_path):
    said: list[str] = []
    options = {"results": tmp_path / "results", "runs": tmp_path / "runs", "changes": SMALL, "say": said.append}
    reproduce_study(STUDY, tiny, budget_minutes=0, **options)
    assert "budget is used up" in said[-1]
    assert read_results(tmp_path / "results") == []
    verdicts = reproduce_study(STUDY, tiny, seeds=2, **options)
    lines = read_results(tmp_path / "results")
    assert [(r.study, r.seed) for r in lines] == [
        ("paper: new", 0), ("paper: old", 0), ("paper: new", 1), ("paper: old", 1),
    ]  # fmt: skip
    assert [v.verdict for v in verdicts][1:] == ["not run", "not run"]
    assert lines[1].settings["ranking.top_k"] is None
    assert lines[0].command.startswith("calligram train vse")
    assert lines[0].t2t is not None
    assert lines[0].t2t["queries"] == 14
    said.clear()
    reproduce_study(STUDY, tiny, seeds=2, **options)
    assert len(read_results(tmp_path / "results")) == 4
    assert not said
    stored = [json.loads(line) for line in (tmp_path / "results" / "claims.jsonl").read_text().splitlines()]
    assert [s["verdict"] for s in stored] == [
        v.verdict for v in judge_claims(STUDY, "tiny", tmp_path / "results", SMALL)
    ]
    pages = {page.stem: page.read_text() for page in write_report(tmp_path / "results", tmp_path / "docs")}
    assert "| tiny | paper: new |" in pages["leaderboard"]
    assert "claims of the studies (a claim counts once" in pages["what-helps"]


def test_rows_of_several_studies_run_together_and_are_recorded_apart(tiny, tmp_path):
    other = Study("other", (Row("new", "vse"), Row("wide", "vse", ("dim=12",))), (Claim("wide helps", "wide", "new"),))
    verdicts = reproduce_study(
        [STUDY, other], tiny, seeds=1, results=tmp_path / "results", runs=tmp_path / "runs", changes=SMALL[:-1],
        only=("paper: new", "other: *"),
    )  # fmt: skip
    files = {file.stem: len(file.read_text().splitlines()) for file in (tmp_path / "results").glob("*.jsonl")}
    assert files == {"paper": 1, "other": 2, "claims": 4}
    assert [v.paper for v in verdicts] == ["paper", "paper", "paper", "other"]
    assert verdicts[-1].verdict == "undecided"


def test_a_row_stopped_during_evaluation_is_not_trained_again(tiny, tmp_path, monkeypatch):
    given = {"seeds": 1, "results": tmp_path / "results", "runs": tmp_path / "runs", "changes": SMALL, "only": ("new",)}

    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(row_module, "evaluate_retrieval", stopped)
        with pytest.raises(KeyboardInterrupt):
            reproduce_study(STUDY, tiny, **given)
    (run,) = (tmp_path / "runs").iterdir()
    before = (run / "metrics.jsonl").read_text()
    reproduce_study(STUDY, tiny, **given)
    assert (run / "metrics.jsonl").read_text() == before
    assert len(read_results(tmp_path / "results")) == 1
    assert not (run / "state").exists()


def test_rows_that_need_other_rows_get_their_run_folders(tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(UserError, match="row 'old' has no run in"):
        with_row_folder("sentences=row:old", lambda name: tmp_path / name)
    (tmp_path / "old" / "best.safetensors").touch()
    assert with_row_folder("sentences=row:old", lambda name: tmp_path / name) == f"sentences={tmp_path / 'old'}"
    assert with_row_folder("alpha=0.2", lambda name: tmp_path / name) == "alpha=0.2"


def test_rows_of_several_levels_and_maps_of_rows_are_drawn(tiny, tmp_path):
    rows = (Row("half", "vse", ("sparse.images=0.5",)), Row("all", "vse"))
    study = Study(
        "paper", rows, (Claim("more is better", "all", "half"),), levels={"vse": ("half",)}, uncaptioned=("all",),
        mapped=("all",), sheets=("half",),
    )  # fmt: skip
    results = tmp_path / "results"
    reproduce_study(study, tiny, seeds=1, results=results, runs=tmp_path / "runs", changes=SMALL)
    assert len(list((results / "pictures").glob("paper-levels-tiny-*.png"))) == 1
    (drawn,) = (results / "pictures").glob("*-map.png")
    assert [line.study for line in read_results(results) if str(drawn) in line.pictures] == ["paper: all"]
    # Photographs have owners: their sheets stay with the run, and no result names them.
    (folder,) = (tmp_path / "runs").glob("paper-half-*")
    assert {file.name for file in folder.glob("found*.png")} == {"found.png", "found-texts.png", "found-images.png"}
    assert not any("found" in name for line in read_results(results) for name in line.pictures)
    with pytest.raises(ValueError, match="rows of a table or figure do not exist"):
        Study("p", rows, (), mapped=("none",))


def test_overlap_is_measured_judged_and_drawn(tiny, tmp_path):
    study = Study("paper", STUDY.rows[:2], (Claim("further apart", "new", "old", metric="overlap"),))
    results = tmp_path / "results"
    found = reproduce_study(study, tiny, seeds=1, results=results, runs=tmp_path / "runs", changes=SMALL)
    lines = read_results(results)
    assert found[0].numbers["new"] == [lines[0].overlap]
    assert {line.by for line in lines} == {"identities"}
    assert [name for name in lines[0].pictures if name.endswith("-overlap.png")] == lines[0].pictures[-1:]
    assert all(Path(line.pictures[-1]).is_file() for line in lines)


def test_results_are_read_back_and_a_damaged_line_is_named(tmp_path):
    result = Result(
        "vse", {"epochs": 3}, 0, "c", "test", {"r1": 1.0}, {"r1": 2.0}, 30.0, 5.0, "cpu", "abc", "calligram x"
    )
    append_result(tmp_path / "a.jsonl", result)
    assert read_results(tmp_path) == [result]
    (tmp_path / "b.jsonl").write_text('{"recipe": "vse"}\n')
    with pytest.raises(UserError, match=r"b\.jsonl, line 1 is not a result"):
        read_results(tmp_path)


def test_other_settings_and_protocols_are_other_rows(tmp_path):
    shared = {
        "settings": {},
        "collection": "c",
        "i2t": {"r1": 1, "r5": 1, "r10": 1},
        "t2i": {"r1": 1, "r5": 1, "r10": 1},
    }
    for seed, split, folds, rsum in (
        (0, "test", 1, 100.0),
        (0, "test", 1, 110.0),
        (0, "test", 2, 300.0),
        (0, "dev", 1, 50.0),
    ):
        append_result(
            tmp_path / "a.jsonl",
            Result("vse", seed=seed, split=split, rsum=rsum, seconds=1, hardware="cpu", commit="c", command="x",
                   folds=folds, **shared),
        )  # fmt: skip
    write_report(tmp_path, tmp_path / "docs")
    text = (tmp_path / "docs" / "results" / "leaderboard.md").read_text()
    assert "| vse | 1.0 / 1.0 / 1.0 | 1.0 / 1.0 / 1.0 |  | 110.0 |" in text  # the last line of a seed counts
    assert "vse (2 folds)" in text
    assert "vse (dev)" in text
    assert "±" not in text


def test_commands_are_recorded_with_the_variable_for_assets(monkeypatch, tmp_path):
    monkeypatch.setenv("CALLIGRAM_ASSETS", str(tmp_path))
    found = recorded_command(f"/somewhere/bin/calligram train vse {tmp_path}/flickr8k")
    assert found == "calligram train vse $CALLIGRAM_ASSETS/flickr8k"
