"""Limits and settings of the server, and the address that it listens on."""

from __future__ import annotations

import ipaddress
import math
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from calligram.data.pictures import core_share
from calligram.errors import UserError
from calligram.search.filters.columns import PLACE_COLUMN

PLACE_COLUMNS = ("latitude", "longitude", PLACE_COLUMN)
"""columns that tell where a picture was taken"""
PATH_COLUMNS = ("source",)
"""columns with absolute paths; ``path`` and ``folder`` are relative to the indexed folder"""
MAX_HITS = 500
MAX_RERANKED_CANDIDATES = 1000
MAX_BUDGET_MS = 10_000
MAX_QUERY_CHARACTERS = 1000
"""characters of one term of a query"""
MAX_QUERY_TERMS = 16
"""terms of one kind: plus, minus, like or unlike"""
MAX_BOXES_PER_PHRASE = 20
MAX_EXPLAINED_WORDS = 64
"""words of a text to explain: the text is encoded once without each of them"""
MAX_CAPTION_REQUEST_CHARACTERS = 10_000
"""characters that are parsed; the limit of a stored caption is lower, and its error message is more helpful"""
MAX_CONDITION_CHARACTERS = 4000
MAX_EMBEDDED_TEXTS = 256
MAX_EMBEDDED_CHARACTERS = 10_000
"""characters of one text to embed; matchers read the first words only, and the answer says how many were left out"""
MAX_EMBEDDED_IMAGES = 32
MAX_ID_CHARACTERS = 1000
MAX_EXPORT_BYTES = 4_000_000_000
"""of the pictures in one download"""
MAX_EXPORTS = 2
"""downloads at the same time; each reads pictures for as long as its client takes them"""
MIN_TOKEN_CHARACTERS = 8
MAX_TOKEN_CHARACTERS = 200


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one server. The limits above hold for every server."""

    token: str | None = None
    """needed for everything except the page itself and ``/api/health``; None: no token is needed"""
    hosts: frozenset[str] = frozenset({"localhost"})
    """names that the Host header may contain, in addition to addresses"""
    any_address: bool = False
    """whether the Host header may contain addresses other than loopback"""
    collection: Path | None = None
    """collection into which every client may write captions; None: captions cannot be written"""
    budget_ms: float | None = None
    """time limit of a search if a request gives neither depth nor budget; None: a fixed depth"""
    memory_bytes: int | None = None
    """of the mapped vectors of a large library that stay in the memory of the server; None: 1 GiB for each index"""
    upload_bytes: int = 20_000_000
    upload_pixels: int = 50_000_000
    processes: int = 1
    """processes that serve; limits of threads, queues and memory hold for each of them"""
    workers: int = field(default_factory=lambda: max(2, min(8, core_share())))
    """searches that run at the same time"""
    max_waiting: int = 256
    """searches that may wait for a thread; further ones are refused"""
    remembered_hits: int = 100_000
    """hits of earlier searches that are kept in memory for equal requests; 0: none"""
    requests_per_second: float = 50.0
    """cost of requests that each client on another machine may send for long, ten times as much at once; 0: no limit"""
    show_places: bool = False
    """whether clients on other machines may know where pictures were taken"""
    log: Literal["none", "requests", "queries"] = "none"
    """requests: a line for each request, without texts of queries; queries: with them"""
    timeout_seconds: float = 30.0
    """for the body of a request to arrive, and for a search to finish"""
    refresh_seconds: float = 2.0
    """time between checks for a new version of the library"""

    @property
    def may_save(self) -> bool:
        """Whether clients may save searches in the library's folder: with a token, or on this machine only."""
        return self.token is not None or not self.any_address

    def __post_init__(self) -> None:
        """Refuse numbers out of range and a token that is easy to guess."""
        if self.remembered_hits < 0:
            raise UserError(f"remembered hits must be at least 0, got {self.remembered_hits}")
        if not 0 <= self.requests_per_second < math.inf:
            raise UserError(f"requests per second must be at least 0, got {self.requests_per_second:g}")
        if self.budget_ms is not None and not 0 < self.budget_ms <= MAX_BUDGET_MS:
            raise UserError(
                f"a budget of {self.budget_ms:g} milliseconds is out of range; "
                f"give more than 0 and at most {MAX_BUDGET_MS}"
            )
        if self.token is not None and not MIN_TOKEN_CHARACTERS <= len(self.token) <= MAX_TOKEN_CHARACTERS:
            raise UserError(
                f"the token has {len(self.token)} characters; give one of {MIN_TOKEN_CHARACTERS} to "
                f"{MAX_TOKEN_CHARACTERS} characters"
            )


@dataclass(frozen=True)
class Address:
    """Host and port that a server listens on."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def url(self) -> str:
        """The URL to open in a browser on this machine."""
        every_address = self.host in ("0.0.0.0", "::")
        name = socket.gethostname() if every_address else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}"

    def or_any_port(self) -> Address:
        """This address, or the same host with any free port if this port is taken."""
        try:
            self.listen().close()
        except UserError:
            return replace(self, port=0)
        return self

    def host_names(self, more: Iterable[str]) -> frozenset[str]:
        """Names that a Host header may contain: ``more``, and the names of this machine if others can reach it."""
        own = set() if self.is_loopback else {self.host, socket.gethostname(), socket.getfqdn()}
        return frozenset(name.lower() for name in {"localhost", *own, *more})

    def listen(self) -> socket.socket:
        """Open a listening socket.

        Raises:
            UserError: if the address is not of this machine or is taken.
        """
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            # asyncio sets TCP_NODELAY only if the socket names TCP; without it, each answer takes 40 ms more.
            listening = socket.socket(family, kind, protocol)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            listening.listen(1)  # two sockets may be bound to one address until one of them listens
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(
                f"cannot listen on {self.host} port {self.port} ({reason}); give another with --host or --port, "
                "or --port 0 for any free port"
            ) from error
        return listening
