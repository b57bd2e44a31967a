"""Runs what a paper's claims need, within a budget, and judges them."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.errors import UserError, unknown
from calligram.evaluation.distributions import draw_overlap
from calligram.evaluation.encode import EncodedPairing
from calligram.evaluation.figures import draw_found_images, draw_found_texts, draw_map
from calligram.evaluation.localization import evaluate_localization, load_phrases
from calligram.evaluation.retrieval import Floats, Look, evaluate_retrieval
from calligram.features.images.region_input import RegionInput
from calligram.files import replace_text
from calligram.models.load import WEIGHTS_FILE
from calligram.recipes.catalog import find_recipe
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, device_named, run_recipe, with_assets_found
from calligram.studies.claims import Claim, Row, Study, Verdict, judge
from calligram.studies.results import (
    COMPARED,
    LEVELS,
    Result,
    append,
    key_of,
    localization_line,
    measured,
    result_line,
    settings_of,
)
from calligram.training.curves import draw_comparison, draw_curves
from calligram.training.runs import Run

# Pictures that a study draws of the encodings and scores of a row's test split.


def draws_map(test: Pairing, target: Path, title: str) -> Look:
    """The test split as points on a plane."""

    def look(encoded: EncodedPairing, scores: Floats) -> None:
        del scores
        draw_map(encoded, test.matches, target, title)

    return look


def draws_images(test: Pairing, target: Path) -> Look:
    """The first images of a few texts."""

    def look(encoded: EncodedPairing, scores: Floats) -> None:
        del encoded
        draw_found_images(scores, test, target, queries=3)

    return look


def draws_found(test: Pairing, texts: Path, images: Path) -> Look:
    """The first five texts of some images, and the first four images of some texts (mmca, Figs. 4 and 5)."""

    def look(encoded: EncodedPairing, scores: Floats) -> None:
        del encoded
        draw_found_texts(scores, test, texts, queries=4, first=5)
        draw_found_images(scores, test, images, queries=4, first=4)

    return look


def looking(looks: Sequence[Look]) -> Look | None:
    """All of them, one after the other; None where there are none."""

    def look(encoded: EncodedPairing, scores: Floats) -> None:
        for each in looks:
            each(encoded, scores)

    return look if looks else None


# How a model does against how much of a collection is captioned, as a picture.


class Level(NamedTuple):
    """What a model reached with so many captions."""

    pairs: int
    """captions that training saw; 0 for what needs none"""
    i2t: float
    """R@1 of texts for images"""
    t2i: float
    """R@1 of images for texts"""


def draw_levels(curves: Mapping[str, Sequence[Level]], target: Path) -> Path:
    """Draw R@1 of both directions against annotated pairs, a curve for each model (a3vse, Fig. 1, right).

    A model that needs no pairs is a line across.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, key, title in zip(axes, ("i2t", "t2i"), ("texts for images", "images for texts"), strict=True):
        for number, (name, levels) in enumerate(curves.items()):
            shown = sorted(level for level in levels if level.pairs)
            if shown:
                axis.plot(
                    [level.pairs for level in shown],
                    [getattr(level, key) for level in shown],
                    ".-",
                    color=f"C{number}",
                    label=name,
                )
            for level in levels:
                if not level.pairs:
                    axis.axhline(getattr(level, key), color=f"C{number}", linestyle="--", linewidth=1, label=name)
        axis.set(title=f"{title}: R@1, %", xlabel="annotated pairs", xscale="log", ylim=(0, None))
        ticks = sorted({level.pairs for levels in curves.values() for level in levels if level.pairs})
        axis.set_xticks(ticks, [f"{pairs:,}" for pairs in ticks])
        axis.set_xticks([], minor=True)
        axis.legend(frameon=False, fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)
    return target


Say = Callable[[str], None]


def reproduce_study(
    study: Study,
    collection: Collection,
    *,
    results: Path,
    runs: Path,
    seeds: int = 3,
    budget_minutes: float | None = None,
    changes: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    around: RunContext | None = None,
    say: Say = lambda line: None,
) -> list[Verdict]:
    """Train and test the rows that are not in ``results`` yet, then write the verdicts.

    One seed of every row comes first, in the study's order; then further seeds, for the claims with the smallest
    difference first. No new row starts after the budget; the next call goes on.

    Args:
        runs: folder for the run folders; a row that was stopped is resumed there.
        changes: settings for every row, such as a shortened schedule; they are part of the recorded settings.
        only: patterns of the names of rows to run, such as ``phrases*``; all when empty.
    """
    for pattern in only:
        if not any(fnmatchcase(row.name, pattern) for row in study.rows):
            raise unknown(f"row of {study.paper}", pattern, [row.name for row in study.rows])
    around = around or RunContext(device_named())
    began = time.monotonic()
    for row, seed in _wanted(study, collection, results, seeds, changes, only):
        if budget_minutes is not None and time.monotonic() - began > 60 * budget_minutes:
            say("the budget is spent; the same command goes on from here")
            break
        say(f"{study.paper}: {row.name}, seed {seed}")
        result = _run(study, row, seed, collection, results, runs, changes, around)
        append(results / f"{study.paper}.jsonl", result)
        # Not before: a row that is stopped while it is measured is not trained again.
        shutil.rmtree(runs / _run_name(study, row.name, collection, changes, seed) / "state", ignore_errors=True)
        found = result.localization
        say(f"  localization R@1 {found['r1']:.1f} on test" if found else f"  rsum {result.rsum:.1f} on test")
    _draw_compared(study, collection.name, results, runs, changes)
    _draw_levels(study, collection, results, changes)
    verdicts = judged(study, collection.name, results, changes)
    _store(verdicts, results / "claims.jsonl")
    return verdicts


def _wanted(
    study: Study,
    collection: Collection,
    results: Path,
    seeds: int,
    changes: tuple[str, ...],
    only: tuple[str, ...] = (),
) -> Iterator[tuple[Row, int]]:
    """Rows and seeds still to be run, the most telling first; asks the results again after each."""
    possible = {row.name for row in study.rows if not row.needs or collection.has(row.needs)}
    possible &= {name for name in possible if not only or any(fnmatchcase(name, pattern) for pattern in only)}
    for row in study.rows:
        if row.name in possible and 0 not in measured(study, collection.name, results, changes)[row.name]:
            yield row, 0
    for seed in range(1, seeds):
        for claim in _closest_first(study, collection.name, results, changes):
            for name in (*_built_on(study, claim.better), *_built_on(study, claim.worse)):
                if name in possible and seed not in measured(study, collection.name, results, changes)[name]:
                    yield study.row(name), seed


def _built_on(study: Study, name: str) -> list[str]:
    """A row after those whose runs it takes, ``key=row:NAME``, and those that they take."""
    needed = [c.partition("=row:")[2] for c in study.row(name).changes if "=row:" in c]
    return [*(earlier for other in needed for earlier in _built_on(study, other)), name]


def _closest_first(study: Study, collection: str, results: Path, changes: tuple[str, ...]) -> list[Claim]:
    done = measured(study, collection, results, changes)

    def distance(claim: Claim) -> float:
        first = [_value(done[name].get(0), claim.metric) for name in (claim.better, claim.worse)]
        return math.inf if first[0] is None or first[1] is None else abs(first[0] - first[1])

    return sorted((c for c in study.claims if not c.needs), key=distance)


def _value(result: Result | None, metric: str) -> float | None:
    """A metric of a result, None where it was not measured."""
    if result is None or metric in ("rsum", "overlap"):
        return None if result is None else getattr(result, metric)
    direction, _, name = metric.partition(".")
    recalls = getattr(result, direction)
    return None if recalls is None else float(recalls[name])


def _run(
    study: Study,
    row: Row,
    seed: int,
    collection: Collection,
    results: Path,
    runs: Path,
    changes: tuple[str, ...],
    around: RunContext,
) -> Result:
    recipe = find_recipe(row.recipe)

    def named(name: str) -> str:
        return _run_name(study, name, collection, changes, seed)

    plain = named(row.name)
    out = runs / plain
    given = [with_rows_found(c, lambda name: runs / named(name)) for c in (*changes, *row.changes, f"seed={seed}")]
    settings = resolve(recipe.defaults, [with_assets_found(c) for c in given])
    flags = " ".join(f"--set {c}" for c in given)
    command = f"calligram train {row.recipe} {collection.folder} --out {out} {flags}"
    run_recipe(recipe, settings, collection, out, resume=out.exists(), around=around, command=command)
    run = Run.open(out)
    matcher, inputs = run.load()
    matcher, inputs = matcher.to(around.device), inputs.to(around.device)
    # Photographs have owners: sheets of them stay with the run, those of scenes are anyone's.
    shown = results / "pictures"
    sheet = shown / f"{plain}-found.png" if collection.generated else out / "found.png"
    pictures = [file for file in (sheet, shown / f"{plain}-curves.png") if file.parent != out] if seed == 0 else []
    if pictures:
        draw_curves(out, pictures[-1])
    if isinstance(inputs.images, RegionInput):
        localized = evaluate_localization(matcher, inputs, load_phrases(inputs, collection, "test", track=around.track))
        found = localization_line(run, collection, "test", localized, study=key_of(study, row), pictures=pictures[-1:])
    else:
        by_identity = collection.has_identities("test")
        test = collection.identities("test") if by_identity else collection.sentences("test")
        looks: list[Look] = [draws_images(test, sheet)] if pictures else []
        if seed == 0 and row.name in study.mapped:
            pictures.append(shown / f"{plain}-map.png")
            looks.append(draws_map(test, pictures[-1], row.name))
        if seed == 0 and row.name in study.sheets:
            both = [sheet.with_name(sheet.name.replace("found", f"found-{side}")) for side in ("texts", "images")]
            pictures += both if collection.generated else []
            looks.append(draws_found(test, *both))
        look = looking(looks)
        report = evaluate_retrieval(
            matcher, inputs, test, within_modality=True, look=look, alone=True, track=around.track
        )
        compared = any(c.metric == "overlap" and row.name in (c.better, c.worse) for c in study.claims)
        if seed == 0 and compared and report.overlap is not None:
            pictures.append(shown / f"{plain}-overlap.png")
            draw_overlap(report.overlap, pictures[-1], row.name)
        by = "identities" if by_identity else ""
        found = result_line(run, collection, "test", report, study=key_of(study, row), by=by, pictures=pictures)
    # As the row gives them: a run it builds on is named by its row, wherever it lies.
    return replace(found, settings=settings_of(row, changes))


def _run_name(study: Study, row: str, collection: Collection, changes: tuple[str, ...], seed: int) -> str:
    """Of a row's folder."""
    return _plain(study.paper, row, collection.name, *changes, str(seed))


def _plain(*words: str) -> str:
    """A name for a file or folder."""
    return "".join(c if c.isalnum() else "-" for c in "-".join(words))


def _draw_compared(study: Study, collection: str, results: Path, runs: Path, changes: tuple[str, ...]) -> None:
    """The study's pictures of several rows, of those that have a run here."""
    for group in study.compared:
        folders = {name: runs / _plain(study.paper, name, collection, *changes, "0") for name in group}
        there = {name: folder for name, folder in folders.items() if (folder / WEIGHTS_FILE).is_file()}
        if len(there) > 1:
            name = _plain(study.paper, group[0], COMPARED, collection, *changes)
            draw_comparison(there, results / "pictures" / f"{name}.png")


def _draw_levels(study: Study, collection: Collection, results: Path, changes: tuple[str, ...]) -> None:
    """Test recalls against the captions of training, means over seeds; of rows that have results."""
    done = measured(study, collection.name, results, changes)
    curves: dict[str, list[Level]] = {}
    for model, names in {**study.levels, **{name: (name,) for name in study.uncaptioned}}.items():
        for name in names:
            if found := list(done[name].values()):
                row = study.row(name)
                settings = resolve(find_recipe(row.recipe).defaults, [*changes, *row.changes])
                pairs = 0
                if name not in study.uncaptioned:
                    pairs = len(settings.sparse.of(collection).sentences("train").matches)
                i2t, t2i = (mean(getattr(result, side)["r1"] for result in found) for side in ("i2t", "t2i"))
                curves.setdefault(model, []).append(Level(pairs, i2t, t2i))
    if any(level.pairs for levels in curves.values() for level in levels):
        draw_levels(curves, results / "pictures" / f"{_plain(study.paper, LEVELS, collection.name, *changes)}.png")


def with_rows_found(change: str, folder: Callable[[str], Path]) -> str:
    """``key=row:NAME`` with the folder of that row's run of the same seed, which must be there."""
    key, sign, name = change.partition("=row:")
    if not sign:
        return change
    found = folder(name)
    if not (found / WEIGHTS_FILE).is_file():
        raise UserError(f"row '{name}' has no run in {found}; it is made before rows that build on it")
    return f"{key}={found}"


def judged(study: Study, collection: str, results: Path, changes: tuple[str, ...] = ()) -> list[Verdict]:
    """Verdicts from the results there are."""
    done = measured(study, collection, results, changes)
    verdicts = []
    for claim in study.claims:
        values = {
            name: [v for _, r in sorted(by_seed.items()) if (v := _value(r, claim.metric)) is not None]
            for name, by_seed in done.items()
        }
        verdicts.append(replace(judge(claim, study, values, collection), settings=changes))
    return verdicts


def _store(verdicts: list[Verdict], file: Path) -> None:
    """Replace this study's verdicts on this collection with these settings, keep all others."""

    def key(row: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
        return row["paper"], row.get("collection", ""), tuple(row.get("settings", ()))

    new = [json.dumps(asdict(v), ensure_ascii=False) for v in verdicts]
    same = {key(asdict(v)) for v in verdicts}
    old = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    kept = [line for line in old if key(json.loads(line)) not in same]
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, "\n".join([*kept, *new]) + "\n")
