"""Counts and times of requests, in the text format of Prometheus."""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

HISTOGRAM_BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
HTTP_METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH")
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
