"""How the scores of a library lie, found by trying queries on a sample of it when it is opened."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from calligram.search.library import Library
from calligram.search.query import Modality
from calligram.search.query_encoder import QueryEncoder, unit_vectors
from calligram.search.relevance import UNKNOWN, Flags, Floats, Scale, calibrated, enough_matches
from calligram.search.trials import Trials, trials_of

ITEMS = 1000
"""images that queries are tried on"""
RERANKED = 64
"""images, and half as many texts again, that the second stage is tried on; each pair costs it a pass"""


@dataclass(frozen=True)
class Scales:
    """Of each kind of pair."""

    across: Scale = UNKNOWN
    """images with texts, by their vectors"""
    briefly: Scale = UNKNOWN
    """images with texts of a few words, which score lower"""
    images: Scale = UNKNOWN
    texts: Scale = UNKNOWN
    reranked: Scale = UNKNOWN
    """images with texts, by the second stage"""
    items: int = 0
    """images in the library when it was measured"""

    def of(self, asked: Modality, found: Modality, *, brief: bool = False) -> Scale:
        """Scores of a term of one modality with items of another, by their vectors."""
        if asked != found:
            return self.briefly if brief else self.across
        return self.images if found == "image" else self.texts


def measure(library: Library, encoder: QueryEncoder, reranker: QueryEncoder | None = None) -> Scales:
    """Try captions, pieces of captions or everyday phrases on a sample of the library."""
    ids = library.sample(ITEMS)
    if not ids:
        return Scales()
    items = library.items(ids)
    # Whatever run it was: of splits that nobody trained on there is no harm in asking first.
    learnt = [item.metadata.get("split") == "train" for item in items]
    trials = trials_of([item.captions for item in items], learnt=learnt)
    images, texts = library.images.vectors(ids), unit_vectors(encoder.texts(trials.texts))
    nothing = np.zeros((len(images), len(images)), dtype=np.bool_)
    # Two texts with an image in common are known to belong together.
    shared = (trials.matches.astype(np.int32) @ trials.matches.T.astype(np.int32)) > 0
    own = np.eye(len(texts), dtype=np.bool_)
    return Scales(
        across=_of_some(texts @ images.T, trials.matches, ~trials.brief),
        briefly=_of_some(texts @ images.T, trials.matches, trials.brief),
        images=calibrated(images @ images.T, nothing, np.eye(len(images), dtype=np.bool_)),
        texts=calibrated(texts @ texts.T, shared & ~own, own),
        reranked=UNKNOWN if reranker is None else _reranked(library, reranker, ids, trials),
        items=len(library),
    )


def _of_some(scores: Floats, matches: Flags, chosen: Flags) -> Scale:
    """A scale of all, with the cut-off of some queries where enough of their matches are known."""
    whole = calibrated(scores, matches)
    if whole == UNKNOWN or not enough_matches(scores[chosen], matches[chosen]):
        return whole
    return replace(whole, cutoff=calibrated(scores[chosen], matches[chosen]).cutoff)


def _reranked(library: Library, reranker: QueryEncoder, ids: list[str], trials: Trials) -> Scale:
    # Images with known matches first: there are few in a sample this small.
    order = np.argsort(-trials.matches.sum(axis=0), kind="stable")[:RERANKED]
    every = max(1, len(trials.texts) * 2 // (3 * RERANKED))
    images, texts = library.parts([ids[place] for place in order]), reranker.texts(trials.texts[::every])
    return calibrated(reranker.scores(images, texts).T, trials.matches[::every][:, order])
