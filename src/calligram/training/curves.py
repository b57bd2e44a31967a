"""Figures of a run's metrics, and metrics for TensorBoard."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from calligram.errors import UserError
from calligram.extras import require
from calligram.training.runs import Run


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
            axis.plot(
                steps, [100 * value for value in means], ".-", label=name.removesuffix("_error").replace("_", " ")
            )
        axis.set(title="training error of each epoch, %", xlabel="step", ylim=(0, 100))
        axis.legend(frameon=False, fontsize=8)
    target = target or folder / "curves.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)
    return target


def draw_comparison(runs: Mapping[str, Path], target: Path) -> Path:
    """Draw the dev R@1 of several runs over their epochs, one panel for each direction (aoq, Fig. 4).

    Epochs are counted over all stages; for a run with rounds over the last round only, as in the paper.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for name, folder in runs.items():
        shown = last_round_metrics(Run(folder).metrics())
        for axis, key in zip(axes, ("i2t_r1", "t2i_r1"), strict=True):
            axis.plot(range(1, len(shown) + 1), [found[key] for found in shown], ".-", label=name)
    for axis, title in zip(axes, ("texts for images", "images for texts"), strict=True):
        axis.set(title=f"{title}: dev R@1, %", xlabel="epoch")
        axis.legend(frameon=False, fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)
    return target


def last_round_metrics(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, float]]:
    """Dev metrics of each epoch: of all stages, or of the last round if stage names begin with ``round 1, ``."""
    dev = [row for row in rows if "dev" in row]
    last = dev[-1]["stage"].partition(",")[0] if dev else ""
    return [row["dev"] for row in dev if not last.startswith("round ") or row["stage"].partition(",")[0] == last]


def errors_by_epoch(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """For every term named ``..._error`` and every epoch: the last logged step, and the mean over the logged steps."""
    found: dict[str, dict[tuple[str, int], list[tuple[int, float]]]] = {}
    for row in rows:
        for name in row:
            if name.endswith("_error"):
                epochs = found.setdefault(name, {})
                epochs.setdefault((row["stage"], row["epoch"]), []).append((row["step"], row[name]))
    return {
        name: [(logged[-1][0], mean(value for _, value in logged)) for logged in epochs.values()]
        for name, epochs in found.items()
    }


log = logging.getLogger(__name__)


class TensorBoardWriter:
    """Writes scalars to ``tensorboard/`` in a run folder; does nothing without the ``tensorboard`` extra."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        try:
            self._writer = _summary_writer()
        except UserError as error:
            log.info("metrics are only in metrics.jsonl: %s", error)
        self._open: Any = None

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add scalars at a step; the first call after a resume hides later steps of the earlier process."""
        if self._writer is None:
            return
        if self._open is None:
            self._open = self._writer(str(self._folder / "tensorboard"), purge_step=step)
        for name, value in values.items():
            self._open.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        if self._open is not None:
            self._open.close()


def _summary_writer() -> Any:
    tensorboard = require("torch.utils.tensorboard", extra="tensorboard", purpose="TensorBoard", package="tensorboard")
    return tensorboard.SummaryWriter
