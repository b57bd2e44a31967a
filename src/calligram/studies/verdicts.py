"""Verdicts on the claims of studies, judged by the recorded results and written to ``results/claims.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from calligram.files import replace_text
from calligram.studies.claims import Measurement, Study, Verdict, judge
from calligram.studies.results import CLAIMS_FILE, Result, read_results, runs_of_rows

VerdictKey = tuple[str, str, tuple[str, ...]]
"""paper, collection, and changes to the settings of every row"""


def judge_results(studies: Mapping[str, Study], results: Path) -> list[Verdict]:
    """Judge the claims of all studies by the results of a folder, and replace its ``claims.jsonl``.

    A study is judged on each collection with results of it. Verdicts with changed settings, which ``calligram
    reproduce --set`` wrote, are judged again too.
    """
    measured = [(line.study.partition(": ")[0], line.collection, ()) for line in read_results(results) if line.study]
    keys = list(dict.fromkeys([*measured, *_stored_keys(results / CLAIMS_FILE)]))
    verdicts = [
        verdict
        for name, study in studies.items()
        for paper, collection, changes in keys
        if paper == name and any(runs_of_rows(study, collection, results, changes).values())
        for verdict in judge_claims(study, collection, results, changes)
    ]
    if verdicts or (results / CLAIMS_FILE).is_file():
        _write(verdicts, (), results / CLAIMS_FILE)
    return verdicts


def judge_claims(study: Study, collection: str, results: Path, changes: tuple[str, ...] = ()) -> list[Verdict]:
    """Judge the claims of a study by its results on a collection."""
    done = runs_of_rows(study, collection, results, changes)
    verdicts = []
    for claim in study.claims:
        values = {name: _measurements(runs, claim.metric) for name, runs in done.items()}
        verdicts.append(replace(judge(claim, study, values, collection), settings=changes))
    return verdicts


def _measurements(runs: Sequence[Result], metric: str) -> list[Measurement]:
    """Return a metric of the runs of a row, by seed; a run where it was not measured is left out."""
    measured = ((run, metric_of(run, metric)) for run in sorted(runs, key=lambda run: run.seed))
    return [Measurement(run.seed, run.hardware, value, run.collapsed) for run, value in measured if value is not None]


def metric_of(result: Result | None, metric: str) -> float | None:
    """Return a metric of a result; None where it was not measured."""
    if result is None or metric in ("rsum", "overlap"):
        return None if result is None else getattr(result, metric)
    direction, _, name = metric.partition(".")
    recalls = getattr(result, direction)
    return None if recalls is None else float(recalls[name])


def store_verdicts(verdicts: Sequence[Verdict], file: Path) -> None:
    """Replace the verdicts of the same studies, collections and settings; keep all others."""
    same = {_key(asdict(verdict)) for verdict in verdicts}
    old = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    _write(verdicts, [line for line in old if _key(json.loads(line)) not in same], file)


def _write(verdicts: Sequence[Verdict], kept: Sequence[str], file: Path) -> None:
    lines = [*kept, *(json.dumps(asdict(verdict), ensure_ascii=False) for verdict in verdicts)]
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, "".join(f"{line}\n" for line in lines))


def _key(row: Mapping[str, Any]) -> VerdictKey:
    return row["paper"], row.get("collection", ""), tuple(row.get("settings", ()))


def _stored_keys(file: Path) -> list[VerdictKey]:
    return [_key(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
