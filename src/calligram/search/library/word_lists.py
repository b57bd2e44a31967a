"""Keyword search by lists of single words that stay in memory, for processes that ask often, such as a server.

With 100,000 items, a search by Lance took 13 ms of CPU time, and a search by lists less than one.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calligram.search.vectors.exact import kth_largest

WORDS_COLUMN = "words"
MAX_LISTED_ITEMS = 200_000
"""a library with more items is searched by Lance: the lists of frequent words would take long to read"""
SEARCHES_BEFORE_LISTS = 16
"""searches by Lance before lists are read: the list of a word of 100,000 items takes 80 ms to read, a search 10 ms"""
MAX_READ_LISTS = 16
"""lists that one search may read; a query with more new words is searched by Lance"""
MAX_LIST_BYTES = 64_000_000
"""of all lists in memory"""
MIN_DENSE_SHARE = 1 / 16
"""from this share of the items on, a list holds a score for every item: adding it takes a tenth of the time"""


class KeywordHit(NamedTuple):
    """An item found by keyword search."""

    id: str
    score: float
    """of BM25"""
    words: str
    """the searched text: path and captions"""


class WordList(NamedTuple):
    """The items with a word."""

    places: NDArray[np.int32] | None
    """None for all items"""
    scores: NDArray[np.float32]
    """of BM25 for this word alone"""

    @property
    def bytes(self) -> int:
        """Of both arrays."""
        return self.scores.nbytes + (0 if self.places is None else self.places.nbytes)

    def add_to(self, scores: NDArray[np.float32], times: int) -> None:
        """Add the scores of this word to those of all items, as often as the word comes in the query."""
        for _ in range(times):
            if self.places is None:
                scores += self.scores
            else:
                scores[self.places] += self.scores


class WordLists:
    """Lists of single words, read from Lance when they are needed.

    The score of an item with a query is the sum of its scores with the words, so lists give the scores of any query.
    Items are numbered in the order of their ids. All their texts stay in memory too.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        rows = table.search().select(["id", "state", WORDS_COLUMN]).with_row_id(True).to_arrow()
        rows = rows.take(pc.sort_indices(rows["id"])).combine_chunks()
        self._ids, self._texts = (pa.concat_arrays(rows[name].chunks) for name in ("id", WORDS_COLUMN))
        self._absent = np.flatnonzero(pc.not_equal(rows["state"], "present").to_numpy())
        addresses = rows["_rowid"].to_numpy()
        self._order = np.argsort(addresses)
        self._addresses = addresses[self._order]
        self._lists: OrderedDict[str, WordList] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def search(self, words: Sequence[str], k: int) -> list[KeywordHit] | None:
        """The k present items whose words match best by BM25; items with equal scores are ordered by id.

        Args:
            words: of the query.
            k: number of items.

        Returns:
            None if too many lists would have to be read.
        """
        # A word that comes twice counts twice, as in Lance.
        counts = Counter(word.lower() if word.isascii() else word for word in words if word)
        lists = self._lists_of(list(counts))
        if lists is None or not len(self._ids):
            return None
        scores = np.zeros(len(self._ids), np.float32)
        for found, times in zip(lists, counts.values(), strict=True):
            found.add_to(scores, times)
        scores[self._absent] = 0
        if len(scores) > k:
            chosen = np.flatnonzero(scores >= max(kth_largest(scores, k), np.finfo(np.float32).tiny))
        else:
            chosen = np.flatnonzero(scores)
        # A stable sort keeps the order of the ids where scores are equal.
        best = chosen[np.argsort(-scores[chosen], kind="stable")[:k]]
        places = pa.array(best)
        hits = self._ids.take(places).to_pylist(), scores[best].tolist(), self._texts.take(places).to_pylist()
        return [KeywordHit(*hit) for hit in zip(*hits, strict=True)]

    def _lists_of(self, words: Sequence[str]) -> list[WordList] | None:
        with self._lock:  # so that threads do not read the same list at the same time
            missing = [word for word in words if word not in self._lists]
            if len(missing) > MAX_READ_LISTS:
                return None
            for word in missing:
                self._lists[word] = self._read(word)
                self._bytes += self._lists[word].bytes
            for word in words:
                self._lists.move_to_end(word)
            lists = [self._lists[word] for word in words]
            while self._bytes > MAX_LIST_BYTES:
                self._bytes -= self._lists.popitem(last=False)[1].bytes
            return lists

    def _read(self, word: str) -> WordList:
        from lancedb.query import MatchQuery

        match: Any = MatchQuery  # its type stub declares its optional arguments as required
        query = self._table.search(match(word, WORDS_COLUMN), query_type="fts").limit(max(1, len(self._ids)))
        rows = query.select(["_score"]).with_row_id(True).to_arrow()
        places = self._order[np.searchsorted(self._addresses, rows["_rowid"].to_numpy())]
        scores = np.asarray(rows["_score"].to_numpy(), np.float32)
        if len(places) < MIN_DENSE_SHARE * len(self._ids):
            order = np.argsort(places)
            return WordList(places[order].astype(np.int32), scores[order])
        dense = np.zeros(len(self._ids), np.float32)
        dense[places] = scores
        return WordList(None, dense)
