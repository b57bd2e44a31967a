"""How the scores of a library lie, found by trying queries on a sample of it when it is opened."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.errors import NotFiniteError
from calligram.search.library.library import Library
from calligram.search.query.encoder import QueryEncoder, unit_vectors
from calligram.search.query.keyword_fusion import WORD
from calligram.search.query.query import Modality
from calligram.text import STOP_WORDS

# Queries that are tried on a library when it is opened, to learn how its scores lie.

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


class TrialQueries(NamedTuple):
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


def trial_queries(captions: Sequence[Sequence[str]], seed: int = 0, learnt: Sequence[bool] = ()) -> TrialQueries:
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
        return TrialQueries(list(PHRASES), np.zeros((len(PHRASES), len(owned)), dtype=np.bool_))
    spoken = [tuple(f" {' '.join(words)} " for words in of_item) for of_item in owned]
    matches = [[any(f" {text} " in caption for caption in of_item) for of_item in spoken] for text in wanted]
    return TrialQueries(wanted, np.array(matches, dtype=np.bool_))


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
        if words[start] not in STOP_WORDS and words[stop - 1] not in STOP_WORDS
    ]
    if not spans:
        return ""
    start, stop = spans[int(rng.integers(len(spans)))]
    return " ".join(words[start:stop])


# From which score on a hit counts as a match, learnt from the library's own scores.
#
# It is a cut-off of the matcher's plain score. When it was designed, on scenes and on Flickr8k's dev split, other
# things
# that can be told from a query's scores separated matches from the rest little or no better, and none did on both: how
# many deviations they stand above the query's own mean or above the item's mean over other queries, the gap to the
# tenth,
# the likeness of the first ten to each other, a logistic regression on several of these. The highest of many scores
# lies
# some three deviations above the mean, right or wrong.
#
# Hiding what someone looks for is worse than showing what nobody does, so the cut-off is the score that ``KEPT`` of the
# matches known in the library reach. They are known where there are captions: a caption's own images are its
# matches, and
# those of a few words taken from a caption are the images with these words in a caption. Short texts score lower than
# whole captions, so each has its own cut-off. How much is then hidden is up to the matcher: a good one parts matches
# from
# the rest, and one that cannot is left alone. Captions of the training split, which a matcher may know by heart, are
# asked for where others are too few. Where too few matches are known, everyday phrases are tried on the library,
# and the cut-off is the score that ``UNRELATED`` of these pairs stay under.
#
# A matcher with a vocabulary reads all words it has never seen as one, and gives a query of such words scores like any
# other's. A text more than half of whose telling words are unknown has therefore no good match (``Asked.lost``).
#
# Measured by ``bench/relevance.py`` with a matcher of the demo's kind on scenes, and a small one on Flickr8k's test
# images, four captions each: of the matches among the first ten 97 and 90% are shown for whole captions, 96 and 98% for
# short queries, and of the other hits 25 and 17%, 6 and 11% are hidden. Queries about something else altogether are
# refused in 97 and 57% of cases, nearly all for their unknown words; their scores alone would refuse 7 and 3%. Captions
# whose own images were removed are refused in 2% of cases only: what is left is too like them for these matchers.

Floats = NDArray[np.float32]

KEPT = 0.95
"""share of known matches among first hits that the cut-off lets through"""
UNRELATED = 0.98
"""share of all pairs that stay under the cut-off where matches are not known; on scenes and Flickr8k, cut-offs from
known matches lay between 0.965 and 0.985"""
FIRST = 10
"""hits of a query that are looked at: what lies deeper is not shown anyway"""
ENOUGH_MATCHES = 30
ENOUGH_ITEMS = 50
"""a twentieth of fewer, or a fiftieth of pairs with fewer items, would be one or two odd cases"""


@dataclass(frozen=True)
class ScoreScale:
    """How the scores of one kind of pair, such as texts with images, lie over a library."""

    mean: float
    """of pairs that are not known to match"""
    spread: float
    """their standard deviation"""
    cutoff: float
    """what a match should reach; minus infinity where nothing could be learnt"""


UNKNOWN = ScoreScale(0.0, 1.0, -math.inf)
"""of a library that is too small to tell"""


def calibrated(scores: Floats, matches: Flags, ignore: Flags | None = None) -> ScoreScale:
    """Learn a scale from trial queries.

    Args:
        scores: (queries, items) of the library.
        matches: which of them are known to belong together; all false where nothing is known.
        ignore: pairs to leave out, such as an image with itself.

    Raises:
        NotFiniteError: for scores that cannot be compared.
    """
    counted = np.ones(scores.shape, dtype=np.bool_) if ignore is None else ~ignore
    if not np.isfinite(scores[counted]).all():
        raise NotFiniteError("the matcher's scores are not finite; it cannot be searched with")
    others = scores[counted & ~matches]
    if scores.shape[1] < ENOUGH_ITEMS or others.size < ENOUGH_ITEMS:
        return UNKNOWN
    found, weights = first_matches(np.where(counted, scores, -np.inf), matches & counted)
    if len(found) >= ENOUGH_MATCHES:
        cutoff = weighted_quantile(found, weights, 1 - KEPT)
    else:
        cutoff = float(np.quantile(scores[counted], UNRELATED))
    return ScoreScale(float(others.mean()), max(float(others.std()), 1e-6), cutoff)


def enough_matches(scores: Floats, matches: Flags) -> bool:
    """Whether so many matches are among first hits that a cut-off can be learnt from them."""
    return len(first_matches(scores, matches)[0]) >= ENOUGH_MATCHES


def first_matches(scores: Floats, matches: Flags) -> tuple[Floats, Floats]:
    """Scores of the matches among each query's first hits, and weights that give every query the same say."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :FIRST]
    hits, true = np.take_along_axis(scores, order, 1), np.take_along_axis(matches, order, 1)
    weights = true / np.maximum(true.sum(axis=1, keepdims=True), 1)
    return hits[true], weights[true].astype(np.float32)


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """The smallest value that, with all below it, has at least this share of the weight.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.5)
    2.0
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order], dtype=np.float64)
    place = int(np.searchsorted(reached, share * reached[-1] - 1e-9))
    return float(values[order][min(place, len(order) - 1)])


def cutoff_of(shares: Floats, scales: list[ScoreScale]) -> float:
    """The cut-off of a query with several terms.

    Its score is the mean of the terms' scores weighted by ``shares``, so the cut-off is the same mean of what is asked
    of each: what counts for a match must on average reach its own cut-off, what is to be avoided be no more than usual.

    Args:
        scales: of each term's scores.
    """
    asked = [scale.cutoff if share > 0 else scale.mean for share, scale in zip(shares, scales, strict=True)]
    return float(sum(share * value for share, value in zip(shares, asked, strict=True)))


ITEMS = 1000
"""images that queries are tried on"""
RERANKED = 64
"""images, and half as many texts again, that the second stage is tried on; each pair costs it a pass"""


@dataclass(frozen=True)
class ScoreScales:
    """Of each kind of pair."""

    across: ScoreScale = UNKNOWN
    """images with texts, by their vectors"""
    briefly: ScoreScale = UNKNOWN
    """images with texts of a few words, which score lower"""
    images: ScoreScale = UNKNOWN
    texts: ScoreScale = UNKNOWN
    reranked: ScoreScale = UNKNOWN
    """images with texts, by the second stage"""
    items: int = 0
    """images in the library when it was measured"""

    def of(self, asked: Modality, found: Modality, *, brief: bool = False) -> ScoreScale:
        """Scores of a term of one modality with items of another, by their vectors."""
        if asked != found:
            return self.briefly if brief else self.across
        return self.images if found == "image" else self.texts


def measure(library: Library, encoder: QueryEncoder, reranker: QueryEncoder | None = None) -> ScoreScales:
    """Try captions, pieces of captions or everyday phrases on a sample of the library."""
    ids = library.sample(ITEMS)
    if not ids:
        return ScoreScales()
    items = library.items(ids)
    # Whatever run it was: of splits that nobody trained on there is no harm in asking first.
    learnt = [item.metadata.get("split") == "train" for item in items]
    trials = trial_queries([item.captions for item in items], learnt=learnt)
    images, texts = library.images.vectors(ids), unit_vectors(encoder.texts(trials.texts))
    nothing = np.zeros((len(images), len(images)), dtype=np.bool_)
    # Two texts with an image in common are known to belong together.
    shared = (trials.matches.astype(np.int32) @ trials.matches.T.astype(np.int32)) > 0
    own = np.eye(len(texts), dtype=np.bool_)
    return ScoreScales(
        across=_of_some(texts @ images.T, trials.matches, ~trials.brief),
        briefly=_of_some(texts @ images.T, trials.matches, trials.brief),
        images=calibrated(images @ images.T, nothing, np.eye(len(images), dtype=np.bool_)),
        texts=calibrated(texts @ texts.T, shared & ~own, own),
        reranked=UNKNOWN if reranker is None else _reranked(library, reranker, ids, trials),
        items=len(library),
    )


def _of_some(scores: Floats, matches: Flags, chosen: Flags) -> ScoreScale:
    """A scale of all, with the cut-off of some queries where enough of their matches are known."""
    whole = calibrated(scores, matches)
    if whole == UNKNOWN or not enough_matches(scores[chosen], matches[chosen]):
        return whole
    return replace(whole, cutoff=calibrated(scores[chosen], matches[chosen]).cutoff)


def _reranked(library: Library, reranker: QueryEncoder, ids: list[str], trials: TrialQueries) -> ScoreScale:
    # Images with known matches first: there are few in a sample this small.
    order = np.argsort(-trials.matches.sum(axis=0), kind="stable")[:RERANKED]
    every = max(1, len(trials.texts) * 2 // (3 * RERANKED))
    images, texts = library.parts([ids[place] for place in order]), reranker.texts(trials.texts[::every])
    return calibrated(reranker.scores(images, texts).T, trials.matches[::every][:, order])
