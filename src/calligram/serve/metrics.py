"""Counts and times in the text format that Prometheus reads, written by hand: it is a page of lines."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What happened since the server began. Only touched by the event loop, so it needs no lock."""

    def __init__(self) -> None:
        self.began = time.time()
        self.in_flight = 0
        self._answers: dict[tuple[str, str, int], int] = defaultdict(int)
        self._seconds: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self._sums: dict[str, float] = defaultdict(float)
        self._stages: dict[str, float] = defaultdict(float)
        self._searches = 0

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        # A client may invent methods; labels must stay few.
        self._answers[method if method in METHODS else "other", route, status] += 1
        self._seconds[route][bisect_left(BOUNDS, seconds)] += 1
        self._sums[route] += seconds

    def searched(self, timings: Mapping[str, float]) -> None:
        """Add up where the time of a search went, in seconds per stage."""
        self._searches += 1
        for stage, seconds in timings.items():
            self._stages[stage] += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """The whole page; ``gauges`` are numbers that others know."""
        return "\n".join(self._lines(gauges)) + "\n"

    def _lines(self, gauges: Mapping[str, float]) -> Iterator[str]:
        yield "# HELP calligram_requests_total Answers by method, route and status."
        yield "# TYPE calligram_requests_total counter"
        for (method, route, status), count in sorted(self._answers.items()):
            labels = f'method="{_label(method)}",route="{_label(route)}",status="{status}"'
            yield f"calligram_requests_total{{{labels}}} {count}"
        yield "# HELP calligram_request_seconds Time from a request to the end of its answer."
        yield "# TYPE calligram_request_seconds histogram"
        for route, counts in sorted(self._seconds.items()):
            yield from _histogram(_label(route), counts, self._sums[route])
        yield "# HELP calligram_search_seconds_total Time spent in the stages of searches."
        yield "# TYPE calligram_search_seconds_total counter"
        for stage, seconds in sorted(self._stages.items()):
            yield f'calligram_search_seconds_total{{stage="{_label(stage)}"}} {seconds:.6f}'
        yield "# HELP calligram_searches_total Searches that were answered."
        yield "# TYPE calligram_searches_total counter"
        yield f"calligram_searches_total {self._searches}"
        own = {"in_flight_requests": float(self.in_flight), "start_time_seconds": self.began, **_memory()}
        for name, value in {**own, **gauges}.items():
            yield f"# TYPE calligram_{name} gauge"
            yield f"calligram_{name} {value:.10g}"


def _histogram(route: str, counts: list[int], total: float) -> Iterator[str]:
    so_far = 0
    for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
        so_far += count
        yield f'calligram_request_seconds_bucket{{route="{route}",le="{bound}"}} {so_far}'
    yield f'calligram_request_seconds_sum{{route="{route}"}} {total:.6f}'
    yield f'calligram_request_seconds_count{{route="{route}"}} {so_far}'


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _memory() -> dict[str, float]:
    """Resident bytes of this process, where the system tells."""
    if sys.platform != "linux":
        return {}
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {"resident_memory_bytes": pages * 4096.0}
