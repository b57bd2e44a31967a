"""What papers claim, as comparisons between rows that can be run, listed before anything is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev

LOWER = ("overlap", "medr", "meanr")
"""metrics of which less is better"""


@dataclass(frozen=True)
class Row:
    """A line of a table: a recipe with some settings."""

    name: str
    recipe: str
    changes: tuple[str, ...] = ()
    needs: str = ""
    """table that a collection must have for this row to mean anything"""

    def __post_init__(self) -> None:
        if any(change.startswith("seed=") for change in self.changes):
            raise ValueError(f"row {self.name}: seeds are chosen by reproduce")


@dataclass(frozen=True)
class Claim:
    """That one row beats another, by a metric of the test split."""

    text: str
    better: str
    worse: str
    metric: str = "rsum"
    """``rsum``, ``overlap``, or a direction and a metric such as ``t2i.r1``"""
    factor: float = 1.0
    """how many times as much as the other the better one has at least"""
    needs: str = ""
    """data this claim is about and that is not to be had; it is then reported as not run"""


@dataclass(frozen=True)
class Study:
    """A paper's rows, the most telling first, and its claims about them."""

    paper: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """by title, rows that stand together in a table, where the first is what the others are set against"""
    compared: tuple[tuple[str, ...], ...] = ()
    """rows whose dev recalls over the epochs are drawn in one picture each"""
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """by model, rows whose recalls are drawn against the captions they were trained with"""
    uncaptioned: tuple[str, ...] = ()
    """rows that need no captions, drawn as lines across the same picture"""
    mapped: tuple[str, ...] = ()
    """rows whose test split is drawn as points on a plane"""
    sheets: tuple[str, ...] = ()
    """rows whose first finds are drawn both ways, texts for images and images for texts"""

    def __post_init__(self) -> None:
        names = {row.name for row in self.rows}
        drawn = (*self.compared, *self.levels.values(), self.uncaptioned, self.mapped, self.sheets)
        for group in (*drawn, *self.tables.values()):
            if set(group) - names:
                raise ValueError(f"rows to be shown together are not there: {sorted(set(group) - names)}")
        for claim in self.claims:
            missing = {claim.better, claim.worse} - names
            if missing and not claim.needs:
                raise ValueError(f"claim '{claim.text}' compares rows that are not there: {sorted(missing)}")

    def row(self, name: str) -> Row:
        """A row by name."""
        return next(row for row in self.rows if row.name == name)


@dataclass(frozen=True)
class Verdict:
    """What was found of a claim: one line of ``results/claims.jsonl``."""

    paper: str
    claim: str
    verdict: str
    """holds, fails, noise, one seed or not run"""
    numbers: dict[str, object]
    collection: str = ""
    settings: tuple[str, ...] = ()
    """laid over every row, such as a shortened schedule"""


def judge(claim: Claim, study: Study, values: Mapping[str, Sequence[float]], collection: str) -> Verdict:
    """Compare the means over seeds: a difference under two standard errors is noise.

    The worse row's mean counts as often as the claim's factor says. A row with one seed has no spread of its own; it
    borrows the largest spread among this study's rows. Without any spread at all nothing is decided: ``one seed``.
    """
    if claim.needs:
        return Verdict(study.paper, claim.text, "not run", {"needs": claim.needs}, collection)
    better, worse = values.get(claim.better, ()), values.get(claim.worse, ())
    name = claim.metric.rpartition(".")[2]
    digits, sign = 4 if name == "overlap" else 2, -1 if name in LOWER else 1
    numbers: dict[str, object] = {
        "metric": claim.metric,
        claim.better: [round(v, digits) for v in better],
        claim.worse: [round(v, digits) for v in worse],
        **({"factor": claim.factor} if claim.factor != 1 else {}),
    }
    if not better or not worse:
        return Verdict(study.paper, claim.text, "not run", numbers, collection)
    spreads = [stdev(v) for v in values.values() if len(v) > 1]
    difference = mean(better) - claim.factor * mean(worse)
    numbers["difference"] = round(difference, digits)
    if not spreads:
        return Verdict(study.paper, claim.text, "one seed", numbers, collection)
    variances = ((stdev(v) if len(v) > 1 else max(spreads)) ** 2 / len(v) for v in (better, worse))
    error = math.sqrt(sum(factor**2 * of for factor, of in zip((1.0, claim.factor), variances, strict=True)))
    numbers["standard_error"] = round(error, digits)
    verdict = "noise" if abs(difference) < 2 * error else "holds" if sign * difference > 0 else "fails"
    return Verdict(study.paper, claim.text, verdict, numbers, collection)
