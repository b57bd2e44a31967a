"""Settings of pseudo pairs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from calligram.errors import UserError
from calligram.features.pseudo.image_words import Naming
from calligram.features.pseudo.region_words import Attributes
from calligram.recipes.parts.settings import RARE

WordSource = Literal["regions", "labels", "learnt"]


@dataclass(frozen=True)
class PseudoSettings:
    """Sources of the sentences for images without captions.

    ``regions`` are the regional semantics of the paper, ``labels`` its global semantics. ``learnt`` words and sentences
    retrieved by an earlier run are not in the paper. ``docs/papers.md`` says how the defaults were chosen.
    """

    images: Annotated[
        Literal["unannotated", "all", "none"],
        "images that get pseudo-sentences: those without captions, all, or none",
        RARE,
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
        RARE,
    ] = ""
    min_score: Annotated[float, "smallest detection score of a region that is used", (0, 1), RARE] = 0.3
    max_regions: Annotated[int, "largest number of regions of an image, highest scores first", (1, 10000), RARE] = 10
    repeats: Annotated[bool, "keep words that occur several times, for several regions", RARE] = False
    attributes: Annotated[Attributes, "attributes before the class of a region: none, its colour, or all", RARE] = (
        "colour"
    )
    backbone: Annotated[str, "folder or hub name of a classifier, for labels and learnt words"] = ""
    min_label_score: Annotated[float, "smallest probability of a label that is used; 0.3 in the paper", (0, 1)] = 0.1
    naming: Annotated[
        Naming,
        "name of a label: the nearest word of the captions, by WordNet if it is installed (known), or its own (own)",
        RARE,
    ] = "known"
    learnt_words: Annotated[int, "number of learnt words of an image", (1, 1000)] = 8
    min_word_images: Annotated[
        int, "smallest number of images whose captions hold a word, for the word to be learnt", (1, 1000000), RARE
    ] = 3
    shrink: Annotated[float, "strength of regularization of the regression that predicts words", (1e-6, 1e6), RARE] = (
        1.0
    )
    sentences: Annotated[
        int, "number of sentences of an image; with several, each has words drawn at random", (1, 100), RARE
    ] = 1
    words: Annotated[int, "number of words of each of several sentences", (1, 1000), RARE] = 6
    neighbours: Annotated[
        int, "number of captions taken from the most similar captioned images; needs pseudo.backbone", (0, 100), RARE
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
            "labels": {"min_label_score", "naming"},
            "learnt": {"learnt_words", "min_word_images", "shrink"},
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
