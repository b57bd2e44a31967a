"""Images that nobody captioned, paired with what machines say of them (a3vse, Sec. 4.3)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from calligram.data.collection import Collection
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing, Texts
from calligram.errors import UserError
from calligram.features.semantics import Attributes, Sentences, regional_sentences
from calligram.recipes.plan import Surroundings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PseudoSettings:
    """What is said of images without captions."""

    source: Annotated[str, "name of the collection's regions whose classes are said, as calligram regions gave it"] = (
        "yolox"
    )
    least: Annotated[float, "smallest score of a region that is spoken of", (0, 1)] = 0.3
    most: Annotated[int, "regions that are spoken of, the most certain first", (1, 10000)] = 10
    repeats: Annotated[bool, "say the same words of several regions"] = False
    attributes: Annotated[Attributes, "words before a region's class: none, its colour, or all that is known"] = (
        "colour"
    )


def pseudo_pairs(
    collection: Collection, settings: PseudoSettings, around: Surroundings | None = None, split: str = "train"
) -> Pairing:
    """Images of a split without captions x their pseudo-sentences, one each.

    Images of which nothing is said are left out. Sentences that read the same are one text with several images, since
    these would else be each other's false negatives.
    """
    del around
    visuals = collection.unannotated(split)
    how = Sentences(settings.least, settings.most, settings.repeats, settings.attributes)
    said = regional_sentences(collection, visuals.rows, settings.source, how)
    spoken_of = np.flatnonzero([bool(sentence) for sentence in said])
    log.info("pseudo-sentences for %d of %d images without captions", len(spoken_of), len(visuals))
    if not len(spoken_of):
        reason = "has no image without captions" if not len(visuals) else "has none of which anything is said"
        raise UserError(
            f"split {split} of {collection.name} {reason}; pseudo pairs need some: take sparse.images below 1, add "
            "pictures without captions, or lower the smallest score"
        )
    chosen = visuals.select(spoken_of)
    texts = Texts(tuple(f"{name}#said" for name in chosen.ids), tuple(said[place] for place in spoken_of.tolist()))
    each = np.arange(len(chosen))
    return Pairing(chosen, texts, Matches(each, each, (len(each), len(each)))).join_equal_texts()
