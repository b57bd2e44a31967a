"""Tidying a Lance table without losing a version that somebody names."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

NEVER = timedelta(days=36_500)
AT_ONCE = timedelta(milliseconds=1)
MARGIN = timedelta(minutes=1)
"""versions are deleted by age, and time passes between the question and the deed"""
TURNS = 8


def tidy(table: Any) -> None:
    """Join small pieces and bring indexes up to date, until there is nothing left to do; old versions stay.

    One call of ``optimize`` leaves work for the next, which would make a new version when it is least expected.
    """
    for _ in range(TURNS):
        before = table.version
        table.optimize(cleanup_older_than=NEVER)
        if table.version == before:
            return


def prune(table: Any, oldest: int) -> None:
    """Delete versions before ``oldest`` and what an interrupted write left; ``tidy`` it before naming ``oldest``."""
    made = {int(version["version"]): version["timestamp"] for version in table.list_versions()}
    if oldest not in made or min(made) == oldest:
        return
    if oldest != table.version:
        age = datetime.now().astimezone() - made[oldest].astimezone() + MARGIN
        table.optimize(cleanup_older_than=max(age, MARGIN), delete_unverified=True)
        return
    table.optimize(cleanup_older_than=NEVER)
    if table.version == oldest:  # else there was work left after all, and it is cleaned another time
        table.optimize(cleanup_older_than=AT_ONCE, delete_unverified=True)
