"""The run folder: settings, metrics and their curves, the best matcher, and the state to continue from after a kill."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.features.transformers_models import merged_adapters
from calligram.files import (
    LOCK_FILE,
    NEW_FOLDER,
    check_space,
    lock_folder,
    remove_leftovers,
    replace_file,
    replace_folder,
    replace_json,
    replace_text,
    scratch_folder,
    sync_tree,
)
from calligram.models import catalog
from calligram.models.catalog import (
    INPUTS_FOLDER,
    MATCHER_FILE,
    RUN_FILE,
    WEIGHTS_FILE,
    check_run_folder,
    load_from_run,
    read_run_file,
)
from calligram.models.damage import latest_state, state_errors
from calligram.models.matcher import Matcher
from calligram.models.old_settings import changed_settings, merge_settings

log = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
Tensors = Mapping[str, Tensor]
SAVING_SHARE, QUICK_SECONDS = 0.1, 1.0
"""saving states takes at most about this share of the time, unless one takes less than these seconds"""
MAX_COPY_SHARE = 0.1
"""weights that are being saved are copied on a GPU if they take at most this share of its free memory"""


@dataclass(frozen=True)
class Run:
    """A run folder. Files are replaced atomically; only ``metrics.jsonl`` is appended to, and cut back by resuming."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, about: Mapping[str, object]) -> Run:
        """Create a run folder, or open the one that is there. Call ``check`` first: it refuses other runs."""
        run = cls(folder)
        if (folder / RUN_FILE).is_file():
            run._remove_old_states()
            remove_leftovers(folder / INPUTS_FOLDER)
            for partial in folder.glob(".*.partial"):
                partial.unlink()
        else:
            folder.mkdir(parents=True, exist_ok=True)
            replace_json(folder / RUN_FILE, about, indent=1)
        return run

    @staticmethod
    @contextmanager
    def lock(folder: Path) -> Iterator[None]:
        """Lock a run folder for training. A new folder is removed again if the block does not create a run in it.

        Raises:
            UserError: when the folder is not one of a run, or another process trains in it.
        """
        is_run, existed = (folder / RUN_FILE).is_file(), folder.exists()
        leftovers = {LOCK_FILE, f".{RUN_FILE}.partial"}  # of a process that was killed before there was a run
        if not is_run and existed and (not folder.is_dir() or any(f.name not in leftovers for f in folder.iterdir())):
            raise UserError(f"{folder} exists and is not a run folder; choose another --out")
        with lock_folder(folder, "run"):
            try:
                yield
            finally:
                if not (folder / RUN_FILE).is_file():
                    (folder / LOCK_FILE).unlink(missing_ok=True)
                    if not existed:
                        folder.rmdir()

    @staticmethod
    def check(
        folder: Path,
        about: Mapping[str, object],
        *,
        resume: bool,
        defaults: Mapping[str, object] | None = None,
        read: Callable[[Path], Mapping[str, Any]] = read_run_file,
    ) -> None:
        """Refuse a folder that holds a run, and refuse to resume a run with other settings or a damaged state.

        Args:
            defaults: values for entries that the run does not have, because it is older than the setting.
            read: reads ``run.json``; recipes pass a function that translates renamed settings.
        """
        if not (folder / RUN_FILE).is_file():
            return
        if not resume:
            raise UserError(f"{folder} already contains a run; continue it with --resume, or choose another --out")
        before = merge_settings(defaults or {}, read(folder))
        for key in ("recipe", "settings", "collection", "content", "teachers"):
            if before.get(key) != json.loads(json.dumps(about.get(key))):
                raise UserError(
                    f"{folder} was started with other {key}: {changed_settings(before.get(key), about.get(key))}; "
                    "resume with the same, or choose another --out"
                )
        was, now = (entries.get("processes", 1) for entries in (before, about))
        if was != now:
            log.warning("%s was started with processes=%s and goes on with %s: its steps differ now", folder, was, now)
        latest_state(folder)  # before old states are removed

    @staticmethod
    def check_source_hash(folder: Path, what: str, now: str) -> None:
        """Refuse to resume a run whose training data had another hash; a run without a hash may continue."""
        if (folder / RUN_FILE).is_file() and read_run_file(folder).get(what, now) != now:
            raise UserError(
                f"{folder} was started with other {what}: their source has changed, or they were made on another "
                "machine; restore the source, or choose another --out"
            )

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Open a run that has a matcher."""
        check_run_folder(folder)
        return cls(folder)

    def __fspath__(self) -> str:
        """Return the folder, so that a run can be given wherever a folder of a run is expected."""
        return os.fspath(self.folder)

    @property
    def about(self) -> dict[str, Any]:
        """Recipe, settings, collection and versions."""
        return read_run_file(self.folder)

    @property
    def complete(self) -> bool:
        """Whether the training has ended."""
        if not (self.folder / RUN_FILE).is_file() or not (self.folder / WEIGHTS_FILE).is_file():
            return False
        return "seconds" in self.about

    def finish(self, seconds: float) -> None:
        """Record the training time over all calls."""
        self.add_entries(seconds=round(seconds, 1))

    def add_entries(self, **entries: object) -> None:
        """Add entries to ``run.json``, or replace them."""
        replace_json(self.folder / RUN_FILE, {**self.about, **entries}, indent=1)

    def describe(self, matcher: Matcher, inputs: Inputs) -> None:
        """Save the description of a matcher and its inputs. ``run.json`` names the class of a matcher from outside."""
        description = catalog.describe(matcher)
        with scratch_folder(self.folder / INPUTS_FOLDER) as scratch:
            inputs.save(scratch / NEW_FOLDER)
            sync_tree(scratch / NEW_FOLDER)
            replace_folder(scratch, self.folder / INPUTS_FOLDER)
        replace_text(self.folder / MATCHER_FILE, json.dumps(description, indent=1) + "\n")
        if "class" in description:
            self.add_entries(**{"class": description["class"]})

    def load(self) -> tuple[Matcher, Inputs]:
        """Load the best matcher and its inputs."""
        return load_from_run(self.folder)

    def save_best(self, weights: Mapping[str, Tensor]) -> None:
        """Save the weights with the best dev result; adapters are merged, so that the run loads without ``peft``."""
        merged = merged_adapters(weights) if any(".lora_" in name for name in weights) else weights
        _save_tensors(merged, self.folder / WEIGHTS_FILE)

    def log(self, row: Mapping[str, object]) -> None:
        """Append one line of metrics."""
        with (self.folder / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    @property
    def metrics_bytes(self) -> int:
        """Size of the metrics so far; a saved state keeps it, so that resuming cuts off what came later."""
        file = self.folder / METRICS_FILE
        return file.stat().st_size if file.is_file() else 0

    def metrics(self) -> list[dict[str, Any]]:
        """Read all lines of metrics; one that is not complete, because the disk was full, is left out."""
        file = self.folder / METRICS_FILE
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def save_state(self, step: int, tensors: Mapping[str, Tensors], position: Mapping[str, object]) -> None:
        """Save the state to continue from ``step``: named groups of tensors; the position, with ``metrics_bytes``."""
        target = self.folder / "state" / f"{step:09d}"
        with scratch_folder(target) as scratch:
            (scratch / NEW_FOLDER).mkdir()
            for name, group in tensors.items():
                _save_tensors(group, scratch / NEW_FOLDER / f"{name}.safetensors")
            replace_json(scratch / NEW_FOLDER / "position.json", position)
            replace_folder(scratch, target)
        replace_text(target.with_name("LATEST"), target.name)
        self._remove_old_states()

    def _remove_old_states(self) -> None:
        """Remove all states but the latest; a process that was killed may have left some."""
        latest = self.folder / "state" / "LATEST"
        kept = latest.read_text(encoding="utf-8").strip() if latest.is_file() else ""
        for old in latest.parent.iterdir() if latest.parent.is_dir() else ():
            if old.is_dir() and old.name != kept:
                shutil.rmtree(old)

    def load_state(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
        """Load the latest state and truncate the metrics to it; None if there is none. A damaged one is an error."""
        pointer = self.folder / "state" / "LATEST"
        if not pointer.is_file() or (latest := latest_state(self.folder)) is None:
            (self.folder / METRICS_FILE).unlink(missing_ok=True)
            return None
        folder, position = latest
        with state_errors(self.folder):
            tensors = {file.stem: load_file(file) for file in sorted(folder.glob("*.safetensors"))}
        if (self.folder / METRICS_FILE).is_file():
            os.truncate(self.folder / METRICS_FILE, min(self.metrics_bytes, int(position["metrics_bytes"])))
        return tensors, position


class BackgroundSaver:
    """Saves the best weights and the states of a run in order, in a thread, while training goes on.

    Tensors are copied at the call: on a GPU where there is room, since that takes a millisecond, and the thread then
    copies them to the host. Leaving the context waits for all files, also after an error. If saving a state takes
    seconds, the states of some epochs are left out, and their best weights are saved with the next one.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._thread = run, ThreadPoolExecutor(1)
        self._pending: list[Future[None]] = []
        self._best: Tensors | None = None  # until it is saved
        self._state: Future[None] | None = None
        self._began = self._took = 0.0  # of the last state

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(self, *_: object) -> None:
        with self._thread:
            self._submit_best()

    def save_best(self, weights: Mapping[str, Tensor]) -> None:
        """Save the weights with the best dev result."""
        self._best = _copied(weights)
        if self._is_due():
            self._submit_best()

    def save_state(self, step: int, tensors: Mapping[str, Tensors], position: Mapping[str, object]) -> None:
        """Save the state to continue from ``step``, with the metrics so far; the state after an epoch only if due."""
        if position.get("epoch") and not position.get("batch") and not self._is_due():
            return
        self._submit_best()
        began = time.monotonic()
        copied = {name: _copied(group) for name, group in tensors.items()}
        position = {**position, "metrics_bytes": self._run.metrics_bytes}

        def save() -> None:
            self._run.save_state(step, copied, position)
            self._took = time.monotonic() - began

        self._state, self._began = self._submit(save), began

    def wait(self, pending: int = 0) -> None:
        """Wait until at most ``pending`` saves are left; raise the error of a save that failed."""
        if not pending:
            self._submit_best()
        while len(self._pending) > pending:
            self._pending.pop(0).result()

    def _is_due(self) -> bool:
        """Whether the last state was saved quickly, or long ago."""
        since = time.monotonic() - self._began
        took = self._took if self._state is None or self._state.done() else since
        return took < QUICK_SECONDS or since >= took / SAVING_SHARE

    def _submit_best(self) -> None:
        if self._best is not None:  # the weights of a matcher without parameters are empty
            best, self._best = self._best, None
            self._submit(self._run.save_best, best)

    def _submit(self, save: Callable[..., None], *args: object) -> Future[None]:
        # The best weights and the state of one epoch, so that a slow disk does not fill the memory with copies.
        self.wait(pending=1)
        stream = torch.cuda.Stream() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())  # the copies on the GPU, and no later training step
        self._pending.append(self._thread.submit(_save_on, stream, save, *args))
        return self._pending[-1]


def _save_on(stream: torch.cuda.Stream | None, save: Callable[..., None], *args: object) -> None:
    """Save, and copy from a GPU on a stream of its own, next to training."""
    with torch.cuda.stream(stream):  # no stream leaves everything as it is
        save(*args)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the layout of a file: on the device of the tensors if there is room, else on the host."""
    layout = torch.contiguous_format
    if _room_on_gpu(tensors):
        with contextlib.suppress(torch.OutOfMemoryError):  # what is free may be in pieces
            return {k: v.detach().clone(memory_format=layout) for k, v in tensors.items()}
    return {k: v.detach().to("cpu", copy=True, memory_format=layout) for k, v in tensors.items()}


def _room_on_gpu(tensors: Mapping[str, Tensor]) -> bool:
    """Whether copies take a small part of the memory that is free on their GPU; False for tensors on the host."""
    gpu = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
    if gpu is None:
        return False
    unused = torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
    size = sum(tensor.nbytes for tensor in tensors.values())
    return size <= MAX_COPY_SHARE * (torch.cuda.mem_get_info(gpu)[0] + unused)


def load_run(folder: str | os.PathLike[str]) -> tuple[Matcher, Inputs]:
    """Load the best matcher of a run folder, and its inputs."""
    return Run.open(Path(folder)).load()


def _save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    check_space(file.parent, sum(tensor.nbytes for tensor in tensors.values()))
    with replace_file(file) as partial:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, partial)


def draw_curves(folder: Path, target: Path | None = None) -> Path:
    """Draw the training loss and the dev recalls over the steps, to ``curves.png`` in the run folder or to ``target``.

    If an objective measures classification errors, their means per epoch are drawn too (dual-path, Fig. 8).
    """
    from matplotlib.figure import Figure

    rows = Run(folder).metrics()
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    dev = [(row["step"], row["dev"]) for row in rows if "dev" in row]
    errors = errors_by_epoch(rows)
    figure = Figure(figsize=(13.5 if errors else 9, 3.4), layout="constrained")
    left, right, *third = figure.subplots(1, 3 if errors else 2)
    left.plot(*zip(*losses, strict=True), linewidth=0.8) if losses else None
    left.set(title="training loss", xlabel="step")
    for key in ("i2t_r1", "t2i_r1", "i2t_r10", "t2i_r10", "r1", "r5", "r10"):
        if dev and key in dev[0][1]:
            style = "--" if key.startswith("t2i") else "-"
            name = key.replace("_r", " R@") if "_" in key else key.replace("r", "localization R@")
            right.plot([s for s, _ in dev], [m[key] for _, m in dev], style, label=name)
    right.set(title="dev recall, %", xlabel="step", ylim=(0, 100))
    if dev:
        right.legend(frameon=False, fontsize=8)
    for axis in third:
        for name, values in errors.items():
            steps, means = zip(*values, strict=True)
            label = name.removesuffix("_error").replace("_", " ")
            axis.plot(steps, [100 * value for value in means], ".-", label=label)
        axis.set(title="training error of each epoch, %", xlabel="step", ylim=(0, 100))
        axis.legend(frameon=False, fontsize=8)
    target = target or folder / "curves.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(target) as partial:
        figure.savefig(partial, dpi=110, format="png")
    return target


def errors_by_epoch(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """For every term named ``..._error`` and every epoch: the last logged step, and the mean over the logged steps."""
    found: dict[str, dict[tuple[str, int], list[tuple[int, float]]]] = {}
    for row in rows:
        for name in row:
            if name.endswith("_error"):
                epochs = found.setdefault(name, {})
                epochs.setdefault((row["stage"], row["epoch"]), []).append((row["step"], row[name]))
    return {name: [(own[-1][0], mean(v for _, v in own)) for own in each.values()] for name, each in found.items()}
