"""Score scales and cut-offs: from which score on a hit counts as a match.

The cut-off applies to the matcher's score itself. Other statistics of a query's scores were compared with it on scenes
and on the dev split of Flickr8k: the number of standard deviations above the mean of the query or of the item, the gap
to the tenth hit, the similarity of the first ten hits to each other, and a logistic regression on several of them. They
separated matches from other hits little or no better, and none did so on both collections.

Hiding a match is worse than showing a hit that is not one. The cut-off is therefore the score that ``MATCH_RECALL`` of
the known matches reach. Matches are known where there are captions: a caption matches its own images, and a phrase of a
caption matches the images that have this phrase in a caption. Short texts score lower than captions, so they have a
cut-off of their own. Captions of the training split are used only where other captions are too few, because a matcher
scores the captions of its training higher than it scores any query. Where too few matches are known, everyday phrases
are used as queries, and the cut-off is the ``UNRELATED_SHARE`` quantile of all their scores.

A matcher with a vocabulary maps all unknown words to one token, and its scores for such a query look like any other
scores. A query with unknown words for more than half of its content words has therefore no good match
(``EncodedQuery.is_unknown``).

Measured by ``bench/relevance.py``, with a matcher like the demo's on scenes and a small one on the test images of
Flickr8k (four captions each):

                                                                      scenes   Flickr8k
    matches among the first ten hits that are shown, captions            97%        90%
    the same for short queries                                           96%        98%
    other hits among the first ten that are hidden, captions             25%        17%
    the same for short queries                                            6%        11%
    queries about another subject that are refused                       97%        57%
    the same by scores alone, without the rule for unknown words          7%         3%

Captions whose own images were removed are refused in only 2% of cases, because similar images remain.

Measuring takes some seconds, so the scales are stored in the library's manifest: at the end of an indexing run, or by
the first search of a library without them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.errors import NotFiniteError, UserError
from calligram.files import LOCK_FILE, try_lock
from calligram.search.library.library import Library
from calligram.search.library.manifest import MANIFEST, Manifest, read_manifest, write_manifest
from calligram.search.library.matchers import MatcherEncoder, unit_vectors
from calligram.search.query.query import Modality
from calligram.text import STOP_WORDS, keywords

Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]

MEASUREMENT_VERSION = 1
"""increase it when ``measure_scales`` gives other results, so that stored scales are measured again"""

SAMPLE_IMAGES = 1000
"""images of the library that trial queries are scored with"""
RERANK_SAMPLE_IMAGES = 64
"""images for the reranker, with about 96 texts; each pair costs a forward pass"""
TRIAL_CAPTIONS = 128
"""captions used as queries, and as many phrases of captions"""
MIN_UNSEEN_ITEMS = 5
"""with so many captioned items outside the training split, only their captions are used"""
MAX_PHRASE_WORDS = 3
"""words of a short text"""

MATCH_RECALL = 0.95
"""share of the known matches among the first hits that reach the cut-off"""
UNRELATED_SHARE = 0.98
"""share of all pairs below the cut-off where too few matches are known; on scenes and Flickr8k, cut-offs from known
matches lay at quantiles from 0.965 to 0.985"""
COUNTED_HITS = 10
"""first hits of each query that count; later ones are rarely shown"""
MIN_MATCHES = 30
MIN_IMAGES = 50
"""with fewer matches or images, a quantile would depend on one or two cases"""

EVERYDAY_PHRASES = tuple(
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
"""queries for a library without captions"""


@dataclass(frozen=True)
class ScoreScale:
    """Mean, standard deviation and cut-off of one kind of score, such as texts with images, in a library."""

    mean: float
    """of pairs that are not known to match"""
    spread: float
    """their standard deviation"""
    cutoff: float
    """the score that a match should reach; minus infinity where it could not be estimated"""


UNKNOWN_SCALE = ScoreScale(0.0, 1.0, -math.inf)
"""of a library that is too small for an estimate"""


@dataclass(frozen=True)
class ScoreScales:
    """The scales of a library, one for each kind of score."""

    across: ScoreScale = UNKNOWN_SCALE
    """images with texts, cosine of their vectors"""
    short_texts: ScoreScale = UNKNOWN_SCALE
    """images with texts of a few words, which score lower"""
    images: ScoreScale = UNKNOWN_SCALE
    texts: ScoreScale = UNKNOWN_SCALE
    reranked: ScoreScale = UNKNOWN_SCALE
    """images with texts, score of the reranker"""
    items: int = 0
    """images in the library when it was measured"""

    def between(self, query: Modality, target: Modality, *, short: bool = False) -> ScoreScale:
        """The scale of vector scores between a query term of one modality and items of another."""
        if query != target:
            return self.short_texts if short else self.across
        return self.images if target == "image" else self.texts


def query_cutoff(shares: Floats, scales: list[ScoreScale]) -> float:
    """The cut-off of a query with several terms.

    A query's score is the mean of its terms' scores, weighted by ``shares``. Its cut-off is the same weighted mean of
    the terms' cut-offs, with the mean score in place of the cut-off for a term with a negative weight.

    Args:
        shares: weight of each term.
        scales: scale of each term's scores.
    """
    expected = [scale.cutoff if share > 0 else scale.mean for share, scale in zip(shares, scales, strict=True)]
    return float(sum(share * value for share, value in zip(shares, expected, strict=True)))


def library_scales(library: Library, encoder: MatcherEncoder, reranker: MatcherEncoder | None = None) -> ScoreScales:
    """The scales of a library: the stored ones, or measured now and stored where that is possible."""
    matchers = encoder.fingerprint, None if reranker is None else reranker.fingerprint
    manifest = library.manifest
    if (stored := stored_scales(manifest, *matchers)) is not None:
        return stored
    scales = measure_scales(library, encoder, reranker)
    if matchers == _matchers_of(manifest):
        _try_to_store(library, scales)
    return scales


def stored_scales(manifest: Manifest, matcher: str, reranker: str | None) -> ScoreScales | None:
    """The scales that a manifest stores; None where there are none, or they were measured for another state.

    Args:
        manifest: of the library.
        matcher: fingerprint of the matcher that is used now.
        reranker: fingerprint of the reranker that is used now, if any.
    """
    entry = manifest.scales
    if entry is None or any(entry.get(name) != value for name, value in _state_of(manifest, matcher, reranker).items()):
        return None
    try:
        kinds = {f.name: _scale_from_json(entry[f.name]) for f in fields(ScoreScales) if f.name != "items"}
        return ScoreScales(**kinds, items=int(entry["items"]))
    except (KeyError, TypeError, ValueError):
        return None


def with_scales(manifest: Manifest, scales: ScoreScales) -> Manifest:
    """The manifest with these scales, measured for the state that it describes."""
    kinds = {name: value for name, value in asdict(scales).items() if name != "items"}
    for kind in kinds.values():
        kind["cutoff"] = kind["cutoff"] if math.isfinite(kind["cutoff"]) else None  # JSON has no infinity
    state = _state_of(manifest, *_matchers_of(manifest))
    return replace(manifest, scales={**state, "items": scales.items, **kinds})


def _scale_from_json(content: Mapping[str, Any]) -> ScoreScale:
    cutoff = -math.inf if content["cutoff"] is None else float(content["cutoff"])
    return ScoreScale(float(content["mean"]), float(content["spread"]), cutoff)


def _matchers_of(manifest: Manifest) -> tuple[str, str | None]:
    """Fingerprints of matcher and reranker."""
    return manifest.matcher.fingerprint, manifest.reranker.fingerprint if manifest.reranker is not None else None


def _state_of(manifest: Manifest, matcher: str, reranker: str | None) -> dict[str, Any]:
    """Everything that measured scales depend on."""
    return {
        "measurement": MEASUREMENT_VERSION,
        "matcher": matcher,
        "reranker": reranker,
        "generation": manifest.generation,
        "versions": dict(manifest.versions),
    }


def _try_to_store(library: Library, scales: ScoreScales) -> None:
    """Write scales into the manifest, unless the library is read-only, being written to, or has changed."""
    if not os.access(library.folder / MANIFEST, os.W_OK):
        return
    try:
        with try_lock(library.folder / LOCK_FILE) as free:
            if not free:
                return
            manifest = read_manifest(library.folder)
            if replace(manifest, earlier=(), scales=None) == replace(library.manifest, earlier=(), scales=None):
                write_manifest(library.folder, with_scales(manifest, scales))
    except (OSError, UserError):  # a search does not need it, and the next one tries again
        return


def measure_scales(library: Library, encoder: MatcherEncoder, reranker: MatcherEncoder | None = None) -> ScoreScales:
    """Score trial queries with a sample of the library: captions, phrases of captions, or everyday phrases.

    Raises:
        NotFiniteError: for a matcher whose scores are not finite.
    """
    ids = library.sample(SAMPLE_IMAGES)
    if not ids:
        return ScoreScales()
    captions, metadata = library.captions_and_metadata(ids)
    # The split names of any collection are taken for those of the matcher's training: that can only exclude too much.
    trials = trial_queries(captions, trained=[columns.get("split") == "train" for columns in metadata])
    images, texts = library.images.vectors(ids), unit_vectors(encoder.texts(trials.texts))
    no_matches = np.zeros((len(images), len(images)), dtype=np.bool_)
    # Two texts that match the same image are known to match each other.
    shared = (trials.matches.astype(np.int32) @ trials.matches.T.astype(np.int32)) > 0
    own = np.eye(len(texts), dtype=np.bool_)
    return ScoreScales(
        across=_scale_of_some(texts @ images.T, trials.matches, ~trials.short),
        short_texts=_scale_of_some(texts @ images.T, trials.matches, trials.short),
        images=estimate_scale(images @ images.T, no_matches, np.eye(len(images), dtype=np.bool_)),
        texts=estimate_scale(texts @ texts.T, shared & ~own, own),
        reranked=UNKNOWN_SCALE if reranker is None else _reranked_scale(library, reranker, ids, trials),
        items=len(library),
    )


def _scale_of_some(scores: Floats, matches: Flags, chosen: Flags) -> ScoreScale:
    """The scale of all queries, with the cut-off of the chosen ones where enough of their matches are known."""
    scale = estimate_scale(scores, matches)
    if scale == UNKNOWN_SCALE or len(first_matches(scores[chosen], matches[chosen])[0]) < MIN_MATCHES:
        return scale
    return replace(scale, cutoff=estimate_scale(scores[chosen], matches[chosen]).cutoff)


def _reranked_scale(library: Library, reranker: MatcherEncoder, ids: list[str], trials: TrialQueries) -> ScoreScale:
    # Images with known matches first: a sample of this size has few.
    order = np.argsort(-trials.matches.sum(axis=0), kind="stable")[:RERANK_SAMPLE_IMAGES]
    step = max(1, len(trials.texts) * 2 // (3 * RERANK_SAMPLE_IMAGES))
    images, texts = library.parts([ids[row] for row in order]), reranker.texts(trials.texts[::step])
    return estimate_scale(reranker.scores(images, texts).T, trials.matches[::step][:, order])


def estimate_scale(scores: Floats, matches: Flags, ignore: Flags | None = None) -> ScoreScale:
    """Estimate a scale from the scores of trial queries.

    Args:
        scores: (queries, items).
        matches: (queries, items), the known matches; all false where none is known.
        ignore: pairs to leave out, such as an image with itself.

    Raises:
        NotFiniteError: for scores that cannot be compared.
    """
    counted = np.ones(scores.shape, dtype=np.bool_) if ignore is None else ~ignore
    if not np.isfinite(scores[counted]).all():
        raise NotFiniteError("the matcher's scores are not finite; it cannot be searched with")
    others = scores[counted & ~matches]
    if scores.shape[1] < MIN_IMAGES or others.size < MIN_IMAGES:
        return UNKNOWN_SCALE
    found, weights = first_matches(np.where(counted, scores, -np.inf), matches & counted)
    if len(found) >= MIN_MATCHES:
        cutoff = weighted_quantile(found, weights, 1 - MATCH_RECALL)
    else:
        cutoff = float(np.quantile(scores[counted], UNRELATED_SHARE))
    return ScoreScale(float(others.mean()), max(float(others.std()), 1e-6), cutoff)


def first_matches(scores: Floats, matches: Flags) -> tuple[Floats, Floats]:
    """Scores of the matches among each query's first hits, and weights that sum to one for each query."""
    matched = matches.any(axis=1)  # the other queries have nothing to count, and sorting takes most of the time
    scores, matches = scores[matched], matches[matched]
    order = np.argsort(-scores, axis=1, kind="stable")[:, :COUNTED_HITS]
    hits, true = np.take_along_axis(scores, order, 1), np.take_along_axis(matches, order, 1)
    weights = true / np.maximum(true.sum(axis=1, keepdims=True), 1)
    return hits[true], weights[true].astype(np.float32)


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """The smallest value such that it and all smaller values have at least this share of the weight.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.5)
    2.0
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order], dtype=np.float64)
    place = int(np.searchsorted(reached, share * reached[-1] - 1e-9))
    return float(values[order][min(place, len(order) - 1)])


class TrialQueries(NamedTuple):
    """Texts to score with items, and the known matches."""

    texts: list[str]
    matches: Flags
    """(texts, items)"""

    @property
    def short(self) -> Flags:
        """Which texts are short."""
        return np.array([is_short(text) for text in self.texts], dtype=np.bool_)


def is_short(text: str) -> bool:
    """Whether a text has at most as many words as a phrase of a caption."""
    return len(words_of(text)) <= MAX_PHRASE_WORDS


def trial_queries(captions: Sequence[Sequence[str]], seed: int = 0, trained: Sequence[bool] = ()) -> TrialQueries:
    """Captions and phrases of captions; everyday phrases where there are no captions.

    A phrase matches every item with the phrase in a caption, a caption the items that have it.

    Args:
        captions: of each item.
        seed: of the random choice.
        trained: for each item, whether the matcher may have been trained on its captions, which then score higher than
            queries do. With ``MIN_UNSEEN_ITEMS`` other captioned items, only the captions of those are used.
    """
    owned = [tuple(words_of(caption) for caption in of_item) for of_item in captions]
    rng = np.random.default_rng(seed)
    captioned = [item for item in rng.permutation(len(owned)) if any(owned[item])]
    unseen = [item for item in captioned if trained and not trained[item]]
    captioned = unseen if len(unseen) >= MIN_UNSEEN_ITEMS else captioned
    chosen = [_one_of([c for c in owned[item] if c], rng) for item in captioned[: 2 * TRIAL_CAPTIONS]]
    # The second half gives phrases; a small library gives both from the same captions.
    rest = chosen[TRIAL_CAPTIONS:] if len(chosen) == 2 * TRIAL_CAPTIONS else chosen
    phrases = [random_phrase(words, rng) for words in rest]
    whole = [" ".join(words) for words in chosen[:TRIAL_CAPTIONS]]
    texts = list(dict.fromkeys([*whole, *(phrase for phrase in phrases if phrase)]))
    if not texts:
        no_matches = np.zeros((len(EVERYDAY_PHRASES), len(owned)), dtype=np.bool_)
        return TrialQueries(list(EVERYDAY_PHRASES), no_matches)
    padded = [tuple(f" {' '.join(words)} " for words in of_item) for of_item in owned]
    matches = [[any(f" {text} " in caption for caption in of_item) for of_item in padded] for text in texts]
    return TrialQueries(texts, np.array(matches, dtype=np.bool_))


def words_of(text: str) -> list[str]:
    """Lower-case words."""
    return keywords(text.lower())


def _one_of(captions: Sequence[list[str]], rng: np.random.Generator) -> list[str]:
    return captions[int(rng.integers(len(captions)))]


def random_phrase(words: list[str], rng: np.random.Generator) -> str:
    """At most three consecutive words without a stop word at either end, or "" where there are none."""
    spans = [
        (start, stop)
        for start in range(len(words))
        for stop in range(start + 1, min(start + MAX_PHRASE_WORDS, len(words)) + 1)
        if words[start] not in STOP_WORDS and words[stop - 1] not in STOP_WORDS
    ]
    if not spans:
        return ""
    start, stop = spans[int(rng.integers(len(spans)))]
    return " ".join(words[start:stop])
