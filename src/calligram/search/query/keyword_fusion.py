"""Joining rankings: what the vectors found and what the words found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calligram.text import composed, indexed_words, keywords

SOFTENING = 60
"""added to ranks, from the paper: being first rather than tenth in one ranking must not outweigh the other"""


def reciprocal_ranks(rankings: Sequence[Sequence[str]]) -> list[str]:
    """The ids of all rankings, those first that stand high in several.

    An item's worth is the sum over rankings of 1 / (60 + rank) (reciprocal-rank fusion: Cormack, Clarke and Büttcher,
    SIGIR 2009). It needs no common scale, and cosines and word scores have none. Of equal worth, that which stands
    higher in the first ranking comes first.

    >>> reciprocal_ranks([["a", "b", "c"], ["c", "a"]])
    ['a', 'c', 'b']
    """
    worth: dict[str, float] = {}
    for ranking in rankings:
        for rank, id_ in enumerate(ranking, 1):
            worth[id_] = worth.get(id_, 0.0) + 1 / (SOFTENING + rank)
    # Sorting is stable and dicts keep the order of arrival, which is the first ranking's.
    return sorted(worth, key=lambda id_: -worth[id_])


def has_every_word(query: str, texts: Iterable[str]) -> bool:
    """Whether the texts together contain each word of the query, whole and in any case.

    >>> has_every_word("red Dog", ["a dog", "something red"])
    True
    >>> has_every_word("do", ["a dog"])
    False
    """
    wanted = set(keywords(composed(query).lower()))
    return bool(wanted) and wanted <= {word for text in texts for word in indexed_words(composed(text).lower())}
