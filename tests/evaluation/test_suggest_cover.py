from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calligram.evaluation.suggest import cover, nearest


def literal(items, centres, weights, n, near):
    """Greedy facility location as it is written: F of every set that is one larger, from all similarities."""
    like = [[float(np.dot(a, b)) for b in items] for a in items]
    to_centres = [max([-1.0, *(float(np.dot(a, c)) for c in centres)]) for a in items]

    def value(chosen):
        return sum(w * max([to_centres[i], *(like[i][j] for j in chosen)]) for i, w in enumerate(weights))

    chosen: list[int] = []
    while len(chosen) < n:
        free = [
            j
            for j in range(len(items))
            if j not in chosen and to_centres[j] < near and all(like[j][k] < near for k in chosen)
        ]
        if not free:
            break
        gains = [value([*chosen, j]) - value(chosen) for j in free]
        chosen.append(free[gains.index(max(gains))])
    return chosen


def whole_numbers(seed, items, centres):
    """Vectors of small whole numbers: every sum is exact, so equal gains are equal, and there are many."""
    random = np.random.default_rng(seed)
    drawn = random.integers(-1, 2, (items + centres, 3)).astype(np.float32)
    return drawn[:items], drawn[items:], random.integers(0, 3, items).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(0, 4), st.integers(1, 12))
def test_the_lazy_choice_is_the_literal_one_with_ties(seed, count, known, n):
    items, centres, weights = whole_numbers(seed, count, known)
    vectors = torch.from_numpy(items)
    covered = nearest(vectors, torch.from_numpy(centres), tile_bytes=64)
    found = cover(vectors, covered, torch.from_numpy(weights), n, near=2.5, tile_bytes=256)
    assert [pick.row for pick in found] == literal(items, centres, weights, n, near=2.5)


def clusters(*sizes, noise=0.05, dim=8, seed=0):
    random = np.random.default_rng(seed)
    made = [np.eye(dim)[k] + noise * random.normal(size=(size, dim)) for k, size in enumerate(sizes)]
    return torch.nn.functional.normalize(torch.from_numpy(np.concatenate(made)).float(), dim=1)


def test_the_largest_cluster_without_a_centre_is_chosen_first():
    items = clusters(10, 30, 20)
    first = cover(items, nearest(items, items[15:16]), torch.ones(60), 2, near=0.9999)
    assert first[0].row >= 40  # the second crowd has a centre already, the third is larger than the first
    assert first[1].row < 10
    assert first[0].stands_for >= 20
    assert first[0].nearest < 0.3


def test_weights_change_the_choice():
    items = clusters(10, 30)
    weights = torch.cat([torch.ones(10), torch.full((30,), 0.1)])
    covered = nearest(items, items[:0])
    assert cover(items, covered, torch.ones(40), 1)[0].row >= 10
    assert cover(items, covered, weights, 1)[0].row < 10


def test_duplicates_are_suggested_once():
    items = clusters(5, 5, noise=1e-4)
    found = cover(items, nearest(items, items[:0]), torch.ones(10), 10, near=0.99)
    assert sorted(pick.row // 5 for pick in found) == [0, 1]
    assert cover(items, nearest(items, items[:1]), torch.ones(10), 10, near=0.99)[0].row >= 5
    assert cover(items, nearest(items, items[[0, 5]]), torch.ones(10), 10, near=0.99) == []


def test_a_sample_of_the_demand_finds_nearly_as_much():
    items = clusters(300, 200, 100, 50, noise=0.2, seed=3)
    covered, weights = nearest(items, items[:0]), torch.ones(len(items))

    def value(rows):
        return float(torch.maximum(covered, (items @ items[rows].T).amax(1)).sum())

    whole, some = ([pick.row for pick in cover(items, covered, weights, 6, demand=demand)] for demand in (10_000, 100))
    assert value(some) > 0.97 * value(whole)


def test_an_empty_set_gives_no_choice():
    none = torch.zeros(0, 4)
    assert cover(none, nearest(none, none), torch.zeros(0), 3) == []


def test_gains_decrease_and_sum_to_the_objective():
    items = clusters(20, 20, 20, noise=0.3, seed=1)
    covered, weights = nearest(items, items[:1]), torch.rand(60, generator=torch.Generator().manual_seed(0))
    found = cover(items, covered, weights, 8)
    gains = [pick.gain for pick in found]
    assert gains == sorted(gains, reverse=True)
    after = torch.maximum(covered, (items @ items[[pick.row for pick in found]].T).amax(1))
    assert sum(gains) == pytest.approx(float((weights * (after - covered)).sum()), rel=1e-4)
