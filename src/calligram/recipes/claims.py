"""What papers claim, as comparisons between rows that can be run, listed before anything is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from calligram.errors import UserError
from calligram.recipes.provenance import ASSETS


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
    """``rsum``, or a direction and a metric such as ``t2i.r1``"""
    needs: str = ""
    """data this claim is about and that is not to be had; it is then reported as not run"""


@dataclass(frozen=True)
class Study:
    """A paper's rows, the most telling first, and its claims about them."""

    paper: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]

    def __post_init__(self) -> None:
        names = {row.name for row in self.rows}
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
    """holds, fails, noise or not run"""
    numbers: dict[str, object]
    collection: str = ""
    settings: tuple[str, ...] = ()
    """laid over every row, such as a shortened schedule"""


def judge(claim: Claim, study: Study, values: Mapping[str, Sequence[float]], collection: str) -> Verdict:
    """Compare the means over seeds: a difference under two standard errors is noise.

    A row with one seed has no spread of its own; it borrows the largest spread among this study's rows. Without any
    spread at all nothing is decided.
    """
    if claim.needs:
        return Verdict(study.paper, claim.text, "not run", {"needs": claim.needs}, collection)
    better, worse = values.get(claim.better, ()), values.get(claim.worse, ())
    numbers: dict[str, object] = {
        "metric": claim.metric,
        claim.better: [round(v, 2) for v in better],
        claim.worse: [round(v, 2) for v in worse],
    }
    if not better or not worse:
        return Verdict(study.paper, claim.text, "not run", numbers, collection)
    spreads = [stdev(v) for v in values.values() if len(v) > 1]
    difference = mean(better) - mean(worse)
    numbers["difference"] = round(difference, 2)
    if not spreads:
        return Verdict(study.paper, claim.text, "noise", numbers, collection)
    error = math.sqrt(sum((stdev(v) if len(v) > 1 else max(spreads)) ** 2 / len(v) for v in (better, worse)))
    numbers["standard_error"] = round(error, 2)
    verdict = "noise" if abs(difference) < 2 * error else "holds" if difference > 0 else "fails"
    return Verdict(study.paper, claim.text, verdict, numbers, collection)


_MOBILENET = (f"image.backbone=${ASSETS}/models/mobilenet_v2_1.0_224", "image.views=flip")
_MINILM = (f"text.encoder=${ASSETS}/models/minilm",)

STUDIES: Mapping[str, Study] = {
    "vse++": Study(
        "vse++",
        (
            Row("hardest", "vse", ("loss=ranking", "lr=0.001", "warmup_epochs=4")),
            Row("sum", "vse", ("loss=ranking", "lr=0.001", "top_k=none")),
            Row("InfoNCE", "vse"),
            Row("hardest, no warm-up", "vse", ("loss=ranking", "lr=0.001", "warmup_epochs=0")),
            Row("InfoNCE, true negatives only", "vse", ("ignore_also_true=true",), needs="also_true"),
        ),
        (
            Claim("The hardest negative beats the sum over all negatives (Tables 1 and 3).", "hardest", "sum"),
            Claim("Ours: the hardest negatives need a warm-up with all of them.", "hardest", "hardest, no warm-up"),
            Claim("Ours: InfoNCE beats the hardest negative.", "InfoNCE", "hardest"),
            Claim(
                "Ours: leaving out negatives that are in truth matches helps.",
                "InfoNCE, true negatives only",
                "InfoNCE",
            ),
            Claim(
                "Fine-tuning the image encoder helps (Tables 1 and 3).", "", "",
                needs="MS-COCO or Flickr30K pictures and the ImageNet weights of VGG19 and ResNet152",
            ),
        ),
    ),
    "photographs": Study(
        "photographs",
        (
            Row("frozen features, GRU", "vse", (
                *_MOBILENET, "epochs=25", "batch=256", "lr=0.0005", "dim=1024", "text.min_count=4", "text.word_dim=300",
                "text.hidden=1024", "text.dropout=0.3", "text.bidirectional=true", "text.blank=0.1",
            )),
            Row("end to end, MiniLM", "vse", (
                *_MOBILENET, *_MINILM, "image.train=true", "image.flip=true", "image.crop=0.5", "image.jitter=0.3",
                "text.train=true", "text.blank=0.15", "dim=512", "texts=1", "epoch_of=pairs", "epochs=4", "batch=128",
                "average=0.998", "lr=0.001", "optim.parts=image:0.3,text.encoder:0.1", "optim.warmup=0.05",
                "precision=bf16",
            )),
            Row("frozen features, trained MiniLM", "vse", (
                *_MOBILENET, *_MINILM, "epochs=12", "batch=256", "lr=0.001", "dim=1024", "text.train=true",
                "text.dropout=0.1", "optim.parts=text.encoder:0.1", "optim.warmup=0.05", "precision=bf16",
            )),
            Row("frozen features, frozen MiniLM", "vse", (
                *_MOBILENET, *_MINILM, "epochs=8", "batch=256", "lr=0.001", "dim=1024", "text.dropout=0.1",
            )),
        ),
        (
            Claim(
                "Training the image encoder too helps (vse++, Tables 1 and 3).",
                "end to end, MiniLM", "frozen features, trained MiniLM",
            ),
            Claim(
                "Ours: training the text encoder too helps.",
                "frozen features, trained MiniLM", "frozen features, frozen MiniLM",
            ),
            Claim(
                "Ours: a text encoder that has read much more, frozen, beats a GRU trained on the captions.",
                "frozen features, frozen MiniLM", "frozen features, GRU",
            ),
        ),
    ),
}  # fmt: skip


def study_named(paper: str) -> Study:
    """A study, or an error that says which there are."""
    if paper not in STUDIES:
        raise UserError(f"no claims are listed for paper '{paper}'; there are: {', '.join(STUDIES)}")
    return STUDIES[paper]
