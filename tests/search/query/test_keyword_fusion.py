from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from calligram.search.query.query import RANK_OFFSET, reciprocal_ranks
from calligram.text import has_every_word

RANKING = st.lists(st.sampled_from("abcdefgh"), unique=True)


def test_an_item_high_in_both_rankings_beats_one_that_is_first_in_one():
    """By hand: b has 1/62 + 1/61, a 1/61, c 1/62."""
    assert reciprocal_ranks([["a", "b"], ["b", "c"]]) == ["b", "a", "c"]


def test_items_of_equal_worth_keep_the_order_of_the_first_ranking():
    assert reciprocal_ranks([["a", "b"], ["b", "a"]]) == ["a", "b"]
    assert reciprocal_ranks([["a"], ["b"]]) == ["a", "b"]


@given(RANKING)
def test_one_ranking_and_nothing_else_is_left_as_it_is(ranking):
    assert reciprocal_ranks([ranking]) == ranking
    assert reciprocal_ranks([ranking, []]) == ranking
    assert reciprocal_ranks([ranking, ranking]) == ranking


@given(st.lists(RANKING, max_size=4))
def test_every_item_comes_once_in_order_of_the_literal_sum(rankings):
    def worth(item: str) -> float:
        return sum(1 / (RANK_OFFSET + 1 + ranking.index(item)) for ranking in rankings if item in ranking)

    fused = reciprocal_ranks(rankings)
    assert sorted(fused) == sorted({item for ranking in rankings for item in ranking})
    assert all(worth(first) >= worth(second) - 1e-12 for first, second in pairwise(fused))


def test_words_are_whole_in_any_case_and_in_any_of_the_texts():
    assert has_every_word("Grandma HILDA", ["hilda_birthday.jpg", "my grandma"])
    assert not has_every_word("Grandma Hilda", ["grandma"])
    assert not has_every_word("dog", ["dogs"])
    assert has_every_word("éclair", ["ÉCLAIR au chocolat"])
    assert not has_every_word("?!", ["?!"])
    assert not has_every_word("dog", [])
