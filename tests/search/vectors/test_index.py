"""What every engine promises, asked of each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from calligram.errors import UserError
from calligram.search.filters.conditions import Both, Comparison, Contains, Missing
from calligram.search.library.tables import open_index

DIM = 7
NOTHING = pa.table({})


def test_the_nearest_are_found_best_first_with_their_cosines(index, some, names, ids):
    vectors, queries = some(50), some(3, seed=1)
    index.add(names(50), vectors * 9, NOTHING)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = queries / np.linalg.norm(queries, axis=1, keepdims=True) @ unit.T
    for found, row in zip(index.search(queries * 5, 10), cosines, strict=True):
        order = np.argsort(-row)[:10]
        assert ids(found) == [f"item {n}" for n in order]
        np.testing.assert_allclose([hit.score for hit in found], row[order], atol=1e-3)
    np.testing.assert_allclose(index.vectors(["item 7", "item 3"]), unit[[7, 3]], atol=1e-3)


def test_an_empty_index_finds_nothing_and_more_than_there_is_gives_all(index, some, names, ids):
    assert len(index) == 0
    assert index.dim == DIM
    assert index.search(some(2), 5) == [[], []]
    assert index.search(some(1), 5, Missing("year")) == [[]]
    index.add([], some(0), NOTHING)
    index.add(names(3), some(3), NOTHING)
    assert sorted(ids(index.search(some(1), 1000)[0])) == names(3)
    assert index.search(some(0), 5) == []
    assert index.vectors([]).shape == (0, DIM)


def test_an_item_added_again_is_replaced_whole(index, some):
    index.add(["a", "b"], some(2), pa.table({"year": [2020, 2021], "camera": ["x", "y"]}))
    index.add(["b", "c"], some(2, seed=1), pa.table({"year": [2022, 2023]}))
    assert len(index) == 3
    found = {hit.id for hit in index.search(some(1), 9, Comparison("year", ">=", 2021.0))[0]}
    assert found == {"b", "c"}
    assert {hit.id for hit in index.search(some(1), 9, Missing("camera"))[0]} == {"b", "c"}
    expected = some(2, seed=1)[0]
    np.testing.assert_allclose(index.vectors(["b"])[0], expected / np.linalg.norm(expected), atol=1e-3)


def test_an_update_changes_columns_and_keeps_vectors_and_the_rest(index, some, ids):
    index.add(["a", "b"], some(2), pa.table({"year": [2020, 2021], "camera": ["x", "y"]}))
    before = index.vectors(["a", "b"])
    index.update(["b"], pa.table({"year": pa.array([None], pa.int64()), "mine": [True]}))
    np.testing.assert_array_equal(index.vectors(["a", "b"]), before)
    asked = Both((Missing("year"), Comparison("mine", "=", True), Comparison("camera", "=", "y")))
    assert ids(index.search(some(1), 9, asked)[0]) == ["b"]
    with pytest.raises(UserError, match="not in the index"):
        index.update(["a", "nobody"], pa.table({"year": [1, 1]}))
    assert ids(index.search(some(1), 9, Comparison("year", "=", 2020.0))[0]) == ["a"]


def test_removed_items_are_gone_and_unknown_ones_are_passed_over(index, some, names, ids):
    index.add(names(4), some(4), NOTHING)
    index.remove(["item 1", "nobody"])
    index.remove([])
    assert len(index) == 3
    assert "item 1" not in ids(index.search(some(1), 9)[0])
    with pytest.raises(UserError, match="not in the index, the first is 'item 1'"):
        index.vectors(["item 0", "item 1"])


def test_columns_may_have_any_name_and_come_later(index, some, ids):
    index.add(["a"], some(1), pa.table({"id": ["x"], "vector": [1], "Features.x y": [True]}))
    index.add(["b"], some(1), pa.table({"features.x y": [2.5], "Year": [1], "year": [2], "Ünï": ["ü"]}))
    for condition, expected in (
        (Comparison("id", "=", "x"), ["a"]),
        (Comparison("Features.x y", "=", True), ["a"]),
        (Comparison("features.x y", ">", 2.0), ["b"]),
        (Both((Comparison("Year", "=", 1.0), Comparison("year", "=", 2.0))), ["b"]),
        (Contains("Ünï", "ü"), ["b"]),
        (Comparison("never given", "!=", 1.0), []),
        (Both((Missing("never given"), Missing("Year"))), ["a"]),
    ):
        assert ids(index.search(some(1), 9, condition)[0]) == expected


def test_a_condition_never_costs_answers(index, some, names, ids):
    """Rare items are far from the query, so that a filter after the search would find none of them."""
    near, far = some(1)[0], -some(1)[0]
    vectors = np.concatenate([near + 0.1 * some(300), far + 0.1 * some(5)])
    index.add(names(305), vectors, pa.table({"rare": [False] * 300 + [True] * 5}))
    found = index.search(near[None], 5, Comparison("rare", "=", True))[0]
    assert sorted(ids(found)) == [f"item {n}" for n in range(300, 305)]


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        (np.ones((2, DIM + 1)), f"{DIM} dimensions; got an array of shape"),
        (np.ones(DIM), "got an array of shape"),
        (np.zeros((2, DIM)), "vector 0 has length 0.0"),
        (np.full((2, DIM), np.nan), "vector 0 has length nan"),
        (np.full((2, DIM), np.inf), "finite and not zero"),
        (np.ones((3, DIM)), "2 ids with 3 vectors"),
    ],
)
def test_vectors_without_a_place_are_refused_and_nothing_is_changed(index, vectors, said):
    with pytest.raises(UserError, match=said):
        index.add(["a", "b"], vectors, NOTHING)
    assert len(index) == 0


def test_what_cannot_be_stored_is_refused(index, some):
    for bad, said in ((["a", "a"], "'a' is given more than once"), (["", "b"], "cannot be an id")):
        with pytest.raises(UserError, match=said):
            index.add(bad, some(2), NOTHING)
    with pytest.raises(UserError, match="UTF-8"):
        index.add(["\ud800"], some(1), NOTHING)
    with pytest.raises(UserError, match="column 'tags' has type list"):
        index.add(["a"], some(1), pa.table({"tags": [["x"]]}))
    with pytest.raises(UserError, match="2 ids with 1 rows of columns"):
        index.add(["a", "b"], some(2), pa.table({"n": [1]}))
    with pytest.raises(UserError, match="k must be at least 1, got 0"):
        index.search(some(1), 0)
    with pytest.raises(UserError, match="finite and not zero"):
        index.search(np.zeros((1, DIM)), 1)
    assert len(index) == 0


def test_an_index_is_there_when_it_is_opened_again(uri, index, some, ids):
    index.add(["a"], some(1), pa.table({"year": [2020]}))
    index.optimize()
    again = open_index(uri, "images", dim=DIM)
    assert ids(again.search(some(1), 3, Comparison("year", "=", 2020.0))[0]) == ["a"]
    with pytest.raises(UserError, match=f"holds vectors of {DIM} dimensions, not 9"):
        open_index(uri, "images", dim=9)
    with pytest.raises(UserError, match="there is no index 'captions'"):
        open_index(uri, "captions")


def test_64_threads_find_what_one_finds(index, some, names, ids):
    index.add(names(200), some(200), pa.table({"year": [2000 + n % 20 for n in range(200)]}))
    queries = some(128, seed=2)
    asked = [Comparison("year", ">=", 2000.0 + n % 20) for n in range(128)]
    alone = [index.search(q[None], 5, where)[0] for q, where in zip(queries, asked, strict=True)]
    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(lambda n: index.search(queries[n][None], 5, asked[n])[0], range(128)))
    assert [ids(found) for found in together] == [ids(found) for found in alone]
