"""Runs the rows of a study within a time budget, draws its figures, and judges its claims."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.device import device_named
from calligram.errors import UserError, unknown
from calligram.evaluation.distributions import draw_overlap
from calligram.evaluation.figures import draw_found_images, draw_found_texts, draw_map
from calligram.evaluation.localization import evaluate_localization, load_phrases
from calligram.evaluation.recall import EncodedPairing
from calligram.evaluation.retrieval import Floats, ScoreCallback, evaluate_retrieval
from calligram.models.catalog import WEIGHTS_FILE
from calligram.recipes.catalog import find_preset
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.studies.claims import Claim, Row, Study, Verdict, with_assets_path
from calligram.studies.results import (
    CLAIMS_FILE,
    COMPARED_FIGURE,
    LEVELS_FIGURE,
    Result,
    append_result,
    localization_line,
    result_line,
    results_of_rows,
    row_key,
    settings_of,
)
from calligram.studies.verdicts import judge_claims, metric_of, store_verdicts
from calligram.training.runs import Run, draw_comparison, draw_curves

Say = Callable[[str], None]


def map_drawer(test: Pairing, target: Path, title: str) -> ScoreCallback:
    """Return a function that draws the test split as a t-SNE map."""

    def draw(encoded: EncodedPairing, scores: Floats) -> None:
        del scores
        draw_map(encoded, test.matches, target, title)

    return draw


def image_sheet_drawer(test: Pairing, target: Path) -> ScoreCallback:
    """Return a function that draws the first images of some texts."""

    def draw(encoded: EncodedPairing, scores: Floats) -> None:
        del encoded
        draw_found_images(scores, test, target, queries=3)

    return draw


def both_sheets_drawer(test: Pairing, texts: Path, images: Path) -> ScoreCallback:
    """Return a function that draws five texts of some images and four images of some texts (mmca, Figs. 4 and 5)."""

    def draw(encoded: EncodedPairing, scores: Floats) -> None:
        del encoded
        draw_found_texts(scores, test, texts, queries=4, first=5)
        draw_found_images(scores, test, images, queries=4, first=4)

    return draw


def call_all(callbacks: Sequence[ScoreCallback]) -> ScoreCallback | None:
    """Return a function that calls all given functions; None where there are none."""

    def run(encoded: EncodedPairing, scores: Floats) -> None:
        for each in callbacks:
            each(encoded, scores)

    return run if callbacks else None


class Level(NamedTuple):
    """The recalls of a model trained with a number of captions."""

    pairs: int
    """number of training captions; 0 for a model without training captions"""
    i2t: float
    """R@1, image to text"""
    t2i: float
    """R@1, text to image"""


def draw_levels(curves: Mapping[str, Sequence[Level]], target: Path) -> Path:
    """Draw R@1 of both directions against annotated pairs, one curve per model (a3vse, Fig. 1, right).

    A model without training captions is a horizontal line.
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
    context: RunContext | None = None,
    say: Say = lambda line: None,
) -> list[Verdict]:
    """Train and test the rows without results, then write the verdicts.

    The first seed of every row is run first, in the order of the study. Further seeds follow, for the claims with the
    smallest difference first. No row starts after the budget is used up; the next call continues.

    Args:
        runs: folder of the run folders; a stopped row is resumed there.
        changes: settings of every row, such as a shorter schedule; they are part of the recorded settings.
        only: patterns of names of rows, such as ``phrases*``; all rows where empty.
    """
    for pattern in only:
        if not any(fnmatchcase(row.name, pattern) for row in study.rows):
            raise unknown(f"row of {study.paper}", pattern, [row.name for row in study.rows])
    context = context or RunContext(device_named())
    began = time.monotonic()
    for row, seed in _pending(study, collection, results, seeds, changes, only):
        if budget_minutes is not None and time.monotonic() - began > 60 * budget_minutes:
            say("the time budget is used up; the same command continues from here")
            break
        say(f"{study.paper}: {row.name}, seed {seed}")
        result = _run(study, row, seed, collection, results, runs, changes, context)
        append_result(results / f"{study.paper}.jsonl", result)
        # Only now: a row that is stopped during its evaluation is not trained again.
        shutil.rmtree(runs / _run_name(study, row.name, collection, changes, seed) / "state", ignore_errors=True)
        found = result.localization
        say(f"  localization R@1 {found['r1']:.1f} on test" if found else f"  rsum {result.rsum:.1f} on test")
    _draw_compared(study, collection.name, results, runs, changes)
    _draw_levels(study, collection, results, changes)
    verdicts = judge_claims(study, collection.name, results, changes)
    store_verdicts(verdicts, results / CLAIMS_FILE)
    return verdicts


def _pending(
    study: Study,
    collection: Collection,
    results: Path,
    seeds: int,
    changes: tuple[str, ...],
    only: tuple[str, ...] = (),
) -> Iterator[tuple[Row, int]]:
    """Yield the rows and seeds to run, most important first; the results are read again after each."""
    possible = {row.name for row in study.rows if not row.needs or collection.has(row.needs)}
    possible &= {name for name in possible if not only or any(fnmatchcase(name, pattern) for pattern in only)}
    for row in study.rows:
        if row.name in possible and 0 not in results_of_rows(study, collection.name, results, changes)[row.name]:
            yield row, 0
    for seed in range(1, seeds):
        for claim in _smallest_difference_first(study, collection.name, results, changes):
            for name in (*_with_required_rows(study, claim.better), *_with_required_rows(study, claim.worse)):
                if name in possible and seed not in results_of_rows(study, collection.name, results, changes)[name]:
                    yield study.row(name), seed


def _with_required_rows(study: Study, name: str) -> list[str]:
    """Return a row after the rows whose runs it uses (``key=row:NAME``), recursively."""
    needed = [c.partition("=row:")[2] for c in study.row(name).changes if "=row:" in c]
    return [*(earlier for other in needed for earlier in _with_required_rows(study, other)), name]


def _smallest_difference_first(study: Study, collection: str, results: Path, changes: tuple[str, ...]) -> list[Claim]:
    done = results_of_rows(study, collection, results, changes)

    def distance(claim: Claim) -> float:
        first = [metric_of(done[name].get(0), claim.metric) for name in (claim.better, claim.worse)]
        return math.inf if first[0] is None or first[1] is None else abs(first[0] - first[1])

    return sorted((c for c in study.claims if not c.needs), key=distance)


def _run(
    study: Study,
    row: Row,
    seed: int,
    collection: Collection,
    results: Path,
    runs: Path,
    changes: tuple[str, ...],
    context: RunContext,
) -> Result:
    preset = find_preset(row.preset)

    def named(name: str) -> str:
        return _run_name(study, name, collection, changes, seed)

    plain = named(row.name)
    out = runs / plain
    given = [with_row_folder(c, lambda name: runs / named(name)) for c in (*changes, *row.changes, f"seed={seed}")]
    settings = resolve(preset.defaults, [with_assets_path(c) for c in given])
    flags = " ".join(f"--set {c}" for c in given)
    command = f"calligram train {row.preset} {collection.folder} --out {out} {flags}"
    run_preset(preset, settings, collection, out, resume=out.exists(), context=context, command=command)
    run = Run.open(out)
    matcher, inputs = run.load()
    matcher, inputs = matcher.to(context.device), inputs.to(context.device)
    # Sheets of photographs stay in the run folder for copyright reasons; sheets of scenes are published.
    shown = results / "pictures"
    sheet = shown / f"{plain}-found.png" if collection.generated else out / "found.png"
    pictures = [file for file in (sheet, shown / f"{plain}-curves.png") if file.parent != out] if seed == 0 else []
    if pictures:
        draw_curves(out, pictures[-1])
    if inputs.images.region_input is not None:
        localized = evaluate_localization(
            matcher, inputs, load_phrases(inputs, collection, "test", track=context.track)
        )
        found = localization_line(run, collection, "test", localized, study=row_key(study, row), pictures=pictures[-1:])
    else:
        by_identity = collection.has_identities("test")
        test = collection.identities("test") if by_identity else collection.sentences("test")
        callbacks: list[ScoreCallback] = [image_sheet_drawer(test, sheet)] if pictures else []
        if seed == 0 and row.name in study.mapped:
            pictures.append(shown / f"{plain}-map.png")
            callbacks.append(map_drawer(test, pictures[-1], row.name))
        if seed == 0 and row.name in study.sheets:
            both = [sheet.with_name(sheet.name.replace("found", f"found-{side}")) for side in ("texts", "images")]
            pictures += both if collection.generated else []
            callbacks.append(both_sheets_drawer(test, *both))
        on_scores = call_all(callbacks)
        report = evaluate_retrieval(
            matcher, inputs, test, within_modality=True, on_scores=on_scores, alone=True, track=context.track
        )
        compared = any(c.metric == "overlap" and row.name in (c.better, c.worse) for c in study.claims)
        if seed == 0 and compared and report.overlap is not None:
            pictures.append(shown / f"{plain}-overlap.png")
            draw_overlap(report.overlap, pictures[-1], row.name)
        by = "identities" if by_identity else ""
        found = result_line(run, collection, "test", report, study=row_key(study, row), by=by, pictures=pictures)
    # As in the row: another run is named by its row, not by its folder.
    return replace(found, settings=settings_of(row, changes))


def _run_name(study: Study, row: str, collection: Collection, changes: tuple[str, ...], seed: int) -> str:
    """Return the name of the run folder of a row."""
    return _file_name(study.paper, row, collection.name, *changes, str(seed))


def _file_name(*words: str) -> str:
    """Return a file name made of letters, digits and hyphens."""
    return "".join(c if c.isalnum() else "-" for c in "-".join(words))


def _draw_compared(study: Study, collection: str, results: Path, runs: Path, changes: tuple[str, ...]) -> None:
    """Draw the dev curves of several rows, for the rows with a run folder."""
    for group in study.compared:
        folders = {name: runs / _file_name(study.paper, name, collection, *changes, "0") for name in group}
        there = {name: folder for name, folder in folders.items() if (folder / WEIGHTS_FILE).is_file()}
        if len(there) > 1:
            name = _file_name(study.paper, group[0], COMPARED_FIGURE, collection, *changes)
            draw_comparison(there, results / "pictures" / f"{name}.png")


def _draw_levels(study: Study, collection: Collection, results: Path, changes: tuple[str, ...]) -> None:
    """Draw test recalls, as means over seeds, against the number of training captions, for the rows with results."""
    done = results_of_rows(study, collection.name, results, changes)
    curves: dict[str, list[Level]] = {}
    for model, names in {**study.levels, **{name: (name,) for name in study.uncaptioned}}.items():
        for name in names:
            if found := list(done[name].values()):
                row = study.row(name)
                settings = resolve(find_preset(row.preset).defaults, [*changes, *row.changes])
                pairs = 0
                if name not in study.uncaptioned:
                    pairs = len(settings.sparse.of(collection).sentences("train").matches)
                i2t, t2i = (mean(getattr(result, side)["r1"] for result in found) for side in ("i2t", "t2i"))
                curves.setdefault(model, []).append(Level(pairs, i2t, t2i))
    if any(level.pairs for levels in curves.values() for level in levels):
        draw_levels(
            curves, results / "pictures" / f"{_file_name(study.paper, LEVELS_FIGURE, collection.name, *changes)}.png"
        )


def with_row_folder(change: str, folder: Callable[[str], Path]) -> str:
    """Replace ``key=row:NAME`` by the run folder of that row with the same seed."""
    key, sign, name = change.partition("=row:")
    if not sign:
        return change
    found = folder(name)
    if not (found / WEIGHTS_FILE).is_file():
        raise UserError(f"row '{name}' has no run in {found}; run that row first")
    return f"{key}={found}"
