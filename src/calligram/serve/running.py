"""A server from its first socket to its last answer."""

from __future__ import annotations

import signal
import socket
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType

import torch
import uvicorn

from calligram.search.searcher import Searcher
from calligram.serve.address import Address
from calligram.serve.app import create_app
from calligram.serve.settings import Settings

BACKLOG = 512
CONNECTIONS = 1000
"""beyond these, new ones are told to come back: slow clients must not pile up"""
FAREWELL = 10
"""seconds that answers under way are given after SIGTERM"""


class Server:
    """A library at an address. The socket is taken first, so that a taken port is told before models are loaded."""

    def __init__(self, searcher: Searcher, listening: socket.socket, address: Address, settings: Settings):
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
    def open(cls, library: Path, address: Address, settings: Settings, *, device: str | torch.device = "cpu") -> Server:
        """Open the library and take the address."""
        listening = address.listen()
        try:
            return cls(Searcher.open(library, device=device), listening, address, settings)
        except BaseException:
            listening.close()
            raise

    def __enter__(self) -> Server:
        # Connections queue from now on, so an address that was printed can be used at once.
        self._socket.listen(BACKLOG)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def run(self) -> None:
        """Answer until SIGTERM or Ctrl-C; what is under way is answered first."""
        # uvicorn ends on these signals and raises them again afterwards; being asked to end is no failure.
        before = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._server.run(sockets=[self._socket])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    return None
