"""Python processes that start at once: forked from a server that has imported the slow libraries, but none of our code.

``python tests/preloaded.py`` is the server. Its standard input is a socket. A message there is a program with its
arguments, folder and environment, and four files: the standard input, output and error of a new process, and a pipe to
which the server writes its number and, at its end, its exit status. A process is what ``python -c`` would be, and can
be killed like it. A test of what is imported, or of how an interpreter ends, needs a real new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import warnings
from importlib import import_module
from pathlib import Path
from typing import IO

LIBRARIES = (
    "torch", "numpy", "pandas", "pyarrow.dataset", "safetensors.torch", "scipy.sparse", "PIL.Image", "typer", "rich",
    "lancedb", "lancedb.index", "lancedb.query",
)  # fmt: skip
MESSAGE_BYTES = 1 << 20


class PreloadedProcess:
    """A process, with the members of ``subprocess.Popen`` that tests use."""

    def __init__(self, stdin: IO[str], stdout: IO[str], status: IO[str]) -> None:
        self.stdin, self.stdout, self._status = stdin, stdout, status
        self.pid = int(status.readline())
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait for the end, and return the exit status, negative for a signal."""
        if self.returncode is None:
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        ended = self.returncode is not None or select.select([self._status], [], [], 0)[0]
        return self.wait() if ended else None

    def kill(self) -> None:
        """Kill it with signal 9."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, signal.SIGKILL)

    def __enter__(self) -> PreloadedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


class Preloaded:
    """The server as tests use it."""

    def __init__(self, folder: Path) -> None:
        self._control, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server = subprocess.Popen([sys.executable, str(Path(__file__))], stdin=own)
        self._folder = folder
        own.close()

    def start(
        self, code: str, *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None,
        errors: Path | None = None,
    ) -> PreloadedProcess:  # fmt: skip
        """Start ``code`` as ``python -c`` does; its errors go to a file or, by default, to those of this process."""
        given = [code, ["-c", *map(str, arguments)], str(cwd or Path.cwd()), dict(os.environ if env is None else env)]
        (stdin, to_it), (from_it, stdout), (status, written) = os.pipe(), os.pipe(), os.pipe()
        stderr = os.dup(2) if errors is None else os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        files = [stdin, stdout, stderr, written]
        socket.send_fds(self._control, [json.dumps(given).encode()], files)
        for file in files:
            os.close(file)
        return PreloadedProcess(os.fdopen(to_it, "w"), os.fdopen(from_it), os.fdopen(status))

    def run(self, code: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``code`` to its end, and return what it printed."""
        errors = self._folder / "errors"
        errors.write_bytes(b"")
        with self.start(code, *arguments, cwd=cwd, errors=errors) as process:
            process.stdin.close()
            printed = process.stdout.read()
            return subprocess.CompletedProcess(arguments, process.wait(), printed, errors.read_text())

    def close(self) -> None:
        """End the server."""
        self._control.close()
        self._server.wait()


def _become(message: bytes, files: list[int]) -> None:
    """Run the program of a message in this process, and end it as an interpreter does."""
    code, arguments, folder, environment = json.loads(message)
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv, sys.path[0] = arguments, ""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), main.__dict__)
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _serve(control: socket.socket) -> None:
    """Fork a process for each message until the socket is closed."""
    running: dict[int, int] = {}
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([control, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = running.pop(ended[0])
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())
                os.close(status)
        if control in ready:
            message, files, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 4)
            if not message:
                return
            if not (process := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                for file in (wake, woken, *running.values()):
                    os.close(file)
                _become(message, files)
            running[process] = files[3]
            os.write(files[3], f"{process}\n".encode())
            for file in files[:3]:
                os.close(file)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="lancedb fork support")
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            import_module(name)
    place = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _serve(socket.socket(fileno=place))
