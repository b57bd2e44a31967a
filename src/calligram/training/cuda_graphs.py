"""CUDA graphs: capture the forward and the backward pass of a loss once for each shape, then replay them.

A step of many small kernels takes as long as their launches one by one; a replay launches them together. A captured
graph keeps its memory, and each new shape takes up to a second to capture.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from calligram.device import GRAPH_DEVICE_TYPE, compile_enabled, first_error, use_cuda_graphs

log = logging.getLogger(__name__)

PADDING_MULTIPLE = 4
"""texts are padded to a multiple of so many words, so that few shapes are captured"""
MAX_GRAPHS = 32
"""largest number of shapes that are captured for one objective"""
CAPTURE_AT_COUNT = 2
"""a shape is captured when it comes for this time: the last batch of an epoch may come only once"""
WARMUP_RUNS = 3
"""runs before the capture, in which libraries select and compile their kernels"""

GraphFunction = Callable[..., Tensor]


def run_with_cuda_graphs(
    owner: nn.Module,
    others: Sequence[nn.Module],
    function: GraphFunction,
    inputs: Sequence[Tensor],
    constants: object = None,
) -> Tensor:
    """Run ``function(*inputs)`` with CUDA graphs: a replay if the shapes have been captured, a normal run otherwise.

    There is one replay at a time. Between a replay and its backward pass, other calls for the owner run without graphs,
    since a replay would overwrite memory that the backward pass needs.

    Args:
        owner: module that keeps the graphs as long as it exists, and whose parameters the function uses.
        others: further modules whose parameters the function uses. It uses no other parameters.
        function: never waits for the device; returns one tensor.
        constants: what it depends on besides tensors; another value takes another graph.
    """
    graphs = _GRAPHS.setdefault(owner, GraphCache())
    used = _FunctionWithModules(function, [owner, *others])
    parameters = list(used.parameters())
    try:
        captured = graphs.lookup(used, inputs, parameters, constants)
        if captured is not None:
            found: Tensor = _ReplayFunction.apply(graphs, captured, len(inputs), *inputs, *parameters)  # type: ignore[no-untyped-call]
            return found
    except Exception as error:  # drivers raise many types, and out of memory is one of them
        graphs.disable()
        log.info("%s cannot use CUDA graphs and runs without them: %s", type(owner).__name__, first_error(error))
    return function(*inputs)


def replays_of(owner: nn.Module) -> int:
    """Return the number of replays of an owner's graphs; -1 after a capture that failed."""
    graphs = _GRAPHS.get(owner)
    return 0 if graphs is None else -1 if graphs.disabled else graphs.replays


def delete_graphs(owner: nn.Module) -> None:
    """Delete the graphs of an owner when they are no longer needed: they keep the memory of a step."""
    _GRAPHS.pop(owner, None)


def delete_unused_graphs(owner: nn.Module, *, compiled: bool) -> None:
    """Keep the graphs of an owner that were captured with compilation, or the graphs that were captured without it.

    Args:
        compiled: whether functions are compiled from now on.
    """
    if graphs := _GRAPHS.get(owner):
        graphs.delete_unused(compiled=compiled)


class _FunctionWithModules(nn.Module):
    """A function with the modules whose parameters it uses."""

    def __init__(self, function: GraphFunction, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.function, self.modules_used = function, nn.ModuleList(modules)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


class CapturedStep(Protocol):
    """Forward and backward pass for one shape."""

    inputs: Sequence[Tensor]
    """memory from which the graph reads its inputs"""

    def forward(self) -> Tensor:
        """Return the result, valid until the next replay."""

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        """Return new gradients of the parameters; None for unused parameters."""


class CudaGraphStep:
    """Two CUDA graphs, of the forward and of the backward pass; all graphs of an owner share one memory pool."""

    def __init__(self, used: nn.Module, inputs: Sequence[Tensor], graphs: GraphCache) -> None:
        self.inputs = inputs
        if graphs.memory is None:
            graphs.memory, graphs.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            self._capture(used, graphs)
        except Exception:
            # After a failed capture the random generator still refers to the capture.
            generator = torch.cuda.default_generators[inputs[0].device.index]
            generator.graphsafe_set_state(generator.clone_state())
            raise

    def _capture(self, used: nn.Module, graphs: GraphCache) -> None:
        options = {
            "pool": graphs.memory,
            "stream": graphs.stream,
            "capture_error_mode": "thread_local",
        }  # "thread_local", because another thread pins batches
        self._forward_graph, self._backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Gradients accumulate on the stream on which a parameter was first used, which is not the capture stream; the
        # autocast cache is on that stream too. So the capture uses new tensors that share the same memory.
        aliases = {name: p.detach().requires_grad_(p.requires_grad) for name, p in used.named_parameters()}
        trained = [p for p in aliases.values() if p.requires_grad]
        if len({p.dtype for p in trained}) > 1:
            raise ValueError("parameters must have one precision for CUDA graphs")
        torch.cuda.synchronize()
        with torch.cuda.stream(graphs.stream), autocast_without_cache(), torch.enable_grad():
            for _ in range(WARMUP_RUNS):
                found = functional_call(used, aliases, tuple(self.inputs))
                torch.autograd.grad(found, trained, torch.zeros_like(found), allow_unused=True)
            torch.cuda.synchronize()
            with torch.cuda.graph(self._forward_graph, **options):
                found = functional_call(used, aliases, tuple(self.inputs))
            self._gradient = torch.zeros_like(found)
            with torch.cuda.graph(self._backward_graph, **options):
                gradients = torch.autograd.grad(found, trained, self._gradient, allow_unused=True)
                # Concatenated, so that one copy is enough.
                self._flat = torch.cat([g.flatten() for g in gradients if g is not None])
        torch.cuda.synchronize()
        gradient_of = iter(gradients)
        reached = [next(gradient_of) is not None if p.requires_grad else False for p in aliases.values()]
        self._shapes = [p.shape if used else None for p, used in zip(aliases.values(), reached, strict=True)]
        self._found: Tensor = found.detach()

    def forward(self) -> Tensor:
        """Return the result, valid until the next replay."""
        self._forward_graph.replay()
        return self._found

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        """Return new gradients of the parameters; None for unused parameters."""
        self._gradient.copy_(gradient)
        self._backward_graph.replay()
        # A parameter may keep this tensor as its gradient, and the next replay would overwrite it.
        pieces = iter(torch.split(self._flat.clone(), [shape.numel() for shape in self._shapes if shape is not None]))
        return [None if shape is None else next(pieces).view(shape) for shape in self._shapes]


capture: Callable[[nn.Module, Sequence[Tensor], GraphCache], CapturedStep] = CudaGraphStep


class _Key(NamedTuple):
    """What a captured graph depends on, besides the addresses of the parameters."""

    shapes: object
    autocast: object
    compiled: bool
    allow_tf32: bool
    device: torch.device
    constants: object


class GraphCache:
    """The captured graphs of one owner."""

    def __init__(self) -> None:
        self.memory: Any = None
        self.stream: Any = None
        self.replays = 0
        """number of replays; a backward pass belongs to the last one"""
        self._captured: dict[_Key, CapturedStep] = {}
        self._shape_counts: Counter[_Key] = Counter()
        self._addresses: object = None
        self._token: Callable[[], object] = lambda: None
        self.disabled = False

    def __len__(self) -> int:
        return len(self._captured)

    def __deepcopy__(self, memo: object) -> GraphCache:
        return GraphCache()

    def disable(self) -> None:
        """Delete all graphs and never capture again."""
        self.disabled = True
        self._captured.clear()

    def delete_unused(self, *, compiled: bool) -> None:
        """Delete the graphs that steps do not use if functions are compiled, or are not, from now on."""
        self._captured = {key: step for key, step in self._captured.items() if key.compiled == compiled}

    def begin_replay(self) -> object:
        """Start a replay. It ends with ``end_replay``, or when the returned token is deleted."""
        self.replays += 1
        token = _ReplayToken()
        self._token = weakref.ref(token)
        return token

    def end_replay(self) -> None:
        """End the replay, after its backward pass."""
        self._token = lambda: None

    def lookup(
        self, used: nn.Module, inputs: Sequence[Tensor], parameters: Sequence[Tensor], constants: object = None
    ) -> CapturedStep | None:
        """Return the graphs for these shapes, captured if the shapes have come often enough; None for a normal run."""
        if self.disabled or self._token() is not None or not any(p.requires_grad for p in parameters):
            return None
        addresses = [(p.data_ptr(), p.requires_grad) for p in parameters]
        if addresses != self._addresses:  # parameters were moved or frozen, so graphs read the wrong memory
            self._captured.clear()
            self._addresses = addresses
        key = _Key(
            tuple((t.shape, t.dtype) for t in inputs),
            (torch.is_autocast_enabled(GRAPH_DEVICE_TYPE), torch.get_autocast_dtype(GRAPH_DEVICE_TYPE)),
            compile_enabled(), torch.backends.cuda.matmul.allow_tf32, inputs[0].device, constants,
        )  # fmt: skip
        self._shape_counts[key] += 1
        if key not in self._captured:
            if self._shape_counts[key] < CAPTURE_AT_COUNT or len(self._captured) >= MAX_GRAPHS:
                return None
            buffers = [t.clone() for t in inputs]
            with use_cuda_graphs(False), preserve_state(list(used.buffers())):
                self._captured[key] = capture(used, buffers, self)
        return self._captured[key]


_GRAPHS: weakref.WeakKeyDictionary[nn.Module, GraphCache] = weakref.WeakKeyDictionary()
"""not an attribute of the owners, so that graphs are neither copied nor saved with them"""


class _ReplayToken:
    """Exists as long as a backward pass may come."""


class _ReplayFunction(Function):
    """A replay as an autograd function."""

    @staticmethod
    def forward(ctx: Any, graphs: GraphCache, captured: CapturedStep, count: int, *tensors: Tensor) -> Tensor:
        for buffer, tensor in zip(captured.inputs, tensors[:count], strict=True):
            buffer.copy_(tensor)
        found = captured.forward().clone()
        ctx.graphs, ctx.captured, ctx.count = graphs, captured, count
        ctx.token, ctx.replay = graphs.begin_replay(), graphs.replays
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.replay != ctx.graphs.replays:
            raise RuntimeError(
                "the backward pass of an earlier replay is not possible with CUDA graphs; use speed=plain"
            )
        parameters = ctx.captured.backward(gradient)
        ctx.graphs.end_replay()
        return None, None, None, *[None] * ctx.count, *parameters


def pad_words(texts: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Pad the words of texts (N, W) or (N, W, D) with zeros to a multiple of ``PADDING_MULTIPLE``, and their mask.

    All batches on a GPU are padded, with or without graphs: padding changes which random numbers are drawn. Texts that
    are vectors (N, D) have no words.
    """
    more = -mask.shape[1] % PADDING_MULTIPLE
    if not more or (texts.ndim == 2 and texts.is_floating_point()):
        return texts, mask
    return F.pad(texts, (0, 0) * (texts.ndim - 2) + (0, more)), F.pad(mask, (0, more))


@contextmanager
def preserve_state(buffers: Sequence[Tensor]) -> Iterator[None]:
    """Restore random states and running statistics, because warm-up runs must not change training."""
    values = [buffer.clone() for buffer in buffers]
    random_state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        if random_state is not None:
            torch.cuda.set_rng_state(random_state)
        with torch.no_grad():
            for buffer, before in zip(buffers, values, strict=True):
                buffer.copy_(before)


def autocast_without_cache() -> torch.autocast:
    """Autocast with the current settings, without its cache of converted weights of an earlier step."""
    on, dtype = torch.is_autocast_enabled(GRAPH_DEVICE_TYPE), torch.get_autocast_dtype(GRAPH_DEVICE_TYPE)
    return torch.autocast(GRAPH_DEVICE_TYPE, dtype, enabled=on, cache_enabled=False)
