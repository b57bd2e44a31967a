"""Pseudo-sentences of images: their settings, and words of regions, labels and a regression (a3vse, Sec. 4.3)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import torch

from calligram.data.collection import Collection
from calligram.data.pairing import Visuals
from calligram.errors import UserError
from calligram.features.pseudo.image_words import ImageWords, Naming
from calligram.features.pseudo.region_words import Attributes, PseudoSentences, region_sentences
from calligram.progress import Track, silent
from calligram.text import tokenise

WordSource = Literal["regions", "labels", "learnt"]
LEARNT_WORDS = 8
"""number of words that the source ``learnt`` gives an image"""


@dataclass(frozen=True)
class PseudoSettings:
    """Sources of the sentences for images without captions.

    ``regions`` are the regional semantics of the paper, ``labels`` its global semantics. ``learnt`` words and sentences
    retrieved by an earlier run are not in the paper. ``docs/papers.md`` says how the defaults were chosen.
    """

    images: Annotated[
        Literal["unannotated", "all", "none"],
        "images that get pseudo-sentences: those without captions, all, or none",
        "rare",
    ] = "unannotated"
    sources: Annotated[
        tuple[WordSource, ...],
        "sources of words, in order: regions (classes of detected regions), labels (classes of the whole image), "
        "learnt (words predicted from the image vector); empty for sentences of pseudo.run only",
    ] = ("regions",)
    region_source: Annotated[
        str,
        "name of the collection's regions whose classes are used, as given to calligram regions; empty for the only "
        "regions with classes",
        "rare",
    ] = ""
    min_score: Annotated[float, "smallest detection score of a region that is used", (0, 1), "rare"] = 0.3
    max_regions: Annotated[int, "largest number of regions of an image, highest scores first", (1, 10000), "rare"] = 10
    repeats: Annotated[bool, "keep words that occur several times, for several regions", "rare"] = False
    attributes: Annotated[Attributes, "attributes before the class of a region: none, its colour, or all", "rare"] = (
        "colour"
    )
    backbone: Annotated[str, "folder or hub name of a classifier, for labels and learnt words"] = ""
    class_names: Annotated[
        str,
        "folder or hub name of a model with the same classes, whose names are used for labels; empty for the names of "
        "pseudo.backbone",
        "rare",
    ] = ""
    min_label_score: Annotated[float, "smallest probability of a label that is used; 0.3 in the paper", (0, 1)] = 0.1
    naming: Annotated[
        Naming,
        "name of a label: the nearest word of the captions, by WordNet if it is installed (known), or its own (own)",
        "rare",
    ] = "known"
    min_word_images: Annotated[
        int, "smallest number of images whose captions hold a word, for the word to be learnt", (1, 1000000), "rare"
    ] = 3
    shrink: Annotated[
        float, "strength of regularization of the regression that predicts words", (1e-6, 1e6), "rare"
    ] = 1.0
    sentences: Annotated[
        int, "number of sentences of an image; with several, each has words drawn at random", (1, 100), "rare"
    ] = 1
    words: Annotated[int, "number of words of each of several sentences", (1, 1000), "rare"] = 6
    neighbours: Annotated[
        int, "number of captions taken from the most similar captioned images; needs pseudo.backbone", (0, 100), "rare"
    ] = 0
    run: Annotated[
        str,
        "folder of a run whose vectors retrieve sentences from pseudo.corpus; it must not have seen removed captions",
    ] = ""
    corpus: Annotated[str, "text file with one sentence per line, also .gz, for pseudo.run"] = ""
    beta: Annotated[float, "weight of annotated pairs; pseudo pairs have 1 - beta", (0, 1)] = 0.8
    margin: Annotated[float, "margin of the term ranking over pseudo pairs", (0, 100)] = 0.3
    retrieved: Annotated[int, "number of sentences that pseudo.run retrieves for an image", (1, 100)] = 3

    @property
    def inert(self) -> frozenset[str]:
        """Settings without effect."""
        if self.images == "none":
            return frozenset(f.name for f in fields(self)) - {"images"}
        found = set() if self.run else {"corpus", "retrieved"}
        of_source = {
            "regions": {"region_source", "min_score", "max_regions", "attributes"},
            "labels": {"class_names", "min_label_score", "naming"},
            "learnt": {"min_word_images", "shrink"},
        }
        for source, own in of_source.items():
            found |= set() if source in self.sources else own
        if not {"labels", "learnt"} & set(self.sources) and not self.neighbours:
            found.add("backbone")
        return frozenset(found | (set() if self.sentences > 1 else {"words"}))

    def __post_init__(self) -> None:
        if self.images == "none" and (self.run or self.neighbours):
            raise UserError("pseudo.images=none makes no pseudo pairs; leave out pseudo.run and pseudo.neighbours")
        if not self.sources and not self.run:
            raise UserError(
                "pseudo.sources needs at least one of regions, labels and learnt; or give a run that retrieves "
                "sentences with pseudo.run="
            )
        if bool(self.run) != bool(self.corpus):
            raise UserError(
                "pseudo.run= (a trained run) and pseudo.corpus= (the text it retrieves sentences from) go together; "
                "give both or none"
            )


def draw_sentences(words: str, name: str, settings: PseudoSettings) -> list[str]:
    """Return all words as one sentence, or several sentences of a few words each, in their order.

    The random draws of an image depend only on its id. Real captions describe a few things each. A text encoder that
    sees the same list of words with an image in every epoch overfits to that list.
    """
    every = words.split()
    if not every or settings.sentences == 1:
        return [words] if every else []
    draw = random.Random(name)
    count = min(settings.words, len(every))
    places = (sorted(draw.sample(range(len(every)), count)) for _ in range(settings.sentences))
    return list(dict.fromkeys(" ".join(every[place] for place in some) for some in places))


def pseudo_sentences(
    collection: Collection,
    visuals: Visuals,
    settings: PseudoSettings,
    device: torch.device | str = "cpu",
    track: Track = silent,
) -> list[str]:
    """Return the words of each image, source by source in the order of ``settings.sources``; empty where none."""
    if not len(visuals) or not settings.sources:
        return [""] * len(visuals)
    words, captions = None, None
    if set(settings.sources) & {"labels", "learnt"}:
        if not settings.backbone:
            raise UserError(
                f"pseudo.sources={','.join(settings.sources)} needs a classifier: give pseudo.backbone= with its "
                "folder or hub name, or pseudo.sources=regions"
            )
        # Regions and own names of labels need no captions, so a collection without splits works too.
        if "learnt" in settings.sources or settings.naming == "known":
            captions = collection.sentences("train")
        words = ImageWords.load(settings.backbone, torch.device(device), track)
    parts: list[list[str]] = []
    for source in settings.sources:
        if source == "regions":
            how = PseudoSentences(settings.min_score, settings.max_regions, settings.repeats, settings.attributes)
            parts.append(region_sentences(collection, visuals.rows, settings.region_source, how))
            continue
        assert words is not None
        if source == "labels":
            strings = captions.texts.strings if captions is not None else ()
            known = {word for string in strings for word in tokenise(string)}
            how_likely, names = settings.min_label_score, settings.class_names
            parts.append(words.labels(visuals, how_likely, settings.naming, known, names))
        else:
            assert captions is not None
            parts.append(
                words.predicted_words(visuals, captions, LEARNT_WORDS, settings.shrink, settings.min_word_images)
            )
    return _join_sources(parts, repeats=settings.repeats)


def _join_sources(parts: Sequence[Sequence[str]], *, repeats: bool) -> list[str]:
    """Concatenate the sentences of all sources; without ``repeats`` a later source adds only new words."""
    joined = []
    for of_image in zip(*parts, strict=True):
        words = of_image[0].split()
        for later in of_image[1:]:
            words += [word for word in later.split() if repeats or word not in words]
        joined.append(" ".join(words))
    return joined


def captions_of_neighbours(
    collection: Collection,
    visuals: Visuals,
    settings: PseudoSettings,
    device: torch.device | str = "cpu",
    track: Track = silent,
) -> list[list[str]]:
    """Return for each image one caption of each of its nearest captioned images, by the vectors of a classifier."""
    if not settings.backbone:
        raise UserError(
            "pseudo.neighbours needs image vectors: give pseudo.backbone= with the folder or hub name of a classifier"
        )
    words = ImageWords.load(settings.backbone, torch.device(device), track)
    return words.neighbour_captions(visuals, collection.sentences("train"), settings.neighbours)
