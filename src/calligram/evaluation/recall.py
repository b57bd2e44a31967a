"""From a matcher to the recalls of a split: encodings, scores, ranks, and the metrics computed from ranks.

All metrics are computed from the rank of each relevant item (``relevant_ranks``): 1 plus the number of items before it.
An irrelevant item with an equal score counts as before it. So a constant scorer gets the worst ranks, and no metric
depends on the order of a sort. Matches are many-to-many.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.device import device_of, pin_if_large, prepare_ahead
from calligram.errors import NotFiniteError, UserError
from calligram.features.inputs import ImageRows, Inputs, TextRows
from calligram.files import named_disk_errors, reserve_space
from calligram.models.matcher import Encoded, Matcher, stack
from calligram.progress import Track, silent

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]
ScoreMatrix = NDArray[np.float32]
Precision = Literal["fp32", "bf16"]

MAX_MEMORY_BYTES = 1 << 30
"""largest score matrix in memory; a larger one is kept in a temporary file"""
BLOCK_SCORES = 1 << 22
"""number of scores compared at once"""
RECALL_RANKS = (1, 5, 10)
"""the k of R@k"""


def check_precision(matcher: Matcher, precision: Precision) -> None:
    """Refuse lower precision for a matcher that scores by cosines.

    Raises:
        UserError: for bfloat16 and such a matcher: with eight bits many scores would be equal.
    """
    if precision != "fp32" and not matcher.scoring.reranks:
        raise UserError(
            f"--precision {precision} is for matchers that score pairs by attention; this one scores by the cosine of "
            "two vectors, which is fast already; leave the option out"
        )


def score_precision(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which scores are computed: autocast as in training, or none."""
    return contextlib.nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


class EncodedPairing(NamedTuple):
    """The images and texts of a pairing, encoded by a matcher."""

    images: Encoded
    texts: Encoded

    def select(self, images: Ints, texts: Ints) -> EncodedPairing:
        """Return some images and some texts."""
        one, two = (torch.from_numpy(rows).to(self.images.vectors.device) for rows in (images, texts))
        return EncodedPairing(self.images.rows(one), self.texts.rows(two))


class LoadedPairing(NamedTuple):
    """The images and texts of a pairing as prepared inputs, for encoding them several times."""

    images: ImageRows
    texts: TextRows


def load_pairing(inputs: Inputs, pairing: Pairing, track: Track = silent) -> LoadedPairing:
    """Prepare the inputs of a pairing: decode its images and tokenise its texts."""
    return LoadedPairing(
        inputs.images.load(pairing.visuals, track),
        inputs.texts.load(pairing.texts.strings, pairing.visuals.pictures.cache, track),
    )


def _device(matcher: Matcher) -> torch.device:
    return device_of(matcher)


@torch.no_grad()
def encode_images(
    matcher: Matcher, inputs: Inputs, rows: ImageRows, *, batch: int = 128, track: Track = silent
) -> Encoded:
    """Encode images in batches; encodings stay on the matcher's device."""
    device = _device(matcher)
    chunks = np.array_split(np.arange(len(rows)), max(1, -(-len(rows) // batch)))
    # On a GPU, the next batch is decoded while the network runs. On a CPU, decoding would take cores from the network.
    taken = (
        prepare_ahead(lambda c: pin_if_large(rows.take(c)), chunks) if device.type == "cuda" else map(rows.take, chunks)
    )
    pieces = [
        matcher.encode_images(inputs.images.finish(images.to(device, non_blocking=True)))
        for images in track(taken, "encoding images", len(chunks))
    ]
    return stack(pieces)


@torch.no_grad()
def encode_texts(matcher: Matcher, rows: TextRows, *, batch: int = 512, track: Track = silent) -> Encoded:
    """Encode texts in batches of similar length, to avoid padding; the result is in the original order."""
    device = _device(matcher)
    order = np.argsort(rows.lengths, kind="stable")
    chunks = np.array_split(order, max(1, -(-len(order) // batch)))
    pieces = []
    for chunk in track(chunks, "encoding texts", len(chunks)):
        words, mask = rows.take(chunk)
        pieces.append(matcher.encode_texts(words.to(device), mask.to(device)))
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(device)
    return stack(pieces).rows(back)


def encode_pairing(matcher: Matcher, inputs: Inputs, loaded: LoadedPairing, track: Track = silent) -> EncodedPairing:
    """Encode the images and texts of a pairing."""
    return EncodedPairing(
        encode_images(matcher, inputs, loaded.images, track=track), encode_texts(matcher, loaded.texts, track=track)
    )


def score_array(shape: tuple[int, ...], budget: int = MAX_MEMORY_BYTES) -> ScoreMatrix:
    """Return an array for scores, in a temporary file if it is larger than ``budget`` bytes."""
    if math.prod(shape) * 4 <= budget:
        return np.empty(shape, dtype=np.float32)
    # The mapping keeps the unnamed file alive.
    with named_disk_errors(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as file:
        reserve_space(file.fileno(), math.prod(shape) * 4)
        return np.memmap(file, dtype=np.float32, mode="w+", shape=shape)


@torch.no_grad()
def score_matrix(
    matcher: Matcher,
    encoded: EncodedPairing,
    *,
    rows: int = 256,
    budget: int = MAX_MEMORY_BYTES,
    precision: Precision = "fp32",
    track: Track = silent,
) -> ScoreMatrix:
    """Return all scores (I, T), computed for ``rows`` images at once."""
    scores = score_array((len(encoded.images.vectors), len(encoded.texts.vectors)), budget)
    starts = range(0, len(scores), rows)
    for start in track(starts, "scoring", len(starts)):
        part = encoded.images.rows(slice(start, start + rows))
        with score_precision(part.vectors.device, precision):
            found = matcher.score(part, encoded.texts)
        scores[start : start + rows] = found.float().cpu().numpy()
    return scores


@dataclass(frozen=True)
class RelevantRanks:
    """Ranks of all relevant items by query: those of query q are ``ranks[starts[q]:starts[q + 1]]``, ascending."""

    starts: Ints
    ranks: Ints

    @property
    def best(self) -> Ints:
        """Rank of the first relevant item, for each query that has one."""
        has = np.diff(self.starts) > 0
        return self.ranks[self.starts[:-1][has]]

    @property
    def queries(self) -> int:
        """Number of queries that have a relevant item."""
        return int((np.diff(self.starts) > 0).sum())


def relevant_ranks(scores: Floats, relevant: Matches, ignore: Matches | None = None) -> RelevantRanks:
    """Rank the relevant columns of every row.

    Args:
        scores: (Q, C), higher is better.
        relevant: (Q, C), the relevant columns of each row.
        ignore: (Q, C), columns that are left out of a row's ranking, such as the query itself.

    Raises:
        NotFiniteError: when a score is NaN or infinite. Comparisons with NaN are false, so ranks would look perfect.
    """
    if scores.shape != relevant.shape:
        raise ValueError(f"scores are {scores.shape} but matches are {relevant.shape}")
    rows, columns = (relevant if ignore is None else relevant.minus(ignore)).pairs()
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=scores.shape[0]))]).astype(np.int64)
    ranks = np.empty(len(rows), dtype=np.int64)
    step = max(1, BLOCK_SCORES // max(1, scores.shape[1]))
    for first in range(0, scores.shape[0], step):
        last = min(first + step, scores.shape[0])
        block = np.asarray(scores[first:last])
        _refuse_non_finite(block, first)
        if ignore is not None:
            block = block.copy()
            for row in range(first, last):
                block[row - first, ignore.texts_of(row)] = -np.inf
        part = slice(starts[first], starts[last])
        ranks[part] = _block_ranks(block, rows[part] - first, columns[part])
    return RelevantRanks(starts, ranks)


def _refuse_non_finite(block: Floats, first: int) -> None:
    finite = np.isfinite(block)
    if not finite.all():
        row = int(np.flatnonzero(~finite.all(axis=1))[0])
        count = int((~finite).sum())
        raise NotFiniteError(
            f"{count} scores are not finite (NaN or infinite), the first in row {first + row}; they cannot be ranked"
        )


def _block_ranks(block: Floats, rows: Ints, columns: Ints) -> Ints:
    """Return the ranks of the relevant (row, column) pairs of a block, ascending within each row."""
    values = block[rows, columns]
    order = np.lexsort((-values, rows))
    rows, values = rows[order], values[order]
    counts = np.bincount(rows, minlength=len(block))
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    at_least = np.empty(len(rows), dtype=np.int64)
    if counts.max(initial=0) <= 8:
        for turn in range(counts.max(initial=0)):
            these = np.flatnonzero(place == turn)
            own_rows = block if len(these) == len(block) else block[rows[these]]  # no copy where every row has an item
            at_least[these] = np.count_nonzero(own_rows >= values[these, None], axis=1)
    else:
        stops = np.cumsum(counts)
        for row in np.flatnonzero(counts):
            own = slice(stops[row] - counts[row], stops[row])
            at_least[own] = block.shape[1] - np.searchsorted(np.sort(block[row]), values[own], "left")
    # Columns with at least this score, minus the relevant ones among them, plus this item's rank among the relevant.
    return (at_least - _at_least_among(rows, values) + place + 1).astype(np.int64)


def _at_least_among(rows: Ints, values: Floats) -> Ints:
    """Return, for values sorted by row and descending, how many of the same row are at least as large."""
    if not len(rows):
        return np.empty(0, dtype=np.int64)
    changes = np.flatnonzero((rows[1:] != rows[:-1]) | (values[1:] != values[:-1])) + 1
    stops = np.append(changes, len(rows))
    run = np.repeat(np.arange(len(stops)), np.diff(stops, prepend=0))
    return (stops[run] - np.searchsorted(rows, rows, "left")).astype(np.int64)


@dataclass(frozen=True)
class DirectionMetrics:
    """Metrics of one direction. Recalls, mAP and precision are percentages; ranks are 1-based."""

    r1: float
    r5: float
    r10: float
    medr: float
    meanr: float
    map: float
    """mean average precision over the whole ranking"""
    map_r: float
    """mAP@R: mean average precision within the first R ranks, R being the number of relevant items of the query"""
    r_precision: float
    """share of relevant items within the first R ranks"""
    queries: int
    """number of queries that have a relevant item; others are left out"""

    @property
    def rsum(self) -> float:
        """R@1 + R@5 + R@10."""
        return self.r1 + self.r5 + self.r10


def recall_at(best: Ints, ks: Sequence[int]) -> dict[int, float]:
    """Return the percentage of queries whose first relevant item is within the first k ranks."""
    return {k: 100.0 * float((best <= k).mean()) if len(best) else 0.0 for k in ks}


def retrieval_metrics(found: RelevantRanks) -> DirectionMetrics:
    """Return all metrics of one direction.

    The median is rounded down, as usual in the field. With matches by identity the
    recalls are the cumulative match characteristic of person search (dual-path, Table VII).
    """
    if not found.queries:
        raise ValueError("no query has a relevant item; no metric is defined")
    best = found.best
    recall = recall_at(best, RECALL_RANKS)
    counts = np.diff(found.starts)
    place = np.arange(len(found.ranks)) - np.repeat(found.starts[:-1], counts) + 1
    relevant = np.repeat(counts, counts)
    precision = place / found.ranks
    inside = found.ranks <= relevant
    per_query = 1 / np.maximum(relevant, 1)
    return DirectionMetrics(
        recall[1],
        recall[5],
        recall[10],
        float(np.floor(np.median(best))),
        float(best.mean()),
        100 * float((precision * per_query).sum() / found.queries),
        100 * float((precision * inside * per_query).sum() / found.queries),
        100 * float((inside * per_query).sum() / found.queries),
        found.queries,
    )


def mean_of(directions: Iterable[DirectionMetrics]) -> DirectionMetrics:
    """Return the mean of each metric over folds; numbers of queries are added."""
    rows = [asdict(d) for d in directions]
    average = {
        f.name: float(np.mean([r[f.name] for r in rows])) for f in fields(DirectionMetrics) if f.name != "queries"
    }
    return DirectionMetrics(**average, queries=sum(r["queries"] for r in rows))


def recalls_of(
    matcher: Matcher, inputs: Inputs, loaded: LoadedPairing, matches: Matches, track: Track
) -> dict[str, float]:
    """Return the recalls of both directions and their sum, without the other measures of a report."""
    scores = score_matrix(matcher, encode_pairing(matcher.eval(), inputs, loaded, track), track=track)
    i2t, t2i = (
        retrieval_metrics(relevant_ranks(found, own)) for found, own in ((scores, matches), (scores.T, matches.T))
    )
    return recall_values(i2t, t2i)


def recall_values(i2t: DirectionMetrics, t2i: DirectionMetrics) -> dict[str, float]:
    """Return the recalls of both directions and their sum by name."""
    both = {f"{name}_r{k}": getattr(found, f"r{k}") for name, found in (("i2t", i2t), ("t2i", t2i)) for k in (1, 5, 10)}
    return {"rsum": i2t.rsum + t2i.rsum, **both}


@dataclass(frozen=True)
class PairedRanks:
    """Ranks of two runs, query by query."""

    queries: Ints
    """(Q,) rows of the queries that have a match"""
    ranks: tuple[Ints, Ints]
    """(Q,) rank of the first match of each query, for each run"""

    def found_by_one(self, k: int) -> tuple[Ints, Ints]:
        """Return the queries whose match only the first run, and only the second run, has among its first k items."""
        first, second = (ranks <= k for ranks in self.ranks)
        return self.queries[first & ~second], self.queries[second & ~first]

    def better_ranked(self) -> tuple[int, int]:
        """Return the numbers of queries whose match has a better rank in the first run, and in the second run."""
        first, second = self.ranks
        return int((first < second).sum()), int((second < first).sum())

    def rank_of(self, query: int) -> tuple[int, int]:
        """Return the rank of the first match of a query, for each run."""
        place = int(np.searchsorted(self.queries, query))
        return int(self.ranks[0][place]), int(self.ranks[1][place])

    def counts(self) -> dict[str, object]:
        """Return the numbers of queries that one run finds or ranks better, as JSON values."""
        better = self.better_ranked()
        only = {k: tuple(len(found) for found in self.found_by_one(k)) for k in RECALL_RANKS}
        return {
            "found_by_one": {str(k): {"first": a, "second": b, "p": sign_test(a, b)} for k, (a, b) in only.items()},
            "better_ranked": {"first": better[0], "second": better[1], "p": sign_test(*better)},
        }


def sign_test(first: int, second: int) -> float:
    """Return the two-sided p-value of the sign test: how likely so uneven counts are if both runs are equally good.

    Queries that do not distinguish the runs do not count. Over queries that only one run finds it is McNemar's exact
    test.
    """
    from scipy.special import bdtr

    total = first + second
    return min(1.0, 2 * float(bdtr(min(first, second), total, 0.5))) if total else 1.0
