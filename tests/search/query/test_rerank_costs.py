from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from calligram.errors import UserError
from calligram.search.query import rerank
from calligram.search.query.rerank import MEASURED_CANDIDATES, RerankCosts, TimeBudget
from calligram.search.vectors.index import VectorHit


def test_depth_is_what_fits_beside_the_rest():
    costs = RerankCosts(other=0.020, setup=0.010, candidate=0.0005)
    assert costs.depth(0.0801) == 100
    assert costs.depth(0.030) == 0
    assert costs.depth(-1.0) == 0


def test_answers_move_it_and_one_that_is_far_off_moves_it_no_further_than_twice():
    costs = RerankCosts(other=0.02, setup=0.01, candidate=0.001)
    costs.update(0.02, 100, 0.01 + 100 * 0.0015)
    assert costs.candidate == pytest.approx(0.0011)
    costs = RerankCosts(other=0.02, setup=0.01, candidate=0.001)
    costs.update(60.0, 100, 60.0)
    assert costs.candidate == pytest.approx(0.0012)
    assert costs.other == pytest.approx(0.024)
    for _ in range(100):
        costs.update(0.005, 50, 0.01 + 50 * 0.0002)
    assert costs.candidate == pytest.approx(0.0002, rel=0.01)
    assert costs.other == pytest.approx(0.005, rel=0.01)
    before = costs.candidate
    costs.update(0.005, 0, 0.0)  # nothing was found, so nothing was compared
    assert costs.candidate == before


def test_a_start_that_was_thought_too_long_is_forgotten_and_candidates_never_cost_nothing():
    costs = RerankCosts(other=0.0, setup=0.5, candidate=0.001)
    for _ in range(200):
        costs.update(0.0, 5, 0.02)
    assert costs.setup <= 0.0201
    assert costs.candidate == pytest.approx(0.001, rel=0.01)
    assert costs.depth(1.0) < 1000


class Line:
    """An index in which everything is equally near."""

    dim = 4

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def search(self, vectors, k, where=None):
        del vectors, where
        return [[VectorHit(str(number), 1.0) for number in range(min(k, self.count))]]


@pytest.mark.parametrize("count", [1, MEASURED_CANDIDATES[0], 20, 1000])
def test_it_is_measured_on_what_there_is(count):
    compared = []
    costs = RerankCosts.measure(Line(count), compared.append)
    assert max(map(len, compared)) == min(count, MEASURED_CANDIDATES[1])
    assert costs.candidate > 0
    assert costs.setup >= 0
    assert costs.depth(10.0) >= 1


def test_a_comparison_that_takes_as_long_for_few_as_for_many_is_not_free(monkeypatch):
    clock = itertools.count()
    # Everything takes a second; only in this module, because servers of other tests run meanwhile.
    monkeypatch.setattr(rerank, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    costs = RerankCosts.measure(Line(1000), len)
    assert costs.candidate == pytest.approx(0.25 / MEASURED_CANDIDATES[1])
    assert costs.setup == pytest.approx(1 - MEASURED_CANDIDATES[0] * costs.candidate)


@pytest.mark.parametrize("milliseconds", [0.0, -5.0, float("nan"), float("inf")])
def test_a_budget_is_some_time(milliseconds):
    with pytest.raises(UserError, match="a number of milliseconds above 0, got"):
        TimeBudget.of_milliseconds(milliseconds)
    assert TimeBudget.of_milliseconds(100).seconds == pytest.approx(0.1)
