from __future__ import annotations

from calligram.serve.metrics import Metrics


def test_counts_and_times_are_added_up():
    metrics = Metrics()
    metrics.count_answer("GET", "/api/search", 200, 0.004)
    metrics.count_answer("GET", "/api/search", 200, 0.03)
    metrics.count_answer("GET", "/api/search", 503, 99.0)
    metrics.count_search({"encode": 0.5, "search": 0.25})
    metrics.count_search({"encode": 0.5})
    lines = metrics.text({"items": 3.0}).splitlines()
    assert 'calligram_requests_total{method="GET",route="/api/search",status="200"} 2' in lines
    assert 'calligram_request_seconds_bucket{route="/api/search",le="0.005"} 1' in lines
    assert 'calligram_request_seconds_bucket{route="/api/search",le="0.05"} 2' in lines
    assert 'calligram_request_seconds_bucket{route="/api/search",le="+Inf"} 3' in lines
    assert 'calligram_request_seconds_count{route="/api/search"} 3' in lines
    assert 'calligram_search_seconds_total{stage="encode"} 1.000000' in lines
    assert "calligram_searches_total 2" in lines
    assert "calligram_items 3" in lines


def test_labels_stay_few_and_cannot_break_a_line():
    metrics = Metrics()
    metrics.count_answer("INVENTED", 'a "route"\n', 200, 0.1)
    assert r'method="other",route="a \"route\"\n",status="200"' in metrics.text({})
