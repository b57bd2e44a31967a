"""Where a server listens, and who can reach it there."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace

from calligram.errors import UserError


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
            family, kind, protocol, _, where = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            # Named because asyncio sends without delay only where it reads TCP here; 40 ms an answer otherwise.
            listening = socket.socket(family, kind, protocol)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            listening.listen(1)  # only now is it ours: two sockets may be bound to one address until one listens
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(
                f"cannot listen on {self.host} port {self.port} ({reason}); give another with --host or --port, "
                "or --port 0 for any free one"
            ) from error
        return listening
