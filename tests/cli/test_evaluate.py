from __future__ import annotations

import json

import pytest

from calligram.studies.catalog import STUDIES
from calligram.studies.results import Result, append_result, read_results, settings_of


def test_evaluation_prints_json(calligram, trained, tiny):
    done = calligram("evaluate", trained[0], tiny.folder, "--split", "test", "--json")
    found = json.loads(done.stdout)
    assert {"r1", "r5", "r10", "medr", "meanr"} <= set(found["i2t"])
    assert found["rsum"] == pytest.approx(sum(found[d][k] for d in ("i2t", "t2i") for k in ("r1", "r5", "r10")))


def test_evaluation_prints_a_table_draws_a_sheet_and_records(calligram, trained, tiny, tmp_path):
    done = calligram(
        "evaluate", trained[0], tiny.folder, "--folds", "2", "--sheet", tmp_path / "sheet.png",
        "--record", tmp_path / "results" / "a.jsonl",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "text to image" in done.stdout
    assert "mean of 2 folds" in done.stdout
    assert (tmp_path / "sheet.png").is_file()
    line = json.loads((tmp_path / "results" / "a.jsonl").read_text())
    assert {"recipe", "settings", "seed", "collection", "split", "i2t", "t2i", "rsum", "members", "seconds", "hardware",
            "commit", "command"} <= set(line)  # fmt: skip
    assert line["settings"]["epochs"] == 2
    done = calligram("report", "--results", tmp_path / "results", "--docs", tmp_path / "docs")
    assert done.returncode == 0, done.stderr
    assert "| tiny | vse" in (tmp_path / "docs" / "results" / "leaderboard.md").read_text()


def test_the_report_judges_the_claims_by_the_lines_that_are_there(calligram, tmp_path):
    study = STUDIES["vse++"]
    for row, value in (("hardest", 300.0), ("sum", 200.0)):
        for seed in range(3):
            recalls = {"r1": 1.0, "r5": 2.0, "r10": 3.0, "medr": 1.0, "queries": 5}
            line = Result(
                "vse", settings_of(study.row(row)), seed, "scenes", "test", recalls, recalls, value + seed, 1.0, "cpu",
                "c", "x", study=f"vse++: {row}",
            )  # fmt: skip
            append_result(tmp_path / "results" / "a.jsonl", line)
    done = calligram("report", "--results", tmp_path / "results", "--docs", tmp_path / "docs")
    assert done.returncode == 0, done.stderr
    stored = [json.loads(line) for line in (tmp_path / "results" / "claims.jsonl").read_text().splitlines()]
    assert [verdict["verdict"] for verdict in stored] == ["holds", *["not run"] * (len(study.claims) - 1)]


def test_failures_by_unknown_words_are_recorded(calligram, trained, tiny, tmp_path):
    record = tmp_path / "results" / "a.jsonl"
    done = calligram("evaluate", trained[0], tiny.folder, "--unknown", "--json", "--record", record)
    counted, line = json.loads(done.stdout)["unknown"], json.loads(record.read_text())
    assert line["unknown"] == {**counted, "words": counted["words"][:10]}
    assert line["unknown"]["failures"] + line["unknown"]["found"] == line["t2i"]["queries"]
    (read,) = read_results(record.parent)
    assert read.unknown == line["unknown"]


def test_only_candidates_of_another_run_are_scored(calligram, trained, tiny, tmp_path):
    results = tmp_path / "results" / "a.jsonl"
    asked = ["evaluate", trained[0], tiny.folder, "--no-identities", "--first", trained[0] / "inputs" / ".."]
    done = calligram(*asked, "--depth", "3", "--record", results)
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    assert "reranked 3 candidates of run; they contain a match for" in printed
    assert "recall@3" in printed
    line = json.loads(results.read_text())
    assert line["precision"] == "fp32"
    assert line["stages"]["first"] == "run"
    assert line["stages"]["scored"] < 1
    calligram("report", "--results", results.parent, "--docs", tmp_path / "docs")
    assert "(reranking 3 candidates of run)" in (tmp_path / "docs" / "results" / "leaderboard.md").read_text()
    whole = json.loads(calligram("evaluate", trained[0], tiny.folder, "--no-identities", "--json").stdout)
    full = json.loads(calligram(*asked, "--depth", "0", "--json").stdout)
    assert full["t2i"] == whole["t2i"]


def test_identities_can_be_selected(calligram, trained, tiny):
    done = calligram("evaluate", trained[0], tiny.folder, "--identities", "--json")
    assert json.loads(done.stdout)["t2i"]["queries"] == 14


def test_identities_are_the_default_if_there_are_any_and_figures_are_drawn(calligram, trained, tiny, tmp_path):
    done = calligram(
        "evaluate", trained[0], tiny.folder, "--json", "--pictures", tmp_path / "p", "--record", tmp_path / "r.jsonl"
    )
    assert done.returncode == 0, done.stderr
    found, line = json.loads(done.stdout), json.loads((tmp_path / "r.jsonl").read_text())
    assert found["by"] == line["by"] == "identities"
    assert line["chance"]["r1"] == pytest.approx(found["chance"]["t2i"]["r1"], abs=0.01)
    assert line["overlap"] == pytest.approx(found["overlap"]["s"], abs=1e-4)
    assert {file.name for file in (tmp_path / "p").iterdir()} == {
        "images.png", "texts.png", "ranks.png", "overlap.png", "correlation.png", "map.png", "words.png",
    }  # fmt: skip
    assert "by" not in json.loads(calligram("evaluate", trained[0], tiny.folder, "--no-identities", "--json").stdout)
    done = calligram("evaluate", trained[0], tiny.folder)
    printed = " ".join(done.stdout.split())  # lines are broken where a long path wants it
    assert all(words in printed for words in ("by identity", " chance ", "mAP", "overlap by S = "))
