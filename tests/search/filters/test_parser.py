from __future__ import annotations

from contextlib import suppress
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calligram.errors import UserError
from calligram.search.filters.conditions import (
    Both,
    Comparison,
    Contains,
    Either,
    Missing,
    OneOf,
    columns_of,
    holds,
    negate,
)
from calligram.search.filters.parser import MAX_CHARACTERS, MAX_DEPTH, parse

KINDS = {
    **{"year": "number", "camera": "text", "taken": "text", "mine": "flag", "Shot at": "text", "in": "number"},
    "folder": "text",
}
ROW = {
    **{"year": 2021.0, "camera": "Canon EOS", "taken": "2021-06-30T10:00:00", "mine": True, "in": 1.0},
    "folder": "trips/2021/rome",
}


@pytest.mark.parametrize(
    "text",
    [
        "year = 2021",
        "year != 2020",
        "year >= 2.021e3 and year<2022",
        "not year > 2021",
        "camera ~ 'Canon'",
        "camera not ~ 'canon'",
        'camera in ("Nikon", "Canon EOS")',
        "not camera in ('Nikon')",
        "camera NOT IN ('Nikon')",
        "taken >= 2021-06",
        "taken > '2021-06-30T09:00:00'",
        "taken != 'spring 2021'",
        "taken = 2021-06 and taken = 'June 2021' and taken = 'summer 2021' and taken in (2019, '30 June 2021')",
        "taken <= 2021 and taken <= 'June 2021' and taken >= 'June 2021' and taken < 2021-07-01",
        "taken > 'May 2021' and not taken > 2021 and not taken > 'June 2021' and taken > 2020",
        "folder under 'trips' and folder under 'trips/2021/' and folder not under 'trip' and folder not under '2021'",
        "mine = true and mine != FALSE and mine in (true)",
        "`Shot at` is missing",
        "year is not missing",
        "`in` = 1",
        "year = 1 or year = 2021 and mine = true",
        "(year = 1 or year = 2021) and mine == true",
        "not (year = 1 or (mine = false and camera ~ 'x'))",
        "year > -1",
    ],
)
def test_a_condition_selects_the_rows_that_satisfy_it(text):
    assert holds(parse(text, KINDS), ROW)
    assert not holds(parse(f"not ({text})", KINDS), ROW)


@pytest.mark.parametrize("test", ["= 1", "!= 1", "< 1", ">= 1", "in (1)", "not in (1)"])
@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_no_comparison_holds_for_a_missing_value(test, value):
    for text in (f"year {test}", f"not year {test}"):
        assert not holds(parse(text, KINDS), {"year": value})
        assert not holds(parse(text, KINDS), {})
    assert holds(parse("year is missing", KINDS), {"year": value})


def test_a_condition_is_a_small_tree():
    read = parse("not (year < 2020 or camera ~ 'it''s') and mine is missing", KINDS)
    inner = Both((Comparison("year", ">=", 2020.0), Contains("camera", "it's", negated=True)))
    assert read == Both((inner, Missing("mine")))
    assert columns_of(read) == {"year", "camera", "mine"}
    assert negate(OneOf("year", (1.0,))) == OneOf("year", (1.0,), negated=True)
    assert isinstance(negate(read), Either)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yeer = 1", r"character 1 \('yeer = 1'\).*unknown column 'yeer'; did you mean 'year'\?"),
        ("year = 'x'", "character 8 .*column 'year' needs a number"),
        ("camera = Canon", "column 'camera' needs text in quotes"),
        ("mine = 1", "column 'mine' needs true or false"),
        ("mine < true", "column 'mine' holds true or false"),
        ("year ~ '2'", "'~' is for columns of text, and column 'year' holds numbers"),
        ("year", "at the end: expected '=', '!='"),
        ("year = 1 year = 2", "expected 'and', 'or' or the end"),
        ("(year = 1", r"at the end: expected '\)'"),
        ("year = 1 and", "at the end: expected a column"),
        ("", "at the end: expected a column.*camera"),
        ("year in ()", "column 'year' needs a number"),
        ("taken > 'soon'", r"character 9 .*'soon' is not a date; give one such as 2019, 2019-03, .*'last summer'"),
        ("taken in (2019, '31 June 2020')", "'31 June 2020' is not a date"),
        ("taken = 'May 2020 to May 2019'", "ends before it begins"),
        ("year under 'x'", "'under' is for columns of text, and column 'year' holds numbers"),
        ("camera = 'open", "character 10 .*cannot read this"),
        ("year = 1; drop table", "character 9 .*cannot read this"),
        ("year = 1e999", "needs a number"),
        ("camera = '\ud800'", "UTF-8 cannot encode"),
        ("(" * (MAX_DEPTH + 1) + "year = 1", f"more than {MAX_DEPTH} nested brackets"),
        ("not " * 5000 + "year = 1", f"at most {MAX_CHARACTERS} are accepted"),
    ],
)
def test_a_mistake_is_named_with_its_place(text, said):
    with pytest.raises(UserError, match=said):
        parse(text, KINDS)


@given(st.text(max_size=60) | st.text(alphabet="year camera'\"()=<>~!`,-.0129andortis", max_size=60))
def test_any_text_is_read_or_refused_with_a_reason(text):
    with suppress(UserError):
        assert holds(parse(text, KINDS), ROW) in (True, False)


@given(st.text(max_size=20).filter(lambda t: t.isprintable()))
def test_any_text_can_be_quoted_either_way(text):
    for quote in "'\"":
        quoted = quote + text.replace(quote, quote * 2) + quote
        # Values are compared in the normal form NFC, in which columns are stored.
        assert parse(f"camera = {quoted}", KINDS) == Comparison("camera", "=", normalize("NFC", text))
