"""Any text can be stored, and any condition means what it says, in every engine."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from calligram.search.filters.conditions import Both, Comparison, Contains, Either, Missing, OneOf, holds
from calligram.search.filters.parser import parse
from calligram.search.library.tables import open_index

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


def test_any_text_can_be_an_id(index, some, ids):
    odd = [text for text in ODD if text] + ["'] or id != ['", "' OR '1'='1", "x" * 300]
    index.add(odd, some(len(odd)), NOTHING)
    assert sorted(ids(index.search(some(1), 99)[0])) == sorted(odd)
    assert index.vectors(odd).shape == (len(odd), DIM)
    index.update(odd, pa.table({"n": range(len(odd))}))
    index.remove(odd[:-1])
    assert ids(index.search(some(1), 99)[0]) == odd[-1:]


@pytest.fixture(scope="module", params=("lance", "milvus"))
def rows(request, place, some, tmp_path_factory):
    index = open_index(place(request.param, tmp_path_factory.mktemp(request.param)), "rows", dim=DIM)
    columns = {name: [row[name] for row in ROWS.values()] for name in ("n", "t", "f")}
    index.add(list(ROWS), some(len(ROWS)), pa.table(columns))
    return index


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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
