"""Queries that are tried on a library when it is opened, to learn how its scores lie."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.features.telling_words import STOP
from calligram.search.fusion import WORD

Flags = NDArray[np.bool_]

COUNT = 128
"""captions tried, and as many pieces of captions"""
FRESH = 5
"""items whose captions were not learnt that are enough to ask with: if they know too few matches, all pairs count"""
LONGEST_PIECE = 3
"""words"""

PHRASES = tuple(
    re.split(
        r",\s+",
        """a dog, two cats, a bird on a branch, a horse, cows in a field, a car, an old bicycle, a sailing boat,
        a train, an aeroplane, a house, a church, a bridge over a river, a street at night, a garden,
        snowy mountains, a lake, a beach, a forest path, flowers, a big tree, sunset, a rainy day, a baby,
        a boy playing, a girl in a red dress, an old man, a woman with a hat, a group of people, a crowd,
        a wedding, a birthday party, a football match, a concert, people dancing, people eating, a man running,
        a woman reading, children swimming, a skateboarder, a kitchen, a table with food, a cup of coffee,
        a cake, a pizza, fruit, a book, a computer, a telephone, a chair, a bed, a window, an open door, shoes,
        a bag, a statue, a tower, a city from above, a map, a letter, a drawing, a sign, a screenshot, the sky,
        stars, smoke, a fire, a tent, a clock, a toy, a mirror, a shop, a market, a fence, stairs, a tunnel,
        a swimming pool, a harbour, a waterfall, a desert, a cave, ice, fog, black and white, something blue,
        something green, something yellow, a close-up, a portrait, an empty room""",
    )
)
"""tried where there are no captions"""


class Trials(NamedTuple):
    """Texts to be tried on items, and which are known to match."""

    texts: list[str]
    matches: Flags
    """(texts, items)"""

    @property
    def brief(self) -> Flags:
        """Which texts are short."""
        return np.array([is_brief(text) for text in self.texts], dtype=np.bool_)


def is_brief(text: str) -> bool:
    """Whether a text has no more words than pieces of captions have."""
    return len(words_of(text)) <= LONGEST_PIECE


def trials_of(captions: Sequence[Sequence[str]], seed: int = 0, learnt: Sequence[bool] = ()) -> Trials:
    """Captions of items and pieces of captions; phrases of our own where there are none.

    A piece matches every item with the piece in a caption, a caption the items that have it.

    Args:
        captions: of each item.
        learnt: of each item, whether the matcher may have learnt its captions, which then score higher than any query
            will. Those of other items are tried where there are ``FRESH`` of them.
    """
    owned = [tuple(words_of(caption) for caption in of_item) for of_item in captions]
    rng = np.random.default_rng(seed)
    captioned = [place for place in rng.permutation(len(owned)) if any(owned[place])]
    fresh = [place for place in captioned if learnt and not learnt[place]]
    captioned = fresh if len(fresh) >= FRESH else captioned
    chosen = [_one_of([c for c in owned[place] if c], rng) for place in captioned[: 2 * COUNT]]
    # The second half gives pieces; a small library gives both from the same captions.
    pieces = [piece_of(words, rng) for words in (chosen[COUNT:] if len(chosen) == 2 * COUNT else chosen)]
    wanted = list(dict.fromkeys([*(" ".join(words) for words in chosen[:COUNT]), *(p for p in pieces if p)]))
    if not wanted:
        return Trials(list(PHRASES), np.zeros((len(PHRASES), len(owned)), dtype=np.bool_))
    spoken = [tuple(f" {' '.join(words)} " for words in of_item) for of_item in owned]
    matches = [[any(f" {text} " in caption for caption in of_item) for of_item in spoken] for text in wanted]
    return Trials(wanted, np.array(matches, dtype=np.bool_))


def words_of(text: str) -> list[str]:
    """Lower-case words."""
    return WORD.findall(text.lower())


def _one_of(captions: Sequence[list[str]], rng: np.random.Generator) -> list[str]:
    return captions[int(rng.integers(len(captions)))]


def piece_of(words: list[str], rng: np.random.Generator) -> str:
    """A run of at most three words that says something, or nothing where there is none."""
    spans = [
        (start, stop)
        for start in range(len(words))
        for stop in range(start + 1, min(start + LONGEST_PIECE, len(words)) + 1)
        if words[start] not in STOP and words[stop - 1] not in STOP
    ]
    if not spans:
        return ""
    start, stop = spans[int(rng.integers(len(spans)))]
    return " ".join(words[start:stop])
