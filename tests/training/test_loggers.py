"""Metrics in Weights & Biases and in MLflow, read back with their own libraries."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest
import torch

from calligram.errors import UserError
from calligram.training.loggers import StepLog, check_loggers, open_loggers
from calligram.training.objectives.objective import RankingObjective, VectorSpread
from calligram.training.runs import Run

ABOUT = {"preset": "vse", "collection": "tiny", "settings": {"dim": 16, "image": {"size": 32}, "names": ["a", "b"]}}
BLOCK_BYTES, BLOCK_HEADER = 32768, struct.Struct("<IHB")
"""of the file that wandb writes: blocks of parts of messages, each with checksum, length and kind"""
FIRST_KINDS = (1, 2)


def wandb_messages(file: Path) -> list[object]:
    """The messages of a run that has ended; another process writes them, and may still do so when the run ends."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        messages = written_messages(file)
        if messages and messages[-1].WhichOneof("record_type") == "exit":
            return messages
        time.sleep(0.05)
    raise AssertionError(f"{file} has no end after 120 s")


def written_messages(file: Path) -> list[object]:
    from wandb.proto import wandb_internal_pb2

    data, place, messages = file.read_bytes(), 7, []
    while place + BLOCK_HEADER.size <= len(data):
        if BLOCK_BYTES - place % BLOCK_BYTES < BLOCK_HEADER.size:
            place += BLOCK_BYTES - place % BLOCK_BYTES
            continue
        _, length, kind = BLOCK_HEADER.unpack_from(data, place)
        part = data[place + BLOCK_HEADER.size : place + BLOCK_HEADER.size + length]
        messages.append(part) if kind in FIRST_KINDS else messages.append(messages.pop() + part)
        place += BLOCK_HEADER.size + length
    return [wandb_internal_pb2.Record.FromString(message) for message in messages]


def wandb_history(file: Path) -> list[dict[str, float]]:
    rows = []
    for message in wandb_messages(file):
        if message.WhichOneof("record_type") == "history":
            values = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in message.history.item}
            rows.append({"step": message.history.step.num, **values})
    return rows


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine, the process of wandb may need longer than the 30 s that it is given."""
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "300")


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(tmp_path / "run", ABOUT)


def test_wandb_has_the_settings_and_the_metrics_without_the_network(run):
    pytest.importorskip("wandb")
    (logger,) = open_loggers(run, ["wandb=my-project"])
    logger.add(10, {"train/loss": 1.5, "train/lr": 0.1})
    logger.add(20, {"train/loss": 1.25})
    logger.add(20, {"dev/rsum": 123.5})
    logger.close()
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    history = wandb_history(file)
    assert [row["step"] for row in history] == [10, 20]
    assert history[0]["train/loss"] == 1.5
    assert (history[1]["train/loss"], history[1]["dev/rsum"]) == (1.25, 123.5)
    (made,) = [m.run for m in wandb_messages(file) if m.WhichOneof("record_type") == "run"]
    assert (made.project, made.display_name) == ("my-project", "run")
    config = {i.key: json.loads(i.value_json) for i in made.config.update}
    assert (config["preset"], config["image.size"], config["names"]) == ("vse", 32, ["a", "b"])
    (again,) = open_loggers(run, ["wandb=my-project"])  # of a resumed run
    again.add(30, {"train/loss": 1.0})
    again.close()
    files = list(run.folder.glob("wandb/offline-run-*/*.wandb"))
    ids = {m.run.run_id for f in files for m in wandb_messages(f) if m.WhichOneof("record_type") == "run"}
    assert len(ids) == 1


def test_mlflow_has_the_settings_and_the_metrics_in_a_file_of_the_run(run):
    tracking = pytest.importorskip("mlflow.tracking")
    for step, loss in ((10, 1.5), (20, 1.25)):  # as a run that is resumed
        (logger,) = open_loggers(run, ["mlflow"])
        logger.add(step, {"train/loss": loss})
        logger.close()
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{run.folder}/mlflow.db")
    experiment = client.get_experiment_by_name("calligram")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in history] == [(10, 1.5), (20, 1.25)]
    assert found.data.params["image.size"] == "32"
    assert found.info.status == "FINISHED"


def test_unknown_and_missing_loggers_are_refused_before_anything_is_written(monkeypatch):
    with pytest.raises(UserError, match="unknown logger 'wandbb'; did you mean 'wandb'"):
        check_loggers(["wandbb"])
    monkeypatch.setattr("calligram.training.loggers.missing_modules", lambda name: [name])
    with pytest.raises(UserError, match="logging to mlflow needs mlflow; install it with"):
        check_loggers(["mlflow=http://localhost:5000"])


def test_a_logged_training_takes_the_same_steps_and_logs_what_the_run_has(tiny, tmp_path):
    pytest.importorskip("wandb")
    from calligram.recipes.fit import fit

    small = {"dim": 8, "epochs": 2, "batch": 4, "changes": {"image.size": 16, "image.channels": "4,8"}}
    plain = fit("vse", tiny, out=tmp_path / "plain", device="cpu", **small)
    logged = fit("vse", tiny, out=tmp_path / "logged", device="cpu", loggers=["wandb"], **small)
    rows = [Run(Path(run)).metrics() for run in (plain, logged)]
    for row in (*rows[0], *rows[1]):
        row.pop("steps_per_second", None)
    assert rows[0] == rows[1]
    (file,) = (tmp_path / "logged").glob("wandb/offline-run-*/*.wandb")
    dev = [row["dev/rsum"] for row in wandb_history(file) if "dev/rsum" in row]
    assert dev == [row["dev"]["rsum"] for row in rows[1] if "dev" in row]


class Lines:
    """A logger that keeps what it gets."""

    def __init__(self):
        self.lines = []

    def add(self, step, values):
        self.lines.append((step, dict(values)))

    def close(self):
        self.lines.append("closed")


ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_CUDA)])
def test_numbers_of_steps_are_logged_in_order_and_all_are_there_after_a_flush(tmp_path, device):
    run, lines, objective = Run.create(tmp_path / "run", ABOUT), Lines(), RankingObjective()
    log = StepLog(run, [lines], 5, torch.device(device), writes=True)
    for step in range(1, 16):
        one = torch.ones((), device=device)
        objective.spread = VectorSpread(one, one)
        log.add(step, {"epoch": 2}, {"loss": step * one, "hardest": torch.tensor([2.0], device=device)}, objective)
    log.flush()
    expected = [{"step": step, "epoch": 2, "loss": float(step), "hardest": 2.0} for step in (5, 10, 15)]
    assert run.metrics() == expected
    log.write("dev", 15, {"rsum": 1.0})
    log.close()
    trained = [(step, {"train/loss": float(step), "train/hardest": 2.0}) for step in (5, 10, 15)]
    assert lines.lines == [*trained, (15, {"dev/rsum": 1.0}), "closed"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_CUDA)])
def test_a_loss_that_is_not_finite_is_an_error_before_anything_is_saved(tmp_path, device):
    objective = RankingObjective()
    log = StepLog(Run.create(tmp_path / "run", ABOUT), [], 1, torch.device(device), writes=True)
    with pytest.raises(UserError, match=r"the loss is not finite at step 1 \(loss=nan\)"):  # noqa: PT012  or in the flush
        log.add(1, {}, {"loss": torch.tensor(float("nan"), device=device)}, objective)
        log.flush()
