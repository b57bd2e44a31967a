"""A loss of batches of one shape, recorded once on an accelerator and replayed, forward and back, where asked for.

A step of many small kernels takes as long as it takes to start them one by one; replayed, they are started together.
What is recorded keeps its memory, and each new shape takes a second to record, so it is not the default:
``CALLIGRAM_GRAPHS=1`` asks for it on an accelerator, and ``replaying`` where there is one.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from calligram import device

log = logging.getLogger(__name__)

GRAPHS_VARIABLE = "CALLIGRAM_GRAPHS"
"""in the environment: 1 to record and replay on an accelerator"""
DEVICE_TYPE = "cuda"
"""what can record"""
PADDING_MULTIPLE = 4
"""of places that a growing axis is filled up to, so that few shapes are recorded"""
MAX_GRAPHS = 32
"""shapes that are recorded for one objective"""
CAPTURE_AT_COUNT = 2
"""a shape is recorded when it comes for this time: the last batch of an epoch may come but once"""
WARMUP_RUNS = 3
"""turns before recording, in which libraries choose and compile what they need"""

GraphFunction = Callable[..., Tensor]


class _GraphSwitch:
    """Of the whole process."""

    on = os.environ.get(GRAPHS_VARIABLE) == "1" and torch.cuda.is_available()


@contextmanager
def use_cuda_graphs(on: bool = True) -> Iterator[None]:
    """Replay what is recorded, or not, within a block, whatever the environment says."""
    before, _GraphSwitch.on = _GraphSwitch.on, on
    try:
        yield
    finally:
        _GraphSwitch.on = before


def uses_cuda_graphs(tensor: Tensor) -> bool:
    """Whether work on this tensor may be replayed: if asked for, where it can be recorded, for a gradient."""
    return _GraphSwitch.on and tensor.device.type == DEVICE_TYPE and torch.is_grad_enabled()


def run_with_cuda_graphs(
    owner: nn.Module, others: Sequence[nn.Module], work: GraphFunction, given: Sequence[Tensor], growing: Sequence[bool]
) -> Tensor:
    """``work(*given)``, from a recording where there is one for such shapes; as it is, where there cannot be.

    One call at a time: between a replay and its backward pass, other calls for the owner run as they are, since they
    would write over what the backward pass needs.

    Args:
        owner: who keeps the recordings as long as it lives, and whose parameters the work uses.
        others: whose parameters it uses too; it uses no others, and gives one tensor that depends on them.
        work: without waiting for the device; tensors of zeros, or False, that fill up the second axis of those that
            grow do not change what it gives.
        growing: of each tensor, whether its second axis differs from call to call.
    """
    graphs = _GRAPHS.setdefault(owner, GraphCache())
    used = _FunctionWithModules(work, [owner, *others])
    parameters = list(used.parameters())
    # Where nothing is recorded yet too: what is filled up draws random numbers as well.
    given = [pad_second_axis(t) if grows else t for t, grows in zip(given, growing, strict=True)]
    try:
        recording = graphs.recording(used, given, parameters)
        if recording is not None:
            found: Tensor = _ReplayFunction.apply(graphs, recording, len(given), *given, *parameters)  # type: ignore[no-untyped-call]
            return found
    except Exception as error:  # whatever drivers raise, memory that does not suffice among it
        graphs.give_up()
        log.warning("%s cannot be replayed and runs step by step: %s", type(owner).__name__, error)
    return work(*given)


class _FunctionWithModules(nn.Module):
    """Work with the modules whose parameters it uses."""

    def __init__(self, work: GraphFunction, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.work, self.modules_of = work, nn.ModuleList(modules)

    def forward(self, *given: Tensor) -> Tensor:
        return self.work(*given)


class CapturedStep(Protocol):
    """Work of one shape."""

    inputs: Sequence[Tensor]
    """where it reads"""

    def forward(self) -> Tensor:
        """The result, valid until the next turn."""

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        """Gradients of parameters, to keep; None for those that the work does not use."""


class CudaGraphStep:
    """A CUDA graph of the forward and one of the backward pass, with one memory for all recordings of an owner."""

    def __init__(self, used: nn.Module, inputs: Sequence[Tensor], graphs: GraphCache) -> None:
        self.inputs = inputs
        if graphs.memory is None:
            graphs.memory, graphs.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            self._record(used, graphs)
        except Exception:
            # What failed within a recording leaves random numbers believing that they are still recorded.
            numbers = torch.cuda.default_generators[inputs[0].device.index]
            numbers.graphsafe_set_state(numbers.clone_state())
            raise

    def _record(self, used: nn.Module, graphs: GraphCache) -> None:
        how = {
            "pool": graphs.memory,
            "stream": graphs.stream,
            "capture_error_mode": "thread_local",
        }  # batches are pinned
        self._ahead, self._back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Gradients come together where a parameter was first used, which is a stream that is not the recording's, and
        # what autocast keeps of it is there too. So the same places in memory get other names.
        own = {name: p.detach().requires_grad_(p.requires_grad) for name, p in used.named_parameters()}
        learning = [p for p in own.values() if p.requires_grad]
        if len({p.dtype for p in learning}) > 1:
            raise ValueError("parameters of several precisions")
        torch.cuda.synchronize()
        with torch.cuda.stream(graphs.stream), autocast_without_cache(), torch.enable_grad():
            for _ in range(WARMUP_RUNS):
                found = functional_call(used, own, tuple(self.inputs))
                torch.autograd.grad(found, learning, torch.zeros_like(found), allow_unused=True)
            torch.cuda.synchronize()
            with torch.cuda.graph(self._ahead, **how):
                found = functional_call(used, own, tuple(self.inputs))
            self._given = torch.zeros_like(found)
            with torch.cuda.graph(self._back, **how):
                gradients = torch.autograd.grad(found, learning, self._given, allow_unused=True)
                # In one piece, so that one copy keeps them.
                self._flat = torch.cat([g.flatten() for g in gradients if g is not None])
        torch.cuda.synchronize()
        of_learning = iter(gradients)
        reached = [next(of_learning) is not None if p.requires_grad else False for p in own.values()]
        self._shapes = [p.shape if used else None for p, used in zip(own.values(), reached, strict=True)]
        self._found: Tensor = found.detach()

    def forward(self) -> Tensor:
        """The result, valid until the next turn."""
        self._ahead.replay()
        return self._found

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        """Gradients of parameters, to keep; None for those that the work does not use."""
        self._given.copy_(gradient)
        self._back.replay()
        # A parameter may take its gradient as it is, and the next turn would write over it.
        pieces = iter(torch.split(self._flat.clone(), [shape.numel() for shape in self._shapes if shape is not None]))
        return [None if shape is None else next(pieces).view(shape) for shape in self._shapes]


capture: Callable[[nn.Module, Sequence[Tensor], GraphCache], CapturedStep] = CudaGraphStep


class GraphCache:
    """What is recorded for one owner."""

    def __init__(self) -> None:
        self.memory: Any = None
        self.stream: Any = None
        self.turn = 0
        """counts replays; a backward pass belongs to the last"""
        self._kept: dict[object, CapturedStep] = {}
        self._seen: Counter[object] = Counter()
        self._places: object = None
        self._open: Callable[[], object] = lambda: None
        self._given_up = False

    def __len__(self) -> int:
        return len(self._kept)

    def __deepcopy__(self, memo: object) -> GraphCache:
        return GraphCache()

    def give_up(self) -> None:
        """Never record again, and forget what was."""
        self._given_up = True
        self._kept.clear()

    def opened(self) -> object:
        """A turn begins, which is over when what is returned here is gone, or when ``closed``."""
        self.turn += 1
        token = _ReplayToken()
        self._open = weakref.ref(token)
        return token

    def closed(self) -> None:
        """The turn's backward pass has run."""
        self._open = lambda: None

    def recording(self, used: nn.Module, given: Sequence[Tensor], parameters: Sequence[Tensor]) -> CapturedStep | None:
        """That of these shapes, made if they have come often enough; None where the work is to run as it is."""
        if self._given_up or self._open() is not None or not any(p.requires_grad for p in parameters):
            return None
        places = [(p.data_ptr(), p.requires_grad) for p in parameters]
        if places != self._places:  # moved to another device, or held still: what was recorded reads elsewhere
            self._kept.clear()
            self._places = places
        key = (
            tuple((t.shape, t.dtype) for t in given),
            torch.is_autocast_enabled(DEVICE_TYPE), torch.get_autocast_dtype(DEVICE_TYPE), device.compile_enabled(),
            torch.backends.cuda.matmul.allow_tf32, given[0].device,
        )  # fmt: skip
        self._seen[key] += 1
        if key not in self._kept:
            if self._seen[key] < CAPTURE_AT_COUNT or len(self._kept) >= MAX_GRAPHS:
                return None
            inputs = [t.clone() for t in given]
            with use_cuda_graphs(False), preserve_state(list(used.buffers())):
                self._kept[key] = capture(used, inputs, self)
        return self._kept[key]


_GRAPHS: weakref.WeakKeyDictionary[nn.Module, GraphCache] = weakref.WeakKeyDictionary()
"""not of the owners themselves: recordings are neither copied nor saved with them"""


class _ReplayToken:
    """Lives as long as a backward pass may still come."""


class _ReplayFunction(Function):
    """A recording as a step of which gradients are asked."""

    @staticmethod
    def forward(ctx: Any, graphs: GraphCache, recording: CapturedStep, count: int, *tensors: Tensor) -> Tensor:
        for mine, other in zip(recording.inputs, tensors[:count], strict=True):
            mine.copy_(other)
        found = recording.forward().clone()
        ctx.graphs, ctx.recording, ctx.count = graphs, recording, count
        ctx.token, ctx.turn = graphs.opened(), graphs.turn
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.turn != ctx.graphs.turn:
            raise RuntimeError(f"gradients were asked for again after another turn; unset {GRAPHS_VARIABLE} for that")
        parameters = ctx.recording.backward(gradient)
        ctx.graphs.closed()
        return None, None, None, *[None] * ctx.count, *parameters


def pad_second_axis(tensor: Tensor) -> Tensor:
    """With the second axis filled up to a multiple, with zeros."""
    more = -tensor.shape[1] % PADDING_MULTIPLE
    return F.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, more)) if more else tensor


@contextmanager
def preserve_state(buffers: Sequence[Tensor]) -> Iterator[None]:
    """Leave random numbers and running statistics as they were: turns before recording are none of training's."""
    kept, numbers = [b.clone() for b in buffers], torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        if numbers is not None:
            torch.cuda.set_rng_state(numbers)
        with torch.no_grad():
            for buffer, before in zip(buffers, kept, strict=True):
                buffer.copy_(before)


def autocast_without_cache() -> torch.autocast:
    """Autocast as it is, but without weights that it has cast before: they would be of another turn."""
    on, dtype = torch.is_autocast_enabled(DEVICE_TYPE), torch.get_autocast_dtype(DEVICE_TYPE)
    return torch.autocast(DEVICE_TYPE, dtype, enabled=on, cache_enabled=False)
