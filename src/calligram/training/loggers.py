"""Programs that get the metrics of training besides ``metrics.jsonl`` and TensorBoard: Weights & Biases, MLflow."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from calligram.errors import UserError, unknown
from calligram.extras import install_command, missing_modules, require

if TYPE_CHECKING:
    from calligram.training.runs import Run

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
