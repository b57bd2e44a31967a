from __future__ import annotations

import pytest

from calligram.errors import UserError
from calligram.search.query.rerank import TRIED, StageCosts, TimeBudget
from calligram.search.vectors.index import VectorHit


def test_depth_is_what_fits_beside_the_rest():
    pace = StageCosts(around=0.020, start=0.010, each=0.0005)
    assert pace.depth(0.0801) == 100
    assert pace.depth(0.030) == 0
    assert pace.depth(-1.0) == 0


def test_answers_move_it_and_one_that_is_far_off_moves_it_no_further_than_twice():
    pace = StageCosts(around=0.02, start=0.01, each=0.001)
    pace.learn(0.02, 100, 0.01 + 100 * 0.0015)
    assert pace.each == pytest.approx(0.0011)
    pace = StageCosts(around=0.02, start=0.01, each=0.001)
    pace.learn(60.0, 100, 60.0)
    assert pace.each == pytest.approx(0.0012)
    assert pace.around == pytest.approx(0.024)
    for _ in range(100):
        pace.learn(0.005, 50, 0.01 + 50 * 0.0002)
    assert pace.each == pytest.approx(0.0002, rel=0.01)
    assert pace.around == pytest.approx(0.005, rel=0.01)
    before = pace.each
    pace.learn(0.005, 0, 0.0)  # nothing was found, so nothing was compared
    assert pace.each == before


def test_a_start_that_was_thought_too_long_is_forgotten_and_candidates_never_cost_nothing():
    pace = StageCosts(around=0.0, start=0.5, each=0.001)
    for _ in range(200):
        pace.learn(0.0, 5, 0.02)
    assert pace.start <= 0.0201
    assert pace.each == pytest.approx(0.001, rel=0.01)
    assert pace.depth(1.0) < 1000


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


@pytest.mark.parametrize("count", [1, TRIED[0], 20, 1000])
def test_it_is_measured_on_what_there_is(count):
    compared = []
    pace = StageCosts.measured(Line(count), compared.append)
    assert max(map(len, compared)) == min(count, TRIED[1])
    assert pace.each > 0
    assert pace.start >= 0
    assert pace.depth(10.0) >= 1


def test_a_comparison_that_takes_as_long_for_few_as_for_many_is_not_free(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))  # everything takes a second
    pace = StageCosts.measured(Line(1000), len)
    assert pace.each == pytest.approx(0.25 / TRIED[1])
    assert pace.start == pytest.approx(1 - TRIED[0] * pace.each)


@pytest.mark.parametrize("milliseconds", [0.0, -5.0, float("nan"), float("inf")])
def test_a_budget_is_some_time(milliseconds):
    with pytest.raises(UserError, match="a number of milliseconds above 0, got"):
        TimeBudget.of_milliseconds(milliseconds)
    assert TimeBudget.of_milliseconds(100).seconds == pytest.approx(0.1)
