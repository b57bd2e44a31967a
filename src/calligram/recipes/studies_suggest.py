"""Whether captions of images that ``calligram suggest`` proposes teach more than as many of images drawn at random.

All captions are known here, and most are hidden: a run on one caption of each of 5% of images, drawn anew for each
seed, proposes as many further ones, whose captions are then shown, and a run on these proposes as many again. Every row
is trained from scratch, with as many steps. The matcher is small and on stored features, so that seeds are cheap; word
vectors are those of the study of a3vse.
"""

from __future__ import annotations

from collections.abc import Iterator

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
"""percent of images with a caption after the first and after the second round"""
CHOICES = {"suggested": 0.5, "by coverage alone": 0.0}
"""by name, how much uncertainty counts"""


def _random(percent: int) -> Row:
    return Row(f"{percent}% at random", "a3vse", (*_COMMON, f"sparse.images={percent / 100}"))


def _chosen(name: str, percent: int, of: str, of_percent: int) -> Row:
    """Chosen by the run of another row, beside the images that one had."""
    changes = (
        f"sparse.images={START / 100}", f"sparse.run=row:{of}", f"sparse.more={(percent - of_percent) / 100}",
        f"sparse.uncertainty={CHOICES[name]}",
    )  # fmt: skip
    return Row(f"{percent}% {name}{', at once' * (percent - of_percent > 10)}", "a3vse", (*_COMMON, *changes))


def _rows() -> Iterator[Row]:
    first, second = BUDGETS
    yield _random(START)
    yield _random(first)
    yield from (_chosen(name, first, f"{START}% at random", START) for name in CHOICES)
    yield _random(second)
    yield from (_chosen(name, second, f"{first}% {name}", first) for name in CHOICES)
    yield from (_chosen(name, second, f"{START}% at random", START) for name in CHOICES)


SUGGEST = Study(
    "suggest",
    tuple(_rows()),
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
)  # fmt: skip
