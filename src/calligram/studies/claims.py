"""Claims of papers as comparisons between rows that can be run. They are written down before the rows are run."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Literal

from calligram.errors import UserError

SEEN_ENCODERS, SEEN_MARK = ("models/minilm", "models/mpnet"), "†"
"""encoders that their authors trained on pairs with the captions of Flickr30K, which contain those of Flickr8k; and
the mark of rows that use them"""
ASSETS = "CALLIGRAM_ASSETS"
"""name of the only environment variable: a folder with ``flickr8k/``, ``models/`` and ``text/``"""
LOWER_IS_BETTER = ("overlap", "medr", "meanr")
"""metrics where a lower value is better"""
BANDS = {"rsum": 2.0, "overlap": 0.01}
"""largest difference of rows that count as equal, by metric; 1 point for recalls"""
MIN_PAIRS = 3
"""number of pairs of runs that a verdict needs"""
ClaimKind = Literal["superiority", "equivalence"]


@dataclass(frozen=True)
class Row:
    """A line of a table: a preset with some settings."""

    name: str
    preset: str
    changes: tuple[str, ...] = ()
    needs: str = ""
    """table of the collection that this row needs, such as ``proposals``"""
    deterministic: bool = False
    """whether nothing in this row is random; its result then stands for every seed"""

    def __post_init__(self) -> None:
        if any(change.startswith("seed=") for change in self.changes):
            raise ValueError(f"row {self.name} sets a seed; reproduce sets the seeds")


@dataclass(frozen=True)
class Claim:
    """A claim that one row is better than another, or as good, by a metric of the test split."""

    text: str
    better: str
    worse: str
    metric: str = "rsum"
    """``rsum``, ``overlap``, or a direction and a metric such as ``t2i.r1``"""
    factor: float = 1.0
    """smallest ratio of the better row to the worse one"""
    kind: ClaimKind = "superiority"
    """``equivalence``: the rows differ by less than a band, see ``BANDS``"""
    one_sided: bool = False
    """for equivalence: the first row may also be better by any amount ("the second one does not beat it")"""
    margin: float | None = None
    """for equivalence: the largest difference of equal rows, if the claim names one; else that of ``BANDS``"""
    needs: str = ""
    """data that the claim is about and that are not available; the verdict is then ``not run``"""
    expects_collapse: bool = False
    """whether the claim says that the second row does not train, so that its collapse is a result"""

    @property
    def band(self) -> float:
        """Largest difference of equal rows."""
        return BANDS.get(self.metric, 1.0) if self.margin is None else self.margin

    @property
    def sign(self) -> int:
        """-1 where a lower value is better."""
        return -1 if self.metric.rpartition(".")[2] in LOWER_IS_BETTER else 1


@dataclass(frozen=True)
class Measurement:
    """A metric of one run of a row."""

    seed: int
    hardware: str
    value: float
    collapsed: bool = False
    """whether the run collapsed; see ``results.has_collapsed``"""


@dataclass(frozen=True)
class Table:
    """Rows that are reported together, next to a table of the paper."""

    groups: tuple[tuple[str, ...], ...]
    """rows; differences are relative to the first row of a group"""
    meaning: str = ""
    """what the paper shows here, and what is different in our runs; the verdicts on our rows are added"""
    more: tuple[tuple[str, ...], ...] = ()
    """further groups, which are reported folded"""
    sources: tuple[str, ...] = ()
    """tables of the paper, by their names in ``results/published.json``"""
    metric: str = "rsum"
    """the metric that is compared; see ``Claim``"""

    @property
    def names(self) -> frozenset[str]:
        """All rows of the table."""
        return frozenset(name for group in (*self.groups, *self.more) for name in group)


@dataclass(frozen=True)
class Grid:
    """Several models at the same levels: one line for each level, one column for each model."""

    models: Mapping[str, str]
    """name of the row of a model, by title; ``{}`` stands for the level; the first two models are compared"""
    levels: tuple[str, ...]
    meaning: str = ""
    sources: tuple[str, ...] = ()
    metric: str = "rsum"

    @property
    def names(self) -> frozenset[str]:
        """All rows of the grid."""
        return frozenset(row.format(level) for row in self.models.values() for level in self.levels)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Pairs of rows that are compared: the second and the first model at each level."""
        first, second, *_ = self.models.values()
        return tuple((second.format(level), first.format(level)) for level in self.levels)

    @property
    def more(self) -> tuple[tuple[str, ...], ...]:
        """A grid has no further groups."""
        return ()


@dataclass(frozen=True)
class Study:
    """The rows of a paper, most important first, and its claims about them."""

    paper: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    tables: Mapping[str, Table | Grid] = field(default_factory=dict)
    """tables of the report, by title"""
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
        for group in (*drawn, *(table.names for table in self.tables.values())):
            if set(group) - names:
                raise ValueError(f"rows of a table or figure do not exist: {sorted(set(group) - names)}")
        for claim in self.claims:
            missing = {claim.better, claim.worse} - names
            if missing and not claim.needs:
                raise ValueError(f"claim '{claim.text}' compares rows that do not exist: {sorted(missing)}")

    def row(self, name: str) -> Row:
        """Return a row by name."""
        return next(row for row in self.rows if row.name == name)

    def marked(self, name: str) -> str:
        """Return the name of a row, marked where it or a row that it needs has an encoder that saw test captions."""
        return f"{name} {SEEN_MARK}" if self._has_seen_captions(name) else name

    def _has_seen_captions(self, name: str) -> bool:
        changes = self.row(name).changes
        needed = [change.partition("=row:")[2] for change in changes if "=row:" in change]
        return any(map(has_seen_captions, changes)) or any(map(self._has_seen_captions, needed))


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim: one line of ``results/claims.jsonl``."""

    paper: str
    claim: str
    verdict: str
    """holds, fails, equivalent, noise, undecided, collapsed baseline or not run"""
    numbers: dict[str, object]
    collection: str = ""
    settings: tuple[str, ...] = ()
    """changes to the settings of every row, such as a shorter schedule"""


def judge(claim: Claim, study: Study, values: Mapping[str, Sequence[Measurement]], collection: str) -> Verdict:
    """Compare two rows by the differences of their paired runs.

    Two runs are a pair if they have the same seed and the same hardware: they share initial weights and batches. The
    value of the worse row is multiplied by the factor of the claim. A claim of superiority holds or fails if the mean
    difference is beyond two standard errors of it; otherwise the rows are ``equivalent`` if the mean plus and minus two
    standard errors is inside the band. A claim of equivalence holds if this interval is inside the band, and fails if
    it is outside. Everything else is noise. With fewer than three pairs the verdict is ``undecided``; two deterministic
    rows need one pair. A comparison with a row that collapsed shows nothing, and its verdict is ``collapsed baseline``,
    except where the claim says that the row does not train.
    """
    if claim.needs:
        return Verdict(study.paper, claim.text, "not run", {"needs": claim.needs}, collection)
    better, worse = values.get(claim.better, ()), values.get(claim.worse, ())
    digits = 4 if claim.metric == "overlap" else 2
    numbers: dict[str, object] = {
        "metric": claim.metric,
        claim.better: [round(m.value, digits) for m in better],
        claim.worse: [round(m.value, digits) for m in worse],
        **({"factor": claim.factor} if claim.factor != 1 else {}),
        **({"band": claim.band} if claim.kind == "equivalence" else {}),
    }

    def verdict(word: str) -> Verdict:
        return Verdict(study.paper, claim.text, word, numbers, collection)

    if not better or not worse:
        return verdict("not run")
    compared = (claim.better,) if claim.expects_collapse else (claim.better, claim.worse)
    if collapsed := [name for name in compared if any(m.collapsed for m in values[name])]:
        numbers["collapsed"] = collapsed
        return verdict("collapsed baseline")
    exact = study.row(claim.better).deterministic, study.row(claim.worse).deterministic
    pairs = paired(better, worse, exact)
    numbers["pairs"] = len(pairs)
    if not pairs:
        return verdict("undecided")
    differences = [one - claim.factor * other for one, other in pairs]
    numbers["differences"] = [round(difference, digits) for difference in differences]
    numbers["difference"] = round(mean(differences), digits)
    if len(pairs) < MIN_PAIRS and not all(exact):
        return verdict("undecided")
    error = 0.0 if all(exact) else stdev(differences) / math.sqrt(len(differences))
    numbers["standard_error"] = round(error, digits)
    return verdict(_decide(claim, claim.sign * mean(differences), error))


def paired(
    better: Sequence[Measurement], worse: Sequence[Measurement], deterministic: tuple[bool, bool] = (False, False)
) -> list[tuple[float, float]]:
    """Return the values of runs with the same seed and the same hardware, one pair for each seed.

    The run of a deterministic row stands for all seeds of the other row. If a seed was run on several machines, the
    hardware with most pairs is taken.
    """
    one, other = ({(m.hardware, m.seed): m.value for m in row} for row in (better, worse))
    if deterministic[0]:
        one = _for_all_seeds(one, other)
    if deterministic[1]:
        other = _for_all_seeds(other, one)
    common = [key for key in one if key in other]
    count = Counter(hardware for hardware, _ in common)
    of_seed: dict[int, tuple[str, int]] = {}
    for hardware, seed in sorted(common, key=lambda key: (-count[key[0]], key)):
        of_seed.setdefault(seed, (hardware, seed))
    chosen = [key for _, key in sorted(of_seed.items())]
    if all(deterministic):
        chosen = chosen[:1]
    return [(one[key], other[key]) for key in chosen]


def _for_all_seeds(
    row: Mapping[tuple[str, int], float], other: Mapping[tuple[str, int], float]
) -> dict[tuple[str, int], float]:
    """Return the value of a deterministic row on each hardware, for every seed of the other row."""
    by_hardware = {hardware: value for (hardware, _), value in row.items()}
    return {key: by_hardware[key[0]] for key in other if key[0] in by_hardware}


def _decide(claim: Claim, difference: float, error: float) -> str:
    """Return the verdict on a mean difference, positive where the first row is better."""
    low, high = difference - 2 * error, difference + 2 * error
    if claim.kind == "superiority":
        equal = claim.factor == 1 and low > -claim.band and high < claim.band
        return "holds" if low > 0 else "fails" if high < 0 else "equivalent" if equal else "noise"
    most = math.inf if claim.one_sided else claim.band
    return "holds" if low > -claim.band and high < most else "fails" if high < -claim.band or low > most else "noise"


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


def has_seen_captions(encoder: str) -> bool:
    """Whether a text encoder, given by a path or as a setting, has seen the captions of the test images."""
    return encoder.endswith(SEEN_ENCODERS)
