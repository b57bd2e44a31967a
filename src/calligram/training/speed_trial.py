"""The trial that selects the fastest way to take the steps of a stage: plain, CUDA graphs, compilation, or both."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from calligram.device import Precision, asked_to_compile, use_compile, use_cuda_graphs
from calligram.training.cuda_graphs import delete_graphs, delete_unused_graphs, replays_of

if TYPE_CHECKING:
    from calligram.training.runs import Run

log = logging.getLogger(__name__)

GRAPH_MIN_SECONDS = 20.0
"""CUDA graphs are tried if the rest of a stage takes at least so long without them"""
COMPILE_SHARE = 0.25
"""compilation is tried if it takes at most this share of the rest of a stage without it"""
MAX_GRAPH_MEMORY = 0.1
"""CUDA graphs, which keep the memory of a step, are tried if it is at most this share of the memory of the GPU"""
WARMUP_STEPS, TIMED_STEPS, MAX_TRIAL_STEPS = 3, 10, 60
"""steps of a trial before the timed ones, timed steps, and steps after which a way with fewer of them is given up"""


class Way(NamedTuple):
    """A way to take training steps."""

    graphs: bool = False
    compiled: bool = False

    @property
    def name(self) -> str:
        """Its name in ``run.json``."""
        return " and ".join(["graphs"] * self.graphs + ["compiled"] * self.compiled) or "plain"


def record_precision(run: Run, settings: Precision, steps: Precision) -> None:
    """Record in ``run.json`` in which precision steps are taken, and say where it is not that of the settings.

    A run that is resumed on another kind of device may go on in another precision.
    """
    speed = run.about.get("speed", {})
    before = str(speed.get("precision", steps))
    if before.split(", then ")[-1] != steps:
        log.warning("%s took its steps in %s and goes on in %s: they differ now", run.folder, before, steps)
        steps_so_far = f"{before}, then {steps}"
    else:
        steps_so_far = before
    if steps != settings:
        log.info("precision=%s is slower on this CPU: steps are taken in float32 (not with speed=plain)", settings)
    run.add_entries(speed={**speed, "precision": steps_so_far})


@contextmanager
def use_tf32(on: bool = True) -> Iterator[None]:
    """Take matrix products of float32 numbers on a GPU in TF32 inside a block: factors have 10 bits after the point.

    Sums stay in float32. Convolutions and recurrent networks of cuDNN do the same by the default of PyTorch.
    """
    settings = torch.backends.cuda.matmul
    before = settings.allow_tf32
    settings.allow_tf32 = before or on
    try:
        yield
    finally:
        settings.allow_tf32 = before


class SpeedTrial:
    """Takes the first steps of a stage in several ways, and the others in the fastest of them.

    All ways take the same steps up to rounding. Steps without graphs and compilation come first. Graphs, then
    compilation, are tried where the rest of the stage is long enough to gain more than they cost. After each of them
    the best way so far is timed again: another run may have begun or ended on the GPU in between.
    """

    def __init__(
        self,
        owner: nn.Module,
        steps: int,
        device: torch.device,
        *,
        graphs: bool,
        tf32: bool = False,
        report: Callable[[dict[str, object]], None],
    ) -> None:
        """Args:
        owner: owner of the graphs, see ``run_with_cuda_graphs``.
        steps: number of steps of the stage that are left.
        device: device of the steps.
        graphs: whether the steps can be captured.
        tf32: whether all ways take products in TF32, see ``use_tf32``.
        report: called once with the chosen way and the milliseconds of a step by each way.
        """
        self.chosen = Way()
        self._owner, self._left, self._device, self._graphs, self._report = owner, steps, device, graphs, report
        self._tf32 = tf32
        self._compile_seconds = 0.0
        """how long it takes to compile what the steps contain; 0 if nothing can be compiled"""
        self._trying: Way | None = Way()
        self._compared: Way | None = None
        """the way that was timed last, while the best one before it is timed again"""
        self._seconds: dict[Way, float] = {}
        self._times: list[float] = []
        self._tried = 0
        asked_to_compile()  # what ran before does not count

    @contextmanager
    def step(self) -> Iterator[None]:
        """Take a step inside, in the way that is tried or was chosen."""
        way = self.chosen if self._trying is None else self._trying
        self._left -= 1
        with use_cuda_graphs(way.graphs), use_compile(way.compiled), use_tf32(self._tf32):
            if self._trying is None:
                yield
                return
            replays = replays_of(self._owner)
            self._wait()
            began = time.perf_counter()
            yield
            self._wait()
            seconds = time.perf_counter() - began
        self._tried += 1
        # Captures take longer than the steps that follow; so do the first runs of a kernel.
        if self._tried > WARMUP_STEPS and (not way.graphs or replays_of(self._owner) > replays):
            self._times.append(seconds)
        failed = way.graphs and replays_of(self._owner) < 0
        if failed or len(self._times) >= TIMED_STEPS or self._tried >= MAX_TRIAL_STEPS or not self._left:
            self._end_way(way)

    def _end_way(self, way: Way) -> None:
        if len(self._times) >= TIMED_STEPS:  # fewer, where shapes rarely repeat or the capture failed
            self._seconds[way] = median(self._times)
        self._times, self._tried = [], 0
        if self._compared is None and way != self.chosen and way in self._seconds and self._left:
            self._compared, self._trying = way, self.chosen
            return
        self.chosen = min(self._seconds, key=self._seconds.__getitem__, default=Way())
        self._trying, self._compared = self._next_way(self._compared or way), None
        if self._trying is None:
            if self.chosen.graphs:
                delete_unused_graphs(self._owner, compiled=self.chosen.compiled)
            else:
                delete_graphs(self._owner)
            times = {each.name: round(1000 * seconds, 3) for each, seconds in self._seconds.items()}
            tf32 = {"products": "TF32"} if self._tf32 else {}
            self._report({"chosen": self.chosen.name, "milliseconds": times, **tf32})

    def _next_way(self, way: Way) -> Way | None:
        if way not in self._seconds and way == Way():
            return None
        rest = self._left * self._seconds[self.chosen]
        if way == Way():
            self._compile_seconds = asked_to_compile()
            if self._graphs and rest >= GRAPH_MIN_SECONDS and self._memory_share() <= MAX_GRAPH_MEMORY:
                if self._device.type == "cuda":
                    torch.cuda.empty_cache()  # graphs have memory of their own
                return Way(graphs=True)
        if not way.compiled and 0 < self._compile_seconds <= COMPILE_SHARE * rest:
            return self.chosen._replace(compiled=True)
        return None

    def _memory_share(self) -> float:
        """Share of the memory of the GPU that steps have used."""
        gpu = self._device.type == "cuda"
        return torch.cuda.max_memory_allocated(self._device) / torch.cuda.mem_get_info(self._device)[1] if gpu else 0.0

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
