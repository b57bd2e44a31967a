"""The application, the server that runs it, and several processes that run it at one address."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple

import torch
import uvicorn
from fastapi import FastAPI
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.auto import AutoHTTPProtocol

import calligram
from calligram.errors import UserError
from calligram.lazy import ALLOWED_CODE, import_code
from calligram.search.library.manifest import check_address, read_manifest
from calligram.search.query.searcher import Searcher
from calligram.serve.guard import Guard, install_error_handlers
from calligram.serve.routes import albums, captions, embed, items, library, search, status
from calligram.serve.service import WORK_SECONDS, Service
from calligram.serve.settings import Address, ServerSettings

log = logging.getLogger("calligram.serve")

STATIC_FOLDER = Path(__file__).parent / "static"
BACKLOG_CONNECTIONS = 512
MAX_CONNECTIONS = 1000
"""further connections are answered with 503, so that slow clients do not use up all memory"""
KEEP_ALIVE_SECONDS = 15
SLOW_CLIENT_SECONDS = 20.0
"""for the header of a request to arrive, and for a part of an answer to be taken"""
SHUTDOWN_SECONDS = 5
"""time to finish requests in progress after SIGTERM; slow clients are cut off then"""
WATCH_SECONDS = 0.5
"""time between looks at the processes"""
RESTART_SECONDS = 1.0
"""time between the end of a process and the start of another in its place"""


def create_app(searcher: Searcher, settings: ServerSettings | None = None) -> FastAPI:
    """The application around ``searcher``. By default, the Host header must name this machine."""
    service = Service(searcher, settings or ServerSettings())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="Calligram",
        version=calligram.__version__,
        description="Search a library of pictures by texts, by pictures, or by both.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # its scripts come from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    install_error_handlers(app)
    for routes in (search, items, library, albums, captions, embed, status):
        app.include_router(routes.router)
    app.mount("/", StaticFiles(directory=STATIC_FOLDER, html=True))
    app.add_middleware(Guard, settings=service.settings, metrics=service.metrics)
    return app


class QueueingServer(uvicorn.Server):
    """A server whose socket queues many connections, however many it accepts at a time."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, which also sets the length of the queue to the number of connections that are accepted at a time."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG_CONNECTIONS)


class ImpatientProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """Closes the connections of clients that send a header, or read an answer, too slowly.

    uvicorn waits for both without a limit, so a few machines could take all connections.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start to watch a connection."""
        super().connection_made(transport)
        self._waits_since, self._unsent = time.monotonic(), 0
        self._watch()

    def _watch(self) -> None:
        if self.transport.is_closing():
            return
        now, unsent = time.monotonic(), self.transport.get_write_buffer_size()
        working = self.cycle is not None and not self.cycle.response_complete
        # With work and nothing to send, the client waits for us; when it has taken a part, its time starts again.
        if (working and not unsent) or unsent < self._unsent:
            self._waits_since = now
        self._unsent = unsent
        if now - self._waits_since > SLOW_CLIENT_SECONDS:
            self.transport.abort()
            return
        self.loop.call_later(SLOW_CLIENT_SECONDS / 10, self._watch)

    def on_response_complete(self) -> None:
        """Give the client its time for the next request."""
        super().on_response_complete()
        self._waits_since = time.monotonic()


class LibraryServer:
    """A server of one library. It opens its socket first, so that a taken port is reported before models are loaded."""

    def __init__(self, searcher: Searcher, listening: socket.socket, address: Address, settings: ServerSettings):
        self._socket = listening
        self.address = replace(address, port=listening.getsockname()[1])
        app = create_app(searcher, settings)
        self._service: Service = app.state.service
        config = uvicorn.Config(
            app,
            log_level="error",  # malformed requests would fill the log
            access_log=False,
            http=ImpatientProtocol,
            server_header=False,
            # asyncio accepts so many connections at a time, and one process must not take those of the others.
            backlog=BACKLOG_CONNECTIONS if settings.processes == 1 else 1,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        self._server = QueueingServer(config)
        logging.getLogger("uvicorn.error").addFilter(_is_not_cancelled)

    @classmethod
    def open(
        cls,
        library: Path,
        address: Address,
        settings: ServerSettings,
        *,
        device: str | torch.device = "cpu",
        index: str | None = None,
    ) -> LibraryServer:
        """Open the socket, then the library; ``index`` is the address of its vectors, if they are not in its folder."""
        listening = address.listen()
        try:
            searcher = Searcher.open(library, device=device, index=index, memory=settings.memory_bytes)
            return cls(searcher, listening, address, settings)
        except BaseException:
            listening.close()
            raise

    def __enter__(self) -> LibraryServer:
        # Connections are queued from now on, so the address can be used as soon as it is printed.
        self._socket.listen(BACKLOG_CONNECTIONS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def run(self) -> None:
        """Answer requests until SIGTERM, Ctrl-C or ``stop``. Requests in progress are answered first."""
        # uvicorn stops on these signals and raises them again afterwards; a requested stop is not a failure.
        with _signals_handled(_ignore):
            self._server.run(sockets=[self._socket])

    @property
    def abandoned(self) -> bool:
        """Whether work still runs after ``run``: it took too long, and Python would wait for it at the exit."""
        return self._service.abandoned

    def stop(self) -> None:
        """Let ``run``, which is called in another thread, return."""
        self._server.should_exit = True


@dataclass(frozen=True)
class ServerTask:
    """What a process needs to serve a library."""

    library: Path
    address: Address
    settings: ServerSettings
    device: str
    index: str | None
    code: tuple[str, ...]
    """modules and files of the user that are imported first"""


class ServerProcess(NamedTuple):
    """A process that serves, and the connection over which it says that it is ready, or why it cannot serve."""

    process: SpawnProcess
    connection: Connection

    def failure(self) -> str | None:
        """Why the process could not start; None if it could. Waits until one of both is known."""
        wait([self.connection, self.process.sentinel])
        if self.connection.poll():
            with contextlib.suppress(EOFError, OSError):
                said: str | None = self.connection.recv()
                return said
        self.process.join()
        return f"a process of the server ended while it started, with exit code {self.process.exitcode}"

    def end(self) -> str:
        """Why the process, which has ended, did so."""
        said: str | None = None
        with contextlib.suppress(EOFError, OSError):
            said = self.connection.recv() if self.connection.poll() else None
        self.connection.close()
        return said or f"exit code {self.process.exitcode}"


class ServerProcesses:
    """Several processes that serve one library at one address. A process that ends is replaced.

    All processes accept connections from one socket, so a connection that waits is not lost if a process is killed.
    Processes are spawned, not forked, because threads of torch and Lance do not survive a fork. They end with this
    process: each sees the end of its connection.
    """

    def __init__(self, task: ServerTask, listening: socket.socket):
        """Use ``open``."""
        self.address = replace(task.address, port=listening.getsockname()[1])
        self._task, self._socket = task, listening
        self._processes: list[ServerProcess] = []
        self._stopped = threading.Event()

    @classmethod
    def open(
        cls,
        library: Path,
        address: Address,
        settings: ServerSettings,
        *,
        device: str | torch.device = "cpu",
        index: str | None = None,
    ) -> ServerProcesses:
        """Open the socket, start all processes, and wait until they have opened the library.

        Raises:
            UserError: if the address is taken or the library cannot be opened.
        """
        task = ServerTask(library, address, settings, str(device), index, tuple(ALLOWED_CODE))
        opened = cls(task, address.listen())
        try:
            check_address(library, read_manifest(library), index)  # processes take seconds to say the same
            opened._processes = [opened._start() for _ in range(settings.processes)]
            for process in opened._processes:
                if (failure := process.failure()) is not None:
                    raise UserError(failure)
        except BaseException:
            opened._close()
            raise
        return opened

    def __enter__(self) -> ServerProcesses:
        self._socket.listen(BACKLOG_CONNECTIONS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def abandoned(self) -> bool:
        """Whether work still runs after ``run``; no, because processes are killed."""
        return False

    def run(self) -> None:
        """Replace processes that end, until SIGTERM, Ctrl-C or ``stop``. Requests in progress are answered first."""
        with _signals_handled(lambda number, frame: self._stopped.set()):
            while not self._stopped.is_set():
                wait([started.process.sentinel for started in self._processes], WATCH_SECONDS)
                if not all(started.process.is_alive() for started in self._processes):
                    self._stopped.wait(RESTART_SECONDS)
                    self._replace_ended()
        self._close()

    def stop(self) -> None:
        """Let ``run``, which is called in another thread, return."""
        self._stopped.set()

    def _replace_ended(self) -> None:
        for place, ended in enumerate(self._processes):
            if self._stopped.is_set() or ended.process.is_alive():
                continue
            log.warning("process %d of the server ended (%s); another one starts", ended.process.pid, ended.end())
            self._processes[place] = self._start()

    def _start(self) -> ServerProcess:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve_in_process, args=(self._task, self._socket, theirs), name="serve")
        process.start()
        theirs.close()
        return ServerProcess(process, ours)

    def _close(self) -> None:
        """End all processes: they stop when their connection closes, and are killed if they do not."""
        for started in self._processes:
            started.connection.close()
        for started in self._processes:
            started.process.join(SHUTDOWN_SECONDS + WORK_SECONDS + 2)
            if started.process.is_alive():
                started.process.kill()
                started.process.join()
        self._processes = []
        self._socket.close()


def serve_in_process(task: ServerTask, listening: socket.socket, parent: Connection) -> None:
    """Serve a library until SIGTERM, Ctrl-C or the end of the connection to the parent process."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.WARNING if task.settings.log == "none" else logging.INFO)
    try:
        for name in task.code:
            import_code(name)
        searcher = Searcher.open(task.library, device=task.device, index=task.index, memory=task.settings.memory_bytes)
        server = LibraryServer(searcher, listening, task.address, task.settings)
    except UserError as error:
        parent.send(str(error))
        return
    parent.send(None)
    threading.Thread(target=_stop_with_parent, args=(server, parent), daemon=True, name="parent").start()
    with server:
        server.run()
    if server.abandoned:
        os._exit(0)


def _stop_with_parent(server: LibraryServer, parent: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        parent.recv()  # nothing is ever sent, so it returns when the other end closes
    server.stop()


@contextlib.contextmanager
def _signals_handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call a handler on SIGTERM and Ctrl-C. In other threads than the main one, which get no signals, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _ignore(number: int, frame: FrameType | None) -> None:
    return None


def _is_not_cancelled(record: logging.LogRecord) -> bool:
    """Whether a record is no cancelled request: a server that stops says how many there are, without tracebacks."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
