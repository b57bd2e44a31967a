"""The application, and the server that runs it."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType

import torch
import uvicorn
from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

import calligram
from calligram.search.query.searcher import Searcher
from calligram.serve.guard import Guard, install_error_handlers
from calligram.serve.routes import captions, embed, explain, items, search, status
from calligram.serve.service import Service
from calligram.serve.settings import Address, ServerSettings

STATIC_FOLDER = Path(__file__).parent / "static"
BACKLOG_CONNECTIONS = 512
MAX_CONNECTIONS = 1000
"""further connections are answered with 503, so that slow clients do not use up all memory"""
KEEP_ALIVE_SECONDS = 15
SHUTDOWN_SECONDS = 10
"""time to finish requests in progress after SIGTERM"""


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
    for router in (search.router, items.router, explain.router, captions.router, embed.router, status.router):
        app.include_router(router)
    app.mount("/", StaticFiles(directory=STATIC_FOLDER, html=True))
    app.add_middleware(Guard, settings=service.settings, metrics=service.metrics)
    return app


class LibraryServer:
    """A server of one library. It opens its socket first, so that a taken port is reported before models are loaded."""

    def __init__(self, searcher: Searcher, listening: socket.socket, address: Address, settings: ServerSettings):
        self._socket = listening
        self.address = replace(address, port=listening.getsockname()[1])
        config = uvicorn.Config(
            create_app(searcher, settings),
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=BACKLOG_CONNECTIONS,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        self._server = uvicorn.Server(config)

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
            return cls(Searcher.open(library, device=device, index=index), listening, address, settings)
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
        if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread only
            self._server.run(sockets=[self._socket])
            return
        # uvicorn stops on these signals and raises them again afterwards; a requested stop is not a failure.
        before = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._server.run(sockets=[self._socket])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Let ``run``, which is called in another thread, return."""
        self._server.should_exit = True


def _ignore(number: int, frame: FrameType | None) -> None:
    return None
