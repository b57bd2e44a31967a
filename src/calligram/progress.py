"""Progress reports of long work. The work does not know who shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, TypeVar

T = TypeVar("T")
Part = TypeVar("Part", bound=Sized)


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


def track_parts(track: Track, parts: Iterable[Part], label: str, total: int | None = None) -> Iterator[Part]:
    """Yield the parts that are not empty, in order; ``track`` counts the items in them.

    Args:
        track: receives each item of each part.
        parts: batches of items.
        label: name of the work.
        total: number of items in all parts, where it is known.
    """

    def items() -> Iterator[tuple[Part, bool]]:
        for part in parts:
            yield from ((part, place == len(part)) for place in range(1, len(part) + 1))

    for part, whole in track(items(), label, total):
        if whole:
            yield part
