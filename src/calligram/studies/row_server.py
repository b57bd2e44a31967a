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
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
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
                env=_environment(), start_new_session=True,  # Ctrl-C is for this process, which stops the others
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(self._server,), daemon=True).start()

    def _listen(self, server: subprocess.Popen[str]) -> None:
        assert server.stdout is not None
        for line in server.stdout:
            number, code = map(int, line.split())
            self._processes[number].end(code)
        for process in list(self._processes.values()):
            process.end(None)


def imported_modules() -> list[str]:
    """Return the modules that this process has imported and that rows may use."""
    prefixes = ("transformers.", *(f"calligram.{package}." for package in ROW_PACKAGES))
    return [name for name in sys.modules if name.startswith(prefixes)]


def _environment() -> dict[str, str]:
    """Return the environment of a process with one thread, which imports the same package as this one."""
    paths = [str(Path(calligram.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    fixed = {**dict.fromkeys(THREAD_VARIABLES, "1"), NVML_VARIABLE: "1"}
    return {**os.environ, **fixed, "PYTHONPATH": os.pathsep.join(paths)}


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
