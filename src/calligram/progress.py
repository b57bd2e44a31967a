"""How long work reports on itself without knowing who listens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Track(Protocol):
    """Wraps an iterable and shows how far it has come; the command line supplies one that draws a bar."""

    def __call__(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        """Yield ``items`` unchanged."""
        ...


def silent(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Show nothing."""
    del label, total
    yield from items
