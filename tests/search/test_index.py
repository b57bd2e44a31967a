"""What every engine promises, asked of each; and what only Lance does."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from calligram.errors import UserError
from calligram.search import milvus_graph
from calligram.search.choosing import open_index
from calligram.search.condition import Both, Comparison, Contains, Either, Missing, OneOf, holds
from calligram.search.milvus_connection import address_of
from calligram.search.nearest import Nearest
from calligram.search.where import parse

ENGINES = ("lance", "milvus")
DIM = 7
NOTHING = pa.table({})
ODD = (
    "",
    "a",
    "A",
    "é",
    "日本",
    "it's",
    'say "x"',
    "100%",
    "a_b",
    "back\\slash",
    "\\",
    "new\nline",
    "\t",
    "\\n",
    "😀",
    "zz",
)


def place(engine, folder):
    return str(folder / "index") if engine == "lance" else f"milvus:{folder / 'index.db'}"


@pytest.fixture(params=ENGINES)
def uri(request, tmp_path):
    return place(request.param, tmp_path)


@pytest.fixture
def index(uri):
    return open_index(uri, "images", dim=DIM)


def some(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def names(count):
    return [f"item {n}" for n in range(count)]


def ids(hits):
    return [hit.id for hit in hits]


def test_the_nearest_are_found_best_first_with_their_cosines(index):
    vectors, queries = some(50), some(3, seed=1)
    index.add(names(50), vectors * 9, NOTHING)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = queries / np.linalg.norm(queries, axis=1, keepdims=True) @ unit.T
    for found, row in zip(index.search(queries * 5, 10), cosines, strict=True):
        order = np.argsort(-row)[:10]
        assert ids(found) == [f"item {n}" for n in order]
        np.testing.assert_allclose([hit.score for hit in found], row[order], atol=1e-3)
    np.testing.assert_allclose(index.vectors(["item 7", "item 3"]), unit[[7, 3]], atol=1e-3)


def test_an_empty_index_finds_nothing_and_more_than_there_is_gives_all(index):
    assert len(index) == 0
    assert index.dim == DIM
    assert index.search(some(2), 5) == [[], []]
    assert index.search(some(1), 5, Missing("year")) == [[]]
    index.add([], some(0), NOTHING)
    index.add(names(3), some(3), NOTHING)
    assert sorted(ids(index.search(some(1), 1000)[0])) == names(3)
    assert index.search(some(0), 5) == []
    assert index.vectors([]).shape == (0, DIM)


def test_an_item_added_again_is_replaced_whole(index):
    index.add(["a", "b"], some(2), pa.table({"year": [2020, 2021], "camera": ["x", "y"]}))
    index.add(["b", "c"], some(2, seed=1), pa.table({"year": [2022, 2023]}))
    assert len(index) == 3
    found = {hit.id for hit in index.search(some(1), 9, Comparison("year", ">=", 2021.0))[0]}
    assert found == {"b", "c"}
    assert {hit.id for hit in index.search(some(1), 9, Missing("camera"))[0]} == {"b", "c"}
    expected = some(2, seed=1)[0]
    np.testing.assert_allclose(index.vectors(["b"])[0], expected / np.linalg.norm(expected), atol=1e-3)


def test_an_update_changes_columns_and_keeps_vectors_and_the_rest(index):
    index.add(["a", "b"], some(2), pa.table({"year": [2020, 2021], "camera": ["x", "y"]}))
    before = index.vectors(["a", "b"])
    index.update(["b"], pa.table({"year": pa.array([None], pa.int64()), "mine": [True]}))
    np.testing.assert_array_equal(index.vectors(["a", "b"]), before)
    asked = Both((Missing("year"), Comparison("mine", "=", True), Comparison("camera", "=", "y")))
    assert ids(index.search(some(1), 9, asked)[0]) == ["b"]
    with pytest.raises(UserError, match="not in the index"):
        index.update(["a", "nobody"], pa.table({"year": [1, 1]}))
    assert ids(index.search(some(1), 9, Comparison("year", "=", 2020.0))[0]) == ["a"]


def test_removed_items_are_gone_and_unknown_ones_are_passed_over(index):
    index.add(names(4), some(4), NOTHING)
    index.remove(["item 1", "nobody"])
    index.remove([])
    assert len(index) == 3
    assert "item 1" not in ids(index.search(some(1), 9)[0])
    with pytest.raises(UserError, match="not in the index, the first is 'item 1'"):
        index.vectors(["item 0", "item 1"])


def test_any_text_can_be_an_id(index):
    odd = [text for text in ODD if text] + ["'] or id != ['", "' OR '1'='1", "x" * 300]
    index.add(odd, some(len(odd)), NOTHING)
    assert sorted(ids(index.search(some(1), 99)[0])) == sorted(odd)
    assert index.vectors(odd).shape == (len(odd), DIM)
    index.update(odd, pa.table({"n": range(len(odd))}))
    index.remove(odd[:-1])
    assert ids(index.search(some(1), 99)[0]) == odd[-1:]


def test_columns_may_have_any_name_and_come_later(index):
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


def test_a_condition_never_costs_answers(index):
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


def test_what_cannot_be_stored_is_refused(index):
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


def test_an_index_is_there_when_it_is_opened_again(uri, index):
    index.add(["a"], some(1), pa.table({"year": [2020]}))
    index.settle()
    again = open_index(uri, "images", dim=DIM)
    assert ids(again.search(some(1), 3, Comparison("year", "=", 2020.0))[0]) == ["a"]
    with pytest.raises(UserError, match=f"holds vectors of {DIM} dimensions, not 9"):
        open_index(uri, "images", dim=9)
    with pytest.raises(UserError, match="there is no index 'captions'"):
        open_index(uri, "captions")


def test_64_threads_find_what_one_finds(index):
    index.add(names(200), some(200), pa.table({"year": [2000 + n % 20 for n in range(200)]}))
    queries = some(128, seed=2)
    asked = [Comparison("year", ">=", 2000.0 + n % 20) for n in range(128)]
    alone = [index.search(q[None], 5, where)[0] for q, where in zip(queries, asked, strict=True)]
    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(lambda n: index.search(queries[n][None], 5, asked[n])[0], range(128)))
    assert [ids(found) for found in together] == [ids(found) for found in alone]


numbers = st.sampled_from([0.0, -0.0, 1.0, -1.5, 2020.0, 1e300, 5e-324, 0.1, 2.0**53]) | st.floats(
    allow_nan=False, allow_infinity=False
)
texts = st.sampled_from(ODD) | st.text(st.characters(exclude_categories=("Cs",)), max_size=4)
signs = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
leaves = st.one_of(
    st.builds(Comparison, st.just("n"), signs, numbers),
    st.builds(Comparison, st.just("t"), signs, texts),
    st.builds(Comparison, st.just("f"), st.sampled_from(["=", "!="]), st.booleans()),
    st.builds(OneOf, st.just("n"), st.lists(numbers, min_size=1, max_size=3).map(tuple), st.booleans()),
    st.builds(OneOf, st.just("t"), st.lists(texts, min_size=1, max_size=3).map(tuple), st.booleans()),
    st.builds(OneOf, st.just("f"), st.just((True, False)), st.booleans()),
    st.builds(Contains, st.just("t"), texts, st.booleans()),
    st.builds(Missing, st.sampled_from(["n", "t", "f", "absent"]), st.booleans()),
    st.builds(Comparison, st.just("absent"), signs, numbers),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.lists(inner, min_size=2, max_size=3).flatmap(
        lambda p: st.sampled_from([Both(tuple(p)), Either(tuple(p))])
    ),
    max_leaves=6,
)
ROWS = {
    f"row {n}": {"n": number, "t": text, "f": flag}
    for n, (number, text, flag) in enumerate(
        zip(
            [None, 0.0, -0.0, 1.0, -1.5, 2020.0, 1e300, 5e-324, 0.1, 2.0**53, float("nan"), *[3.0] * 21],
            [*ODD, *[None] * 4, *(a + b for a, b in zip(ODD[1:13], ODD[4:], strict=True))],
            [None, True, False, None] * 8,
            strict=True,
        )
    )
}


@pytest.fixture(scope="module", params=ENGINES)
def rows(request, tmp_path_factory):
    index = open_index(place(request.param, tmp_path_factory.mktemp(request.param)), "rows", dim=DIM)
    columns = {name: [row[name] for row in ROWS.values()] for name in ("n", "t", "f")}
    index.add(list(ROWS), some(len(ROWS)), pa.table(columns))
    return index


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conditions)
@example(Either((Comparison("n", "!=", 0.0), OneOf("n", (1.0,), True))))
@example(Either((Comparison("t", "!=", "a"), Comparison("t", "!=", "b"))))
@example(Either((Contains("t", "a", True), Contains("t", "a", False))))
def test_engines_agree_with_the_literal_meaning_of_a_condition(rows, condition):
    found = {hit.id for hit in rows.search(np.ones((1, DIM)), 99, condition)[0]}
    assert found == {name for name, row in ROWS.items() if holds(condition, row)}


def test_the_widest_and_deepest_condition_that_is_read_can_be_asked(rows):
    kinds = {"n": "number", "t": "text"}
    wide = parse("n=1 " + "or n=1 " * 560, kinds)
    deep = parse("(" * 14 + "n = 1" + " or n = 1) and n != 2" * 14, kinds)
    for condition in (wide, deep):
        assert {hit.id for hit in rows.search(np.ones((1, DIM)), 99, condition)[0]} == {"row 3"}


def test_lance_reads_at_a_version_and_restores_it(tmp_path):
    index = open_index(tmp_path, "images", dim=DIM)
    index.add(["a", "b"], some(2), pa.table({"year": [2020, 2021]}))
    pinned = index.version
    index.add(["c"], some(1), pa.table({"camera": ["x"]}))
    index.remove(["a"])
    old = open_index(tmp_path, "images", version=pinned)
    assert sorted(ids(old.search(some(1), 9)[0])) == ["a", "b"]
    assert ids(old.search(some(1), 9, Comparison("year", "=", 2021.0))[0]) == ["b"]
    with pytest.raises(UserError, match=f"opened for reading at version {pinned}"):
        old.remove(["b"])
    index.restore(pinned)
    assert sorted(ids(index.search(some(1), 9)[0])) == ["a", "b"]
    index.add(["d"], some(1), NOTHING)
    assert len(index) == 3
    with pytest.raises(UserError, match="no index 'images' at version 999"):
        open_index(tmp_path, "images", version=999)


def test_a_search_that_began_before_a_write_answers_from_what_it_read(tmp_path):
    index = open_index(tmp_path, "images", dim=DIM)
    index.add(names(20), some(20), pa.table({"n": range(20)}))
    read = index._read()
    index.remove(names(19))
    index.settle()
    found = read.search(np.ones((1, DIM), np.float32), 99, Comparison("n", "<", 5.0))[0]
    assert sorted(ids(found)) == names(5)


def test_cleaning_bounds_the_folder_and_keeps_the_version_that_is_named(tmp_path):
    index = open_index(tmp_path, "images", dim=DIM)
    index.add(names(2000), some(2000), pa.table({"n": range(2000)}))
    index.settle()
    index.clean()
    sizes = []
    for turn in range(4):
        pinned = index.version
        for part in range(3):
            index.add(names(2000), some(2000, seed=turn), pa.table({"n": [part] * 2000}))
        index.settle()
        index.clean(keep=pinned)
        assert len(open_index(tmp_path, "images", version=pinned).search(some(1), 5)[0]) == 5
        index.clean()
        sizes.append(sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()))
    assert sizes[-1] <= sizes[0] * 1.1
    assert len(index) == 2000


def test_a_column_does_not_change_its_kind(tmp_path):
    index = open_index(tmp_path, "images", dim=DIM)
    index.add(["a"], some(1), pa.table({"year": [2020]}))
    with pytest.raises(UserError, match="column 'year' holds double in the index, not string"):
        index.add(["b"], some(1), pa.table({"year": ["2020"]}))
    index.add(["b"], some(1), pa.table({"year": pa.nulls(1)}))
    assert len(index) == 2


@pytest.mark.parametrize("spread", [1.0, 0.05], ids=["apart", "crowded"])
def test_eight_bits_find_exactly_what_floats_find(spread):
    random = np.random.default_rng(0)
    vectors = random.normal(size=(40, 33))[random.integers(40, size=3000)] + spread * random.normal(size=(3000, 33))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    vectors[5] = vectors[6]
    queries = (vectors[:20] + 0.02 * random.normal(size=(20, 33))).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    coded, plain = Nearest(vectors, plain=0, eight_bits=True), Nearest(vectors)
    assert (coded.vectors.dtype, plain.vectors.dtype) == (np.float16, np.float32)
    for k in (1, 10, 3000):
        for allowed in (None, random.random(3000) < 0.9, random.random(3000) < 0.01):
            for ours, exact in zip(coded.search(queries, k, allowed), plain.search(queries, k, allowed), strict=True):
                np.testing.assert_allclose(ours.scores, exact.scores, atol=1e-6)
                assert len(ours.rows) == min(k, 3000 if allowed is None else allowed.sum())


def test_milvus_searches_a_graph_only_where_it_finds_what_an_exact_search_finds(tmp_path, monkeypatch):
    index = open_index(f"milvus:{tmp_path / 'm.db'}", "images", dim=DIM)
    index.add(names(500), some(500), pa.table({"n": range(500)}))
    exact = ids(index.search(some(1), 10)[0])
    monkeypatch.setattr(milvus_graph, "RECALL", 1.1)
    assert milvus_graph.settled(index._client, "images", 500, pays=100) == "FLAT"
    monkeypatch.undo()
    assert milvus_graph.settled(index._client, "images", 500, pays=100) == "HNSW"
    graph = open_index(f"milvus:{tmp_path / 'm.db'}", "images")
    assert ids(graph.search(some(1), 10)[0]) == exact
    graph.add(["new"], some(1, seed=5), NOTHING)
    assert ids(graph.search(some(1, seed=5), 1)[0]) == ["new"]
    assert len(graph.search(some(1), 10, Comparison("n", ">=", 490.0))[0]) == 10


def test_an_address_of_milvus_is_read(monkeypatch):
    monkeypatch.setenv("MILVUS_TOKEN", "from the environment")
    assert address_of("milvus://host:19530") == ("http://host:19530", "from the environment")
    assert address_of("milvuss://root:pass%40word@host:19530") == ("https://host:19530", "root:pass@word")
    assert address_of("milvus:photos/index.db") == ("photos/index.db", "")
    for bad in ("milvus://", "milvus://host:19530/database"):
        with pytest.raises(UserError, match="no address of Milvus; write milvus://host:19530"):
            address_of(bad)


def test_a_missing_engine_is_named_with_what_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(UserError, match=r'pip install "calligram\[milvus\]"'):
        open_index("milvus://localhost:19530", "images", dim=DIM)
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(UserError, match=r"calligram\[search\]"):
        open_index(tmp_path, "images", dim=DIM)
