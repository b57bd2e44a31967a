"""The metrics of training: how they are read from the device and checked, and the programs that get them besides
``metrics.jsonl``: TensorBoard, Weights & Biases, MLflow.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from calligram.errors import UserError, unknown
from calligram.extras import install_command, missing_modules, require
from calligram.training.objectives.objective import CollapseDetector, Objective, VectorSpread
from calligram.training.runs import Run

log = logging.getLogger(__name__)

LOGGERS_KEY = "loggers"
"""entry of ``run.json`` with the name of the run in each program, so that a resumed run continues there"""
MAX_PARAMETER_CHARACTERS = 500
"""longest value of a setting that MLflow stores"""


class MetricLogger(Protocol):
    """Takes numbers at steps of training."""

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add numbers by name at a step."""

    def close(self) -> None:
        """Write everything that is left."""


class _Reading(NamedTuple):
    """Numbers of a step that are on their way from a GPU."""

    step: int
    row: Mapping[str, object]
    names: Sequence[str]
    numbers: Tensor
    arrived: torch.cuda.Event


class StepLog:
    """Checks and logs the numbers of training steps.

    On a GPU, the numbers of every ``log_steps``-th step are read, and the host does not wait for them: they are copied
    behind the step, and are checked and logged a few steps later. The next steps are queued meanwhile, so the GPU never
    waits for the host.
    """

    def __init__(
        self, run: Run, loggers: Sequence[MetricLogger], log_steps: int, device: torch.device, *, writes: bool
    ) -> None:
        """Args:
        writes: whether this is the process that writes files.
        """
        self._run, self._loggers, self._log_steps, self._device = run, loggers, log_steps, device
        self._writes = writes
        self._collapse_detector = CollapseDetector()
        self._reading: _Reading | None = None

    def add(self, step: int, row: Mapping[str, object], terms: Mapping[str, Tensor], objective: Objective) -> None:
        """Take the numbers of a step.

        Args:
            row: further entries of the line in ``metrics.jsonl``.
            terms: losses and measures.
            objective: has the spread of the vectors of the step, which is computed on use.
        """
        if self._device.type == "cpu":
            self._check(step, row, {name: float(value) for name, value in terms.items()}, objective.spread)
            return
        if self._reading is not None and self._reading.arrived.query():  # type: ignore[no-untyped-call]
            self.flush()
        if step % self._log_steps:
            return
        self.flush()
        found, spread = dict(terms), objective.spread
        if spread is not None:
            found |= {"spread of images": spread.images, "spread of texts": spread.texts}
        numbers = torch.stack([value.detach().to(self._device, torch.float32).reshape(()) for value in found.values()])
        if self._device.type == "cuda":
            on_host = torch.empty(len(found), pin_memory=True).copy_(numbers, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
            self._reading = _Reading(step, row, list(found), on_host, arrived)
        else:
            self._end(step, row, dict(zip(found, numbers.tolist(), strict=True)))

    def flush(self) -> None:
        """Check and log the numbers that are on their way; before anything that must come after them."""
        if self._reading is not None:
            reading, self._reading = self._reading, None
            reading.arrived.synchronize()
            self._end(reading.step, reading.row, dict(zip(reading.names, reading.numbers.tolist(), strict=True)))

    def _end(self, step: int, row: Mapping[str, object], values: dict[str, float]) -> None:
        spread = None
        if "spread of images" in values:
            spread = VectorSpread(*(torch.tensor(values.pop(f"spread of {side}")) for side in ("images", "texts")))
        self._check(step, row, values, spread)

    def _check(
        self, step: int, row: Mapping[str, object], values: Mapping[str, float], spread: VectorSpread | None
    ) -> None:
        self._collapse_detector.check(step, values, spread)
        if self._writes and step % self._log_steps == 0:
            self._run.log({"step": step, **row, **values})
            self.write("train", step, values)

    def write(self, prefix: str, step: int, values: Mapping[str, float]) -> None:
        """Give numbers to TensorBoard and to the loggers."""
        for logger in self._loggers:
            logger.add(step, {f"{prefix}/{name}": value for name, value in values.items()})

    def close(self) -> None:
        """Flush and close TensorBoard and the loggers."""
        self.flush()
        for logger in self._loggers:
            logger.close()


class TensorBoardWriter:
    """Writes scalars to ``tensorboard/`` in a run folder; does nothing without the ``tensorboard`` extra."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer_class: Any = None
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._writer_class = SummaryWriter
        except ImportError:
            log.info("metrics are only in metrics.jsonl; for TensorBoard: %s", install_command("tensorboard"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add scalars at a step; the first call after a resume hides later steps of the earlier process."""
        if self._writer_class is None:
            return
        if self._writer is None:
            self._writer = self._writer_class(str(self._folder / "tensorboard"), purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()


class WandbWriter:
    """Writes to ``wandb/`` in the run folder, without the network; ``wandb sync`` sends it when the user wants."""

    def __init__(self, run: Run, project: str) -> None:
        wandb = require("wandb", extra="wandb", purpose="logging to Weights & Biases")
        # Nothing about the machine, the code or the output is collected: the run folder says what was trained.
        quiet = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, save_code=False, x_disable_stats=True,
            x_disable_meta=True, x_disable_machine_info=True,
        )  # fmt: skip
        self._run = wandb.init(
            project=project or "calligram", name=run.folder.resolve().name, id=_stored_name(run, "wandb"),
            resume="allow", dir=str(run.folder.resolve()), config=flat_settings(run), mode="offline",
            reinit="create_new", settings=quiet,
        )  # fmt: skip

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add numbers at a step; steps that a killed process had already logged stay as they are."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write everything that is left."""
        self._run.finish()


class MlflowWriter:
    """Writes to ``mlflow.db`` in the run folder, or to the tracking server at an address."""

    def __init__(self, run: Run, address: str) -> None:
        purpose = "logging to MLflow"
        tracking = require("mlflow.tracking", extra="mlflow", purpose=purpose, package="mlflow")
        self._entities = require("mlflow.entities", extra="mlflow", purpose=purpose, package="mlflow")
        if not address:
            require("sqlalchemy", extra="mlflow", purpose=purpose)
            require("alembic", extra="mlflow", purpose=purpose)
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._client = tracking.MlflowClient(tracking_uri=address or f"sqlite:///{run.folder.resolve()}/mlflow.db")
        try:
            self._id = self._run_id(run)
        except Exception as error:  # of a server that does not answer, by the client's transport
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"MLflow at '{address or run.folder}' cannot be used ({reason}); check the address"
            ) from error

    def _run_id(self, run: Run) -> str:
        experiment = self._client.get_experiment_by_name("calligram")
        number = experiment.experiment_id if experiment else self._client.create_experiment("calligram")
        name = _stored_name(run, "mlflow")
        found = self._client.search_runs([number], f"tags.calligram = '{name}'")
        if found:
            return str(found[0].info.run_id)
        made = self._client.create_run(number, run_name=run.folder.resolve().name, tags={"calligram": name})
        settings = [
            self._entities.Param(key, str(value)[:MAX_PARAMETER_CHARACTERS])
            for key, value in flat_settings(run).items()
        ]
        for start in range(0, len(settings), MAX_BATCH_ENTRIES):
            self._client.log_batch(made.info.run_id, params=settings[start : start + MAX_BATCH_ENTRIES])
        return str(made.info.run_id)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add numbers at a step."""
        now = int(time.time() * 1000)
        self._client.log_batch(
            self._id, metrics=[self._entities.Metric(name, value, now, step) for name, value in values.items()]
        )

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._id)


MAX_BATCH_ENTRIES = 100
"""most settings that MLflow takes in one request"""
LOGGERS: dict[str, Callable[[Run, str], MetricLogger]] = {"wandb": WandbWriter, "mlflow": MlflowWriter}
"""loggers that are used only if they are asked for"""


def check_loggers(wanted: Sequence[str]) -> None:
    """Check, before anything is written, that loggers exist and are installed.

    Raises:
        UserError: for the first that is not.
    """
    for name in (one.partition("=")[0] for one in wanted):
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
        if missing_modules(name):
            raise UserError(f"logging to {name} needs {name}; install it with: {install_command(name)}")


def open_loggers(run: Run, wanted: Sequence[str]) -> list[MetricLogger]:
    """Open the loggers of a run, whose settings are sent too.

    Args:
        run: a run that was created.
        wanted: ``wandb`` or ``wandb=PROJECT``, ``mlflow`` or ``mlflow=ADDRESS``.

    Raises:
        UserError: when a name is unknown, or its package is not installed.
    """
    check_loggers(wanted)
    return [LOGGERS[name](run, where) for name, _, where in (one.partition("=") for one in wanted)]


def _stored_name(run: Run, logger: str) -> str:
    """The name of this run in another program: random, and kept in ``run.json`` for a resumed run."""
    names = dict(run.about.get(LOGGERS_KEY, {}))
    if logger not in names:
        names[logger] = uuid.uuid4().hex[:12]
        run.add_entries(**{LOGGERS_KEY: names})
    return str(names[logger])


def flat_settings(run: Run) -> dict[str, Any]:
    """The settings of a run by dotted key, with the preset and the collection."""
    about = run.about
    found = {name: about[name] for name in ("preset", "collection") if name in about}
    return found | flat_entries(about.get("settings", {}))


def flat_entries(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Nested entries by dotted key.

    >>> flat_entries({"dim": 8, "image": {"channels": [4, 8]}, "stages": [{"lr": 0.1}]})
    {'dim': 8, 'image.channels': [4, 8], 'stages.1.lr': 0.1}
    """
    found: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                add(f"{prefix}.{name}" if prefix else str(name), inner)
        elif not isinstance(value, list) or not any(isinstance(one, Mapping | list) for one in value):
            found[prefix] = value
        else:
            for number, inner in enumerate(value, 1):
                add(f"{prefix}.{number}", inner)

    add("", nested)
    return found
