"""The training loop: what a stage consists of, the loop over all stages, and the moving average of weights."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calligram.device import (
    GRAPH_DEVICE_TYPE,
    Precision,
    device_of,
    kernel_states,
    seed_random_numbers,
    step_precision,
    use_half_networks,
    use_independent_dropout,
    use_kernels,
)
from calligram.errors import NotFiniteError, UserError
from calligram.memory import keep_freed_memory, return_freed_memory
from calligram.models.damage import state_errors
from calligram.models.matcher import Matcher
from calligram.progress import Track, silent
from calligram.training.batches.batch import Batch, BatchSource, derived_seed
from calligram.training.cuda_graphs import delete_graphs
from calligram.training.distributed import Processes
from calligram.training.loggers import MetricLogger, StepLog, TensorBoardWriter
from calligram.training.objectives.objective import (
    NOT_FINITE_ADVICE,
    Objective,
    freeze_statistics,
    optimizer_tensors,
    parameter_groups,
    restore_optimizer,
)
from calligram.training.runs import BackgroundSaver, Run
from calligram.training.speed_trial import SpeedTrial, record_precision

log = logging.getLogger(__name__)

__all__ = ["BatchSource", "Evaluate", "Loop", "Precision", "Speed", "Stage", "train"]

Speed = Literal["auto", "plain", "cached"]
Evaluate = Callable[[Matcher], Mapping[str, float]]
"""function that returns the dev metrics of a matcher by name"""


@dataclass(frozen=True)
class Stage:
    """A part of training with one objective, one optimiser and one set of frozen modules."""

    name: str
    epochs: int
    objective: Objective
    batches: BatchSource
    optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
    """builds the optimiser from parameter groups"""
    lr: float
    lr_scale: Mapping[str, float] = field(default_factory=dict)
    """factor on the learning rate for sub-modules of the matcher, by name; the longest matching name wins"""
    frozen: Sequence[str] = ()
    """names of sub-modules that are not trained; they are in evaluation mode"""
    schedule: Callable[[float], float] = lambda progress: 1.0
    """factor on the learning rate at ``progress`` 0 .. 1 of the stage"""
    clip: float | None = 2.0
    """largest norm of the gradient; None for no clipping"""
    accumulate: int = 1
    """number of batches per optimizer step"""
    resets_best: bool = False
    """whether the best epoch is chosen from this stage on, without earlier stages"""
    on_start: Callable[[Matcher, Run, bool], bool] | None = None
    """called before the stage's first step, and again when the stage is resumed. The last argument is True if no step
    has been taken. It may then change the matcher, for instance re-initialise it, and returns whether it did"""


@dataclass(frozen=True)
class Loop:
    """Settings of a whole run."""

    seed: int = 0
    precision: Precision = "fp32"
    ema_decay: float = 0.0
    """decay of the weight average (EMA) that is evaluated and saved; 0 uses the weights themselves"""
    select_by: str = "rsum"
    """metric of ``evaluate`` that selects the best epoch; higher is better"""
    save_steps: int = 0
    """also save the state every so many steps; it is always saved after an epoch"""
    log_steps: int = 10
    """steps from one line of losses in metrics.jsonl to the next; at most the steps of the shortest epoch"""
    speed: Speed = "auto"
    """auto: what is faster on the device, with the same results up to rounding. On a GPU: fused kernels, CUDA graphs,
    compilation, and matrix products of float32 steps in TF32. On a CPU with slow half precision: steps in float32. With
    fast bfloat16: transformers in it while dev is measured. plain: never; cached: batches in pieces"""


def train(
    matcher: Matcher,
    stages: Sequence[Stage],
    run: Run,
    evaluate: Evaluate,
    *,
    loop: Loop = Loop(),  # noqa: B008  frozen
    processes: Processes = Processes(),  # noqa: B008  frozen
    track: Track = silent,
    loggers: Sequence[MetricLogger] = (),
) -> dict[str, float]:
    """Train through all stages and save the best and the last state in ``run``; continue where an earlier call stopped.

    The randomness of a step depends on (seed, stage, epoch, step) only, so a run that was killed and resumed takes the
    same steps as an uninterrupted one.

    Args:
        loggers: get the metrics besides ``metrics.jsonl`` and TensorBoard.

    Returns:
        The dev metrics of the best epoch.
    """
    keep_freed_memory()
    device = device_of(matcher)
    gpus = [device] if device.type == "cuda" else []
    kernels = use_kernels(False) if loop.speed == "plain" else contextlib.nullcontext()
    current = torch.cuda.device(device if gpus else -1)  # streams and captures of CUDA graphs belong to the current GPU
    with kernels, current, torch.random.fork_rng(gpus):
        best = _Trainer(matcher, stages, run, evaluate, loop, processes, track, loggers).train()
    return_freed_memory()
    return best


class _Trainer:
    """The state of one call of ``train``."""

    def __init__(
        self,
        matcher: Matcher,
        stages: Sequence[Stage],
        run: Run,
        evaluate: Evaluate,
        loop: Loop,
        processes: Processes,
        track: Track,
        loggers: Sequence[MetricLogger],
    ) -> None:
        self.matcher, self.stages, self.run, self.evaluate = matcher, stages, run, evaluate
        self.loop, self.processes, self.track = loop, processes, track
        self.device = device_of(matcher)
        self.objectives = nn.ModuleList(stage.objective for stage in stages)
        if self.device.type == GRAPH_DEVICE_TYPE:
            use_independent_dropout(nn.ModuleList([matcher, self.objectives]))
        self.precision = loop.precision if loop.speed == "plain" else step_precision(loop.precision, self.device)
        self.average = WeightAverage(matcher, loop.ema_decay) if loop.ema_decay else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=loop.precision == "fp16")
        self.step = 0
        self.best: dict[str, float] = {}
        self.spent, self.start_time = 0.0, time.perf_counter()
        writers = (TensorBoardWriter(run.folder), *loggers) if processes.first else ()
        log_steps = min([loop.log_steps, *(max(1, len(stage.batches)) for stage in stages)])
        self.step_log = StepLog(run, writers, log_steps, self.device, writes=processes.first)
        self.saver = BackgroundSaver(run)
        self.trial: SpeedTrial | None = None

    def train(self) -> dict[str, float]:
        self.processes.broadcast_weights([self.matcher, *(s.objective.to(self.device) for s in self.stages)])
        restored = self.run.load_state()
        tensors, position = restored if restored else ({}, {"stage": 0, "epoch": 0, "batch": 0})
        if restored:
            with state_errors(self.run.folder):
                self._restore(tensors, position)
        if self.processes.first and self.loop.precision != "fp32" and not self.run.complete:
            record_precision(self.run, self.loop.precision, self.precision)
        with self.saver:
            for number in range(int(position["stage"]), len(self.stages)):
                resumed = number == position["stage"]
                self._run_stage(number, tensors if resumed else {}, position if resumed else {"epoch": 0, "batch": 0})
            self.saver.wait()
        self.step_log.close()
        if self.processes.first and not self.run.complete:
            if self.loop.speed != "plain" and (kernels := kernel_states()):
                self.run.add_entries(kernels=kernels)
            self.run.finish(self._seconds())
        return self.best

    def _trial(self, stage: Stage, epoch: int, start: int) -> SpeedTrial | None:
        """Return the trial of ways to take the steps of a stage that are left; None if there is one way only."""
        if self.loop.speed == "plain" or self.device.type != GRAPH_DEVICE_TYPE:
            return None

        def report(found: dict[str, object]) -> None:
            if self.processes.first:
                self.run.add_entries(speed={**self.run.about.get("speed", {}), stage.name: found})

        steps = (stage.epochs - epoch) * len(stage.batches) - start
        graphs = stage.objective.graph_safe and self.processes.count == 1
        tf32 = self.loop.precision == "fp32"
        return SpeedTrial(stage.objective, steps, self.device, graphs=graphs, tf32=tf32, report=report)

    def _seconds(self) -> float:
        """Training time in seconds, including earlier calls."""
        return self.spent + time.perf_counter() - self.start_time

    def _restore(self, tensors: Mapping[str, Mapping[str, Tensor]], position: Mapping[str, Any]) -> None:
        if self.run.complete:
            log.info("%s is complete", self.run.folder)
        else:
            log.info("resuming at step %d", position["step"])
        self.matcher.load_state_dict(dict(tensors["matcher"]))
        if self.average:
            self.average.restore(tensors["average"], int(position["average_steps"]))
        self.scaler.load_state_dict(position["scaler"])
        self.step, self.best, self.spent = int(position["step"]), dict(position["best"]), float(position["seconds"])

    def _run_stage(self, number: int, tensors: Mapping[str, Any], position: Mapping[str, Any]) -> None:
        stage, objective = self.stages[number], self.stages[number].objective
        fresh = not position["epoch"] and not position["batch"]
        if stage.resets_best and fresh:
            self.best = {}
        if stage.on_start is not None:
            self.saver.wait()  # it may read the best weights
            changed = stage.on_start(self.matcher, self.run, fresh)
            if changed and self.average:
                self.average = WeightAverage(self.matcher, self.loop.ema_decay)
        groups = parameter_groups(self.matcher, objective, stage.lr_scale, stage.frozen)
        if not groups:
            log.warning("%s: nothing can be trained, so the matcher is only evaluated", stage.name)
            self._end_epoch(number, stage.epochs - 1, None)
            return
        optimizer = stage.optimizer(groups)
        with state_errors(self.run.folder) if tensors else contextlib.nullcontext():
            if tensors:
                self.objectives.load_state_dict(tensors["objectives"], strict=False)  # what stages share has one name
            if "optimizer" in tensors:
                restore_optimizer(optimizer, tensors["optimizer"])
        self.trial = self._trial(stage, int(position["epoch"]), int(position["batch"]))
        for epoch in range(int(position["epoch"]), stage.epochs):
            start = int(position["batch"]) if epoch == position["epoch"] else 0
            self._run_epoch(number, epoch, start, optimizer)
            self._end_epoch(number, epoch, optimizer)
        if self.trial:
            delete_graphs(objective)

    def _run_epoch(self, number: int, epoch: int, start: int, optimizer: torch.optim.Optimizer) -> None:
        stage = self.stages[number]
        self.matcher.train()
        freeze_statistics(self.matcher, stage.frozen)
        stage.objective.train()
        total = len(stage.batches)
        label, start_time = f"{stage.name} {epoch + 1}/{stage.epochs}", time.perf_counter()
        batches = stage.batches.epoch(derived_seed(number, epoch), start)
        for step, batch in enumerate(self.track(batches, label, total - start), start):
            # The middle of the step: a warm-up would be zero at its start, a decay at its end.
            progress = (epoch * total + step + 0.5) / (stage.epochs * total)
            self._set_lr(stage, optimizer, progress)
            stage.objective.set_progress(progress)
            seed = derived_seed(self.loop.seed, "step", number, epoch, step, self.processes.rank)
            seed_random_numbers(seed, self.device)
            stepped = (step + 1) % stage.accumulate == 0 or step + 1 == total
            with self.trial.step() if self.trial else contextlib.nullcontext():
                terms = self._backward(stage, batch)
                if stepped:
                    self._update(stage, optimizer)
            if stepped:
                rate = (step - start + 1) / (time.perf_counter() - start_time)
                row = {"stage": stage.name, "epoch": epoch, "lr": max(g["lr"] for g in optimizer.param_groups)}
                self.step_log.add(self.step, {**row, "steps_per_second": round(rate, 3)}, terms, stage.objective)
            # Accumulated gradients are not part of the saved state, so it is saved between optimizer steps only.
            if self.loop.save_steps and stepped and self.step % self.loop.save_steps == 0 and step + 1 < total:
                self._save(number, epoch, step + 1, optimizer)

    def _set_lr(self, stage: Stage, optimizer: torch.optim.Optimizer, progress: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = stage.lr * group["factor"] * stage.schedule(progress)

    def _backward(self, stage: Stage, batch: Batch) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        groups = stage.objective.passes(self.matcher, batch)
        while True:
            with self._autocast():
                if not (terms := next(groups, {})):
                    break
                loss = torch.stack(list(terms.values())).sum() / stage.accumulate
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            found |= {name: term.detach() for name, term in terms.items()}
            del terms, loss  # and with them the activations of this group
        measured = {name: value.detach() for name, value in stage.objective.measures.items()}
        return {"loss": torch.stack(list(found.values())).sum(), **found, **measured}

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16 if self.precision == "bf16" else torch.float16)

    def _update(self, stage: Stage, optimizer: torch.optim.Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.processes.average_gradients(parameters)
        if stage.clip is not None:
            self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, stage.clip)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.average:
            self.average.update(self.matcher)

    def _end_epoch(self, number: int, epoch: int, optimizer: torch.optim.Optimizer | None) -> None:
        stage = self.stages[number]
        metrics: dict[str, float] = {}
        self.step_log.flush()
        if self.processes.first:
            metrics = self._evaluate()
            self.run.log({"step": self.step, "stage": stage.name, "epoch": epoch, "dev": metrics})
            value = metrics.get(self.loop.select_by, math.nan)
            log.info("%s %d/%d: dev %s %.1f", stage.name, epoch + 1, stage.epochs, self.loop.select_by, value)
            self.step_log.write("dev", self.step, metrics)
        value = self.processes.broadcast_number(metrics.get(self.loop.select_by, math.nan))
        if math.isnan(value):
            raise UserError(f"evaluation gave no '{self.loop.select_by}'; it gave: {', '.join(sorted(metrics))}")
        if value > self.best.get(self.loop.select_by, -math.inf):
            self.best = {**metrics, self.loop.select_by: value, "epoch": epoch, "step": self.step}
            if self.processes.first:
                self.saver.save_best(self.average.weights if self.average else self.matcher.state_dict())
        last = epoch + 1 == stage.epochs
        self._save(number + last, 0 if last else epoch + 1, 0, None if last else optimizer)

    def _evaluate(self) -> dict[str, float]:
        weights = {k: v.clone() for k, v in self.matcher.state_dict().items()} if self.average else {}
        if self.average:
            self.matcher.load_state_dict(self.average.weights)
        self.matcher.eval()
        try:
            # Dev metrics only select an epoch. ``evaluate`` runs all networks in float32.
            with torch.no_grad(), use_half_networks():
                metrics = dict(self.evaluate(self.matcher))
        except NotFiniteError as error:
            raise UserError(
                f"the matcher's scores are not finite at step {self.step} ({error}); {NOT_FINITE_ADVICE}"
            ) from error
        if self.average:
            self.matcher.load_state_dict(weights)
        return metrics

    def _save(self, stage: int, epoch: int, batch: int, optimizer: torch.optim.Optimizer | None) -> None:
        self.step_log.flush()  # a state after a loss that is not finite is not saved
        if not self.processes.first:
            return
        tensors: dict[str, Mapping[str, Tensor]] = {"matcher": self.matcher.state_dict()}
        if optimizer is not None:
            tensors["optimizer"] = optimizer_tensors(optimizer)
        if stage < len(self.stages):
            # Of all stages: later ones may share weights with earlier ones, also where this one leaves a term out.
            tensors["objectives"] = dict([*self.objectives.named_parameters(), *self.objectives.named_buffers()])
        if self.average:
            tensors["average"] = self.average.weights
        position = {
            "stage": stage, "epoch": epoch, "batch": batch, "step": self.step, "best": self.best,
            "seconds": self._seconds(),
            "average_steps": self.average.steps if self.average else 0, "scaler": self.scaler.state_dict(),
        }  # fmt: skip
        self.saver.save_state(self.step, tensors, position)


class WeightAverage:
    """Exponential moving average of a module's weights and buffers; it scores better than the last weights.

    The decay grows with the steps as (1 + n) / (10 + n) up to ``decay``, so that early random weights are forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must be between 0 and 1, got {decay}")
        self.decay, self.steps = decay, 0
        self.weights = {k: v.detach().clone() for k, v in module.state_dict().items()}
        self._views: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Add the weights after a step."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        if not self._views:  # steps change the weights in place, so views of them are listed once
            self._views = {k: v.detach() for k, v in module.state_dict().items()}
        now = self._views
        floats = [name for name, value in now.items() if value.is_floating_point()]
        # One kernel for all weights: on a GPU a launch costs more than the arithmetic.
        torch._foreach_lerp_([self.weights[n] for n in floats], [now[n] for n in floats], 1 - decay)
        for name in now.keys() - set(floats):
            self.weights[name].copy_(now[name])

    def restore(self, weights: Mapping[str, Tensor], steps: int) -> None:
        """Continue from saved weights."""
        self.steps = steps
        for name, value in weights.items():
            self.weights[name].copy_(value)
