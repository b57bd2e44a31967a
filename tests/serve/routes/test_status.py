"""Health, metrics and statistics."""

from __future__ import annotations

import re


def test_statistics_have_counts_facets_and_columns(served):
    answer = served.client.get("/api/stats").json()
    assert answer["stats"]["items"] == 60
    assert sum(entry["count"] for entry in answer["facets"]["time"]) == 60
    assert {entry["value"] for entry in answer["facets"]["split"]} == {"train", "dev", "test"}
    things = [entry["value"] for entry in answer["facets"]["things"]]
    assert things == sorted(things)
    assert answer["columns"]["things"] == "number"
    assert answer["examples"]


def test_metrics_have_the_format_of_prometheus(served):
    served.hits(q="a boat")
    answer = served.client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    line = re.compile(r'(# (HELP|TYPE) .+|[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+)')
    assert all(line.fullmatch(text) for text in answer.text.splitlines())
    count = re.search(r'requests_total\{method="GET",route="/api/search",status="200"\} (\d+)', answer.text)
    assert count
    assert int(count[1]) >= 1
    assert re.search(r"^calligram_items 60$", answer.text, re.MULTILINE)


def test_health_is_ok(served):
    assert served.client.get("/api/health").json()["status"] == "ok"
