"""What a collection holds, counted: for ``calligram info``."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.pictures import PictureError
from calligram.data.problems import Problem, summary_lines
from calligram.data.sample_sheet import sample_sheet
from calligram.progress import Track, silent

__all__ = ["Spread", "Summary", "same_pictures", "sample_sheet", "spread", "summarise"]

Ints = NDArray[np.int64]
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


class Spread(NamedTuple):
    """Least, middle and greatest of some numbers, with the quarters; all zero when there are none."""

    least: float
    quarter: float
    median: float
    three_quarters: float
    greatest: float

    def __str__(self) -> str:
        return f"{self.least:g} to {self.greatest:g}, median {self.median:g}"


@dataclass(frozen=True)
class Summary:
    """Counts of a collection. Splits are in the order train, dev, test, others; images in none under ``""``."""

    name: str
    counts: dict[str, int]
    """rows of each table: images, captions, regions, phrases, ..."""
    images_in_split: dict[str, int]
    captions_in_split: dict[str, int]
    captions_of_image: Spread
    words_in_caption: Spread
    vocabulary: int
    """distinct words, in lower case"""
    identities: int
    grounded_phrases: int
    widths: Spread
    heights: Spread
    without_captions: int
    without_picture: int
    features: dict[str, tuple[int, ...]]
    """shape of one image's row of each stored array"""
    repeated_captions: int
    """captions that read the same as an earlier one"""
    same_pictures: list[tuple[str, ...]]
    """ids of images whose files are equal byte for byte"""
    metadata: dict[str, dict[str, int]]
    """of images and of captions, the source's columns and how many have a value"""
    problems: list[str]
    """one line for each kind"""

    def lines(self) -> list[str]:
        """For people: one fact a line, leaving out what the collection does not have."""
        shown = {name: count for name, count in self.counts.items() if name not in ("matches", "groundings")}
        splits = [
            f"{name or 'in no split'} {count:,} ({self.captions_in_split.get(name, 0):,} captions)"
            for name, count in self.images_in_split.items()
        ]
        facts = [
            f"{self.name}: " + ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in shown.items()),
            "splits: " + ", ".join(splits),
            f"captions of an image: {self.captions_of_image}",
            f"words in a caption: {self.words_in_caption}; {self.vocabulary:,} different words",
            f"pictures: width {self.widths}, height {self.heights}",
        ]
        facts += [f"images without captions: {self.without_captions:,}"] * bool(self.without_captions)
        facts += [f"images without a picture: {self.without_picture:,}"] * bool(self.without_picture)
        facts += [f"identities: {self.identities:,}"] * bool(self.identities)
        facts += [f"phrases with a box: {self.grounded_phrases:,}"] * bool(self.grounded_phrases)
        facts += [f"captions that repeat another: {self.repeated_captions:,}"] * bool(self.repeated_captions)
        facts += [f"the same picture: {' = '.join(ids)}" for ids in self.same_pictures[:5]]
        facts += [f"... {len(self.same_pictures) - 5:,} more such groups"] * (len(self.same_pictures) > 5)
        facts += [f"stored features {name}: {' x '.join(map(str, s))} an image" for name, s in self.features.items()]
        for of, columns in self.metadata.items():
            listed = ", ".join(f"{name} {count:,}" for name, count in columns.items())
            facts += [f"metadata of {of} (how many have a value): {listed}"] * bool(listed)
        return facts + [f"problem: {line}" for line in self.problems]


def summarise(collection: Collection, track: Track = silent) -> Summary:
    """Count everything worth knowing before training on a collection. Reads every picture's bytes once."""
    captions = [str(text) for text in collection.column("captions", "text")]
    matches = collection.numbers("matches", "image"), collection.numbers("matches", "caption")
    images = len(collection.table("images"))
    per_image = np.bincount(matches[0], minlength=images)
    words = [_WORD.findall(text.lower()) for text in captions]
    identity = collection.numbers("images", "identity")
    return Summary(
        name=collection.name,
        counts=_counts(collection),
        images_in_split=_ordered(collection.splits()),
        captions_in_split=_captions_in_split(collection, *matches),
        captions_of_image=spread(per_image),
        words_in_caption=spread(np.array([len(w) for w in words])),
        vocabulary=len({word for w in words for word in w}),
        identities=len(np.unique(identity[identity >= 0])),
        grounded_phrases=len(np.unique(collection.numbers("groundings", "phrase"))),
        widths=spread(_known(collection, "width")),
        heights=spread(_known(collection, "height")),
        without_captions=int((per_image == 0).sum()),
        without_picture=sum(path is None for path in collection.column("images", "path")),
        features={name: stored.row_shape for name, stored in collection.features.items()},
        repeated_captions=len(captions) - len({" ".join(text.lower().split()) for text in captions}),
        same_pictures=same_pictures(collection, track),
        metadata=_metadata(collection),
        problems=_problems(collection),
    )


def spread(values: Ints) -> Spread:
    """Quartiles of ``values``.

    >>> spread(np.array([1, 2, 3, 4, 9]))
    Spread(least=1.0, quarter=2.0, median=3.0, three_quarters=4.0, greatest=9.0)
    """
    if not len(values):
        return Spread(0, 0, 0, 0, 0)
    return Spread(*(float(v) for v in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])))


def same_pictures(collection: Collection, track: Track = silent) -> list[tuple[str, ...]]:
    """Groups of images whose files are equal byte for byte; pictures that are gone are left out."""
    ids = [str(i) for i in collection.column("images", "id")]
    groups: dict[bytes, list[str]] = {}
    for row, path in track(enumerate(collection.column("images", "path")), "comparing pictures", len(ids)):
        if path is None:
            continue
        try:
            digest = hashlib.blake2b(collection.pictures.read(row), digest_size=16).digest()
        except PictureError:
            continue
        groups.setdefault(digest, []).append(ids[row])
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _counts(collection: Collection) -> dict[str, int]:
    names = ("images", "captions", "matches", "regions", "phrases", "groundings", "also_true")
    return {name: len(collection.table(name)) for name in names if collection.has(name)}


def _ordered(counts: dict[str, int]) -> dict[str, int]:
    known = [name for name in ("train", "dev", "test") if name in counts]
    others = sorted(name for name in counts if name not in known and name)
    return {name: counts[name] for name in [*known, *others, *([""] if "" in counts else [])]}


def _captions_in_split(collection: Collection, images: Ints, captions: Ints) -> dict[str, int]:
    splits = [str(s or "") for s in collection.column("images", "split")]
    pairs = {(splits[int(image)], int(caption)) for image, caption in zip(images, captions, strict=True)}
    return _ordered(dict(Counter(split for split, _ in pairs)))


def _known(collection: Collection, column: str) -> Ints:
    values = collection.numbers("images", column)
    return values[values >= 0]


def _metadata(collection: Collection) -> dict[str, dict[str, int]]:
    own = {"images": collection.metadata_columns, "captions": collection.caption_metadata_columns}
    tables = {of: collection.table(of) for of in own}
    return {of: {n: len(tables[of]) - tables[of].column(n).null_count for n in names} for of, names in own.items()}


def _problems(collection: Collection) -> list[str]:
    found = [
        Problem(str(r["kind"]), str(r["item"]), str(r["detail"]), bool(r["skipped"]))
        for r in collection.table("problems").to_pylist()
    ]
    return summary_lines(found)
