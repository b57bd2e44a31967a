"""Lists of pictures without a query, all or filtered by a condition, in a fixed order or by date; and completions of
what a user types.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np

from calligram.search.filters.conditions import holds
from calligram.search.filters.parser import parse
from calligram.search.library.library import Library
from calligram.search.query.albums import Album, album_items, read_albums
from calligram.search.query.clusters import vocabulary_words
from calligram.search.query.searcher import Searcher
from calligram.serve.guard import RefusedRequest
from calligram.text import composed, printable, tokenise, without_stop_words
from calligram.vectors import unit_rows

Order = Literal["mixed", "newest", "oldest"]
MAX_LISTED_ITEMS = 500_000
"""larger libraries are not sorted by date, and their filtered pictures are not counted: that would read all rows"""
REMEMBERED_LISTS = 4
SAMPLED_ITEMS = 2_000
"""whose captions give words and sentences for completion"""
MAX_COMPLETED_CAPTION = 80
"""characters of a caption that is offered as a whole"""


class Listed(NamedTuple):
    """Some items of a list, and how many it has."""

    ids: Sequence[str]
    total: int | None
    """None where the library is too large to count them"""
    missing: int = 0
    """pictures of an album that the library no longer has"""


class Listings:
    """Gives pages of lists, and remembers the last lists of the present version of the library."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._library: Library | None = None
        self._lists: OrderedDict[tuple[str, Order], list[str]] = OrderedDict()

    def page(self, library: Library, where: str, order: Order, start: int, k: int) -> Listed:
        """``k`` ids from place ``start`` of the list.

        Raises:
            RefusedRequest: for an order by date in a library that is too large for it.
        """
        where = where.strip()
        if not where and order == "mixed":
            return Listed(library.sample(start + k)[start:], len(library))
        if len(library) <= MAX_LISTED_ITEMS:
            ids = self._list(library, where, order)
            return Listed(ids[start : start + k], len(ids))
        if order != "mixed":
            raise RefusedRequest(400, f"a library of {len(library)} pictures is not sorted by date; use a condition")
        ids = filtered_ids(library, where, start + k)
        return Listed(ids[start:], len(ids) if len(ids) < start + k else None)

    def _list(self, library: Library, where: str, order: Order) -> list[str]:
        with self._lock:  # so that threads do not make the same list
            if self._library is not library:
                self._lists.clear()
                self._library = library
            if (where, order) not in self._lists:
                self._lists[where, order] = sorted_ids(library, where, order)
            self._lists.move_to_end((where, order))
            while len(self._lists) > REMEMBERED_LISTS:
                self._lists.popitem(last=False)
            return self._lists[where, order]


def sorted_ids(library: Library, where: str, order: Order) -> list[str]:
    """Ids of all present items that satisfy a condition. Without a date, they come last; equal dates are ordered by id.

    The order ``mixed`` is by id: it never changes, and it is in effect random, because ids are hashes.
    """
    condition = parse(where, library.kinds) if where else None
    rows = [row for row in library.rows() if row["state"] == "present" and (condition is None or holds(condition, row))]
    rows.sort(key=lambda row: str(row["id"]))
    if order != "mixed":
        rows.sort(key=lambda row: str(row.get("taken") or ""), reverse=order == "newest")
        rows.sort(key=lambda row: not row.get("taken"))
    return [row["id"] for row in rows]


def known_album(library: Library, name: str) -> Album:
    """The album of a request.

    Raises:
        RefusedRequest: when there is none of this name.
    """
    found = next((album for album in read_albums(library.folder) if album.name == name), None)
    if found is None:
        raise RefusedRequest(404, f"there is no album '{printable(name)}'")
    return found


def album_page(library: Library, album: Album, where: str, order: Order, start: int, k: int) -> Listed:
    """``k`` ids from place ``start`` of an album: in its own order (``mixed``), or by date."""
    found = album_items(library, album.pictures)
    condition = parse(where, library.kinds) if where.strip() else None
    items = [item for item in found.items if condition is None or holds(condition, item.metadata)]
    if order != "mixed":
        items.sort(key=lambda item: str(item.metadata.get("taken") or ""), reverse=order == "newest")
        items.sort(key=lambda item: not item.metadata.get("taken"))
    return Listed([item.id for item in items[start : start + k]], len(items), found.missing)


def filtered_ids(library: Library, where: str, k: int) -> list[str]:
    """Ids of items that satisfy a condition, ordered by a fixed random vector, so that the order never changes."""
    direction = np.random.default_rng(0).normal(size=(1, library.images.dim)).astype(np.float32)
    return [found.id for found in library.images.search(unit_rows(direction), k, parse(where, library.kinds))[0]]


@dataclass(frozen=True)
class Completions:
    """Words and sentences that fit a library, the most frequent first."""

    words: tuple[str, ...]
    captions: tuple[str, ...] = ()

    @classmethod
    def of(cls, searcher: Searcher) -> Completions:
        """From captions of the library, or from the words that the matcher knows."""
        library = searcher.library
        items = library.items(library.sample(SAMPLED_ITEMS)) if library.manifest.counts.get("captions") else []
        captions = [composed(text).strip().rstrip(".") for item in items for text in item.captions]
        counts = Counter(word for text in captions for word in without_stop_words(tokenise(text)) if len(word) > 1)
        words = [word for word, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]
        short = dict.fromkeys(text for text in captions if len(text) <= MAX_COMPLETED_CAPTION)
        return cls(tuple(words or vocabulary_words(searcher.encoder)), tuple(short))

    def complete(self, typed: str, k: int) -> list[str]:
        """At most ``k`` texts that begin with what is typed: its last word completed, then whole captions.

        >>> Completions(("dog", "door", "beach"), ("A door in a wall",)).complete("a do", 3)
        ['a dog', 'a door', 'A door in a wall']
        """
        found = re.fullmatch(r"(.*?)(\w*)", composed(typed).lstrip(), re.DOTALL)
        before, last = found.groups() if found else ("", "")
        begun, text = last.casefold(), f"{before}{last}".casefold()
        words = (f"{before}{word}" for word in self.words if begun and word.startswith(begun) and word != begun)
        matching = (caption for caption in self.captions if text and caption.casefold().startswith(text))
        captions = list(islice(matching, k))
        places = max(1, k - min(2, len(captions)))  # of words; up to two are left for captions
        return list(dict.fromkeys((*islice(words, places), *captions)))[:k]
