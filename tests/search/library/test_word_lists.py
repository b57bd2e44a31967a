"""Keyword search by lists in memory finds what Lance finds."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from calligram.search.library import tables as tables_module
from calligram.search.library import word_lists
from calligram.search.library.tables import SCHEMAS, Tables
from calligram.search.library.word_lists import WordLists
from calligram.search.vectors.lance import connect

NOUNS = ("dog", "dogs", "cat", "ball", "Straße", "café", "IMG", "12", "running", "run", "snow", "पानी", "犬")
ODD_QUERIES = ("a", "the a the", "dog dog cat", "IMG_12", "nothing", "DOG", "STRASSE", "x" * 60, "é", "पानी dog")


def item(number: int, random: np.random.Generator) -> dict[str, object]:
    words = random.choice(NOUNS, random.integers(1, 7)).tolist()
    empty = dict.fromkeys(SCHEMAS["items"].names)
    state = "gone" if number % 10 == 0 else "present"
    text = f"album {number % 7} {number:04}\nA {' '.join(words)} in the {random.choice(NOUNS)}."
    return {**empty, "id": f"item-{random.integers(10**9)}-{number}", "state": state, "words": text}


def tables_of(folder: Path, items: int = 900) -> Tables:
    """Rows that are indexed, deleted rows, and rows that were added after the index was made."""
    random = np.random.default_rng(0)
    rows = [item(number, random) for number in range(items)]
    tables = Tables({"items": connect(folder).create_table("items", schema=SCHEMAS["items"])})
    tables.add("items", rows[: items // 2])
    tables.optimize()
    tables.add("items", rows[items // 2 :])
    tables.drop("items", [str(row["id"]) for row in rows[::13]])
    return tables


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return tables_of(tmp_path_factory.mktemp("tables"))


def queries() -> list[str]:
    random = np.random.default_rng(1)
    made = [" ".join(random.choice((*NOUNS, "a", "the", "album"), random.integers(1, 6))) for _ in range(20)]
    return [*made, *ODD_QUERIES]


def lists_of(tables: Tables) -> WordLists:
    return WordLists(tables._opened["items"])


def fresh(tables: Tables) -> Tables:
    """The same tables in a process that has not searched yet."""
    return Tables(tables._opened)


def test_lists_find_what_lance_finds_in_the_same_order_with_the_same_scores(tables):
    lists = lists_of(tables)
    for query in queries():
        for k in (1, 7, 2000):
            ours, wanted = lists.search(query.split(" "), k), tables.search_by_lance(query, k)
            assert ours is not None
            np.testing.assert_allclose([hit.score for hit in ours], [hit.score for hit in wanted], rtol=1e-5)
            tied = 1e-5 * max((hit.score for hit in wanted), default=0)
            for one, two in zip(ours, wanted, strict=True):
                assert one.id == two.id or abs(one.score - two.score) <= tied  # sums are rounded in another order
            texts = {hit.id: hit.words for hit in wanted}
            assert all(hit.words == texts.get(hit.id, hit.words) for hit in ours)


def test_items_that_are_gone_are_never_found(tables):
    found = lists_of(tables).search(["a"], 2000)
    assert found is not None
    assert len(found) == tables.count("items", "state = 'present'")


def test_the_first_searches_ask_lance_and_later_ones_read_lists(tables):
    asked = fresh(tables)
    for _ in range(word_lists.SEARCHES_BEFORE_LISTS - 1):
        asked.keyword_search("dog", 3)
        assert not asked.keywords_in_memory
    found = asked.keyword_search("dog", 3)
    assert asked.keywords_in_memory
    assert [hit.id for hit in found] == [hit.id for hit in tables.search_by_lance("dog", 3)]


def test_a_large_library_and_a_query_of_many_new_words_are_searched_by_lance(tables, monkeypatch):
    many = ["dog"] + [f"word{number}" for number in range(word_lists.MAX_READ_LISTS)]
    assert lists_of(tables).search(many, 3) is None
    monkeypatch.setattr(tables_module, "SEARCHES_BEFORE_LISTS", 1)
    asked = fresh(tables)
    assert asked.keyword_search(" ".join(many), 3) == tables.search_by_lance(" ".join(many), 3) != []
    assert asked.keywords_in_memory
    monkeypatch.setattr(tables_module, "MAX_LISTED_ITEMS", 100)
    asked = fresh(tables)
    assert asked.keyword_search("dog", 3) == tables.search_by_lance("dog", 3)
    assert not asked.keywords_in_memory


def test_lists_stay_within_their_memory_and_give_the_same_hits(tables, monkeypatch):
    whole = [lists_of(tables).search(query.split(" "), 5) for query in queries()[:15]]
    monkeypatch.setattr(word_lists, "MAX_LIST_BYTES", 6000)
    small = lists_of(tables)
    assert [small.search(query.split(" "), 5) for query in queries()[:15]] == whole
    assert small._bytes == sum(found.bytes for found in small._lists.values()) <= 6000


def test_many_threads_may_search(tables, monkeypatch):
    monkeypatch.setattr(word_lists, "MAX_LIST_BYTES", 6000)
    alone, shared, start = lists_of(tables), lists_of(tables), threading.Barrier(8)
    asked = [query.split(" ") for query in queries()[:8]]
    wanted = [alone.search(words, 5) for words in asked]

    def work(_: int) -> object:
        start.wait()
        return [shared.search(words, 5) for words in asked]

    with ThreadPoolExecutor(8) as pool:
        assert all(found == wanted for found in pool.map(work, range(8)))
