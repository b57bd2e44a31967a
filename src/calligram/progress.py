"""Progress reports of long work. The work does not know who shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Track(Protocol):
    """Wraps an iterable and reports its progress; the command line passes one that draws a progress bar."""

    def __call__(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        """Yield ``items`` unchanged and report each of them.

        Args:
            items: what the work iterates over.
            label: name of the work.
            total: number of items, where ``items`` has no length.
        """
        ...


def silent(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield ``items`` and report nothing."""
    del label, total
    yield from items
