"""Verdicts on claims: pairs by seed and hardware, equivalence, deterministic rows and rows that collapsed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calligram.data.matches import Matches
from calligram.evaluation.distributions import Overlap
from calligram.evaluation.retrieval import RetrievalReport, chance_retrieval, measure_retrieval
from calligram.recipes.catalog import find_preset
from calligram.recipes.parts.config import as_plain
from calligram.studies.catalog import STUDIES
from calligram.studies.claims import Claim, Measurement, Row, Study, judge, paired
from calligram.studies.results import (
    Result,
    append_result,
    has_collapsed,
    judge_claims,
    judge_results,
    read_results,
    result_line,
    settings_of,
)
from calligram.training.runs import Run

RESULTS = Path(__file__).parent.parent.parent / "results"
ROWS = (
    Row("new", "vse"),
    Row("old", "vse", ("terms=ranking", "ranking.top_k=none")),
    Row("fitted", "vse", ("dim=8",), deterministic=True),
    Row("counted", "vse", ("dim=9",), deterministic=True),
)
BEATS = Claim("new beats old", "new", "old")
STUDY = Study("paper", ROWS, (BEATS,))


def runs(*values: float, hardware: str = "cpu", first: int = 0) -> list[Measurement]:
    """Return the measurements of seeds 0, 1 and so on."""
    return [Measurement(seed, hardware, value) for seed, value in enumerate(values, first)]


def verdict(claim: Claim, better: list[Measurement], worse: list[Measurement]) -> str:
    return judge(claim, STUDY, {claim.better: better, claim.worse: worse}, "c").verdict


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ((110, 111, 112), (100, 101, 103), "holds"),
        ((100, 101, 103), (110, 111, 112), "fails"),
        ((102, 98, 102), (100, 100, 100), "noise"),
        ((101, 99, 101), (100, 100, 100), "equivalent"),  # 0.33 +- 1.33, within the 2 points of rsum
        ((101.4, 99.4, 101.4), (100, 100, 100), "noise"),  # 0.73 +- 1.33
        ((130, 131), (100, 101), "undecided"),
        ((130,), (100, 101, 102), "undecided"),
        ((100, 101, 102), (100, 101, 102), "equivalent"),
        ((), (100,), "not run"),
    ],
)
def test_a_mean_difference_beyond_two_standard_errors_decides_with_three_pairs(new, old, expected):
    assert verdict(BEATS, runs(*new), runs(*old)) == expected


def test_a_spread_that_two_rows_share_is_no_noise():
    """Seeds differ by 10 and the rows of one seed by 1: unpaired, the standard error would be 8."""
    found = judge(BEATS, STUDY, {"new": runs(101, 111.1, 120.9), "old": runs(100, 110, 120)}, "c")
    assert found.verdict == "holds"
    assert found.numbers["differences"] == [1.0, 1.1, 0.9]
    assert found.numbers["difference"] == 1.0
    assert found.numbers["standard_error"] == 0.06  # 0.1 / sqrt(3)


def test_the_spread_of_other_rows_is_not_borrowed():
    values = {"new": runs(130), "old": runs(100), "fitted": runs(100, 101, 102)}
    found = judge(BEATS, STUDY, values, "c")
    assert found.verdict == "undecided"
    assert found.numbers["difference"] == 30
    assert "standard_error" not in found.numbers


def test_runs_of_different_hardware_are_no_pairs():
    new = runs(110, 111, 112, hardware="gpu")
    found = judge(BEATS, STUDY, {"new": new, "old": runs(100, 101, 102)}, "c")
    assert found.verdict == "undecided"
    assert found.numbers["pairs"] == 0
    assert "difference" not in found.numbers
    assert verdict(BEATS, new, [*runs(100, 101, 102), *runs(1, 2, 3, hardware="gpu")]) == "holds"


def test_a_seed_counts_once_also_if_two_machines_ran_it():
    new = [*runs(9, 8, hardware="gpu"), *runs(5, 6, 7)]
    old = [*runs(1, 2, hardware="gpu"), *runs(1, 1, 1)]
    assert paired(new, old) == [(5, 1), (6, 1), (7, 1)]
    assert paired(runs(1, 2), runs(5, 6, first=1)) == [(2, 5)]


def test_the_factor_applies_to_the_worse_row_of_each_pair():
    claim = replace(BEATS, factor=1.3)
    found = judge(claim, STUDY, {"new": runs(14.1, 15.3, 16.8), "old": runs(10, 11, 12)}, "c")
    assert found.numbers["differences"] == [1.1, 1.0, 1.2]
    assert found.numbers["factor"] == 1.3
    assert found.verdict == "holds"
    assert verdict(claim, runs(12, 12.1, 12), runs(10, 10.1, 10)) == "fails"
    assert verdict(claim, runs(13, 13.2, 13), runs(10, 10.2, 10)) == "noise"


def test_for_some_metrics_lower_is_better():
    claim = replace(BEATS, metric="overlap")
    found = judge(claim, STUDY, {"new": runs(0.0913, 0.0914, 0.09), "old": runs(0.2562, 0.2563, 0.25)}, "c")
    assert found.verdict == "holds"
    assert found.numbers["difference"] == -0.1633
    assert verdict(claim, runs(0.25, 0.26, 0.25), runs(0.09, 0.1, 0.1)) == "fails"
    assert verdict(replace(BEATS, metric="t2i.medr"), runs(1, 1, 1), runs(3, 4, 3)) == "holds"


@pytest.mark.parametrize(
    ("metric", "differences", "expected", "one_sided"),
    [
        ("rsum", (0.5, -0.5, 0.6), "holds", "holds"),
        ("rsum", (1.0, -1.5, 2.5), "noise", "holds"),  # the interval reaches 3
        ("rsum", (-1.0, 1.5, -2.5), "noise", "noise"),
        ("rsum", (5.0, 5.1, 5.2), "fails", "holds"),
        ("rsum", (-5.0, -5.1, -5.2), "fails", "fails"),
        ("t2i.r1", (1.5, 1.4, 1.6), "fails", "holds"),  # 1 point for recalls
        ("t2i.r1", (0.5, 0.4, 0.6), "holds", "holds"),
        ("rsum", (0.1, 0.1), "undecided", "undecided"),
    ],
)
def test_equivalence_is_an_interval_inside_a_band(metric, differences, expected, one_sided):
    claim = Claim("as good", "new", "old", metric=metric, kind="equivalence")
    new, old = runs(*(100 + difference for difference in differences)), runs(*[100] * len(differences))
    assert verdict(claim, new, old) == expected
    assert verdict(replace(claim, one_sided=True), new, old) == one_sided


def test_a_claim_of_equivalence_may_name_its_margin():
    claim = Claim("at most 5 points below", "new", "old", kind="equivalence", one_sided=True, margin=5)
    assert verdict(claim, runs(97, 96, 97), runs(100, 100, 100)) == "holds"
    assert verdict(claim, runs(94, 93, 94), runs(100, 100, 100)) == "fails"
    assert verdict(claim, runs(96, 94, 95), runs(100, 100, 100)) == "noise"
    assert verdict(claim, runs(120, 121, 122), runs(100, 100, 100)) == "holds"


def test_claims_of_equality_are_judged_as_such():
    words = ("as good as", "on par", "does not beat", "very similar", "not significantly")
    claims = [claim for study in STUDIES.values() for claim in study.claims if not claim.needs]
    equal = [claim for claim in claims if any(word in claim.text for word in words)]
    assert len(equal) >= 6
    assert [claim.text for claim in equal if claim.kind != "equivalence"] == []
    assert [claim.text for claim in equal if "does not beat" in claim.text and not claim.one_sided] == []


def test_one_pair_is_enough_only_if_both_rows_are_deterministic():
    fitted = Claim("fitted beats counted", "fitted", "counted")
    assert verdict(fitted, runs(100.01), runs(100)) == "holds"
    assert verdict(fitted, runs(100), runs(100.01)) == "fails"
    assert verdict(fitted, runs(100.01, hardware="gpu"), runs(100)) == "undecided"
    mixed = Claim("fitted beats old", "fitted", "old")
    assert verdict(mixed, runs(100.01), runs(100)) == "undecided"
    # Its only run stands for every seed of the other row.
    found = judge(mixed, STUDY, {"fitted": runs(110), "old": runs(99, 100, 101)}, "c")
    assert found.numbers["differences"] == [11, 10, 9]
    assert found.verdict == "holds"


def test_rows_without_random_parts_are_marked():
    marked = {row.name for study in STUDIES.values() for row in study.rows if row.deterministic}
    assert marked == {"CCA, mean vector", "CCA, tf-idf", "tags"}


@pytest.mark.parametrize("place", [0, 1])
def test_nothing_is_compared_with_a_row_that_collapsed(place):
    both = [runs(200, 201, 202), runs(100, 101, 102)]
    both[place][1] = replace(both[place][1], collapsed=True)
    found = judge(BEATS, STUDY, {"new": both[0], "old": both[1]}, "c")
    assert found.verdict == "collapsed baseline"
    assert found.numbers["collapsed"] == [("new", "old")[place]]


def report(scores: np.ndarray, overlap: float | None = None) -> RetrievalReport:
    matches = Matches.from_pairs([(i, i) for i in range(len(scores))], scores.shape)
    found = RetrievalReport(measure_retrieval(scores, matches), *scores.shape, chance=chance_retrieval(matches))
    if overlap is None:
        return found
    shared = round(100 * overlap)
    histograms = np.array([100 - shared, shared, 0]), np.array([0, shared, 100 - shared])
    return replace(found, overlap=Overlap(np.arange(4.0), *histograms, 0.0, 0.0))


def test_a_claim_that_a_row_does_not_train_holds_if_that_row_collapsed():
    trained, collapsed = runs(200, 201, 202), [replace(run, collapsed=True) for run in runs(30, 31, 32)]
    claim = replace(BEATS, expects_collapse=True)
    assert verdict(claim, trained, collapsed) == "holds"
    assert verdict(claim, collapsed, trained) == "collapsed baseline"


def test_a_run_near_chance_or_with_overlapping_scores_has_collapsed():
    scores = np.random.default_rng(0).normal(size=(100, 100))
    assert has_collapsed(report(scores))
    assert not has_collapsed(report(scores + 3 * np.eye(100)))
    assert has_collapsed(report(scores + 3 * np.eye(100), overlap=0.96))
    assert not has_collapsed(report(scores + 3 * np.eye(100), overlap=0.94))
    assert not has_collapsed(report(scores[:8, :8]))  # 8 images: a random order has a high recall too


@pytest.mark.parametrize("collapsed", [False, True])
def test_the_line_of_a_run_says_whether_it_collapsed(tiny, tmp_path, collapsed):
    settings = as_plain(find_preset("vse").defaults)
    about = {"recipe": "pairs", "preset": "vse", "settings": settings, "device": "cpu", "command": "calligram train"}
    found = report(np.eye(100), overlap=0.96 if collapsed else 0.5)
    made = result_line(Run.create(tmp_path / "run", about), tiny, "test", found)
    append_result(tmp_path / "x.jsonl", made)
    assert made.collapsed == collapsed
    assert json.loads((tmp_path / "x.jsonl").read_text()).get("collapsed", False) == collapsed
    assert read_results(tmp_path) == [made]


def line(name: str, seed: int, rsum: float, **changes: object) -> Result:
    plain = {"r1": 1.0}
    given = {"study": f"paper: {name}", **changes}
    return Result(
        "vse", settings_of(STUDY.row(name)), seed, "c", "test", plain, plain, rsum, 1.0, "h", "c", "x", **given
    )


def test_verdicts_are_written_from_the_lines_that_are_there(tmp_path):
    for seed in range(3):
        append_result(tmp_path / "x.jsonl", line("new", seed, 110 + seed))
        append_result(tmp_path / "x.jsonl", line("old", seed, 100 + seed))
    gone = {"paper": "gone", "claim": "x", "verdict": "holds", "numbers": {}, "collection": "c", "settings": []}
    (tmp_path / "claims.jsonl").write_text(json.dumps(gone) + "\n")
    assert [v.verdict for v in judge_results({"paper": STUDY}, tmp_path)] == ["holds"]
    append_result(tmp_path / "x.jsonl", line("old", 0, 100, collapsed=True))
    judge_results({"paper": STUDY}, tmp_path)
    (stored,) = map(json.loads, (tmp_path / "claims.jsonl").read_text().splitlines())
    assert (stored["paper"], stored["verdict"]) == ("paper", "collapsed baseline")


def test_a_metric_that_was_not_measured_is_not_judged(tmp_path):
    append_result(tmp_path / "x.jsonl", line("new", 0, 1.0, t2t={"r1": 5.0}))
    append_result(tmp_path / "x.jsonl", line("old", 0, 1.0))
    study = replace(STUDY, claims=(Claim("closer", "new", "old", metric="t2t.r1"), Claim("r1", "new", "old")))
    found = judge_claims(study, "c", tmp_path)
    assert [v.verdict for v in found] == ["not run", "undecided"]
    assert found[0].numbers["new"] == [5.0]


def test_runs_of_one_seed_on_two_machines_are_both_read(tmp_path):
    for hardware, rsum in (("gpu", 5.0), ("cpu", 1.0), ("gpu", 6.0)):
        append_result(tmp_path / "x.jsonl", replace(line("new", 0, rsum), hardware=hardware))
    found = judge_claims(STUDY, "c", tmp_path)
    assert found[0].numbers["new"] == [1.0, 6.0]


def test_withdrawn_lines_are_not_read(tmp_path):
    append_result(tmp_path / "withdrawn.jsonl", line("new", 0, 1.0))
    assert read_results(tmp_path) == []


def test_every_withdrawn_line_has_a_reason():
    lines = map(json.loads, (RESULTS / "withdrawn.jsonl").read_text(encoding="utf-8").splitlines())
    assert all(line["reason"] for line in lines)


def test_the_published_verdicts_are_those_of_the_published_lines(tmp_path):
    for file in RESULTS.glob("*.jsonl"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    judge_results(STUDIES, tmp_path)
    assert (tmp_path / "claims.jsonl").read_text() == (RESULTS / "claims.jsonl").read_text()
