"""Protocols: both directions, folds, within one modality, and beside the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.evaluation.distributions import Overlap, score_overlap
from calligram.evaluation.encode import (
    EncodedPairing,
    LoadedPairing,
    Precision,
    check_precision,
    encode_pairing,
    load_pairing,
    score_matrix,
)
from calligram.evaluation.oracle import chance, oracle_ranks
from calligram.evaluation.ranking import Direction, mean_of, relevant_ranks, summarise
from calligram.evaluation.rerank import RerankReport, TwoStageScores, check_depth, rerank_candidates
from calligram.features.inputs import Inputs
from calligram.models.ensemble import Ensemble
from calligram.models.matcher import Matcher
from calligram.progress import Track, silent
from calligram.vectors import unit_length

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
class RetrievalReport:
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
    """scores of matching and of other pairs; None where there is but one kind, or not all pairs are scored"""
    precision: Precision = "fp32"
    """of the scores"""
    stages: RerankReport | None = None
    """where candidates alone were scored"""
    alone: tuple[Retrieval, ...] = ()
    """of an ensemble: each member by itself"""

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
        out["precision"] = self.precision
        if self.stages is not None:
            out["stages"] = self.stages.as_dict()
        if self.alone:
            out["alone"] = [member.as_dict() for member in self.alone]
        return out


def measure_retrieval(scores: Floats, matches: Matches) -> Retrieval:
    """Both directions of a score matrix (I, T)."""
    return Retrieval(
        summarise(relevant_ranks(scores, matches)), summarise(relevant_ranks(np.asarray(scores).T, matches.T))
    )


def oracle_retrieval(matches: Matches, true: Matches) -> Retrieval:
    """Both directions of the oracle."""
    return Retrieval(oracle_ranks(matches, true), oracle_ranks(matches.T, true.T))


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
    """Mean over folds of the images, each with its own texts only; one fold is all there is."""
    if folds == 1:
        return measure_retrieval(scores, pairing.matches)
    parts = [
        measure_retrieval(np.asarray(scores)[np.ix_(images, texts)], pairing.matches.select(images, texts))
        for images, texts in fold_items(pairing, folds)
    ]
    return mean_retrieval(parts)


def fold_items(pairing: Pairing, folds: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The images of each fold, and their texts."""
    of_image, of_text = pairing.matches.pairs()
    found = []
    for images in fold_rows(len(pairing.visuals), folds):
        texts = np.unique(of_text[np.isin(of_image, images)])
        if not len(texts):
            raise UserError(f"images {images[0]} to {images[-1]} have no captions; take fewer folds")
        found.append((images, texts))
    return found


def mean_retrieval(parts: Sequence[Retrieval]) -> Retrieval:
    """Average of folds."""
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
    precision: Precision = "fp32",
    depth: int | None = None,
    first: EncodedPairing | None = None,
    alone: bool = False,
    track: Track = silent,
) -> RetrievalReport:
    """Measure a matcher on a pairing, in both directions and beside what the pairing knows to be true.

    Args:
        loaded: the pairing's prepared inputs, where they are used again and again as dev is in training.
        look: is handed the encodings and the scores, to draw them for instance; not with ``depth``.
        precision: of scores that are more than a cosine; encodings are in float32.
        depth: score only so many candidates of each query, found by the cosine of vectors; 0 for all of them.
        first: the pairing as another matcher encodes it, whose vectors find the candidates.
        alone: measure each member of an ensemble by itself as well; not where candidates alone are scored.
    """
    if not len(pairing.matches):
        raise UserError("this split has no captions; there is nothing to measure")
    check_precision(matcher, precision)
    if depth is not None:
        check_depth(matcher, depth, first=first is not None)
        depth = depth if depth < max(len(pairing.visuals), len(pairing.texts)) else 0
    matcher.eval()
    encoded = encode_pairing(matcher, inputs, loaded or load_pairing(inputs, pairing, track), track)
    known = pairing.also_true if folds == 1 else None
    true, shared, stages = None, None, None
    if depth is None:
        scores = score_matrix(matcher, encoded, precision=precision, track=track)
        found = in_folds(scores, pairing, folds)
        true = measure_retrieval(scores, known) if known is not None else None
        shared = overlap_of(matcher, scores, pairing)
        if look is not None:
            look(encoded, scores)
    else:
        found, true, stages = staged_retrieval(matcher, encoded, pairing, depth, folds, first, precision, track)
    ensemble = matcher if isinstance(matcher, Ensemble) and alone and not depth else None
    return RetrievalReport(
        found,
        len(pairing.visuals),
        len(pairing.texts),
        folds,
        oracle_retrieval(pairing.matches, known) if known is not None else None,
        true,
        within_each(encoded, pairing.matches) if within_modality else {},
        chance_retrieval(pairing.matches) if folds == 1 else None,
        shared,
        precision,
        stages,
        each_alone(ensemble, encoded, pairing, folds, precision, track) if ensemble else (),
    )


def each_alone(
    ensemble: Ensemble,
    encoded: EncodedPairing,
    pairing: Pairing,
    folds: int = 1,
    precision: Precision = "fp32",
    track: Track = silent,
) -> tuple[Retrieval, ...]:
    """What each member finds by itself, from what the ensemble encoded."""
    return tuple(
        in_folds(score_matrix(member, EncodedPairing(*own), precision=precision, track=track), pairing, folds)
        for member, *own in ensemble.by_member(encoded.images, encoded.texts)
    )


def within_each(encoded: EncodedPairing, matches: Matches) -> dict[str, Direction]:
    """``within`` of images and of texts, where some share a partner."""
    sides = (("i2i", encoded.images.vectors, matches), ("t2t", encoded.texts.vectors, matches.T))
    found = {name: within(unit_length(vectors).cpu().numpy(), own) for name, vectors, own in sides}
    return {name: direction for name, direction in found.items() if direction is not None}


def staged_retrieval(
    matcher: Matcher,
    encoded: EncodedPairing,
    pairing: Pairing,
    depth: int,
    folds: int = 1,
    first: EncodedPairing | None = None,
    precision: Precision = "fp32",
    track: Track = silent,
) -> tuple[Retrieval, Retrieval | None, RerankReport]:
    """Retrieve, then rerank: the metrics, those by all that is true where that is known, and what it took.

    Candidates of a fold are among the fold's items.
    """
    if folds == 1:
        staged = rerank_candidates(matcher, encoded, depth, first=first, precision=precision, track=track)
        found, recalls = _staged(staged, pairing.matches)
        true = None if pairing.also_true is None else _staged(staged, pairing.also_true)[0]
        return found, true, RerankReport(depth, *recalls, staged.scored)
    parts, recalled, shares = [], [], []
    for items in track(fold_items(pairing, folds), "folds", folds):
        other = None if first is None else first.select(*items)
        staged = rerank_candidates(matcher, encoded.select(*items), depth, first=other, precision=precision)
        found, recalls = _staged(staged, pairing.matches.select(*items))
        parts.append(found)
        recalled.append(recalls)
        shares.append(staged.scored)
    i2t, t2i = np.mean(recalled, axis=0)
    return mean_retrieval(parts), None, RerankReport(depth, float(i2t), float(t2i), float(np.mean(shares)))


def _staged(staged: TwoStageScores, relevant: Matches) -> tuple[Retrieval, tuple[float, float]]:
    """Metrics and the first stage's recall, both ways."""
    (texts, i2t), (images, t2i) = staged.i2t(relevant), staged.t2i(relevant)
    return Retrieval(summarise(texts), summarise(images)), (i2t, t2i)


def overlap_of(matcher: Matcher, scores: Floats, pairing: Pairing) -> Overlap | None:
    """Both histograms over the range of the cosine, or of the scores where a matcher's are something else."""
    span = None if matcher.reranks else (-1.0, 1.0)
    return score_overlap(scores, pairing.matches, also_true=pairing.also_true, span=span)
