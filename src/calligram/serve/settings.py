"""Who may ask the server, and how much."""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from calligram.errors import UserError

MAX_K = 500
MAX_DEPTH = 1000
MAX_BUDGET = 10_000
"""milliseconds that one may ask a search to take"""
MAX_QUERY = 1000
"""characters of one term of a query"""
MAX_TERMS = 16
"""terms of one kind: plus, minus or like"""
MAX_BOXES = 20
"""of one phrase"""
MAX_WORDS = 64
"""of a text whose words are weighed: each is encoded without one of them"""
MAX_CAPTION = 10_000
"""characters that are looked at; what is kept of them must be shorter, which is said kindly"""
MAX_WHERE = 4000
MAX_ID = 1000
MAX_TOKEN = 200
MIN_TOKEN = 8
COOKIE = "calligram"


@dataclass(frozen=True)
class ServerSettings:
    """What the verb decides; the limits above hold for every server."""

    token: str | None = None
    """asked for by everything but the page itself and ``/api/health``"""
    hosts: frozenset[str] = frozenset({"localhost"})
    """names that the Host header may give, besides addresses"""
    anywhere: bool = False
    """addresses other than loopback may be in the Host header"""
    collection: Path | None = None
    """what captions are written into, by everyone who may ask; nowhere if None"""
    budget_ms: float | None = None
    """milliseconds that an answer may take where a request says nothing of depth or budget; None for a fixed depth"""
    upload_bytes: int = 20_000_000
    upload_pixels: int = 50_000_000
    workers: int = field(default_factory=lambda: max(2, min(8, os.cpu_count() or 1)))
    """searches that run at the same time"""
    waiting: int = 256
    """searches that may wait for a worker before others are told to come back"""
    timeout: float = 30.0
    """seconds for a body to arrive, and for a search to be answered"""
    refresh: float = 2.0
    """seconds between looks at the library's manifest"""

    def __post_init__(self) -> None:
        """Refuse a token that could be guessed, and a time that is none."""
        if self.budget_ms is not None and not 0 < self.budget_ms <= MAX_BUDGET:
            raise UserError(f"a budget is more than 0 and at most {MAX_BUDGET} milliseconds, got {self.budget_ms:g}")
        if self.token is not None and not MIN_TOKEN <= len(self.token) <= MAX_TOKEN:
            raise UserError(f"a token has {MIN_TOKEN} to {MAX_TOKEN} characters, this one has {len(self.token)}")

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server.

        A page on another site can point its own name at a loopback address and read what is served there, but it
        cannot choose the name that the browser then sends. Addresses need no name, so they are safe.
        """
        name = host_name(header)
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self.hosts
        return self.anywhere or address.is_loopback

    def admits(self, authorization: str, cookie: str) -> bool:
        """Whether a request may pass: no token is set, or it brings the token or the page's cookie."""
        if self.token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        return (scheme.lower() == "bearer" and self.is_token(given.strip())) or _same(cookie, self.cookie())

    def is_token(self, given: str) -> bool:
        """Compare in a time that does not tell how much of it was right."""
        return self.token is not None and _same(given, self.token)

    def cookie(self) -> str:
        """What the page gets for the token: as good as it here, and of no use anywhere else."""
        return hmac.new((self.token or "").encode(), b"calligram page", "sha256").hexdigest()


def host_name(header: str) -> str:
    """The name in ``name``, ``name:port`` or ``[address]:port``, in lower case."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


# Where a server listens, and who can reach it there.


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
