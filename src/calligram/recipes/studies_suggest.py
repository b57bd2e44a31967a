"""Whether captions of images that ``calligram suggest`` proposes teach more than as many of images drawn at random.

All captions are known here, and most are hidden: a run on one caption of each of 5% of images, drawn anew for each
seed, proposes further ones, whose captions are then shown. Every row is trained from scratch, with as many steps. The
matcher is small and on stored features, so that seeds are cheap; word vectors are those of the study of a3vse.
"""

from __future__ import annotations

from calligram.recipes.claims import Claim, Row, Study
from calligram.recipes.provenance import ASSETS

_COMMON = (
    "matcher=vse", "pseudo.of=none", f"image.backbone=${ASSETS}/models/mobilenet_v2_1.0_224",
    "text.vectors=data/words.txt", "text.hidden=256", "dim=256", "lr=0.001", "batch=128", "steps=30", "epochs=5",
    "sparse.captions=1", "sparse.seed=none",
)  # fmt: skip
START = 5
"""percent of images with a caption at first"""
BUDGETS = (10, 20)
"""percent of images with a caption then"""
CHOICES = {"suggested": 0.5, "by coverage alone": 0.0}
"""by name, how much uncertainty counts"""


def _random(percent: int) -> Row:
    return Row(f"{percent}% at random", "a3vse", (*_COMMON, f"sparse.images={percent / 100}"))


def _chosen(name: str, percent: int) -> Row:
    changes = (
        f"sparse.images={START / 100}", f"sparse.run=row:{START}% at random",
        f"sparse.more={(percent - START) / 100}", f"sparse.uncertainty={CHOICES[name]}",
    )  # fmt: skip
    return Row(f"{percent}% {name}", "a3vse", (*_COMMON, *changes))


SUGGEST = Study(
    "suggest",
    (
        _random(START),
        *(row for percent in BUDGETS for row in (_random(percent), *(_chosen(name, percent) for name in CHOICES))),
    ),
    (
        *(
            Claim(
                f"Ours: captions of {percent}% of images, {percent - START}% of them suggested, teach more than of "
                f"images at random ({told}).",
                f"{percent}% suggested", f"{percent}% at random", metric=metric,
            )
            for percent in BUDGETS
            for metric, told in (
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
        Claim("Twice as many captions at random teach more.", "10% at random", f"{START}% at random"),
        Claim("Four times as many captions at random teach more.", "20% at random", f"{START}% at random"),
    ),
)  # fmt: skip
