"""A server from its first socket to its last answer."""

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
from calligram.serve import guard
from calligram.serve.guard import Guard
from calligram.serve.routes import about, captions, explain, items, search
from calligram.serve.service import Service
from calligram.serve.settings import Address, ServerSettings

# The application: routes, guards and the page, around a searcher.

STATIC = Path(__file__).parent / "static"


def create_app(searcher: Searcher, settings: ServerSettings | None = None) -> FastAPI:
    """Serve ``searcher``; by default to this machine only, which is what the Host header must then say."""
    service = Service(searcher, settings or ServerSettings())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="Calligram",
        version=calligram.__version__,
        description="Search a library of pictures by words, by pictures, or by both.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # its scripts come from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    guard.install(app)
    for router in (search.router, items.router, explain.router, captions.router, about.router):
        app.include_router(router)
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    app.add_middleware(Guard, settings=service.settings, metrics=service.metrics)
    return app


BACKLOG = 512
CONNECTIONS = 1000
"""beyond these, new ones are told to come back: slow clients must not pile up"""
FAREWELL = 10
"""seconds that answers under way are given after SIGTERM"""


class LibraryServer:
    """A library at an address. The socket is taken first, so that a taken port is told before models are loaded."""

    def __init__(self, searcher: Searcher, listening: socket.socket, address: Address, settings: ServerSettings):
        self._socket = listening
        self.address = replace(address, port=listening.getsockname()[1])
        config = uvicorn.Config(
            create_app(searcher, settings),
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=FAREWELL,
        )
        self._server = uvicorn.Server(config)

    @classmethod
    def open(
        cls, library: Path, address: Address, settings: ServerSettings, *, device: str | torch.device = "cpu"
    ) -> LibraryServer:
        """Open the library and take the address."""
        listening = address.listen()
        try:
            return cls(Searcher.open(library, device=device), listening, address, settings)
        except BaseException:
            listening.close()
            raise

    def __enter__(self) -> LibraryServer:
        # Connections queue from now on, so an address that was printed can be used at once.
        self._socket.listen(BACKLOG)
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
