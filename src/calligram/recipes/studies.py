"""The studies there are: rows and claims, listed before anything is run."""

from __future__ import annotations

from collections.abc import Mapping

from calligram.errors import UserError
from calligram.recipes.claims import Claim, Row, Study
from calligram.recipes.provenance import ASSETS
from calligram.recipes.studies_a3vse import A3VSE
from calligram.recipes.studies_aoq import AOQ
from calligram.recipes.studies_dual_path import DUAL_PATH, DUAL_PATH_PERSONS
from calligram.recipes.studies_mmca import MMCA
from calligram.recipes.studies_suggest import SUGGEST
from calligram.recipes.studies_two_branch import TWO_BRANCH

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
    "two-branch": TWO_BRANCH,
    "dual-path": DUAL_PATH,
    "dual-path-persons": DUAL_PATH_PERSONS,
    "aoq": AOQ,
    "a3vse": A3VSE,
    "mmca": MMCA,
    "suggest": SUGGEST,
}  # fmt: skip


def study_named(paper: str) -> Study:
    """A study, or an error that says which there are."""
    if paper not in STUDIES:
        raise UserError(f"no claims are listed for paper '{paper}'; there are: {', '.join(STUDIES)}")
    return STUDIES[paper]
