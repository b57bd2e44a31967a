"""What machines say of images: words of their regions, joined into pseudo-sentences (a3vse, Secs. 3 and 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.revision import images_with
from calligram.errors import UserError, command
from calligram.features.regions.attributes import COLOURS
from calligram.features.texts.vocabulary import tokenise

Ints = NDArray[np.int64]
Attributes = Literal["none", "colour", "all"]
ANNOTATED = "truth"
"""source of regions that people drew, or a generator"""
SETTING = "pseudo.source"
"""what messages advise to set"""


@dataclass(frozen=True)
class Sentences:
    """How words of regions become a sentence s = [s_1 || s_2 || ...], s_k = [attribute_k class_k] (a3vse, Sec. 4.3)."""

    least: float = 0.3
    """smallest score of a region that is spoken of"""
    most: int = 10
    """regions that are spoken of, the most certain first"""
    repeats: bool = False
    """say the same words of several regions; else once"""
    attributes: Attributes = "colour"
    """which words stand before a region's class"""

    def of(self, labels: Sequence[str], attributes: Sequence[str], scores: Sequence[float]) -> str:
        """One image's regions as "attribute class attribute class ...", sorted by score.

        Regions without a class say nothing, and those without a score count as certain.
        """
        certain = [1.0 if np.isnan(score) else float(score) for score in scores]
        order = sorted(range(len(labels)), key=lambda place: -certain[place])
        said = [
            " ".join([*self._before(attributes[place]), *tokenise(labels[place])])
            for place in order
            if labels[place] and certain[place] >= self.least
        ]
        return " ".join((said if self.repeats else list(dict.fromkeys(said)))[: self.most])

    def _before(self, attribute: str) -> list[str]:
        words = tokenise(attribute)
        if self.attributes == "all":
            return words
        return [word for word in words if word in COLOURS] if self.attributes == "colour" else []


def regional_sentences(collection: Collection, images: Ints, source: str, how: Sentences) -> list[str]:
    """The pseudo-sentence of each of these images, from regions of one source; empty where nothing is certain enough.

    Args:
        source: name of the regions; empty for the only ones that a detector gave classes.

    Raises:
        UserError: when the collection has no such regions, they have no classes, or several might be meant.
    """
    regions = _regions_of(collection, source or _only_source(collection))
    images = np.asarray(images, dtype=np.int64)
    at, labels = regions["image"].to_numpy(), regions["label"].to_pylist()
    attributes, scores = regions["attribute"].to_pylist(), pc.fill_null(regions["score"], np.nan).to_numpy()
    order = np.argsort(at, kind="stable")
    starts, ends = (np.searchsorted(at[order], images, side=side) for side in ("left", "right"))
    found = []
    for start, end in zip(starts, ends, strict=True):
        rows = order[start:end].tolist()
        found.append(
            how.of([labels[r] or "" for r in rows], [attributes[r] or "" for r in rows], [scores[r] for r in rows])
        )
    return found


def _only_source(collection: Collection) -> str:
    """The one source with classes beside the annotated regions, which no machine said."""
    found = _sources(collection, classes=True)
    others = [name for name in found if name != ANNOTATED]
    if len(others) == 1:
        return others[0]
    if others:
        raise UserError(
            f"collection {collection.folder} has several regions with classes ({', '.join(others)}); say whose are "
            f"meant with --set {SETTING}={others[0]}"
        )
    there = ", ".join(_sources(collection)) or "none"
    raise UserError(
        f"collection {collection.folder} has no regions that a detector gave classes ({there} there); find some with "
        + command("calligram", "regions", collection.folder, "--proposals", "FILE.onnx")
        + (f", or take the annotated ones with --set {SETTING}={ANNOTATED}" if ANNOTATED in found else "")
    )


def _sources(collection: Collection, *, classes: bool = False) -> list[str]:
    """Names of the collection's regions, or of those among them that have classes; annotated ones come last."""
    table = collection.table("regions")
    if classes:
        table = table.filter(_has_class(table))
    names = (str(name) for name in pc.unique(table.column("source")).to_pylist() if name)
    return sorted(names, key=lambda name: (name == ANNOTATED, name))


def _has_class(regions: pa.Table) -> pa.ChunkedArray:
    return pc.greater(pc.utf8_length(pc.fill_null(regions.column("label"), "")), 0)


def _regions_of(collection: Collection, source: str) -> pa.Table:
    """Image, class, attribute and score of a source's regions."""
    table = collection.table("regions")
    chosen = table.filter(pc.fill_null(pc.equal(table.column("source"), source), False))
    named = _sources(collection, classes=True)
    choose = f"take others with --set {SETTING}={named[0]}, or " if named else ""
    if not len(chosen) and not len(images_with(collection, source)):
        there = ", ".join(_sources(collection)) or "none"
        raise UserError(
            f"collection {collection.folder} has no regions '{source}' ({there} there); {choose}find some with "
            + command("calligram", "regions", collection.folder, "--proposals", "DETECTOR", "--name", source)
        )
    if len(chosen) and source not in named:
        raise UserError(
            f"the regions '{source}' have no classes to speak of; {choose}find those of a detector, such as a YOLOX "
            "file: " + command("calligram", "regions", collection.folder, "--proposals", "FILE.onnx")
        )
    return chosen.select(["image", "label", "attribute", "score"])
