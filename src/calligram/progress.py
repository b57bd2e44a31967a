"""How long work reports on itself without knowing who listens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, TypeVar

T = TypeVar("T")
Part = TypeVar("Part", bound=Sized)


class Track(Protocol):
    """Wraps an iterable and shows how far it has come; the command line supplies one that draws a bar."""

    def __call__(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        """Yield ``items`` unchanged."""
        ...


def silent(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Show nothing."""
    del label, total
    yield from items


def track_parts(track: Track, parts: Iterable[Part], label: str, total: int | None = None) -> Iterator[Part]:
    """Parts as they come, less those that are empty; ``track`` is told of each of their items, as ``total`` counts."""

    def items() -> Iterator[tuple[Part, bool]]:
        for part in parts:
            yield from ((part, place == len(part)) for place in range(1, len(part) + 1))

    for part, whole in track(items(), label, total):
        if whole:
            yield part
