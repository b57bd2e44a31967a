"""Devices by name, and switches for a GPU: attention without cuDNN, dropout with independent masks, compilation, CUDA
graphs, fused kernels, and networks in half precision.

Operations over many small parts take as long as their reads and writes of memory. Compiled, several operations read and
write once. The first call of a compiled function takes up to a minute. So compilation and CUDA graphs are off, and
training switches them on where they pay (``training/speed_trial.py``).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import platform
import subprocess
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from calligram.errors import UserError

log = logging.getLogger(__name__)

Precision = Literal["fp32", "bf16", "fp16"]
PLACE_IN_CHECKOUT = "src/calligram/device.py"
"""path of this file in a checkout of the project"""
COMMIT_FILE = Path(__file__).parent / "COMMIT"
"""holds the commit where the code was copied without its git history"""
GRAPH_DEVICE_TYPE = "cuda"
"""type of device that can capture graphs"""
ATTENTION_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""all attention kernels but cuDNN's"""
ASYNCHRONOUS_BYTES = 1 << 16
"""CUDA copies so many bytes from any memory of the host without waiting for the GPU"""

P = ParamSpec("P")
R = TypeVar("R")
Item = TypeVar("Item")


def device_named(name: str = "auto") -> torch.device:
    """Return a device by name; ``auto`` is the GPU of this process if there is one, else the CPU.

    Under ``torchrun`` each process has its own GPU, so ``cuda`` is that one.

    Raises:
        UserError: when torch does not know the name, or has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}'; known: auto, cpu, cuda, cuda:0, cuda:1, ...") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device '{name}' is not available: torch finds no CUDA device; use --device cpu")
    if device.type == "cuda":
        index = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
        if index >= (count := torch.cuda.device_count()):
            raise UserError(f"there is no GPU {index}: torch finds {count}, numbered from 0; use one of these")
        device = torch.device("cuda", index)
    return device


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's weights; the CPU for a module without parameters and buffers."""
    found = next(chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if found is None else found.device


def device_name(device: torch.device, threads: int | None = None) -> str:
    """Return the name of the hardware, as results record it.

    Args:
        threads: number of CPU threads; None for those of this process.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{threads or torch.get_num_threads()} CPU threads ({platform.machine()})"


def commit() -> str:
    """Return the commit of the code: the content of ``COMMIT``, else that of the git checkout of the package.

    It ends with ``-dirty`` where files of the package differ from it. Other files of the checkout do not count: results
    that are recorded there do not change the code. A package that is not part of the checkout around it, such as one in
    the virtual environment of another project, has an unknown commit.
    """
    package = COMMIT_FILE.parent
    if COMMIT_FILE.is_file():
        return COMMIT_FILE.read_text(encoding="utf-8").strip()

    # Inside a hook of git these name the repository of the hook.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*words: str) -> str:
        found = subprocess.run(
            ["git", *words], cwd=package, env=environment, capture_output=True, text=True, timeout=10, check=True
        )
        return found.stdout.strip()

    try:
        # Another project may have committed the package with its virtual environment.
        if git("ls-files", "--full-name", "--error-unmatch", Path(__file__).name) != PLACE_IN_CHECKOUT:
            return "unknown"
        return git("describe", "--always", "--abbrev=10") + ("-dirty" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def prepare_ahead(prepare: Callable[[Item], R], items: Sequence[Item]) -> Iterator[R]:
    """Prepare items in another thread, one ahead of the caller, and yield them in order.

    Torch uses one core in that thread, so that preparation and the training step compete less for the cores.
    """
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(1) as thread:
        # A thread takes over the number of the last call of ``set_num_threads`` when it first asks for it. So this
        # thread asks before it sets its own, and the number for other threads is set again.
        thread.submit(torch.get_num_threads).result()
        thread.submit(torch.set_num_threads, 1).result()
        torch.set_num_threads(threads)
        coming = thread.submit(prepare, items[0]) if items else None
        for following in range(1, len(items) + 1):
            assert coming is not None
            prepared = coming.result()
            coming = thread.submit(prepare, items[following]) if following < len(items) else None
            yield prepared


def pin_if_large(tensor: Tensor) -> Tensor:
    """Pin a tensor, so that its copy to a GPU is asynchronous; in a background thread.

    A copy of at most ``ASYNCHRONOUS_BYTES`` is asynchronous anyway, and costs less than to pin the tensor first.
    """
    return tensor.pin_memory() if tensor.nbytes > ASYNCHRONOUS_BYTES else tensor


def seed_random_numbers(seed: int, device: torch.device) -> None:
    """Seed the random numbers of the CPU and of one device; they are the same as after ``torch.manual_seed``.

    ``torch.manual_seed`` also seeds back ends that are not in use. It queues a call for each of them, with a formatted
    stack trace: up to 2 milliseconds for each training step, and memory that is never freed.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
    elif device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def without_cudnn_attention(tensor: Tensor) -> AbstractContextManager[None]:
    """Compute attention on a GPU without cuDNN.

    cuDNN plans for 0.1 seconds or more for every new shape, and almost every batch has a new shape. The attention
    itself takes a millisecond.
    """
    return sdpa_kernel(ATTENTION_BACKENDS) if tensor.is_cuda else nullcontext()


class IndependentDropout(nn.Dropout):
    """Dropout whose masks do not depend on those of the dropout before, also in half precision on a GPU.

    For entries of 16 bits, a thread of the CUDA kernel of PyTorch draws eight random numbers, but the generator goes on
    by four. So half of a mask is repeated in the mask of the next dropout (``aten/src/ATen/native/cuda/Dropout.cu``,
    ``counter_offset``). If one is for images and the next for their texts, a network can find pairs by their masks.
    In float32 a thread draws four numbers.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Drop entries, with the random numbers of float32."""
        return super().forward(input.float()).to(input.dtype) if self.training else input


def use_independent_dropout(module: nn.Module) -> None:
    """Replace each dropout of a module, also of networks of ``transformers``, by ``IndependentDropout``."""
    for part in module.modules():
        if type(part) is nn.Dropout:
            part.__class__ = IndependentDropout


class _Switch:
    """A choice for the whole process, not for a thread, because gradient checkpoints recompute in another thread."""

    def __init__(self, *, on: bool = False) -> None:
        self.on = on
        self.asked = 0.0
        """most seconds that it costs those who have asked for it since this was last cleared; 0 if nobody asked"""

    @contextmanager
    def set(self, on: bool) -> Iterator[None]:
        """Set it inside a block."""
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before


_COMPILE, _GRAPHS, _KERNELS = _Switch(), _Switch(), _Switch(on=True)


@dataclass
class HalfNetworks:
    """Whether networks may run in bfloat16 in a block, and whether one did."""

    on: bool = False
    used: bool = False


_HALF = ContextVar("half networks", default=HalfNetworks())  # noqa: B039  it is off, and a block sets its own
"""for a thread, because several threads may index at the same time, each in its own precision"""


def use_compile(on: bool = True) -> AbstractContextManager[None]:
    """Switch compilation on or off inside a block."""
    return _COMPILE.set(on)


def compile_enabled(seconds: float = 60.0) -> bool:
    """Whether functions with ``compile_if_enabled`` and trained networks are compiled now.

    Args:
        seconds: how long it takes to compile what the caller runs.
    """
    _COMPILE.asked = max(_COMPILE.asked, seconds)
    return _COMPILE.on


def asked_to_compile() -> float:
    """Return how many seconds it takes to compile what has run since the last call of this function; 0 for nothing."""
    asked, _COMPILE.asked = _COMPILE.asked, 0.0
    return asked


@contextmanager
def use_half_networks(on: bool = True) -> Iterator[HalfNetworks]:
    """Run transformers that are not trained in bfloat16 inside a block, on devices with fast bfloat16.

    This holds for the present thread. Threads that work for it enter a block of their own, with ``half_networks_on``.
    """
    token = _HALF.set(HalfNetworks(on and _KERNELS.on))
    try:
        yield _HALF.get()
    finally:
        _HALF.reset(token)


def half_networks_on() -> bool:
    """Whether this thread is in a block of ``use_half_networks``."""
    return _HALF.get().on


def half_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a network that may run in bfloat16; the block of ``use_half_networks`` notes if it does."""
    block = _HALF.get()
    if not (block.on and has_fast_bfloat16(device.type)):
        return nullcontext()
    block.used = True
    return torch.autocast(device.type, torch.bfloat16)


@functools.cache
def has_fast_bfloat16(device_type: str) -> bool:
    """Whether a kind of device has units for matrix products in bfloat16.

    GPUs of NVIDIA have them since compute capability 8.0, and CPUs of Intel with AMX. Other devices are slower in
    bfloat16 than in float32: CPUs with AVX2 alone up to 25 times (``bench/training_steps.py``).
    """
    if device_type == "cpu":
        found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch have none
        return bool(found.get("amx_bf16"))
    return device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def step_precision(precision: Precision, device: torch.device) -> Precision:
    """Return the precision in which steps are taken: float32 on a CPU that is slower in the one of the settings.

    No CPU is faster in float16.
    """
    slower = device.type == "cpu" and (precision == "fp16" or not has_fast_bfloat16("cpu"))
    return "fp32" if slower else precision


def use_cuda_graphs(on: bool = True) -> AbstractContextManager[None]:
    """Switch CUDA graphs (``training/cuda_graphs.py``) on or off inside a block."""
    return _GRAPHS.set(on)


def uses_cuda_graphs(tensor: Tensor) -> bool:
    """Whether to use CUDA graphs for this tensor: they are switched on, it is on a GPU, and gradients are enabled."""
    return _GRAPHS.on and tensor.device.type == GRAPH_DEVICE_TYPE and torch.is_grad_enabled()


def compile_if_enabled(*dynamic_axes: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to be compiled while compilation is on.

    A function that cannot be compiled runs as it is, which is logged once.

    Args:
        dynamic_axes: for each tensor argument, in order, how many of its first axes change their length from call to
            call. The function is not compiled again for each length.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        compiled: list[Callable[P, R]] = []

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not compile_enabled():
                return function(*args, **kwargs)
            if not compiled:
                compiled.append(torch.compile(function))
            for tensor, axes in zip((arg for arg in args if isinstance(arg, Tensor)), dynamic_axes, strict=True):
                torch._dynamo.maybe_mark_dynamic(tensor, list(range(axes)))
            try:
                return compiled[0](*args, **kwargs)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # compilers raise many types
                if compiled[0] is function:
                    raise
                reason = first_error(error)
                log.info("%s cannot be compiled and runs without compilation: %s", function.__name__, reason)
                _KERNEL_STATES[f"compiled {function.__name__}"] = f"plain: {reason}"
                compiled[0] = function
                return function(*args, **kwargs)

        return call

    return decorate


def first_error(error: BaseException) -> str:
    """Return the error that came first, and where. A capture or compilation that fails ends with a general error."""
    while error.__context__ is not None:
        error = error.__context__
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    places = [f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in frames]
    return f"{str(error) or type(error).__name__}{''.join(places)}"


# Fused kernels in Triton, which comes with torch for CUDA. The plain path computes the same where they do not apply.

_KERNEL_STATES: dict[str, str] = {}


def use_kernels(on: bool = True) -> AbstractContextManager[None]:
    """Use fused kernels where they apply, or the plain path everywhere, inside a block; for the whole process."""
    return _KERNELS.set(on)


def kernel_applies(name: str, tensor: Tensor) -> bool:
    """Whether to use a fused kernel for this tensor: it is on an NVIDIA GPU, Triton is there, and the kernel works."""
    if not (_KERNELS.on and tensor.is_cuda and torch.version.cuda) or torch.compiler.is_compiling():
        return False
    if name not in _KERNEL_STATES and not _has_triton():
        _KERNEL_STATES[name] = "plain: Triton is not installed"
    return _KERNEL_STATES.get(name, "fused") == "fused"


def run_kernel(name: str, kernel: Callable[[], R], plain: Callable[[], R]) -> R:
    """Run a fused kernel; or the plain path, if the kernel cannot be compiled or started here. That is logged once."""
    try:
        found = kernel()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton raises many types
        _KERNEL_STATES[name] = f"plain: {type(error).__name__}"
        log.warning("the kernel of %s cannot run here, and the plain path is used: %s", name, error)
        return plain()
    _KERNEL_STATES[name] = "fused"
    return found


def kernel_states() -> dict[str, str]:
    """For each kernel that was asked for: "fused", or "plain" with the reason; to be recorded with a run."""
    return dict(_KERNEL_STATES)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
