"""A server from its first socket to its last answer."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType

import uvicorn

from calligram.errors import UserError
from calligram.search.searcher import Searcher
from calligram.serve.app import create_app
from calligram.serve.settings import Settings

BACKLOG = 512
FAREWELL = 10
"""seconds that answers under way are given after SIGTERM"""


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def url(self) -> str:
        """What to open in a browser on this machine."""
        anywhere = self.host in ("0.0.0.0", "::")
        name = socket.gethostname() if anywhere else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}"

    def or_any(self) -> Address:
        """This address, or one with another port where this one is taken."""
        try:
            self.listen().close()
        except UserError:
            return replace(self, port=0)
        return self

    def names(self, more: Iterable[str]) -> frozenset[str]:
        """Names that a Host header may give: this machine's own where others reach it, and those that were allowed."""
        own = set() if self.loopback else {self.host, socket.gethostname(), socket.getfqdn()}
        return frozenset(name.lower() for name in {"localhost", *own, *more})

    def listen(self) -> socket.socket:
        """Take the address.

        Raises:
            UserError: when it is not ours or already taken.
        """
        try:
            family, kind, *_, where = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(
                f"cannot listen on {self.host} port {self.port} ({reason}); give another with --host or --port, "
                "or --port 0 for any free one"
            ) from error
        return listening


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
            timeout_keep_alive=15,
            timeout_graceful_shutdown=FAREWELL,
        )
        self._server = uvicorn.Server(config)

    @classmethod
    def open(cls, library: Path, address: Address, settings: Settings, *, device: str = "cpu") -> Server:
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
