"""Results as lines of JSON: measured by a command, never typed."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.evaluation.localization import Localization
from calligram.evaluation.rerank import RerankReport
from calligram.evaluation.retrieval import RetrievalReport
from calligram.recipes.catalog import find_recipe
from calligram.recipes.parts.config import changed, from_plain, resolve
from calligram.recipes.parts.run import with_assets_named
from calligram.studies.claims import Row, Study
from calligram.training.runs import Run

COMPARED, LEVELS = "compared", "levels"
"""in the names of pictures of several rows: dev curves, and recalls by number of captions"""
MEMBERS = {"ensemble": "runs", "best": "members"}
"""recipes of several matchers as one, and the setting that names them"""


@dataclass(frozen=True)
class Result:
    """One line of ``results/*.jsonl``."""

    recipe: str
    settings: dict[str, Any]
    """those that differ from the recipe's defaults"""
    seed: int
    collection: str
    split: str
    i2t: dict[str, Any]
    t2i: dict[str, Any]
    rsum: float
    seconds: float
    """spent training"""
    hardware: str
    commit: str
    command: str
    folds: int = 1
    """equal parts of the split whose mean this is"""
    by: str = ""
    """``identities`` where items match by identity instead of by image"""
    members: int = 1
    """matchers whose scores were averaged; more than one is an ensemble"""
    alone: list[float] | None = None
    """rsum of each member of an ensemble by itself"""
    t2t: dict[str, Any] | None = None
    """texts found by another text of the same image"""
    localization: dict[str, Any] | None = None
    """recall of phrases' boxes beside bounds and baselines; such a line has no retrieval, and its ``rsum`` is 0"""
    oracle: dict[str, Any] | None = None
    """from text to image, of a scorer that knows every fact"""
    chance: dict[str, Any] | None = None
    """from text to image, of a random order"""
    overlap: float | None = None
    """S, the area that the scores of matching and of other pairs share; lower is better"""
    precision: str = "fp32"
    """of the scores"""
    stages: dict[str, Any] | None = None
    """where candidates alone were scored: depth, the first stage's recall of both directions, share of pairs scored"""
    study: str = ""
    """paper and row this run was made for by ``calligram reproduce``"""
    pictures: list[str] = field(default_factory=list)


def result_line(
    run: Run,
    collection: Collection,
    split: str,
    report: RetrievalReport,
    *,
    study: str = "",
    by: str = "",
    pictures: Sequence[Path] = (),
) -> Result:
    """A result from a run and its report.

    Args:
        study: paper and row the run was made for.
        pictures: sheets and curves that belong to it, for the document.
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
        folds=report.folds,
        by=by,
        precision=report.precision,
        stages=_stages(report.stages) if report.stages else None,
    )


def _stages(stages: RerankReport) -> dict[str, Any]:
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
    """A result of finding phrases in images, with the size of a training batch as the paper counts it."""
    dev: dict[str, float] = next((row["dev"] for row in reversed(run.metrics()) if "dev" in row), {})
    sizes: dict[str, float] = {name: round(dev[name]) for name in ("triplets", "pairs") if name in dev}
    line = _line(run, collection, split, study=study, pictures=pictures)
    return replace(line, localization={**_rounded(found.as_dict()), **sizes})


def _line(run: Run, collection: Collection, split: str, *, study: str, pictures: Sequence[Path]) -> Result:
    """What every result says, whatever was measured."""
    about = run.about
    recipe = find_recipe(about["recipe"])
    settings = from_plain(recipe.defaults, about["settings"])
    different = {k: v for k, v in changed(settings, recipe.defaults).items() if k != "seed"}
    return Result(
        recipe.name,
        json.loads(with_assets_named(json.dumps(different))),
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
        members=len(about["settings"][MEMBERS[recipe.name]]) if recipe.name in MEMBERS else 1,
        study=study,
        pictures=[str(picture) for picture in pictures],
    )


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return _rounded(value) if isinstance(value, Mapping) else round(value, 2) if isinstance(value, float) else value

    return {name: plain(value) for name, value in values.items()}


def append(file: Path, result: Result) -> None:
    """Add one line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    line = {k: v for k, v in asdict(result).items() if v not in (None, "", [])}
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line, ensure_ascii=False) + "\n")


def read_results(folder: Path) -> list[Result]:
    """All results of ``folder``; claims have a file of their own."""
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        if file.name == "claims.jsonl":
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                found.append(Result(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise UserError(f"{file}, line {number} is not a result ({error})") from error
    return found


def recorded_command(command: str = "") -> str:
    """A command as anyone can repeat it: the program's name without its folder, assets by their variable."""
    words = shlex.split(command) if command else list(sys.argv)
    words[0] = Path(words[0]).name
    return with_assets_named(shlex.join(words))


# Which lines of results are a study's rows.


def key_of(study: Study, row: Row) -> str:
    """The row's name in results."""
    return f"{study.paper}: {row.name}"


def settings_of(row: Row, changes: tuple[str, ...] = ()) -> dict[str, object]:
    """The row's settings, over changes to every row, as results have them: what differs from the recipe's defaults."""
    defaults = find_recipe(row.recipe).defaults
    plain: dict[str, object] = json.loads(json.dumps(changed(resolve(defaults, [*changes, *row.changes]), defaults)))
    return plain


def measured(
    study: Study, collection: str, results: Path, changes: tuple[str, ...] = ()
) -> dict[str, dict[int, Result]]:
    """Results that stand for a study's rows on a collection, by row and seed: those of other settings do not."""
    found: dict[str, dict[int, Result]] = {row.name: {} for row in study.rows}
    rows = {key_of(study, row): row for row in study.rows}
    for result in read_results(results) if results.is_dir() else []:
        row = rows.get(result.study)
        if row is not None and result.collection == collection and result.settings == settings_of(row, changes):
            found[row.name][result.seed] = result
    return found
