"""Images that nobody captioned, paired with what machines say of them (a3vse, Sec. 4.3)."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from calligram.data.collection import Collection
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing, Texts, Visuals
from calligram.data.readers.text_files import read_sentences
from calligram.errors import UserError
from calligram.evaluation.encode import encode_images, encode_texts
from calligram.features.pseudo.image_words import ImageWords, Naming
from calligram.features.pseudo.region_words import Attributes, PseudoSentences, region_sentences
from calligram.models.load import load_matcher
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.settings import RunSettings
from calligram.text import tokenise
from calligram.vectors import unit_length

# The nearest texts of images, without those that are near to every image.

NEAR = 10
"""images by which a text's nearness to all is told, the number of Conneau et al. (2018)"""
TILE = 8192
"""texts compared at once"""


@torch.no_grad()
def csls_nearest_texts(images: Tensor, texts: Tensor, count: int, *, near: int = NEAR, tile: int = TILE) -> Tensor:
    """(I, count) texts with the highest CSLS of each image, best first: 2 cos(i, t) - r(i) - r(t).

    r is an item's mean cosine with its ``near`` nearest of the other kind (Conneau et al., "Word translation without
    parallel data", 2018). That of the image is the same for all its texts, and left out. Without that of the text a few
    texts would be found for most images.
    """
    images, texts = unit_length(images), unit_length(texts)
    near, count = min(near, len(images)), min(count, len(texts))
    best = images.new_full((len(images), count), -torch.inf)
    found = torch.zeros_like(best, dtype=torch.int64)
    for start in range(0, len(texts), tile):
        cosines = images @ texts[start : start + tile].T
        scores = 2 * cosines - cosines.topk(near, dim=0).values.mean(0)
        numbers = torch.arange(start, start + scores.shape[1], device=scores.device).expand_as(scores)
        best, places = torch.cat([best, scores], 1).topk(count, dim=1)
        found = torch.cat([found, numbers], 1).gather(1, places)
    return found


# Sentences of others that a trained run finds for images: what it has learnt becomes pseudo pairs to learn from.


def found_sentences(
    collection: Collection, visuals: Visuals, run: str, file: str, count: int, around: RunContext
) -> list[list[str]]:
    """For each image the ``count`` sentences of a text file that a run's vectors find nearest, best first.

    Sentences that read like a caption of the collection are left out, those that a sparse one has lost among them:
    nobody has captions of images that are not captioned.
    """
    candidates = other_sentences(read_sentences(Path(file).expanduser()), Collection.open(collection.folder))
    if not candidates:
        raise UserError(f"{file} has no sentence that is not a caption of {collection.name}; give other text")
    stored = load_matcher(Path(run).expanduser()).to(around.device)
    if not stored.matcher.scores_vectors:
        raise UserError(f"pseudo.run={run} scores without vectors, by which sentences are found; give another run")
    log.info("finding sentences for %d images among %d of %s", len(visuals), len(candidates), file)
    matcher = stored.matcher.eval()
    images = encode_images(
        matcher, stored.inputs, stored.inputs.images.load(visuals, around.track), track=around.track
    ).vectors
    texts = encode_texts(
        matcher, stored.inputs.texts.load(candidates, visuals.pictures.cache, around.track), track=around.track
    ).vectors
    return [[candidates[place] for place in row] for row in csls_nearest_texts(images, texts, count).tolist()]


def other_sentences(sentences: list[str], whole: Collection) -> list[str]:
    """Each once, as its words stand in it, without those of a collection's captions and without empty ones."""
    own = {" ".join(tokenise(str(caption))) for caption in whole.column("captions", "text")}
    different = dict.fromkeys(" ".join(tokenise(sentence)) for sentence in sentences)
    return [sentence for sentence in different if sentence and sentence not in own]


log = logging.getLogger(__name__)

Said = Literal["regions", "labels", "learnt"]


@dataclass(frozen=True)
class PseudoSettings:
    """What is said of images without captions.

    ``regions`` are the paper's regional semantics, ``labels`` its global ones; ``learnt`` is ours, and so are sentences
    of other texts that an earlier run finds. How defaults were chosen is in ``docs/papers.md``.
    """

    of: Annotated[
        Literal["unannotated", "all", "none"], "images that are spoken of: those without captions, all, or none"
    ] = "unannotated"
    said: Annotated[
        tuple[Said, ...],
        "what sentences are joined from: regions (classes of regions), labels (of the whole image), learnt (words of "
        "captions of similar images); empty for nothing but what run= finds",
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
    sentences: Annotated[int, "sentences of an image; several have words drawn from all that is said", (1, 100)] = 1
    words: Annotated[int, "words of each of several sentences", (1, 1000)] = 6
    neighbours: Annotated[
        int,
        "captions, of the captioned images most like it, that are said of an image as well; needs backbone",
        (0, 100),
    ] = 0
    run: Annotated[
        str, "folder of a run on no more captions, whose vectors find sentences of corpus for images as well"
    ] = ""
    corpus: Annotated[str, "text file with a sentence per line, also .gz, that run= finds them in"] = ""
    found: Annotated[int, "sentences that run= finds for an image", (1, 100)] = 3

    def __post_init__(self) -> None:
        if not self.said and not self.run:
            raise UserError(
                "pseudo.said needs at least one of regions, labels and learnt, or pseudo.run= a run that finds some"
            )
        if bool(self.run) != bool(self.corpus):
            raise UserError(
                "pseudo.run= and pseudo.corpus= belong together: a trained run, and the text it finds sentences in"
            )


@dataclass(frozen=True)
class SemanticsSettings(RunSettings):
    """What is said of which images, for looking at it."""

    pseudo: PseudoSettings = field(default_factory=PseudoSettings)


def make_pseudo_pairs(
    collection: Collection, settings: PseudoSettings, around: RunContext | None = None, split: str = "train"
) -> Pairing:
    """Images of a split without captions, or all of them, x their pseudo-sentences.

    Images of which nothing is said are left out. Sentences that read the same are one text with several images, since
    these would else be each other's false negatives. Only captions that the collection has are used, for names of
    labels, for learnt words, and as neighbours'; a run that finds sentences must not have seen others.
    """
    everything = settings.of == "all"
    visuals = collection.visuals(collection.images_in(split)) if everything else collection.unannotated(split)
    words = pseudo_sentences(collection, visuals, settings, around)
    said = [drawn(sentence, name, settings) for sentence, name in zip(words, visuals.ids, strict=True)]
    if settings.neighbours and len(visuals):
        near = neighbours_captions(collection, visuals, settings, around)
        said = [own + others for own, others in zip(said, near, strict=True)]
    if settings.run and len(visuals):
        found = found_sentences(
            collection, visuals, settings.run, settings.corpus, settings.found, around or RunContext()
        )
        said = [own + others for own, others in zip(said, found, strict=True)]
    spoken_of = np.flatnonzero([bool(sentences) for sentences in said])
    log.info("pseudo-sentences for %d of %d images", len(spoken_of), len(visuals))
    if not len(spoken_of):
        if not len(visuals):
            raise UserError(
                f"split {split} of {collection.name} has no image without captions; pseudo pairs need some: take "
                "sparse.images below 1, add pictures without captions, or pseudo.of=all"
            )
        raise UserError(
            f"nothing is said of any of {len(visuals)} images of split {split} of {collection.name}: say more with "
            "pseudo.said=, lower pseudo.least, pseudo.label_least or pseudo.learnt_least, or take pseudo.naming=own"
        )
    chosen = visuals.select(spoken_of)
    said = [said[place] for place in spoken_of.tolist()]
    owner = np.repeat(np.arange(len(said)), [len(sentences) for sentences in said])
    ids = (f"{name}#said{n}" for name, own in zip(chosen.ids, said, strict=True) for n in range(len(own)))
    texts = Texts(tuple(ids), tuple(sentence for own in said for sentence in own))
    matches = Matches(owner, np.arange(len(texts)), (len(chosen), len(texts)))
    return Pairing(chosen, texts, matches).join_equal_texts()


def drawn(said: str, name: str, settings: PseudoSettings) -> list[str]:
    """One sentence as it is, or several of a few words each, in their order; an image's draws depend on its id alone.

    Captions speak of a few things each. A text encoder that sees the same dozen words with an image in every epoch
    learns that list by heart.
    """
    words = said.split()
    if not words or settings.sentences == 1:
        return [said] if words else []
    draw = random.Random(name)
    count = min(settings.words, len(words))
    places = (sorted(draw.sample(range(len(words)), count)) for _ in range(settings.sentences))
    return list(dict.fromkeys(" ".join(words[place] for place in some) for some in places))


def neighbours_captions(
    collection: Collection, visuals: Visuals, settings: PseudoSettings, around: RunContext | None = None
) -> list[list[str]]:
    """For each image one caption of each of the captioned images that a classifier's vectors find most alike."""
    around = around or RunContext()
    if not settings.backbone:
        raise UserError(
            "pseudo.neighbours need vectors of images: give pseudo.backbone=, the folder or hub name of a classifier"
        )
    words = ImageWords.load(settings.backbone, around.device, around.track)
    return words.neighbour_captions(visuals, collection.sentences("train"), settings.neighbours)


def pseudo_sentences(
    collection: Collection, visuals: Visuals, settings: PseudoSettings, around: RunContext | None = None
) -> list[str]:
    """What is said of each image, empty where that is nothing; kinds of it follow each other as ``said`` has them."""
    around = around or RunContext()
    if not len(visuals) or not settings.said:
        return [""] * len(visuals)
    words, captions = None, None
    if set(settings.said) & {"labels", "learnt"}:
        if not settings.backbone:
            raise UserError(
                f"pseudo.said={','.join(settings.said)} needs a classifier: give pseudo.backbone= with the folder or "
                "hub name of one, or pseudo.said=regions"
            )
        # Regions and labels' own names need no captions, so that a collection without splits can be spoken of.
        if "learnt" in settings.said or settings.naming == "known":
            captions = collection.sentences("train")
        words = ImageWords.load(settings.backbone, around.device, around.track)
    parts: list[list[str]] = []
    for kind in settings.said:
        if kind == "regions":
            how = PseudoSentences(settings.least, settings.most, settings.repeats, settings.attributes)
            parts.append(region_sentences(collection, visuals.rows, settings.source, how))
            continue
        assert words is not None
        if kind == "labels":
            strings = captions.texts.strings if captions is not None else ()
            known = {word for string in strings for word in tokenise(string)}
            parts.append(words.labels(visuals, settings.label_least, settings.naming, known))
        else:
            assert captions is not None
            parts.append(
                words.predicted_words(visuals, captions, settings.learnt_words, settings.shrink, settings.learnt_least)
            )
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
