"""Dates in words, against a calendar that is counted day by day."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calligram.errors import UserError
from calligram.search.filters.dates import MONTHS, SEASONS, parse_period

TODAY = date(2026, 1, 15)  # a Thursday in winter


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2019", "2019-01-01", "2020-01-01"),
        ("2019-03", "2019-03-01", "2019-04-01"),
        ("2020-02-29", "2020-02-29", "2020-03-01"),
        ("March 2019", "2019-03-01", "2019-04-01"),
        ("  MAR  2019 ", "2019-03-01", "2019-04-01"),
        ("5 March 2019", "2019-03-05", "2019-03-06"),
        ("December 31st, 2019", "2019-12-31", "2020-01-01"),
        ("summer 2018", "2018-06-01", "2018-09-01"),
        ("winter 2018", "2018-12-01", "2019-03-01"),
        ("last summer", "2025-06-01", "2025-09-01"),
        ("last winter", "2024-12-01", "2025-03-01"),
        ("this winter", "2025-12-01", "2026-03-01"),
        ("winter", "2025-12-01", "2026-03-01"),
        ("march", "2025-03-01", "2025-04-01"),
        ("January", "2026-01-01", "2026-02-01"),
        ("last January", "2025-01-01", "2025-02-01"),
        ("today", "2026-01-15", "2026-01-16"),
        ("yesterday", "2026-01-14", "2026-01-15"),
        ("this week", "2026-01-12", "2026-01-19"),
        ("last week", "2026-01-05", "2026-01-12"),
        ("last month", "2025-12-01", "2026-01-01"),
        ("last year", "2025-01-01", "2026-01-01"),
        ("last 3 days", "2026-01-13", "2026-01-16"),
        ("past 2 months", "2025-11-16", "2026-01-16"),
        ("the last 10 years", "2016-01-16", "2026-01-16"),
        ("1990s", "1990-01-01", "2000-01-01"),
        ("May 2015 to July 2015", "2015-05-01", "2015-08-01"),
        ("2015 - 2018", "2015-01-01", "2019-01-01"),
    ],
)
def test_what_words_mean(text, start, end):
    assert parse_period(text, TODAY) == (start, end)


@pytest.mark.parametrize("text", ["", "soon", "31 June 2020", "2019-13", "last", "summer of", "0 days", "last 0 days", "last summer 2019", "9999", "a to b to c", "May to"])  # fmt: skip  # noqa: E501
def test_other_texts_are_refused(text):
    with pytest.raises(UserError, match=r"is not a date; give one such as 2019"):
        parse_period(text, TODAY)


@given(st.dates(date(1900, 1, 1), date(2100, 1, 1)), st.sampled_from([*MONTHS, *SEASONS]))
def test_the_last_month_or_season_is_the_latest_that_has_ended(today, name):
    start, end = parse_period(f"last {name}", today)
    assert end <= today.isoformat()
    months = (SEASONS[name] - 1 + place for place in range(3)) if name in SEASONS else (MONTHS[name] - 1,)
    wanted = {month % 12 + 1 for month in months}
    assert {day.month for day in days(start, end)} == wanted
    later, ended = date.fromisoformat(end), []
    while later < today:
        ended.append(later.month in wanted and (later + timedelta(days=1)).month not in wanted)
        later += timedelta(days=1)
    assert not any(ended), "no later one has ended before today"


def days(start: str, end: str) -> list[date]:
    first, last = date.fromisoformat(start), date.fromisoformat(end)
    return [first + timedelta(days=number) for number in range((last - first).days)]


@given(st.text(max_size=30) | st.text(alphabet="last summer2019-0 to march", max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        start, end = parse_period(text, TODAY)
    except UserError:
        return
    assert start < end
