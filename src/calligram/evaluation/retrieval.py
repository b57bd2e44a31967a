"""Evaluation of retrieval: both directions, folds, within one modality, and the oracle as a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.evaluation.distributions import Overlap, score_overlap
from calligram.evaluation.oracle import chance, oracle_ranks
from calligram.evaluation.recall import (
    DirectionMetrics,
    EncodedPairing,
    LoadedPairing,
    Precision,
    check_precision,
    encode_pairing,
    load_pairing,
    mean_of,
    relevant_ranks,
    retrieval_metrics,
    score_matrix,
)
from calligram.evaluation.rerank import RerankReport, TwoStageScores, check_depth, rerank_candidates
from calligram.features.inputs import Inputs
from calligram.models.matcher import Matcher
from calligram.notebook import html_table
from calligram.progress import Track, silent
from calligram.vectors import unit_length

if TYPE_CHECKING:
    from calligram.models.ensemble import Ensemble

Floats = NDArray[np.floating]
ScoreCallback = Callable[[EncodedPairing, Floats], None]
"""receives the encodings and all scores of an evaluation"""


@dataclass(frozen=True)
class Retrieval:
    """Image-to-text and text-to-image retrieval."""

    i2t: DirectionMetrics
    t2i: DirectionMetrics

    @property
    def rsum(self) -> float:
        """Sum of the six recalls."""
        return self.i2t.rsum + self.t2i.rsum

    def as_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {"i2t": asdict(self.i2t), "t2i": asdict(self.t2i), "rsum": self.rsum}


@dataclass(frozen=True)
class RetrievalReport:
    """Retrieval on one split, with references and further measures."""

    retrieval: Retrieval
    images: int
    texts: int
    folds: int = 1
    oracle: Retrieval | None = None
    """metrics of the oracle, where all true pairs are known"""
    true: Retrieval | None = None
    """metrics of the matcher where all true pairs are relevant"""
    within: dict[str, DirectionMetrics] = field(default_factory=dict)
    """retrieval within a modality (i2i, t2t); items with a common partner are relevant"""
    chance: Retrieval | None = None
    """metrics of a random order"""
    overlap: Overlap | None = None
    """score histograms of matching and other pairs; None where one kind is missing or not all pairs are scored"""
    precision: Precision = "fp32"
    """floating-point precision of the scores"""
    stages: RerankReport | None = None
    """cost and recall of the first stage, where only candidates were scored"""
    alone: tuple[Retrieval, ...] = ()
    """each ensemble member on its own"""

    def _rows(self) -> list[tuple[str, ...]]:
        """Measure, recalls and median ranks as a table for people."""
        rows = []
        for name in ("retrieval", "oracle", "true", "chance"):
            part: Retrieval | None = getattr(self, name)
            for label, side in (("image to text", "i2t"), ("text to image", "t2i")) if part is not None else ():
                found: DirectionMetrics = getattr(part, side)
                title = label if name == "retrieval" else f"{label}, {'all true pairs' if name == 'true' else name}"
                values = (f"{value:.1f}" for value in (found.r1, found.r5, found.r10, found.medr))
                rows.append((title, *values))
        return rows

    def __str__(self) -> str:
        """The recalls in percent, one direction a line."""
        head = f"{self.images:,} images, {self.texts:,} texts; rsum {self.retrieval.rsum:.1f}"
        rows = self._rows()
        width = max(len(title) for title, *_ in rows)
        lines = [
            f"{title:{width}}  R@1 {r1:>5}  R@5 {r5:>5}  R@10 {r10:>5}  median rank {medr}"
            for title, r1, r5, r10, medr in rows
        ]
        return "\n".join((head, *lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = f"{self.images:,} images, {self.texts:,} texts; rsum {self.retrieval.rsum:.1f}"
        return f"<p>{head}</p>" + html_table(["", "R@1", "R@5", "R@10", "median rank"], self._rows())

    def as_dict(self) -> dict[str, object]:
        """Return JSON values, with ``i2t``, ``t2i`` and ``rsum`` at the top level."""
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
    """Return the metrics of both directions of a score matrix (I, T)."""
    return Retrieval(
        retrieval_metrics(relevant_ranks(scores, matches)),
        retrieval_metrics(relevant_ranks(np.asarray(scores).T, matches.T)),
    )


def oracle_retrieval(matches: Matches, true: Matches) -> Retrieval:
    """Return the metrics of the oracle in both directions."""
    return Retrieval(oracle_ranks(matches, true), oracle_ranks(matches.T, true.T))


def chance_retrieval(matches: Matches) -> Retrieval:
    """Return the metrics of a random order in both directions."""
    return Retrieval(chance(matches), chance(matches.T))


def fold_rows(images: int, folds: int) -> list[NDArray[np.int64]]:
    """Return contiguous folds of equal size, as in the 5 x 1K protocol."""
    if folds < 1 or images % folds:
        fitting = ", ".join(str(n) for n in range(2, min(images, 50) + 1) if images % n == 0)
        raise UserError(
            f"{images} images cannot be divided into {folds} equal folds; possible numbers: {fitting or 'none'}"
        )
    return np.split(np.arange(images), folds)


def measure_folds(scores: Floats, pairing: Pairing, folds: int) -> Retrieval:
    """Return the mean over folds; a fold has some images and their texts (dual-path, Table VIII)."""
    if folds == 1:
        return measure_retrieval(scores, pairing.matches)
    parts = [
        measure_retrieval(np.asarray(scores)[np.ix_(images, texts)], pairing.matches.select(images, texts))
        for images, texts in fold_items(pairing, folds)
    ]
    return mean_retrieval(parts)


def fold_items(pairing: Pairing, folds: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the images and the texts of each fold."""
    of_image, of_text = pairing.matches.pairs()
    found = []
    for images in fold_rows(len(pairing.visuals), folds):
        texts = np.unique(of_text[np.isin(of_image, images)])
        if not len(texts):
            raise UserError(f"images {images[0]} to {images[-1]} have no captions; take fewer folds")
        found.append((images, texts))
    return found


def mean_retrieval(parts: Sequence[Retrieval]) -> Retrieval:
    """Return the mean over folds."""
    return Retrieval(mean_of(p.i2t for p in parts), mean_of(p.t2i for p in parts))


def retrieval_within(vectors: Floats, matches: Matches) -> DirectionMetrics | None:
    """Return retrieval within one modality; items with a common partner are relevant. None where there are none."""
    shared = matches.shared_texts()
    if not len(shared):
        return None
    diagonal = np.arange(len(vectors))
    scores = vectors @ vectors.T
    return retrieval_metrics(relevant_ranks(scores, shared, ignore=Matches(diagonal, diagonal, scores.shape)))


def evaluate_retrieval(
    matcher: Matcher,
    inputs: Inputs,
    pairing: Pairing,
    *,
    folds: int = 1,
    within_modality: bool = False,
    loaded: LoadedPairing | None = None,
    on_scores: ScoreCallback | None = None,
    precision: Precision = "fp32",
    depth: int | None = None,
    first: EncodedPairing | None = None,
    alone: bool = False,
    track: Track = silent,
) -> RetrievalReport:
    """Evaluate a matcher on a pairing in both directions.

    Args:
        loaded: prepared inputs of the pairing, if they are used several times.
        on_scores: called with the encodings and the scores, for instance to draw them; not with ``depth``.
        precision: of scores that are more than a cosine; encodings are in float32.
        depth: number of candidates per query that are scored, retrieved by the cosine of vectors; 0 for all.
        first: encodings of the pairing by another matcher, whose vectors retrieve the candidates.
        alone: also evaluate each ensemble member on its own; not where only candidates are scored.
    """
    if not len(pairing.matches):
        raise UserError("this split has no captions to evaluate on; give another split")
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
        found = measure_folds(scores, pairing, folds)
        true = measure_retrieval(scores, known) if known is not None else None
        shared = overlap_of(matcher, scores, pairing)
        if on_scores is not None:
            on_scores(encoded, scores)
    else:
        found, true, stages = reranked_retrieval(matcher, encoded, pairing, depth, folds, first, precision, track)
    ensemble = _as_ensemble(matcher) if alone and not depth else None
    return RetrievalReport(
        found,
        len(pairing.visuals),
        len(pairing.texts),
        folds,
        oracle_retrieval(pairing.matches, known) if known is not None else None,
        true,
        retrieval_within_modalities(encoded, pairing.matches) if within_modality else {},
        chance_retrieval(pairing.matches) if folds == 1 else None,
        shared,
        precision,
        stages,
        measure_members(ensemble, encoded, pairing, folds, precision, track) if ensemble else (),
    )


def _as_ensemble(matcher: Matcher) -> Ensemble | None:
    from calligram.models.ensemble import Ensemble

    return matcher if isinstance(matcher, Ensemble) else None


def measure_members(
    ensemble: Ensemble,
    encoded: EncodedPairing,
    pairing: Pairing,
    folds: int = 1,
    precision: Precision = "fp32",
    track: Track = silent,
) -> tuple[Retrieval, ...]:
    """Evaluate each ensemble member on its own, from the encodings of the ensemble."""
    return tuple(
        measure_folds(score_matrix(member, EncodedPairing(*own), precision=precision, track=track), pairing, folds)
        for member, *own in ensemble.by_member(encoded.images, encoded.texts)
    )


def retrieval_within_modalities(encoded: EncodedPairing, matches: Matches) -> dict[str, DirectionMetrics]:
    """Return retrieval within images and within texts, where some items have a common partner (two-branch, Table 4)."""
    sides = (("i2i", encoded.images.vectors, matches), ("t2t", encoded.texts.vectors, matches.T))
    found = {name: retrieval_within(unit_length(vectors).cpu().numpy(), own) for name, vectors, own in sides}
    return {name: direction for name, direction in found.items() if direction is not None}


def reranked_retrieval(
    matcher: Matcher,
    encoded: EncodedPairing,
    pairing: Pairing,
    depth: int,
    folds: int = 1,
    first: EncodedPairing | None = None,
    precision: Precision = "fp32",
    track: Track = silent,
) -> tuple[Retrieval, Retrieval | None, RerankReport]:
    """Retrieve and rerank; return the metrics, those with all true pairs if they are known, and the cost.

    Candidates of a fold are items of that fold.
    """
    if folds == 1:
        staged = rerank_candidates(matcher, encoded, depth, first=first, precision=precision, track=track)
        found, recalls = _reranked(staged, pairing.matches)
        true = None if pairing.also_true is None else _reranked(staged, pairing.also_true)[0]
        return found, true, RerankReport(depth, *recalls, staged.scored)
    parts, recalled, shares = [], [], []
    for items in track(fold_items(pairing, folds), "folds", folds):
        other = None if first is None else first.select(*items)
        staged = rerank_candidates(matcher, encoded.select(*items), depth, first=other, precision=precision)
        found, recalls = _reranked(staged, pairing.matches.select(*items))
        parts.append(found)
        recalled.append(recalls)
        shares.append(staged.scored)
    i2t, t2i = np.mean(recalled, axis=0)
    return mean_retrieval(parts), None, RerankReport(depth, float(i2t), float(t2i), float(np.mean(shares)))


def _reranked(staged: TwoStageScores, relevant: Matches) -> tuple[Retrieval, tuple[float, float]]:
    """Return the metrics and the recall of the first stage, in both directions."""
    (texts, i2t), (images, t2i) = staged.i2t(relevant), staged.t2i(relevant)
    return Retrieval(retrieval_metrics(texts), retrieval_metrics(images)), (i2t, t2i)


def overlap_of(matcher: Matcher, scores: Floats, pairing: Pairing) -> Overlap | None:
    """Return the score histograms, over the range of the matcher's score, or of the scores if it has no bounds."""
    scoring = matcher.scoring
    span = (scoring.low, scoring.high) if scoring.bounded else None
    return score_overlap(scores, pairing.matches, also_true=pairing.also_true, span=span)
