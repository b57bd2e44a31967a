"""What a run is made of: stages, where their batches come from, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.models.matcher import Matcher
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import Objective
from calligram.training.runs import Run

Precision = Literal["fp32", "bf16", "fp16"]
Evaluate = Callable[[Matcher], Mapping[str, float]]


class Feed(Protocol):
    """A source of batches that can be entered anywhere."""

    def __len__(self) -> int:
        """Batches in an epoch."""
        ...

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Batches of an epoch, the same each time it is asked."""
        ...


@dataclass(frozen=True)
class Stage:
    """A stretch of training with one objective, one optimiser and one set of frozen parts."""

    name: str
    epochs: int
    objective: Objective
    batches: Feed
    optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
    """from parameter groups"""
    lr: float
    lr_scale: Mapping[str, float] = field(default_factory=dict)
    """factor on the learning rate for sub-modules of the matcher, by name; the longest name wins"""
    frozen: Sequence[str] = ()
    """sub-modules of the matcher kept fixed, in evaluation mode"""
    schedule: Callable[[float], float] = lambda progress: 1.0
    """factor on the learning rate at ``progress`` 0..1 of the stage"""
    clip: float | None = 2.0
    """largest norm of the gradient"""
    accumulate: int = 1
    """batches per step"""
    resets_best: bool = False
    """the best epoch is chosen from this stage on; what was best before does not count"""
    on_start: Callable[[Matcher, Run, bool], bool] | None = None
    """called before the stage's steps, and again after a kill; handed True where none of them was taken yet. It may
    then change the matcher, to begin from scratch for instance, and says whether it did"""


@dataclass(frozen=True)
class Loop:
    """What holds for a whole run."""

    seed: int = 0
    precision: Precision = "fp32"
    average: float = 0.0
    """decay of the weight average that is evaluated and saved; 0 uses the weights themselves"""
    select_by: str = "rsum"
    """metric of ``evaluate`` that chooses the best epoch; higher is better"""
    save_steps: int = 0
    """also save the state every so many steps; it is always saved after an epoch"""
    log_steps: int = 10


# Which parts of a matcher learn, and how fast.


def parameter_groups(
    matcher: Matcher, objective: nn.Module, lr_scale: Mapping[str, float], frozen: Sequence[str]
) -> list[dict[str, Any]]:
    """Parameter groups by factor on the learning rate: the matcher's parts, then the objective's own weights.

    Args:
        lr_scale: factors by name of a sub-module; the longest name wins.
        frozen: sub-modules that do not learn.
    """
    check_parameter_groups(matcher, (*lr_scale, *frozen))
    by_factor: dict[float, list[nn.Parameter]] = {}
    for name, parameter in matcher.named_parameters():
        fixed = any(name.startswith(f"{part}.") for part in frozen)
        parameter.requires_grad_(not fixed)
        if not fixed:
            within = [part for part in lr_scale if name.startswith(f"{part}.")]
            factor = lr_scale[max(within, key=len)] if within else 1.0
            by_factor.setdefault(factor, []).append(parameter)
    groups = [{"params": params, "factor": factor} for factor, params in by_factor.items()]
    own = [p for p in objective.parameters() if p.requires_grad]
    return [*groups, {"params": own, "factor": 1.0}] if own else groups


def check_parameter_groups(matcher: Matcher, named: Iterable[str]) -> None:
    """Refuse parts that the matcher does not have."""
    names = dict(matcher.named_modules())
    for part in named:
        if part not in names:
            tops = ", ".join(name for name, _ in matcher.named_children())
            raise UserError(f"the matcher has no part '{part}'; it has: {tops}, and their parts by dotted names")


def freeze_statistics(matcher: Matcher, frozen: Sequence[str]) -> None:
    """Put frozen parts into evaluation mode: batch normalisation must not go on adapting its statistics there."""
    for name in frozen:
        matcher.get_submodule(name).eval()


# A running average of weights, which scores better and steadier than the last step's.


class WeightAverage:
    """Exponential average of a module's weights and buffers.

    The decay grows with the steps as (1 + n) / (10 + n) up to ``decay``, so that early random weights are forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must lie between 0 and 1, got {decay}")
        self.decay, self.steps = decay, 0
        self.weights = {k: v.detach().clone() for k, v in module.state_dict().items()}
        self._live: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Take in the weights after a step."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        now = self._live or self._bind(module)
        floats = [name for name, value in now.items() if value.is_floating_point()]
        # One kernel for all of them: on an accelerator a launch costs more than the arithmetic.
        torch._foreach_lerp_([self.weights[n] for n in floats], [now[n] for n in floats], 1 - decay)
        for name in now.keys() - set(floats):
            self.weights[name].copy_(now[name])

    def _bind(self, module: nn.Module) -> dict[str, Tensor]:
        # Views of the weights themselves: steps change them in place, so listing them once is enough.
        self._live = {k: v.detach() for k, v in module.state_dict().items()}
        return self._live

    def restore(self, weights: Mapping[str, Tensor], steps: int) -> None:
        """Go on from saved weights."""
        self.steps = steps
        for name, value in weights.items():
            self.weights[name].copy_(value)
