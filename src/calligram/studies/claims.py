"""Claims of papers as comparisons between rows that can be run. They are written down before the rows are run."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

from calligram.errors import UserError

ASSETS = "CALLIGRAM_ASSETS"
"""name of the only environment variable: a folder with ``flickr8k/``, ``models/`` and ``text/``"""
LOWER_IS_BETTER = ("overlap", "medr", "meanr")
"""metrics where a lower value is better"""


@dataclass(frozen=True)
class Row:
    """A line of a table: a preset with some settings."""

    name: str
    preset: str
    changes: tuple[str, ...] = ()
    needs: str = ""
    """table of the collection that this row needs, such as ``proposals``"""

    def __post_init__(self) -> None:
        if any(change.startswith("seed=") for change in self.changes):
            raise ValueError(f"row {self.name} sets a seed; reproduce sets the seeds")


@dataclass(frozen=True)
class Claim:
    """A claim that one row is better than another, by a metric of the test split."""

    text: str
    better: str
    worse: str
    metric: str = "rsum"
    """``rsum``, ``overlap``, or a direction and a metric such as ``t2i.r1``"""
    factor: float = 1.0
    """smallest ratio of the better row to the worse one"""
    needs: str = ""
    """data that the claim is about and that are not available; the verdict is then ``not run``"""


@dataclass(frozen=True)
class Study:
    """The rows of a paper, most important first, and its claims about them."""

    paper: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """rows of each table, by title; differences are relative to the first row"""
    compared: tuple[tuple[str, ...], ...] = ()
    """groups of rows; the dev recalls of a group over the epochs are drawn in one figure"""
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """rows of each model, by name; their recalls are drawn against the number of training captions"""
    uncaptioned: tuple[str, ...] = ()
    """rows without training captions, drawn as horizontal lines in the same figure"""
    mapped: tuple[str, ...] = ()
    """rows whose test split is drawn as a t-SNE map"""
    sheets: tuple[str, ...] = ()
    """rows whose first results are drawn in both directions"""

    def __post_init__(self) -> None:
        names = {row.name for row in self.rows}
        drawn = (*self.compared, *self.levels.values(), self.uncaptioned, self.mapped, self.sheets)
        for group in (*drawn, *self.tables.values()):
            if set(group) - names:
                raise ValueError(f"rows of a table or figure do not exist: {sorted(set(group) - names)}")
        for claim in self.claims:
            missing = {claim.better, claim.worse} - names
            if missing and not claim.needs:
                raise ValueError(f"claim '{claim.text}' compares rows that do not exist: {sorted(missing)}")

    def row(self, name: str) -> Row:
        """Return a row by name."""
        return next(row for row in self.rows if row.name == name)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim: one line of ``results/claims.jsonl``."""

    paper: str
    claim: str
    verdict: str
    """holds, fails, noise, one seed or not run"""
    numbers: dict[str, object]
    collection: str = ""
    settings: tuple[str, ...] = ()
    """changes to the settings of every row, such as a shorter schedule"""


def judge(claim: Claim, study: Study, values: Mapping[str, Sequence[float]], collection: str) -> Verdict:
    """Compare the means over seeds; a difference below two standard errors is noise.

    The mean of the worse row is multiplied by the factor of the claim. A row with one seed has no standard deviation;
    the largest one among the rows of the study is used. Where no row has several seeds the verdict is ``one seed``.
    """
    if claim.needs:
        return Verdict(study.paper, claim.text, "not run", {"needs": claim.needs}, collection)
    better, worse = values.get(claim.better, ()), values.get(claim.worse, ())
    name = claim.metric.rpartition(".")[2]
    digits, sign = 4 if name == "overlap" else 2, -1 if name in LOWER_IS_BETTER else 1
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


def with_assets_variable(text: str) -> str:
    """Replace the path of the assets by ``$CALLIGRAM_ASSETS``, so that a recorded command works on any machine."""
    assets = os.environ.get(ASSETS)
    return text.replace(str(Path(assets).resolve()), f"${ASSETS}").replace(assets, f"${ASSETS}") if assets else text


def with_assets_path(text: str) -> str:
    """Replace ``$CALLIGRAM_ASSETS`` by the path of the assets."""
    if f"${ASSETS}" not in text:
        return text
    if ASSETS not in os.environ:
        raise UserError(f"'{text}' needs {ASSETS}: set it to a folder with flickr8k/, models/ and text/")
    return text.replace(f"${ASSETS}", os.environ[ASSETS])
