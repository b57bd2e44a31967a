"""Runs the rows of a study side by side, draws its figures, and judges its claims."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from calligram.data.collection import Collection
from calligram.device import device_name, device_named
from calligram.errors import UserError, unknown
from calligram.evaluation.compare import draw_dev_curves
from calligram.models.catalog import WEIGHTS_FILE
from calligram.recipes.catalog import find_preset
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext
from calligram.studies.claims import Claim, Study, Verdict
from calligram.studies.results import (
    CLAIMS_FILE,
    COMPARED_FIGURE,
    LEVELS_FIGURE,
    append_result,
    file_name,
    judge_claims,
    results_of_rows,
    runs_of_rows,
    store_verdicts,
)
from calligram.studies.row_pool import InputPreparation, RowPool, RowState, Say, Watch, default_workers, free_gpu_bytes
from calligram.studies.rows import RowJob, needed_rows, run_row
from calligram.training.runs import Run


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
    study: Study | Sequence[Study],
    collection: Collection,
    *,
    results: Path,
    runs: Path,
    seeds: int = 3,
    first_seed: int = 0,
    budget_minutes: float | None = None,
    changes: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    workers: int | None = 0,
    context: RunContext | None = None,
    say: Say = lambda line: None,
    watch: Watch = lambda rows: None,
) -> list[Verdict]:
    """Train and test the rows without results, then write the verdicts.

    Rows run in the order in which claims can be decided. No row starts after the budget is used up; the next call
    continues. A row that fails in a process of its own does not stop the others; ``watch`` gets it with its error.

    Args:
        study: one study, or several whose rows run side by side; rows of the first one are first.
        runs: folder of the run folders; a stopped row is resumed there.
        first_seed: of the ``seeds`` seeds of a row, counted from 0, smaller ones are left to another machine.
        changes: settings of every row, such as a shorter schedule; they are part of the recorded settings.
        only: patterns of rows, such as ``phrases*`` or ``aoq: vse*``; rows that they need are run too. Empty for all.
        workers: largest number of rows that run side by side, in processes with one thread each; None for one for each
            core. On a GPU, fewer run where memory is short. 0 runs one row after another in this process, where the
            first error stops everything.
        watch: called with the state of all rows, at least every half second while rows run side by side.
    """
    studies = [study] if isinstance(study, Study) else list(study)
    _check_patterns(studies, only)
    context = context or RunContext(device_named())
    hardware = device_name(context.device, None if workers == 0 else 1)
    wanted = _seed_range(first_seed, seeds)
    rows = [
        row
        for one in studies
        for row in plan_rows(
            one, collection, results=results, runs=runs, hardware=hardware, seeds=wanted, changes=changes, only=only
        )
    ]
    began = time.monotonic()

    def may_start() -> bool:
        return budget_minutes is None or time.monotonic() - began <= 60 * budget_minutes

    def finish(row: RowState) -> None:
        if row.result is not None:
            _record(row, results / f"{row.job.paper}.jsonl")
        say(row.outcome)

    if workers == 0:
        for row in rows:
            if may_start():
                say(row.job.title)
                row.start()
                row.result = run_row(row.job, collection, context)
                row.end()
                finish(row)
    elif rows and may_start():
        inputs = InputPreparation([row.job for row in rows], collection, context).start()
        count = default_workers(len(rows)) if workers is None else workers
        pool = RowPool(rows, collection.folder, count, context.device, free_gpu_bytes(context.device), say, inputs)
        pool.run(finish, may_start, watch)
    if any(row.state == "waiting" for row in rows):
        say("the time budget is used up; the same command continues from here")
    verdicts = []
    for one in studies:
        _draw_compared(one, collection.name, results, runs, changes)
        _draw_levels(one, collection, results, changes)
        verdicts += judge_claims(one, collection.name, results, changes)
    store_verdicts(verdicts, results / CLAIMS_FILE)
    return verdicts


def _seed_range(first: int, seeds: int) -> range:
    """Return the seeds to run; refuse a first seed that leaves none."""
    if first >= seeds:
        raise UserError(
            f"no seed is left: the seeds are below {seeds}, and the first one is {first}; "
            f"give a first seed below {seeds}, or more seeds"
        )
    return range(first, seeds)


def _check_patterns(studies: Sequence[Study], only: Sequence[str]) -> None:
    """Refuse a pattern that fits no row."""
    for pattern in only:
        if not any(_is_chosen(study, row.name, [pattern]) for study in studies for row in study.rows):
            names = [row.name for study in studies for row in study.rows]
            raise unknown(f"row of {' and '.join(study.paper for study in studies)}", pattern, names)


def _is_chosen(study: Study, row: str, only: Sequence[str]) -> bool:
    """Whether a pattern fits the name of a row, with or without the name of its study; True without patterns."""
    return not only or any(fnmatchcase(name, each) for name in (row, f"{study.paper}: {row}") for each in only)


def _record(row: RowState, file: Path) -> None:
    """Append the result of a row, and delete its state of training."""
    assert row.result is not None
    if not row.recorded:
        append_result(file, row.result)
    # Only now: a row that is stopped during its evaluation is not trained again.
    shutil.rmtree(row.job.folder() / "state", ignore_errors=True)


def plan_rows(
    study: Study,
    collection: Collection,
    *,
    results: Path,
    runs: Path,
    hardware: str,
    seeds: range,
    changes: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
) -> list[RowState]:
    """Return the rows and seeds to run, in the order in which claims can be decided.

    The claim with the fewest missing runs is first: its rows with seed 0, then with seed 1, and so on. Two results are
    a pair only if they are of the same hardware; without a pair, both rows are run on this hardware. A row comes after
    the rows whose runs it uses. Rows without a claim that can be decided are last.
    """
    lines = runs_of_rows(study, collection.name, results, changes)
    done = {(name, line.seed, line.hardware) for name, of_row in lines.items() for line in of_row}
    found: dict[tuple[str, int], RowState] = {}

    def possible(name: str) -> bool:
        row = study.row(name)
        return (not row.needs or collection.has(row.needs)) and all(possible(other) for other in needed_rows(row))

    def add(name: str, seed: int) -> None:
        row = study.row(name)
        job = RowJob(study.paper, row, seed, collection.name, results, runs, changes, _figures(study, name, seed))
        for other in needed_rows(row):
            if (other, seed) not in found and not Run(job.folder(other)).complete:
                add(other, seed)
        found[name, seed] = RowState(job, recorded=(name, seed, hardware) in done)

    def missing(*names: str) -> list[tuple[str, int]]:
        runs_to_do: dict[tuple[str, int], None] = {}
        exact = {name for name in names if study.row(name).deterministic}
        for seed in seeds[:1] if exact == set(names) else seeds:
            of_rows = {name: 0 if name in exact else seed for name in names}  # one run of an exact row is enough
            places = [{h for n, s, h in done if (n, s) == key} for key in of_rows.items()]
            if not set.intersection(*places):
                runs_to_do |= {key: None for key in of_rows.items() if (*key, hardware) not in done}
        return [key for key in runs_to_do if key not in found]

    chosen = [row.name for row in study.rows if possible(row.name) and _is_chosen(study, row.name, only)]
    claims = [c for c in study.claims if not c.needs and c.better in chosen and c.worse in chosen]

    def missing_runs(claim: Claim) -> int:
        return len(missing(claim.better, claim.worse))

    while claims:
        claim = min(claims, key=missing_runs)
        claims.remove(claim)
        for key in missing(claim.better, claim.worse):
            if key not in found:
                add(*key)
    for key in sorted((key for name in chosen for key in missing(name)), key=lambda key: key[1]):
        if key not in found:
            add(*key)
    return list(found.values())


def _figures(study: Study, row: str, seed: int) -> frozenset[str]:
    """Return the figures of the test split that are drawn for a row, besides the first results."""
    if seed:
        return frozenset()
    compared = any(c.metric == "overlap" and row in (c.better, c.worse) for c in study.claims)
    drawn = {"map": row in study.mapped, "sheets": row in study.sheets, "overlap": compared}
    return frozenset(name for name, wanted in drawn.items() if wanted)


def _draw_compared(study: Study, collection: str, results: Path, runs: Path, changes: tuple[str, ...]) -> None:
    """Draw the dev curves of several rows, for the rows with a run folder."""
    for group in study.compared:
        folders = {name: runs / file_name(study.paper, name, collection, *changes, "0") for name in group}
        there = {name: folder for name, folder in folders.items() if (folder / WEIGHTS_FILE).is_file()}
        if len(there) > 1:
            name = file_name(study.paper, group[0], COMPARED_FIGURE, collection, *changes)
            metrics = {row: Run(folder).metrics() for row, folder in there.items()}
            draw_dev_curves(metrics, results / "pictures" / f"{name}.png")


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
            curves, results / "pictures" / f"{file_name(study.paper, LEVELS_FIGURE, collection.name, *changes)}.png"
        )
