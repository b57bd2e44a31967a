"""Counts and times of requests, in the text format of Prometheus, and limits on the requests of each client."""

from __future__ import annotations

import ipaddress
import math
import os
import sys
import time
from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from starlette.types import Scope

HISTOGRAM_BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
HTTP_METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH")
ROUTE_COSTS = {
    "/api/search": 1.0, "/api/browse": 1.0, "/api/embed": 5.0, "/v1/embeddings": 5.0, "/api/locate": 10.0,
    "/api/explain": 10.0, "/api/export": 25.0, "/api/suggest": 5.0, "/api/caption": 2.0,
    "/api/album-": 5.0, "/api/clusters": 2.0, "/api/duplicates": 2.0, "/api/login": 25.0,
}  # fmt: skip
"""of one request, by the beginning of its path; other routes cost nothing"""
BURST_SECONDS = 10
"""a client that was quiet may send what it may else send in so many seconds"""
MAX_COUNTED_CLIENTS = 10_000
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts since the start of the server. Only the event loop uses them, so they need no lock."""

    def __init__(self) -> None:
        self.started = time.time()
        self.in_flight = 0
        self._answers: dict[tuple[str, str, int], int] = defaultdict(int)
        self._histograms: dict[str, list[int]] = defaultdict(lambda: [0] * (len(HISTOGRAM_BOUNDS_SECONDS) + 1))
        self._sums: dict[str, float] = defaultdict(float)
        self._stages: dict[str, float] = defaultdict(float)
        self._searches = 0
        self.remembered_searches = 0

    def count_answer(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answer and its time."""
        # Clients may send any method, and the number of labels must stay small.
        self._answers[method if method in HTTP_METHODS else "other", route, status] += 1
        self._histograms[route][bisect_left(HISTOGRAM_BOUNDS_SECONDS, seconds)] += 1
        self._sums[route] += seconds

    def count_search(self, timings: Mapping[str, float]) -> None:
        """Count one search and add the seconds of its stages."""
        self._searches += 1
        for stage, seconds in timings.items():
            self._stages[stage] += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """The metrics as text, with ``gauges`` by name."""
        return "\n".join(self._lines(gauges)) + "\n"

    def _lines(self, gauges: Mapping[str, float]) -> Iterator[str]:
        yield "# HELP calligram_requests_total Answers by method, route and status."
        yield "# TYPE calligram_requests_total counter"
        for (method, route, status), count in sorted(self._answers.items()):
            labels = f'method="{_label(method)}",route="{_label(route)}",status="{status}"'
            yield f"calligram_requests_total{{{labels}}} {count}"
        yield "# HELP calligram_request_seconds Seconds from a request to the end of its answer."
        yield "# TYPE calligram_request_seconds histogram"
        for route, counts in sorted(self._histograms.items()):
            yield from _histogram(_label(route), counts, self._sums[route])
        yield "# HELP calligram_search_seconds_total Seconds spent in the stages of searches."
        yield "# TYPE calligram_search_seconds_total counter"
        for stage, seconds in sorted(self._stages.items()):
            yield f'calligram_search_seconds_total{{stage="{_label(stage)}"}} {seconds:.6f}'
        yield "# HELP calligram_searches_total Searches that were answered."
        yield "# TYPE calligram_searches_total counter"
        yield f"calligram_searches_total {self._searches}"
        yield "# HELP calligram_searches_remembered_total Searches whose results were remembered from an equal request."
        yield "# TYPE calligram_searches_remembered_total counter"
        yield f"calligram_searches_remembered_total {self.remembered_searches}"
        own = {"in_flight_requests": float(self.in_flight), "start_time_seconds": self.started, **_memory()}
        own["process_id"] = float(os.getpid())  # with several processes, each counts its own requests
        for name, value in {**own, **gauges}.items():
            yield f"# TYPE calligram_{name} gauge"
            yield f"calligram_{name} {value:.10g}"


def _histogram(route: str, counts: list[int], total: float) -> Iterator[str]:
    cumulative = 0
    for bound, count in zip((*HISTOGRAM_BOUNDS_SECONDS, "+Inf"), counts, strict=True):
        cumulative += count
        yield f'calligram_request_seconds_bucket{{route="{route}",le="{bound}"}} {cumulative}'
    yield f'calligram_request_seconds_sum{{route="{route}"}} {total:.6f}'
    yield f'calligram_request_seconds_count{{route="{route}"}} {cumulative}'


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _memory() -> dict[str, float]:
    """Resident memory of this process in bytes; only Linux reports it here."""
    if sys.platform != "linux":
        return {}
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {"resident_memory_bytes": pages * 4096.0}


# Rates: costly routes for each client.


def client_of(scope: Scope) -> str:
    """The address of a client on another machine; empty for this machine. Of IPv6, the network of a household."""
    host = (scope.get("client") or ("",))[0]
    forwarded = {b"forwarded", b"x-forwarded-for"} & {name for name, _ in scope.get("headers", ())}
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host if forwarded else ""
    if address.is_loopback:
        return host if forwarded else ""  # a proxy on this machine, which other machines use
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else host


class RateLimits:
    """How much each client may ask for: a bucket of tokens that fills with time. Only the event loop uses it."""

    def __init__(self, per_second: float) -> None:
        """Args:
        per_second: cost of requests that a client may send for long; 0 for no limit.
        """
        self._rate, self._most = per_second, BURST_SECONDS * per_second
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """tokens that a client has left, and when"""

    def wait_seconds(self, scope: Scope) -> int:
        """Count a request; returns 0, or after how many seconds its client may try again."""
        cost = next((cost for path, cost in ROUTE_COSTS.items() if scope["path"].startswith(path)), 0.0)
        client = client_of(scope)
        if not (self._rate and cost and client):
            return 0
        now = time.monotonic()
        left, then = self._buckets.pop(client, (self._most, now))
        left = min(self._most, left + self._rate * (now - then))
        self._buckets[client] = (left - cost if left >= cost else left), now
        while len(self._buckets) > MAX_COUNTED_CLIENTS:
            self._buckets.popitem(last=False)
        return 0 if left >= cost else max(1, math.ceil((cost - left) / self._rate))
