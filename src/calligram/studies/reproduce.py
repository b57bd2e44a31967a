"""Runs the rows of a study side by side, draws its figures, and judges its claims."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from calligram.data.collection import Collection
from calligram.device import device_name, device_named
from calligram.errors import unknown
from calligram.lazy import ALLOWED_CODE
from calligram.models.catalog import WEIGHTS_FILE
from calligram.recipes.catalog import find_preset
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext
from calligram.studies.claims import Claim, Study, Verdict
from calligram.studies.results import (
    CLAIMS_FILE,
    COMPARED_FIGURE,
    LEVELS_FIGURE,
    Result,
    append_result,
    results_of_rows,
    runs_of_rows,
)
from calligram.studies.row_server import RowProcess, RowServer
from calligram.studies.rows import RowJob, RowState, file_name, is_trained, needed_rows, prepare_inputs, run_row
from calligram.studies.verdicts import judge_claims, store_verdicts
from calligram.training.runs import draw_comparison

Say = Callable[[str], None]
Watch = Callable[[Sequence[RowState]], None]

ROW_GPU_BYTES = 6 << 30
"""GPU memory that a row may need, for the default number of processes"""
REFRESH_SECONDS = 0.5
"""time between two updates of the display when no process reports anything"""


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
    workers: int | None = 0,
    context: RunContext | None = None,
    say: Say = lambda line: None,
    watch: Watch = lambda rows: None,
) -> list[Verdict]:
    """Train and test the rows without results, then write the verdicts.

    Rows run in the order in which claims can be decided. No row starts after the budget is used up; the next call
    continues. A row that fails in a process of its own does not stop the others; ``watch`` gets it with its error.

    Args:
        runs: folder of the run folders; a stopped row is resumed there.
        changes: settings of every row, such as a shorter schedule; they are part of the recorded settings.
        only: patterns of names of rows, such as ``phrases*``; all rows where empty. Rows that they need are run too.
        workers: number of rows that run side by side, in processes with one thread each; None for as many as cores and
            GPU memory allow. 0 runs one row after another in this process, where the first error stops everything.
        watch: called with the state of all rows, at least every half second while rows run side by side.
    """
    for pattern in only:
        if not any(fnmatchcase(row.name, pattern) for row in study.rows):
            raise unknown(f"row of {study.paper}", pattern, [row.name for row in study.rows])
    context = context or RunContext(device_named())
    hardware = device_name(context.device, None if workers == 0 else 1)
    rows = plan_rows(
        study, collection, results=results, runs=runs, hardware=hardware, seeds=seeds, changes=changes, only=only
    )
    began = time.monotonic()

    def may_start() -> bool:
        return budget_minutes is None or time.monotonic() - began <= 60 * budget_minutes

    def finish(row: RowState) -> None:
        if row.result is not None:
            _record(row, results / f"{study.paper}.jsonl")
        say(row.outcome)

    if workers == 0:
        for row in rows:
            if may_start():
                say(row.job.title)
                row.start()
                row.result = run_row(row.job, collection, context)
                row.end()
                finish(row)
    elif rows:
        if may_start():
            prepare_inputs([row.job for row in rows], collection, context)
        count = default_workers(context.device, len(rows)) if workers is None else workers
        RowPool(rows, collection.folder, count, context.device).run(finish, may_start, watch)
    if any(row.state == "waiting" for row in rows):
        say("the time budget is used up; the same command continues from here")
    _draw_compared(study, collection.name, results, runs, changes)
    _draw_levels(study, collection, results, changes)
    verdicts = judge_claims(study, collection.name, results, changes)
    store_verdicts(verdicts, results / CLAIMS_FILE)
    return verdicts


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
    seeds: int,
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
            if (other, seed) not in found and not is_trained(job.folder(other)):
                add(other, seed)
        found[name, seed] = RowState(job, recorded=(name, seed, hardware) in done)

    def missing(*names: str) -> list[tuple[str, int]]:
        runs_to_do: dict[tuple[str, int], None] = {}
        exact = {name for name in names if study.row(name).deterministic}
        for seed in range(1 if exact == set(names) else seeds):
            of_rows = {name: 0 if name in exact else seed for name in names}  # one run of an exact row is enough
            places = [{h for n, s, h in done if (n, s) == key} for key in of_rows.items()]
            if not set.intersection(*places):
                runs_to_do |= {key: None for key in of_rows.items() if (*key, hardware) not in done}
        return [key for key in runs_to_do if key not in found]

    chosen = [
        row.name
        for row in study.rows
        if possible(row.name) and (not only or any(fnmatchcase(row.name, pattern) for pattern in only))
    ]
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


def default_workers(device: torch.device, rows: int) -> int:
    """Return how many rows run side by side: at most one for each core, and for each 6 GiB of free GPU memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if device.type == "cuda":
        cores = min(cores, torch.cuda.mem_get_info(device)[0] // ROW_GPU_BYTES)
    return max(1, min(cores, rows))


class RowPool:
    """Runs rows side by side, one process for each row, with one thread each."""

    def __init__(self, rows: Sequence[RowState], collection: Path, workers: int, device: torch.device) -> None:
        self.rows, self._collection, self._workers, self._device = rows, collection, workers, device
        self._server = RowServer()
        self._processes: dict[int, RowProcess] = {}
        self._messages: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._by_key = {(row.job.row.name, row.job.seed): row for row in rows}

    def run(self, finish: Callable[[RowState], None], may_start: Callable[[], bool], watch: Watch) -> None:
        """Run all rows; when this function is left, also by an exception, no process is left.

        Args:
            finish: called after each row, in this process.
            may_start: whether a further row may start.
        """
        with self._server:
            while True:
                for number in self._ready(finish) if may_start() else ():
                    if len(self._processes) < self._workers:
                        self._start(number)
                watch(self.rows)
                if not self._processes:
                    return
                with contextlib.suppress(queue.Empty):
                    number, message = self._messages.get(timeout=REFRESH_SECONDS)
                    row = self.rows[number]
                    if message is None:
                        self._end(number)
                        finish(row)
                    elif "result" in message:
                        row.result = Result(**message["result"])
                    else:
                        for name, value in message.items():
                            setattr(row, name, value)

    def _ready(self, finish: Callable[[RowState], None]) -> list[int]:
        """Return the rows that can start now; rows that need a failed row fail."""
        found = []
        for number, row in enumerate(self.rows):
            if row.state != "waiting":
                continue
            needed = [self._by_key.get((name, row.job.seed)) for name in row.job.needed_rows]
            failed = [other.job.row.name for other in needed if other is not None and other.state == "failed"]
            if failed:
                row.end(f"it needs row '{failed[0]}', which failed")
                finish(row)
            elif all(other is None or other.state == "done" for other in needed):
                found.append(number)
        return found

    def _start(self, number: int) -> None:
        row = self.rows[number]
        row.start()
        row.job.log_file.parent.mkdir(parents=True, exist_ok=True)
        with row.job.log_file.open("ab") as log:
            self._processes[number] = process = self._server.start(number, log)
        job = {"job": row.job.as_json(), "collection": str(self._collection), "device": str(self._device)}
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({**job, "imports": ALLOWED_CODE}) + "\n")
            process.stdin.flush()
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()

    def _listen(self, number: int, process: RowProcess) -> None:
        with contextlib.suppress(ValueError):  # a process that is killed may leave half a line
            for line in process.stdout:
                self._messages.put((number, json.loads(line)))
        self._messages.put((number, None))

    def _end(self, number: int) -> None:
        row, process = self.rows[number], self._processes.pop(number)
        code = process.wait()
        process.close()
        if row.result is not None and not code:
            row.end()
        elif code is not None and code < 0:
            name = signal.Signals(-code).name
            row.end(f"it was killed by {name}; the same command continues it (with fewer --workers if memory ran out)")
        elif code is None:
            row.end(row.error or f"the process that starts rows has ended; {row.job.log_file} may say why")
        else:
            row.end(row.error or f"its process ended with status {code}")


def _draw_compared(study: Study, collection: str, results: Path, runs: Path, changes: tuple[str, ...]) -> None:
    """Draw the dev curves of several rows, for the rows with a run folder."""
    for group in study.compared:
        folders = {name: runs / file_name(study.paper, name, collection, *changes, "0") for name in group}
        there = {name: folder for name, folder in folders.items() if (folder / WEIGHTS_FILE).is_file()}
        if len(there) > 1:
            name = file_name(study.paper, group[0], COMPARED_FIGURE, collection, *changes)
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
            curves, results / "pictures" / f"{file_name(study.paper, LEVELS_FIGURE, collection.name, *changes)}.png"
        )
