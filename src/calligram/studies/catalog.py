"""The studies by name: rows and claims, written down before the rows are run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from calligram.errors import UserError
from calligram.studies.a3vse import A3VSE
from calligram.studies.aoq import AOQ
from calligram.studies.claims import ASSETS, Claim, Row, Study, Table
from calligram.studies.dual_path import DUAL_PATH, DUAL_PATH_PERSONS
from calligram.studies.mmca import MMCA
from calligram.studies.two_branch import TWO_BRANCH

# Study "suggest": are captions of images suggested by ``calligram suggest`` more useful than captions of random images?
#
# All captions are known, and most are left out. A run is trained on one caption of each of 5% of images, drawn with its
# seed. It suggests as many further images, whose captions are added, and a run on these suggests as many again. Every
# row is trained from scratch with the same number of steps. The matcher is small and uses stored features, so that
# seeds are cheap. Word vectors are those of the study of a3vse.

_COMMON = (
    "matcher=vse", "terms=infonce", "pseudo.images=none", f"image.backbone=${ASSETS}/models/mobilenet_v2_1.0_224",
    "text.network=gru", "text.vectors=data/words.txt", "text.hidden=256", "dim=256", "lr=0.001", "batch=128",
    "steps=30", "epochs=5", "sparse.captions=1",
)  # fmt: skip
START = 5
"""percent of images with a caption in the first run"""
BUDGETS = (10, 20)
"""percent of images with a caption after the first and after the second round"""
CHOICES = {"suggested": 0.5, "by coverage alone": 0.0}
"""weight of uncertainty, by name"""


def _random(percent: int) -> Row:
    return Row(f"{percent}% at random", "a3vse", (*_COMMON, f"sparse.images={percent / 100}"))


def _suggested(name: str, percent: int, of: str, of_percent: int) -> Row:
    """Return a row with images suggested by the run of another row, plus the images of that row."""
    changes = (
        f"sparse.images={START / 100}", f"sparse.run=row:{of}", f"sparse.more={(percent - of_percent) / 100}",
        f"sparse.uncertainty={CHOICES[name]}",
    )  # fmt: skip
    return Row(f"{percent}% {name}{', at once' * (percent - of_percent > 10)}", "a3vse", (*_COMMON, *changes))


def _rows() -> Iterator[Row]:
    first, second = BUDGETS
    yield _random(START)
    yield _random(first)
    yield from (_suggested(name, first, f"{START}% at random", START) for name in CHOICES)
    yield _random(second)
    yield from (_suggested(name, second, f"{first}% {name}", first) for name in CHOICES)
    yield from (_suggested(name, second, f"{START}% at random", START) for name in CHOICES)


SUGGEST = Study(
    "suggest",
    tuple(_rows()),
    (
        *(
            Claim(
                f"Ours: captions of {percent}% of images, {percent - START}% of them suggested, teach more than of "
                f"images at random ({name}).",
                f"{percent}% suggested", f"{percent}% at random", metric=metric,
            )
            for percent in BUDGETS
            for metric, name in (
                ("rsum", "sum of recalls"),
                ("t2i.r10", "R@10, images for texts"),
                ("i2t.r10", "R@10, texts for images"),
            )
        ),
        *(
            Claim(f"Ours: uncertainty helps beside coverage, at {percent}%.", f"{percent}% suggested",
                  f"{percent}% by coverage alone")
            for percent in BUDGETS
        ),
        *(
            Claim(f"Ours: asking again after half of the captions helps ({name}).", f"20% {name}",
                  f"20% {name}, at once")
            for name in CHOICES
        ),
        *(
            Claim(f"Ours: captions of {percent}% of images, chosen by coverage alone, teach more than of images at "
                  "random (sum of recalls).", f"{percent}% by coverage alone", f"{percent}% at random")
            for percent in BUDGETS
        ),
        Claim("Twice as many captions at random teach more.", "10% at random", f"{START}% at random"),
        Claim("Four times as many captions at random teach more.", "20% at random", f"{START}% at random"),
    ),
    {
        "Which images to caption": Table(
            tuple(
                (f"{percent}% at random", *(f"{percent}% {name}" for name in CHOICES)) for percent in BUDGETS
            ),
            "A percentage is the share of images with one caption. `calligram suggest` chooses images by coverage and "
            "uncertainty; it starts from 5% of images at random and asks in rounds.",
            (
                (f"{START}% at random", "10% at random", "20% at random"),
                *((f"20% {name}", f"20% {name}, at once") for name in CHOICES),
            ),
        ),
    },
)  # fmt: skip


_LITE2 = (f"image.backbone=${ASSETS}/models/efficientnet_lite2_256", "image.views=flip")
_MINILM = (f"text.encoder=${ASSETS}/models/minilm",)
_VIT = (
    f"image.backbone=${ASSETS}/models/dinov2_small_saliency", "image.size=224", "image.region_dropout=0",
)  # fmt: skip
_FROZEN_NETWORKS = {"MobileNetV2": "mobilenet_v2_1.0_224", "ResNet-50": "resnet50", "ViT": "dinov2_small_saliency"}
_FROZEN_MINILM = (*_MINILM, "image.views=flip", "epochs=8", "batch=256", "lr=0.001", "dim=1024", "text.dropout=0.1")
# Text towers that have not seen captions of dev and test: their word vectors are trained on other captions.
_OWN_WORDS = (
    "text.train=false", "text.vectors=data/words.txt", "text.word_dim=300", "text.dropout=0.2", "epochs=12",
    "optim.lr_scale=image:0.03",
)  # fmt: skip

# Study "printed": the presets of the papers with their whole schedules. Only networks and features, which are not
# available here, are replaced. The row of aoq-paper is the teacher of the other two, as in the paper.
_GRID = (_LITE2[0], "text.vectors=data/words.txt")
_REGIONS = (f"region.backbone=${ASSETS}/models/efficientnet_lite2_256", "text.vectors=data/words.txt")
_TEACHER = "offline.negatives=row:aoq-paper"
PRINTED: Mapping[str, tuple[str, ...]] = {
    "two-branch-paper": _GRID,
    "two-branch-similarity-paper": _GRID,
    "two-branch-phrases-paper": _REGIONS,
    "two-branch-phrases-similarity-paper": _REGIONS,
    "dual-path-paper": (f"image.backbone=${ASSETS}/models/resnet50", "text.vectors=data/words.txt"),
    "aoq-paper": (_LITE2[0],),
    "aoq-scan-paper": (_LITE2[0], _TEACHER),
    "aoq-bfan-paper": (_LITE2[0], _TEACHER),
    "a3vse-paper": (*_GRID, "sparse.images=0.1", "sparse.captions=5", "sparse.length=extended"),
    "mmca-paper": (_LITE2[0], *_MINILM),
}
"""settings of each preset of a paper that name networks and data"""

STUDIES: Mapping[str, Study] = {
    "printed": Study(
        "printed",
        tuple(
            Row(preset, preset, changes, needs="proposals" if "phrases" in preset else "")
            for preset, changes in PRINTED.items()
        ),
        (),
        {
            "Whole schedules as printed": Table(
                tuple((name,) for name in PRINTED if "phrases" not in name),
                "Each row is a preset with the optimizer, schedule, sizes, losses, batch and margins that its paper "
                "prints.",
            ),
            "Phrases, whole schedules as printed": Table(
                tuple((name,) for name in PRINTED if "phrases" in name),
                "The same for phrase localization.",
                metric="localization.r1",
            ),
        },
    ),
    "vse++": Study(
        "vse++",
        (
            Row("hardest", "vse", ("terms=ranking", "lr=0.001", "warmup_epochs=4")),
            Row("sum", "vse", ("terms=ranking", "lr=0.001", "ranking.top_k=none")),
            Row("InfoNCE", "vse"),
            Row("hardest, no warm-up", "vse", ("terms=ranking", "lr=0.001", "warmup_epochs=0")),
            Row("InfoNCE, true negatives only", "vse", ("ignore_also_true=true",), needs="also_true"),
        ),
        (
            Claim("The hardest negative beats the sum over all negatives (Tables 1 and 3).", "hardest", "sum"),
            Claim("Ours: the hardest negatives need a warm-up with all of them.", "hardest", "hardest, no warm-up",
                  expects_collapse=True),
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
        {
            "Losses on drawn scenes": Table(
                (("InfoNCE", "sum", "hardest", "hardest, no warm-up", "InfoNCE, true negatives only"),),
                "VSE++ takes the hardest negative of a batch instead of the sum over all of them. Many scenes share "
                "captions, so the hardest negative is often a match.",
            ),
        },
    ),
    "photographs": Study(
        "photographs",
        (
            Row("frozen features, GRU", "vse", (
                *_LITE2, "epochs=25", "batch=256", "lr=0.0005", "dim=1024", "text.min_count=4", "text.word_dim=300",
                "text.hidden=1024", "text.dropout=0.3", "text.bidirectional=true", "text.word_dropout=0.1",
            )),
            Row("end to end, MiniLM", "best", (
                *_LITE2, *_MINILM, "image.size=256", "image.region_dropout=0",
                "optim.lr_scale=image:0.3,text.encoder:0.1",
            )),
            Row("frozen features, trained MiniLM", "vse", (
                *_LITE2, *_MINILM, "epochs=12", "batch=256", "lr=0.001", "dim=1024", "text.train=true",
                "text.dropout=0.1", "optim.lr_scale=text.encoder:0.1", "optim.warmup=0.05", "precision=bf16",
            )),
            Row("frozen features, frozen MiniLM", "vse", (*_LITE2, *_FROZEN_MINILM)),
            Row("ViT, end to end, MiniLM", "best", (*_VIT, *_MINILM)),
            Row("ViT, end to end, GRU", "best", (
                *_VIT, *_OWN_WORDS, "text.network=gru", "text.hidden=1024", "text.bidirectional=true",
            )),
            Row("ViT, end to end, text CNN", "best", (
                *_VIT, *_OWN_WORDS, "text.network=cnn", "text.cnn.blocks=1", "text.cnn.width=128",
            )),
            *(
                Row(f"frozen {name}, frozen MiniLM", "vse", (
                    f"image.backbone=${ASSETS}/models/{folder}", *_FROZEN_MINILM,
                ))
                for name, folder in _FROZEN_NETWORKS.items()
            ),
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
            Claim(
                "Ours: end to end, a ViT trained without labels is a better start than a CNN trained on ImageNet.",
                "ViT, end to end, MiniLM", "end to end, MiniLM",
            ),
            Claim(
                "Ours: frozen, that ViT is worse than the CNN.",
                "frozen features, frozen MiniLM", "frozen ViT, frozen MiniLM",
            ),
            Claim(
                "Ours: end to end, MiniLM beats a GRU with word vectors of other captions.",
                "ViT, end to end, MiniLM", "ViT, end to end, GRU",
            ),
            Claim(
                "Ours: end to end, a GRU beats a text CNN.", "ViT, end to end, GRU", "ViT, end to end, text CNN",
            ),
            *(
                Claim(
                    f"Ours: frozen, EfficientNet-Lite2 beats {name}.",
                    "frozen features, frozen MiniLM", f"frozen {name}, frozen MiniLM",
                )
                for name in ("MobileNetV2", "ResNet-50")
            ),
        ),
        {
            "Which networks to train": Table(
                ((
                    "frozen features, frozen MiniLM", "frozen features, GRU", "frozen features, trained MiniLM",
                    "end to end, MiniLM", "ViT, end to end, MiniLM", "ViT, end to end, GRU",
                ),),
                "All rows are `vse` on photographs, with an EfficientNet-Lite2 for the images where no network is "
                "named. The authors of MiniLM trained it on pairs that include the captions of Flickr30K, which "
                "contain those of Flickr8k. The GRU and the text CNN have not seen captions of dev and test.",
                (
                    (
                        "frozen features, frozen MiniLM",
                        *(f"frozen {name}, frozen MiniLM" for name in _FROZEN_NETWORKS),
                    ),
                    ("ViT, end to end, GRU", "ViT, end to end, text CNN"),
                ),
            ),
        },
    ),
    "two-branch": TWO_BRANCH,
    "dual-path": DUAL_PATH,
    "dual-path-persons": DUAL_PATH_PERSONS,
    "aoq": AOQ,
    "a3vse": A3VSE,
    "mmca": MMCA,
    "suggest": SUGGEST,
}  # fmt: skip


def find_study(paper: str) -> Study:
    """Return a study by name."""
    if paper not in STUDIES:
        raise UserError(f"there is no study of paper '{paper}'; known: {', '.join(STUDIES)}")
    return STUDIES[paper]
