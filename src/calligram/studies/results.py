"""Results as lines of JSON, written by commands; the lines that belong to the rows of a study; verdicts on its claims,
which are written to ``results/claims.jsonl``.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.evaluation.localization import Localization
from calligram.evaluation.rerank import RerankReport
from calligram.evaluation.retrieval import RetrievalReport
from calligram.evaluation.word_matching import UnknownFailures
from calligram.files import replace_text
from calligram.recipes.catalog import PRESETS, RECIPES, find_preset
from calligram.recipes.parts.config import changed, flat_values, from_plain, resolve
from calligram.recipes.parts.run_settings import flatten
from calligram.studies.claims import Measurement, Row, Study, Verdict, judge, with_assets_variable
from calligram.training.runs import Run

CLAIMS_FILE, WITHDRAWN_FILE = "claims.jsonl", "withdrawn.jsonl"
"""files of a folder of results that hold verdicts, and lines that no longer count, each with a ``reason``"""
MAX_OVERLAP = 0.95
"""overlap S of the scores of matching and other pairs above which a run has collapsed"""
COMPARED_FIGURE, LEVELS_FIGURE = "compared", "levels"
"""parts of the names of figures of several rows: dev curves, and recalls by number of captions"""
MEMBER_SETTINGS = ("runs", "matcher", "ensemble_members")
"""settings that name the members of an ensemble; the last one in runs of earlier versions"""

VerdictKey = tuple[str, str, tuple[str, ...]]
"""paper, collection, and changes to the settings of every row"""


@dataclass(frozen=True)
class Result:
    """One line of ``results/*.jsonl``."""

    recipe: str
    """name of the preset"""
    settings: dict[str, Any]
    """the settings that differ from the preset"""
    seed: int
    collection: str
    split: str
    i2t: dict[str, Any]
    t2i: dict[str, Any]
    rsum: float
    seconds: float
    """training time"""
    hardware: str
    commit: str
    command: str
    folds: int = 1
    """number of equal parts of the split whose mean this is"""
    by: str = ""
    """``identities`` where items match by identity, empty where they match by image"""
    members: int = 1
    """number of matchers whose scores are averaged; above 1 for an ensemble"""
    alone: list[float] | None = None
    """rsum of each ensemble member on its own"""
    t2t: dict[str, Any] | None = None
    """retrieval of texts by another text of the same image"""
    localization: dict[str, Any] | None = None
    """recall of boxes of phrases, with bounds and baselines; such a line has no retrieval, and its ``rsum`` is 0"""
    oracle: dict[str, Any] | None = None
    """text-to-image retrieval by a scorer that knows every fact"""
    chance: dict[str, Any] | None = None
    """text-to-image retrieval in random order"""
    overlap: float | None = None
    """S, the overlap of the score histograms of matching and other pairs; lower is better"""
    collapsed: bool = False
    """whether the matcher does not tell matching pairs from others; see ``has_collapsed``"""
    unknown: dict[str, Any] | None = None
    """counts of text queries by success and by unknown words"""
    precision: str = "fp32"
    """floating-point precision of the scores"""
    stages: dict[str, Any] | None = None
    """of reranking: depth, recall of the first stage in both directions, share of pairs scored; None for all pairs"""
    study: str = ""
    """paper and row of ``calligram reproduce``, empty for other runs"""
    pictures: list[str] = field(default_factory=list)


def result_line(
    run: Run,
    collection: Collection,
    split: str,
    report: RetrievalReport,
    *,
    study: str = "",
    by: str = "",
    unknown: UnknownFailures | None = None,
    pictures: Sequence[Path] = (),
) -> Result:
    """Return the result of a retrieval report.

    Args:
        study: paper and row.
        unknown: failures of texts with unknown words; the ten most frequent words are recorded.
        pictures: figures of the run, for the pages of ``docs/results``.
    """
    return replace(
        _line(run, collection, split, study=study, pictures=pictures),
        i2t=_rounded(asdict(report.retrieval.i2t)),
        t2i=_rounded(asdict(report.retrieval.t2i)),
        rsum=round(report.retrieval.rsum, 2),
        alone=[round(member.rsum, 2) for member in report.alone] or None,
        t2t=_rounded(asdict(report.within["t2t"])) if "t2t" in report.within else None,
        oracle=_rounded(asdict(report.oracle.t2i)) if report.oracle else None,
        chance=_rounded(asdict(report.chance.t2i)) if report.chance else None,
        overlap=round(report.overlap.s, 4) if report.overlap else None,
        collapsed=has_collapsed(report),
        unknown={**unknown.as_dict(), "words": unknown.words[:10]} if unknown else None,
        folds=report.folds,
        by=by,
        precision=report.precision,
        stages=_rerank_values(report.stages) if report.stages else None,
    )


def has_collapsed(report: RetrievalReport) -> bool:
    """Whether S is above ``MAX_OVERLAP``, or the sum of recalls is below twice that of a random order.

    In a split of few images a random order has high recalls. Where they are above a quarter of the maximum, 600, only
    S counts.
    """
    if report.overlap is not None and report.overlap.s > MAX_OVERLAP:
        return True
    return report.chance is not None and report.chance.rsum <= 150 and report.retrieval.rsum < 2 * report.chance.rsum


def _rerank_values(stages: RerankReport) -> dict[str, Any]:
    return {**_rounded(stages.as_dict()), "scored": round(stages.scored, 4)}


def localization_line(
    run: Run,
    collection: Collection,
    split: str,
    found: Localization,
    *,
    study: str = "",
    pictures: Sequence[Path] = (),
) -> Result:
    """Return the result of phrase localization, with the size of a training batch as the paper counts it."""
    dev: dict[str, float] = next((row["dev"] for row in reversed(run.metrics()) if "dev" in row), {})
    sizes: dict[str, float] = {name: round(dev[name]) for name in ("triplets", "pairs") if name in dev}
    line = _line(run, collection, split, study=study, pictures=pictures)
    return replace(line, localization={**_rounded(found.as_dict()), **sizes})


def _line(run: Run, collection: Collection, split: str, *, study: str, pictures: Sequence[Path]) -> Result:
    """Return a result without measurements."""
    about = run.about
    preset, different = _preset_and_changes(about)
    return Result(
        preset,
        json.loads(with_assets_variable(json.dumps(different))),
        int(about["settings"]["seed"]),
        collection.name,
        split,
        {},
        {},
        0.0,
        float(about.get("seconds", 0)),
        about["device"],
        str(about.get("commit", "unknown")),
        recorded_command(about["command"]),
        members=_member_count(about["settings"]),
        study=study,
        pictures=[str(picture) for picture in pictures],
    )


def _preset_and_changes(about: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of a run's preset, and the settings that differ from it, by dotted key.

    A preset of a file, or of ``calligram.fit``, is not found by its name; the settings are then compared with the
    defaults of the recipe. A run of an earlier version has no preset: all of its settings are returned, with their old
    keys.
    """
    settings = dict(flatten(about["settings"]))
    if "preset" in about:
        name = about["preset"]
        defaults = PRESETS[name].defaults if name in PRESETS else RECIPES[about["recipe"]].settings_class()
        try:
            settings = changed(from_plain(defaults, about["settings"]), defaults)
        except UserError:  # a matcher or a loss from outside, whose settings are not known here
            before = flat_values(defaults)
            settings = {key: value for key, value in settings.items() if key not in before or value != before[key]}
    return about.get("preset", about["recipe"]), {key: value for key, value in settings.items() if key != "seed"}


def _member_count(settings: Mapping[str, Any]) -> int:
    """Return the number of matchers whose scores are averaged, from the settings of a run."""
    return max((len(settings[key]) for key in MEMBER_SETTINGS if isinstance(settings.get(key), list)), default=1)


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return _rounded(value) if isinstance(value, Mapping) else round(value, 2) if isinstance(value, float) else value

    return {name: plain(value) for name, value in values.items()}


def append_result(file: Path, result: Result) -> None:
    """Append a result to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    line = {k: v for k, v in asdict(result).items() if v not in (None, "", []) and v is not False}
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line, ensure_ascii=False) + "\n")


def read_results(folder: Path) -> list[Result]:
    """Read all results of a folder, without withdrawn ones."""
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        if file.name in (CLAIMS_FILE, WITHDRAWN_FILE):
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                found.append(_checked(Result(**json.loads(line))))
            except (ValueError, TypeError) as error:
                raise UserError(
                    f"{file}, line {number} is not a result ({error}); remove the line, or restore the file"
                ) from error
    return found


def _checked(result: Result) -> Result:
    """Refuse a result whose numbers are no numbers."""
    if not isinstance(result.rsum, float | int):
        raise ValueError(f"rsum is {result.rsum!r}")
    for side in ("i2t", "t2i"):
        if not all(isinstance(value, float | int) for value in dict(getattr(result, side)).values()):
            raise ValueError(f"{side} has values that are no numbers")
    return result


def recorded_command(command: str = "") -> str:
    """Return a command that works on any machine: the program without its folder, assets by their variable."""
    words = shlex.split(command) if command else list(sys.argv)
    words[0] = Path(words[0]).name
    return with_assets_variable(shlex.join(words))


def row_key(study: Study, row: Row) -> str:
    """Return the name of a row in results."""
    return f"{study.paper}: {row.name}"


def file_name(*words: str) -> str:
    """Return a file name made of letters, digits and hyphens."""
    return "".join(c if c.isalnum() else "-" for c in "-".join(words))


def settings_of(row: Row, changes: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the settings of a row, with changes to every row, that differ from its preset."""
    plain: dict[str, object] = json.loads(_settings_text(row, changes))
    return plain


@cache
def _settings_text(row: Row, changes: tuple[str, ...]) -> str:
    defaults = find_preset(row.preset).defaults
    return json.dumps(changed(resolve(defaults, [*changes, *row.changes]), defaults))


def results_of_rows(
    study: Study, collection: str, results: Path, changes: tuple[str, ...] = ()
) -> dict[str, dict[int, Result]]:
    """Return the results of a study's rows on a collection, by row and seed; the last line of a seed counts."""
    found = runs_of_rows(study, collection, results, changes)
    return {name: {result.seed: result for result in lines} for name, lines in found.items()}


def runs_of_rows(
    study: Study, collection: str, results: Path, changes: tuple[str, ...] = ()
) -> dict[str, list[Result]]:
    """Return the results of a study's rows on a collection, one for each seed and hardware; others are left out."""
    found: dict[str, dict[tuple[int, str], Result]] = {row.name: {} for row in study.rows}
    rows = {row_key(study, row): row for row in study.rows}
    wanted: dict[str, dict[str, object]] = {}
    for result in read_results(results) if results.is_dir() else []:
        row = rows.get(result.study)
        if row is None or result.collection != collection:
            continue
        if row.name not in wanted:
            wanted[row.name] = settings_of(row, changes)
        if result.settings == wanted[row.name]:
            found[row.name].pop((result.seed, result.hardware), None)  # the last line is the last one in order too
            found[row.name][result.seed, result.hardware] = result
    return {name: list(lines.values()) for name, lines in found.items()}


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
        _write_verdicts(verdicts, (), results / CLAIMS_FILE)
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
    same = {_verdict_key(asdict(verdict)) for verdict in verdicts}
    old = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    _write_verdicts(verdicts, [line for line in old if _verdict_key(json.loads(line)) not in same], file)


def _write_verdicts(verdicts: Sequence[Verdict], kept: Sequence[str], file: Path) -> None:
    lines = [*kept, *(json.dumps(asdict(verdict), ensure_ascii=False) for verdict in verdicts)]
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, "".join(f"{line}\n" for line in lines))


def _verdict_key(row: Mapping[str, Any]) -> VerdictKey:
    return row["paper"], row.get("collection", ""), tuple(row.get("settings", ()))


def _stored_keys(file: Path) -> list[VerdictKey]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [_verdict_key(json.loads(line)) for line in lines]
