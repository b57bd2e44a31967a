"""Processes of rows, forked from a server that has imported everything, so that a row starts in under a second.

``python -m calligram.studies.row_server MODULE...`` is the server. Its standard input is a socket. A message there is
the number of a row with three files: the standard input, output and error of a new process, which runs ``rows.main``.
The server writes a line with number and exit status for each process that has ended. When the socket is closed, it
kills its processes and ends. The server uses no GPU, because CUDA does not work in a process that is forked after that.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO

import torch

import calligram
from calligram.studies.rows import main

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
NVML_VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""environment variable of torch: 1 to look for a GPU without using CUDA"""
ROW_PACKAGES = ("data", "evaluation", "features", "losses", "models", "recipes", "training")
"""packages of calligram that a row uses"""
ROW_MODULES = (
    "torch._dynamo", "torch.utils.tensorboard", "scipy.sparse.csgraph", "pyarrow.dataset",
    "matplotlib.figure", "matplotlib.backends.backend_agg",
)  # fmt: skip
"""slow imports of every row, which functions import on use"""
POLL_SECONDS = 0.02
"""longest time until the server sees that a process has ended"""
END_SECONDS = 3.0
"""time in which the server ends; it takes longer only while it imports"""
NUMBER_BYTES = 4

MPS_PROGRAM = "nvidia-cuda-mps-control"
MPS_VARIABLE, MPS_LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MPS_OFF = "/dev/null"
"""value of the first variable with which a process does not use a service"""
MPS_SOCKET = Path("/tmp/nvidia-mps/control")
"""socket of a service without these variables"""
MPS_PARENT = "/tmp"
MPS_PROCESSES = 48
"""largest number of processes of a service"""
MPS_SECONDS = 60.0
"""longest time in which a service starts or ends"""
MPS_END = f'cat; echo quit | {MPS_PROGRAM}; rm -rf "${MPS_VARIABLE}"'
"""shell command that ends a service when its standard input is closed"""
CUDA_CHECK = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"
"""Python program that fails where a process cannot use the service"""


class RowProcess:
    """The process of a row, with pipes to its standard input and output."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self.stdin, self.stdout = stdin, stdout
        self._ended = threading.Event()
        self._code: int | None = None

    def end(self, code: int | None) -> None:
        """Note that the process has ended."""
        if not self._ended.is_set():
            self._code = code
            self._ended.set()

    def wait(self) -> int | None:
        """Wait for the end and return the exit status, negative for a signal; None if the server ended before."""
        self._ended.wait()
        return self._code

    def close(self) -> None:
        """Close the pipes; a process that still runs ends itself."""
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


class RowServer:
    """Starts processes of rows; a context at whose end no process is left."""

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = os.environ
        """environment of the processes, to which variables for one thread are added"""
        self._server: subprocess.Popen[str] | None = None
        self._control: socket.socket | None = None
        self._processes: dict[int, RowProcess] = {}

    def __enter__(self) -> RowServer:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            # The pipe of its output stays open: a thread may read from it.
            with contextlib.suppress(OSError):
                process.stdin.close()
        if self._server is None or self._control is None:
            return
        self._control.close()
        try:
            self._server.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def isolate(self) -> None:
        """Start further processes without MPS. Those that were started before have ended."""
        self.__exit__()
        self._server, self._control, self._processes = None, None, {}
        self.environment = {**self.environment, MPS_VARIABLE: MPS_OFF}

    def start(self, number: int, log: IO[bytes]) -> RowProcess:
        """Start the process of a row, whose errors go to ``log``."""
        if self._server is None or self._server.poll() is not None:
            self._start_server(log)
        assert self._control is not None
        stdin, to_row = os.pipe()
        from_row, stdout = os.pipe()
        process = RowProcess(os.fdopen(to_row, "w", encoding="utf-8"), os.fdopen(from_row, encoding="utf-8"))
        self._processes[number] = process
        try:
            socket.send_fds(self._control, [number.to_bytes(NUMBER_BYTES, "little")], [stdin, stdout, log.fileno()])
        except BrokenPipeError:  # the server has just ended
            process.end(None)
        os.close(stdin)
        os.close(stdout)
        return process

    def _start_server(self, log: IO[bytes]) -> None:
        self._control, other = socket.socketpair()
        modules = [*ROW_MODULES, *imported_modules()]
        with other:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "calligram.studies.row_server", *modules],
                stdin=other.fileno(), stdout=subprocess.PIPE, stderr=log, text=True,
                env=_row_environment(self.environment),
                start_new_session=True,  # Ctrl-C is for this process, which stops the others
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(self._server, self._processes), daemon=True).start()

    @staticmethod
    def _listen(server: subprocess.Popen[str], processes: Mapping[int, RowProcess]) -> None:
        assert server.stdout is not None
        for line in server.stdout:
            number, code = map(int, line.split())
            processes[number].end(code)
        for process in list(processes.values()):
            process.end(None)


def imported_modules() -> list[str]:
    """Return the modules that this process has imported and that rows may use."""
    prefixes = ("transformers.", *(f"calligram.{package}." for package in ROW_PACKAGES))
    return [name for name in sys.modules if name.startswith(prefixes)]


def _row_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process with one thread, which imports the same package as this one."""
    paths = [str(Path(calligram.__file__).parents[1]), *filter(None, [given.get("PYTHONPATH")])]
    fixed = {**dict.fromkeys(THREAD_VARIABLES, "1"), NVML_VARIABLE: "1"}
    return {**given, **fixed, "PYTHONPATH": os.pathsep.join(paths)}


@contextlib.contextmanager
def multi_process_service(
    device: torch.device, processes: int, say: Callable[[str], None]
) -> Iterator[Mapping[str, str]]:
    """Run NVIDIA's Multi-Process Service (MPS), with which kernels of several processes run on a GPU at the same time.

    Without it the processes take turns: twelve rows with frozen networks took 110 s each on an H200, and 55 s with MPS,
    with the same numbers. Nothing is started where a service of the user runs, for one process, or without a GPU. The
    service has a folder of its own, and the environment of this process stays as it is, so no other process uses it.

    Yields:
        The environment for the processes.
    """
    served = device.type == "cuda" and 1 < processes <= MPS_PROCESSES and shutil.which(MPS_PROGRAM) is not None
    if not served or MPS_VARIABLE in os.environ or MPS_SOCKET.exists():
        yield os.environ
        return
    folder = tempfile.mkdtemp(prefix="mps-", dir=MPS_PARENT)  # paths of sockets have at most 107 bytes
    of_service = {**os.environ, MPS_VARIABLE: folder, MPS_LOG_VARIABLE: folder}
    # The service gives new numbers to the GPUs that this variable names, and its processes see no others.
    of_rows = {name: value for name, value in of_service.items() if name != "CUDA_VISIBLE_DEVICES"}
    # It waits for the end of this process, so a killed command leaves no service.
    end = subprocess.Popen(
        ["sh", "-c", MPS_END], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=of_service, start_new_session=True,
    )  # fmt: skip
    assert end.stdin is not None
    try:
        works = _succeeds([MPS_PROGRAM, "-d"], of_service) and _succeeds([sys.executable, "-c", CUDA_CHECK], of_rows)
        say("rows share the GPU by MPS" if works else "MPS does not start here; rows take turns on the GPU")
        yield of_rows if works else os.environ
    finally:
        end.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it ends the service later
            end.wait(MPS_SECONDS)


def _succeeds(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command ends with status 0; its output is no pipe, which a service would hold open."""
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment, timeout=MPS_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def fork_rows(modules: Sequence[str]) -> bool:
    """Import modules, then fork a process for every message on standard input, until that is closed.

    Returns:
        True in each new process, False in the server.
    """
    channel = os.dup(1)
    os.dup2(2, 1)  # what libraries print belongs to the log
    for name in modules:
        with contextlib.suppress(Exception):  # the row that needs the module fails with the error
            import_module(name)
    control, numbers = socket.socket(fileno=0), dict[int, int]()
    while True:
        if select.select([control], [], [], POLL_SECONDS)[0]:
            message, files, _, _ = socket.recv_fds(control, NUMBER_BYTES, 3)
            if not message:
                break
            process = os.fork()
            if not process:
                control.detach()
                os.close(channel)
            else:
                numbers[process] = int.from_bytes(message, "little")
            for target, file in enumerate(files):
                if not process:
                    os.dup2(file, target)
                os.close(file)
            if not process:
                return True
        for process in list(numbers):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                with contextlib.suppress(BrokenPipeError):
                    os.write(channel, f"{numbers.pop(process)} {os.waitstatus_to_exitcode(status)}\n".encode())
    for process in numbers:
        os.kill(process, signal.SIGKILL)
    for process in numbers:
        os.waitpid(process, 0)
    return False


if __name__ == "__main__":
    if not fork_rows(sys.argv[1:]):
        os._exit(0)  # at once: with all these imports, the regular end takes seconds
    if torch.cuda._is_in_bad_fork():
        # An import has used CUDA, which does not work in a forked process. A new interpreter has the same files.
        os.execv(sys.executable, [sys.executable, "-m", "calligram.studies.rows"])
    main()
