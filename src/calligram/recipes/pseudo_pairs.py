"""Images that nobody captioned, paired with what machines say of them (a3vse, Sec. 4.3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from calligram.data.collection import Collection
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing, Texts, Visuals
from calligram.errors import UserError
from calligram.features.image_words import ImageWords
from calligram.features.label_words import Naming
from calligram.features.semantics import Attributes, Sentences, regional_sentences
from calligram.features.vocabulary import tokenise
from calligram.recipes.plan import Surroundings
from calligram.recipes.run_settings import RunSettings

log = logging.getLogger(__name__)

Said = Literal["regions", "labels", "learnt"]


@dataclass(frozen=True)
class PseudoSettings:
    """What is said of images without captions.

    ``regions`` are the paper's regional semantics, ``labels`` its global ones; ``learnt`` is ours. How defaults were
    chosen is in ``docs/papers.md``.
    """

    of: Annotated[
        Literal["unannotated", "all", "none"], "images that are spoken of: those without captions, all, or none"
    ] = "unannotated"
    said: Annotated[
        tuple[Said, ...],
        "what sentences are joined from: regions (classes of regions), labels (of the whole image), learnt (words of "
        "captions of similar images)",
    ] = ("regions",)
    source: Annotated[
        str,
        "name of the collection's regions whose classes are said, as calligram regions gave it; empty for the only "
        "ones that have classes",
    ] = ""
    least: Annotated[float, "smallest score of a region that is spoken of", (0, 1)] = 0.3
    most: Annotated[int, "regions that are spoken of, the most certain first", (1, 10000)] = 10
    repeats: Annotated[bool, "say the same words of several regions"] = False
    attributes: Annotated[Attributes, "words before a region's class: none, its colour, or all that is known"] = (
        "colour"
    )
    backbone: Annotated[str, "folder or hub name of a classifier, for labels and learnt words"] = ""
    label_least: Annotated[float, "smallest probability of a label that is said; the paper's is 0.3", (0, 1)] = 0.1
    naming: Annotated[
        Naming,
        "labels by the nearest word of the captions that there are (by WordNet, if it is there), or their own name",
    ] = "known"
    learnt_words: Annotated[int, "learnt words that are said of an image", (1, 1000)] = 8
    learnt_least: Annotated[int, "images that captions must say a word of for it to be learnt", (1, 1000000)] = 3
    shrink: Annotated[float, "how little single images are trusted when words are learnt", (1e-6, 1e6)] = 1.0

    def __post_init__(self) -> None:
        if not self.said:
            raise UserError("said needs at least one of regions, labels and learnt")


@dataclass(frozen=True)
class SemanticsSettings(RunSettings):
    """What is said of which images, for looking at it."""

    pseudo: PseudoSettings = field(default_factory=PseudoSettings)


def pseudo_pairs(
    collection: Collection, settings: PseudoSettings, around: Surroundings | None = None, split: str = "train"
) -> Pairing:
    """Images of a split without captions, or all of them, x their pseudo-sentences, one each.

    Images of which nothing is said are left out. Sentences that read the same are one text with several images, since
    these would else be each other's false negatives. Only captions that the collection has are used, for names of
    labels and for learnt words.
    """
    everything = settings.of == "all"
    visuals = collection.visuals(collection.images_in(split)) if everything else collection.unannotated(split)
    said = pseudo_sentences(collection, visuals, settings, around)
    spoken_of = np.flatnonzero([bool(sentence) for sentence in said])
    log.info("pseudo-sentences for %d of %d images", len(spoken_of), len(visuals))
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


def pseudo_sentences(
    collection: Collection, visuals: Visuals, settings: PseudoSettings, around: Surroundings | None = None
) -> list[str]:
    """What is said of each image, empty where that is nothing; kinds of it follow each other as ``said`` has them."""
    around = around or Surroundings()
    if not len(visuals):
        return []
    words, captions = None, None
    if set(settings.said) & {"labels", "learnt"}:
        if not settings.backbone:
            raise UserError(
                f"said={','.join(settings.said)} needs a classifier: give backbone= with the folder or hub name "
                "of one, or said=regions"
            )
        # Regions need no captions, so that a collection without splits can be spoken of.
        captions = collection.sentences("train")
        words = ImageWords.load(settings.backbone, around.device, around.track)
    parts: list[list[str]] = []
    for kind in settings.said:
        if kind == "regions":
            how = Sentences(settings.least, settings.most, settings.repeats, settings.attributes)
            parts.append(regional_sentences(collection, visuals.rows, settings.source, how))
            continue
        assert words is not None
        assert captions is not None
        if kind == "labels":
            known = {word for string in captions.texts.strings for word in tokenise(string)}
            parts.append(words.labels(visuals, settings.label_least, settings.naming, known))
        else:
            parts.append(words.learnt(visuals, captions, settings.learnt_words, settings.shrink, settings.learnt_least))
    return _joined(parts, repeats=settings.repeats)


def _joined(parts: Sequence[Sequence[str]], *, repeats: bool) -> list[str]:
    """Sentences one after the other; words that came before are not said again by a later kind."""
    joined = []
    for said in zip(*parts, strict=True):
        words = said[0].split()
        for later in said[1:]:
            words += [word for word in later.split() if repeats or word not in words]
        joined.append(" ".join(words))
    return joined
