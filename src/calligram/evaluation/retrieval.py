"""Protocols: both directions, folds, within one modality, and beside the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.evaluation.encoding import EncodedPairing, LoadedPairing, encode_pairing, load_pairing, score_matrix
from calligram.evaluation.oracle import chance, oracle
from calligram.evaluation.overlap import Overlap, overlap
from calligram.evaluation.ranking import Direction, mean_of, relevant_ranks, summarise
from calligram.features.inputs import Inputs
from calligram.models.matcher import Matcher, unit
from calligram.progress import Track, silent

Floats = NDArray[np.floating]
Look = Callable[[EncodedPairing, Floats], None]


@dataclass(frozen=True)
class Retrieval:
    """Image-to-text and text-to-image retrieval."""

    i2t: Direction
    t2i: Direction

    @property
    def rsum(self) -> float:
        """Sum of the six recalls."""
        return self.i2t.rsum + self.t2i.rsum

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"i2t": asdict(self.i2t), "t2i": asdict(self.t2i), "rsum": self.rsum}


@dataclass(frozen=True)
class Report:
    """Retrieval of one split, with what belongs beside it."""

    retrieval: Retrieval
    images: int
    texts: int
    folds: int = 1
    oracle: Retrieval | None = None
    """an oracle's figures for the same question, where every true pair is known"""
    true: Retrieval | None = None
    """the same matcher when every true pair counts as found"""
    within: dict[str, Direction] = field(default_factory=dict)
    """i2i and t2t: items that share a partner"""
    chance: Retrieval | None = None
    """what a random order would get"""
    overlap: Overlap | None = None
    """scores of matching and of other pairs; None where there is but one kind"""

    def as_dict(self) -> dict[str, object]:
        """For JSON: ``i2t``, ``t2i`` and ``rsum`` at the top."""
        out: dict[str, object] = {**self.retrieval.as_dict(), "images": self.images, "texts": self.texts}
        out["folds"] = self.folds
        for name in ("oracle", "true", "chance"):
            part = getattr(self, name)
            if part is not None:
                out[name] = part.as_dict()
        if self.within:
            out["within"] = {name: asdict(direction) for name, direction in self.within.items()}
        if self.overlap is not None:
            out["overlap"] = self.overlap.as_dict()
        return out


def retrieval(scores: Floats, matches: Matches) -> Retrieval:
    """Both directions of a score matrix (I, T)."""
    return Retrieval(
        summarise(relevant_ranks(scores, matches)), summarise(relevant_ranks(np.asarray(scores).T, matches.T))
    )


def oracle_retrieval(matches: Matches, true: Matches) -> Retrieval:
    """Both directions of the oracle."""
    return Retrieval(oracle(matches, true), oracle(matches.T, true.T))


def chance_retrieval(matches: Matches) -> Retrieval:
    """Both directions of a random order."""
    return Retrieval(chance(matches), chance(matches.T))


def fold_rows(images: int, folds: int) -> list[NDArray[np.int64]]:
    """Contiguous, equal folds of the images, as the 5 x 1K protocol takes them."""
    if folds < 1 or images % folds:
        fitting = ", ".join(str(n) for n in range(2, min(images, 50) + 1) if images % n == 0)
        raise UserError(
            f"{images} images cannot be cut into {folds} equal folds; these can be had: {fitting or 'none'}"
        )
    return np.split(np.arange(images), folds)


def in_folds(scores: Floats, pairing: Pairing, folds: int) -> Retrieval:
    """Mean over folds of the images, each with its own texts only."""
    parts = []
    for images in fold_rows(len(pairing.visuals), folds):
        of_image, of_text = pairing.matches.pairs()
        texts = np.unique(of_text[np.isin(of_image, images)])
        if not len(texts):
            raise UserError(f"images {images[0]} to {images[-1]} have no captions; take fewer folds")
        parts.append(retrieval(np.asarray(scores)[np.ix_(images, texts)], pairing.matches.select(images, texts)))
    return Retrieval(mean_of(p.i2t for p in parts), mean_of(p.t2i for p in parts))


def within(vectors: Floats, matches: Matches) -> Direction | None:
    """Retrieval among items of one kind: relevant are those that share a partner; None when none do."""
    shared = matches.shared_texts()
    if not len(shared):
        return None
    diagonal = np.arange(len(vectors))
    scores = vectors @ vectors.T
    return summarise(relevant_ranks(scores, shared, ignore=Matches(diagonal, diagonal, scores.shape)))


def evaluate_retrieval(
    matcher: Matcher,
    inputs: Inputs,
    pairing: Pairing,
    *,
    folds: int = 1,
    within_modality: bool = False,
    loaded: LoadedPairing | None = None,
    look: Look | None = None,
    track: Track = silent,
) -> Report:
    """Measure a matcher on a pairing, in both directions and beside what the pairing knows to be true.

    Args:
        loaded: the pairing's prepared inputs, where they are used again and again as dev is in training.
        look: is handed the encodings and the scores, to draw them for instance.
    """
    if not len(pairing.matches):
        raise UserError("this split has no captions; there is nothing to measure")
    matcher.eval()
    encoded = encode_pairing(matcher, inputs, loaded or load_pairing(inputs, pairing, track), track)
    scores = score_matrix(matcher, encoded, track=track)
    found = in_folds(scores, pairing, folds) if folds > 1 else retrieval(scores, pairing.matches)
    others: dict[str, Direction] = {}
    if within_modality:
        for name, vectors, matches in (
            ("i2i", encoded.images.vectors, pairing.matches),
            ("t2t", encoded.texts.vectors, pairing.matches.T),
        ):
            direction = within(unit(vectors).cpu().numpy(), matches)
            if direction is not None:
                others[name] = direction
    if look is not None:
        look(encoded, scores)
    known = pairing.also_true if folds == 1 else None
    return Report(
        found,
        len(pairing.visuals),
        len(pairing.texts),
        folds,
        oracle_retrieval(pairing.matches, known) if known is not None else None,
        retrieval(scores, known) if known is not None else None,
        others,
        chance_retrieval(pairing.matches) if folds == 1 else None,
        overlap_of(matcher, scores, pairing),
    )


def overlap_of(matcher: Matcher, scores: Floats, pairing: Pairing) -> Overlap | None:
    """Both histograms over the range of the cosine, or of the scores where a matcher's are something else."""
    span = None if matcher.reranks else (-1.0, 1.0)
    return overlap(scores, pairing.matches, also_true=pairing.also_true, span=span)
