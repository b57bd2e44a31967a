"""One row of a study with one seed: its run folder, its training, its test, and its own process.

``python -m calligram.studies.rows`` is the process of one row. It reads a job as one line of JSON from its standard
input, and writes its progress and its result as lines of JSON. It ends when its standard input is closed, so no process
is left when the command is killed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from calligram.data.collection import Collection
from calligram.data.pictures import share_cores
from calligram.device import device_named
from calligram.errors import UserError
from calligram.evaluation.distributions import draw_overlap
from calligram.evaluation.figures import draw_found_images, draw_found_texts, draw_map
from calligram.evaluation.localization import evaluate_localization, load_phrases
from calligram.evaluation.recall import EncodedPairing
from calligram.evaluation.retrieval import Floats, evaluate_retrieval
from calligram.lazy import import_code
from calligram.models.catalog import WEIGHTS_FILE
from calligram.recipes.catalog import Preset, find_preset
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import Plan, RunContext, epochs_factor, run_preset, with_more_epochs
from calligram.studies.claims import Row, with_assets_path
from calligram.studies.results import Result, file_name, localization_line, result_line, settings_of
from calligram.training.loop import Stage
from calligram.training.runs import Run, draw_curves

T = TypeVar("T")

MESSAGE_SECONDS = 0.5
"""time between two messages of a process about its progress"""
ERROR_LETTERS = 240
"""largest length of the error of a row outside its log"""


@dataclass(frozen=True)
class RowJob:
    """A row with a seed: everything that its process needs."""

    paper: str
    row: Row
    seed: int
    collection: str
    """name of the collection"""
    results: Path
    runs: Path
    changes: tuple[str, ...] = ()
    """settings of every row"""
    figures: frozenset[str] = frozenset()
    """figures of the test split besides the first results: map, sheets, overlap"""

    @property
    def title(self) -> str:
        """Paper, row and seed, for messages."""
        return f"{self.paper}: {self.row.name}, seed {self.seed}"

    @property
    def needed_rows(self) -> list[str]:
        """Rows whose runs this row uses (``key=row:NAME``)."""
        return needed_rows(self.row)

    def name(self, row: str = "") -> str:
        """Return the name of the run folder of this row, or of another row with the same seed."""
        return file_name(self.paper, row or self.row.name, self.collection, *self.changes, str(self.seed))

    def folder(self, row: str = "") -> Path:
        """Return the run folder of this row, or of another row with the same seed."""
        return self.runs / self.name(row)

    @property
    def log_file(self) -> Path:
        """What the process of this row prints."""
        return self.runs / "logs" / f"{self.name()}.log"

    def as_json(self) -> dict[str, Any]:
        """Return the job as JSON values."""
        return {**asdict(self), "results": str(self.results), "runs": str(self.runs), "figures": sorted(self.figures)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> RowJob:
        """Read what ``as_json`` returns."""
        row = Row(**{**content["row"], "changes": tuple(content["row"]["changes"])})
        paths = {name: Path(content[name]) for name in ("results", "runs")}
        others = {"changes": tuple(content["changes"]), "figures": frozenset(content["figures"])}
        return cls(**{**content, "row": row, **paths, **others})


def needed_rows(row: Row) -> list[str]:
    """Return the names of the rows whose runs a row uses (``key=row:NAME``)."""
    return [change.partition("=row:")[2] for change in row.changes if "=row:" in change]


def with_row_folder(change: str, folder: Callable[[str], Path]) -> str:
    """Replace ``key=row:NAME`` by the run folder of that row with the same seed."""
    key, sign, name = change.partition("=row:")
    if not sign:
        return change
    found = folder(name)
    if not (found / WEIGHTS_FILE).is_file():
        raise UserError(f"row '{name}' has no run in {found}; run that row first")
    return f"{key}={found}"


def run_row(job: RowJob, collection: Collection, context: RunContext, progress: RowProgress | None = None) -> Result:
    """Train a row, or continue its training, and measure it on the test split."""
    preset, out = find_preset(job.row.preset), job.folder()
    given = [with_row_folder(c, job.folder) for c in (*job.changes, *job.row.changes, f"seed={job.seed}")]
    settings = resolve(preset.defaults, [with_assets_path(c) for c in given])
    flags = " ".join(f"--set {c}" for c in given)
    command = f"calligram train {job.row.preset} {collection.folder} --out {out} {flags}"
    plan = progress.observed_plan(preset, collection) if progress else None
    run_preset(preset, settings, collection, out, resume=out.exists(), context=context, command=command, plan=plan)
    if progress:
        progress.send(doing="test", left=None, dev=progress.dev())
    return replace(_measure(job, collection, context), settings=settings_of(job.row, job.changes))


def _measure(job: RowJob, collection: Collection, context: RunContext) -> Result:
    """Measure a trained row on the test split, and draw its figures."""
    out, row, plain = job.folder(), job.row, job.name()
    study = f"{job.paper}: {row.name}"
    run = Run.open(out)
    matcher, inputs = run.load()
    matcher, inputs = matcher.to(context.device), inputs.to(context.device)
    # Sheets of photographs stay in the run folder for copyright reasons; sheets of scenes are published.
    shown = job.results / "pictures"
    sheet = shown / f"{plain}-found.png" if collection.generated else out / "found.png"
    pictures = [file for file in (sheet, shown / f"{plain}-curves.png") if file.parent != out] if job.seed == 0 else []
    if pictures:
        draw_curves(out, pictures[-1])
    if inputs.images.region_input is not None:
        phrases = load_phrases(inputs, collection, "test", track=context.track)
        localized = evaluate_localization(matcher, inputs, phrases)
        return localization_line(run, collection, "test", localized, study=study, pictures=pictures[-1:])
    by_identity = collection.has_identities("test")
    test = collection.identities("test") if by_identity else collection.sentences("test")
    both = [sheet.with_name(sheet.name.replace("found", f"found-{side}")) for side in ("texts", "images")]
    if "map" in job.figures:
        pictures.append(shown / f"{plain}-map.png")
    if "sheets" in job.figures and collection.generated:
        pictures += both

    def draw(encoded: EncodedPairing, scores: Floats) -> None:
        if job.seed == 0:
            draw_found_images(scores, test, sheet, queries=3)
        if "map" in job.figures:
            draw_map(encoded, test.matches, shown / f"{plain}-map.png", row.name)
        if "sheets" in job.figures:  # (mmca, Figs. 4 and 5)
            draw_found_texts(scores, test, both[0], queries=4, first=5)
            draw_found_images(scores, test, both[1], queries=4, first=4)

    report = evaluate_retrieval(
        matcher, inputs, test, within_modality=True, on_scores=draw, alone=True, track=context.track
    )
    if "overlap" in job.figures and report.overlap is not None:
        pictures.append(shown / f"{plain}-overlap.png")
        draw_overlap(report.overlap, pictures[-1], row.name)
    by = "identities" if by_identity else ""
    return result_line(run, collection, "test", report, study=study, by=by, pictures=pictures)


class RowProgress:
    """Sends the progress of a row: a ``Track`` that knows the epochs of all stages."""

    def __init__(self, folder: Path, write: Callable[[dict[str, Any]], None]) -> None:
        self.folder, self._write = folder, write
        self._stages: tuple[Stage, ...] = ()
        self._start: tuple[float, float] | None = None
        """time and share of the first step of this process"""
        self._sent = 0.0

    def send(self, **values: Any) -> None:
        """Send values now."""
        self._sent = time.monotonic()
        self._write(values)

    def observed_plan(self, preset: Preset, whole: Collection) -> Callable[[Any, Collection, RunContext], Plan]:
        """Return the plan function of a preset, which also tells the stages to this object."""

        def plan(settings: Any, collection: Collection, context: RunContext) -> Plan:
            made = preset.recipe.plan(settings, collection, context)
            self._stages = with_more_epochs(made.stages, epochs_factor(settings, whole, collection))
            return made

        return plan

    def __call__(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        """Yield the items, and send how far the row is."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        before = self._epochs_before(label)
        if before is not None:
            self.send(doing=f"epoch {before + 1}/{sum(s.epochs for s in self._stages)}", dev=self.dev())
        for done, item in enumerate(items, 1):
            yield item
            if time.monotonic() - self._sent < MESSAGE_SECONDS:
                continue
            if before is not None:
                self.send(left=self._left(before, done / total if total else 0.0))
            elif self._start is None:  # measurements on dev between epochs are not worth a message
                self.send(doing=f"{label} {done}/{total}" if total else label)

    def _epochs_before(self, label: str) -> int | None:
        """Return the number of epochs before the one of this label, ``STAGE i/n``; None for other labels."""
        name, _, position = label.rpartition(" ")
        before = 0
        for stage in self._stages:
            if stage.name == name and position.endswith(f"/{stage.epochs}"):
                return before + int(position.partition("/")[0]) - 1
            before += stage.epochs
        return None

    def _left(self, before: int, of_epoch: float) -> float | None:
        """Return the seconds until the end of training, if all steps take the same time."""
        share = work = 0.0
        for stage in self._stages:
            steps = len(stage.batches)
            share += steps * min(max(before + of_epoch, 0), stage.epochs)
            work += steps * stage.epochs
            before -= stage.epochs
        share /= max(work, 1)
        now = time.monotonic()
        if self._start is None:
            self._start = now, share
        began, first = self._start
        return (now - began) / (share - first) * (1 - share) if share > first else None

    def dev(self) -> list[float]:
        """Return the selected metric on dev after each epoch."""
        found = [line["dev"] for line in Run(self.folder).metrics() if "dev" in line]
        return [float(dev.get("rsum", dev.get("r1", 0.0))) for dev in found]


def is_out_of_memory(error: Exception) -> bool:
    """Whether GPU memory was too small; some libraries raise another class than torch."""
    words = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


def is_gpu_fault(error: Exception) -> bool:
    """Whether the GPU reported a fault. With MPS it ends all processes that use the GPU, not only the failed one."""
    words = ("illegal memory access", "unspecified launch failure", "illegal instruction", "device-side assert", "MPS")
    return any(word in str(error) for word in words)


def first_sentence(text: str) -> str:
    """Return the first sentence of an error message, without its full stop, on one line that is not too long."""
    line = text.strip().partition("\n")[0]
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z])", line, maxsplit=1)[0].removesuffix(".")
    return sentence if len(sentence) <= ERROR_LETTERS else f"{sentence[: ERROR_LETTERS - 3]}..."


def _exit_with_parent() -> None:
    """End this process when its standard input is closed; the state of a run survives that at any time."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main() -> None:
    """Run the row of the job on standard input."""
    given = json.loads(sys.stdin.readline())
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print belongs to the log
    threading.Thread(target=_exit_with_parent, daemon=True).start()

    def write(values: dict[str, Any]) -> None:
        channel.write(json.dumps(values) + "\n")
        channel.flush()

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("calligram").setLevel(logging.INFO)
    torch.set_num_threads(1)
    share_cores(given["processes"])
    job = RowJob.from_json(given["job"])
    try:
        for name in given["imports"]:
            import_code(name)
        progress = RowProgress(job.folder(), write)
        context = RunContext(device_named(given["device"]), track=progress)
        result = run_row(job, Collection.open(Path(given["collection"])), context, progress)
    except Exception as error:
        traceback.print_exc()  # in full, to the log
        full = is_out_of_memory(error)
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        advice = "; continue with fewer --workers" if full else ""
        message = f"{kind}{first_sentence(str(error))}{advice}"
        write({"error": message, "out_of_memory": full, "gpu_fault": is_gpu_fault(error)})
        sys.exit(1)
    write({"result": asdict(result)})


if __name__ == "__main__":
    main()
