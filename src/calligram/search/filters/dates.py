"""Dates in words, such as "last summer" and "March 2019", as ranges of days.

    period   = span ["to" span]
    span     = 2019 | 2019-03 | 2019-03-05 | 1990s | [day] month [day] [year] | season [year]
             | "today" | "yesterday" | ("this" | "last") (unit | month | season) | ("last" | "past") number unit
    unit     = "day" | "week" | "month" | "year"

Seasons are those of the northern hemisphere in whole months; winter begins in December of its year. A month or season
without a year is the latest that has begun, and "last" means the latest that has ended.
"""

from __future__ import annotations

import re
from calendar import month_name
from datetime import date, timedelta
from typing import NamedTuple

from calligram.errors import UserError

MONTHS = {name.lower(): number for number, name in enumerate(month_name) if number}
MONTHS |= {name[:3]: number for name, number in MONTHS.items()} | {"sept": 9}
SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
"""first month of each; a season has three"""
SEASON_MONTHS = 3
UNIT = r"(day|week|month|year)s?"
NAME = "|".join((*MONTHS, *SEASONS))
ISO_DAY = re.compile(r"(\d{4})(?:-(\d{1,2}))?(?:-(\d{1,2}))?")
DECADE = re.compile(r"(?:the )?(\d{3}0)s")
NAMED_MONTH_OR_SEASON = re.compile(rf"(?:(last|this) )?({NAME})\.?(?: (?:of )?(\d{{4}}))?")
DAY_FIRST_DATE = re.compile(rf"(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?({'|'.join(MONTHS)})\.?,? (\d{{4}})")
MONTH_FIRST_DATE = re.compile(rf"({'|'.join(MONTHS)})\.? (\d{{1,2}})(?:st|nd|rd|th)?,? (\d{{4}})")
UNIT_SPAN = re.compile(rf"(?:the )?(this|last|past)(?: (\d{{1,3}}))? {UNIT}")
EXAMPLES = "2019, 2019-03, 2019-03-05, 'March 2019', 'last summer', 'last 3 months', 'May 2015 to July 2015'"


class Period(NamedTuple):
    """Days from ``start`` on, before ``end``, in ISO form."""

    start: str
    end: str


def parse_period(text: str, today: date | None = None) -> Period:
    """The days that a text means.

    >>> parse_period("March 2019")
    Period(start='2019-03-01', end='2019-04-01')
    >>> parse_period("last summer", date(2026, 7, 14))
    Period(start='2025-06-01', end='2025-09-01')

    Args:
        text: of the period.
        today: the day that "last" and "this" refer to; by default the present one.

    Raises:
        UserError: when the text is no period.
    """
    now = today or date.today()
    parts = re.split(r" (?:to|until|-|–) ", " ".join(text.lower().split()))
    try:
        spans = [_span(part, now) for part in parts]
    except (ValueError, OverflowError):  # a day that its month does not have, or a year that no calendar has
        spans = [None]
    if len(spans) > 2 or any(span is None for span in spans):
        raise UserError(f"{text!r} is not a date; give one such as {EXAMPLES}")
    (start, _), (_, end) = spans[0], spans[-1]  # type: ignore[misc]
    if end <= start:
        raise UserError(f"{text!r} ends before it begins; give the earlier date first")
    return Period(start.isoformat(), end.isoformat())


def _span(text: str, now: date) -> tuple[date, date] | None:
    """First day, and the day after the last; None for other texts."""
    if text in ("today", "yesterday"):
        day = now - timedelta(days=text == "yesterday")
        return day, day + timedelta(days=1)
    if found := DECADE.fullmatch(text):
        return date(int(found[1]), 1, 1), date(int(found[1]) + 10, 1, 1)
    for pattern, order in ((ISO_DAY, (1, 2, 3)), (DAY_FIRST_DATE, (3, 2, 1)), (MONTH_FIRST_DATE, (3, 1, 2))):
        if found := pattern.fullmatch(text):
            return _calendar_span(*(found[group] for group in order))
    if found := UNIT_SPAN.fullmatch(text):
        return _unit_span(found[1], int(found[2]) if found[2] else None, found[3], now)
    if found := NAMED_MONTH_OR_SEASON.fullmatch(text):
        return _named_span(found[1], found[2], int(found[3]) if found[3] else None, now)
    return None


def _calendar_span(year: str, month: str | None, day: str | None) -> tuple[date, date]:
    """A year, a month or a day."""
    if month is None:
        return _months(int(year), 1, 12)
    number = MONTHS[month] if month in MONTHS else date(int(year), int(month), 1).month
    if day is None:
        return _months(int(year), number, 1)
    start = date(int(year), number, int(day))
    return start, start + timedelta(days=1)


def _unit_span(which: str, count: int | None, unit: str, now: date) -> tuple[date, date] | None:
    """A calendar unit ("last month"), or a time up to today ("last 3 months")."""
    tomorrow = now + timedelta(days=1)
    if count is not None:
        if which == "this" or not count:
            return None
        if unit in ("day", "week"):
            return tomorrow - timedelta(days=count * (7 if unit == "week" else 1)), tomorrow
        first = _months(now.year, now.month - count * (12 if unit == "year" else 1), 1)
        last_day = (first[1] - first[0]).days
        return first[0].replace(day=min(now.day, last_day)) + timedelta(days=1), tomorrow
    back = 0 if which == "this" else 1
    if unit == "day":
        return now - timedelta(days=back), tomorrow - timedelta(days=back)
    if unit == "week":
        monday = now - timedelta(days=now.weekday() + 7 * back)
        return monday, monday + timedelta(days=7)
    return _months(now.year, now.month - back, 1) if unit == "month" else _months(now.year - back, 1, 12)


def _named_span(which: str | None, name: str, year: int | None, now: date) -> tuple[date, date] | None:
    """A month or a season, of a year or relative to today."""
    month, count = (SEASONS[name], SEASON_MONTHS) if name in SEASONS else (MONTHS[name], 1)
    if year is not None:
        return None if which else _months(year, month, count)
    if which == "this":
        # In January and February, "this winter" began in the year before.
        begun = now.year - 1 if month + count > 13 and now.month <= month + count - 13 else now.year
        return _months(begun, month, count)
    spans = [_months(year, month, count) for year in (now.year, now.year - 1, now.year - 2)]
    return next(span for span in spans if (span[1] if which == "last" else span[0]) <= now)


def _months(year: int, month: int, count: int) -> tuple[date, date]:
    """So many months from a month on; months below 1 and above 12 are those of other years."""
    if not -1200 < month < 1200:
        raise ValueError(month)
    first, last = 12 * year + month - 1, 12 * year + month - 1 + count
    return date(first // 12, first % 12 + 1, 1), date(last // 12, last % 12 + 1, 1)
