"""Pseudo pairs: images without captions, paired with sentences made by detectors, classifiers and trained runs.

The sources are those of a3vse (Sec. 4.3), words predicted from image vectors, and sentences retrieved from a corpus.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from calligram.data.collection import Collection
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing, Texts
from calligram.data.readers.text_files import read_sentences
from calligram.errors import UserError
from calligram.evaluation.sentence_retrieval import retrieved_sentences, sentences_not_in
from calligram.features.pseudo.sentences import PseudoSettings, captions_of_neighbours, draw_sentences, pseudo_sentences
from calligram.recipes.pairs import MATCHER_SETTINGS
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.run_settings import RARE, RunSettings
from calligram.recipes.parts.terms import Term
from calligram.training.objectives.pseudo_pairs import Adversary, AdversaryTerms

if TYPE_CHECKING:
    from calligram.recipes.pairs import PairsSettings


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SemanticsSettings(RunSettings):
    """Settings of ``calligram semantics``, which shows pseudo-sentences."""

    pseudo: PseudoSettings = field(default_factory=PseudoSettings)


@dataclass(frozen=True)
class Adversarial(Term):
    """Six discriminators of the four domains, for three kinds of alignment (a3vse, Eqs. 4-8); needs pseudo pairs."""

    name = "adversarial"

    weight: Annotated[float, "weight of the term in the loss", (0, 1000)] = 1.0
    intra: Annotated[
        tuple[float, float],
        "weights of two discriminators: annotated against other images, and captions against pseudo-sentences",
        (0, 1000),
    ] = (0.2, 0.1)
    cross: Annotated[
        tuple[float, float],
        "weights of two discriminators of images against texts: of annotated pairs, and of pseudo pairs",
        (0, 1000),
    ] = (0.5, 0.5)
    trans: Annotated[
        tuple[float, float],
        "weights of two discriminators: annotated images against pseudo-sentences, and other images against captions",
        (0, 1000),
    ] = (0.3, 0.3)
    steepness: Annotated[
        float, "steepness of the schedule by which gradient reversal increases, eta", (0, 1000), RARE
    ] = 10.0
    hidden: Annotated[int, "dimension of the hidden layer of a discriminator; 0 for a linear one", (0, 65536), RARE] = (
        512
    )

    def adversary(self, vector_size: int) -> Adversary | None:
        """Return the discriminators; None where all weights are zero."""
        intra, cross, trans = (
            (self.weight * one, self.weight * two) for one, two in (self.intra, self.cross, self.trans)
        )
        terms = AdversaryTerms(intra, cross, trans, self.steepness, self.hidden)
        return Adversary(vector_size, terms) if any(terms.weights().values()) else None


def pseudo_pairs_or_none(collection: Collection, settings: PairsSettings, context: RunContext) -> Pairing | None:
    """Return the pseudo pairs of a run; None where there are fewer than two images or texts."""
    if settings.pseudo.images == "unannotated" and not len(collection.unannotated("train")):
        log.info("every training image has captions: training without pseudo pairs and adversarial terms")
        return None
    _check_adversarial(settings)  # first, since making pseudo-sentences takes long
    found = make_pseudo_pairs(collection, settings.pseudo, context)
    images, texts = (int((count > 0).sum()) for count in found.matches.counts())
    if min(images, texts) < 2:
        log.info(
            "%d images with %d different pseudo-sentences are too few: training without pseudo pairs", images, texts
        )
        return None
    return found


def _check_adversarial(settings: PairsSettings) -> None:
    """Refuse discriminators of vectors that the score does not use."""
    if any(term.name == "adversarial" and term.weight for term in settings.terms):
        for own in settings.matcher:
            if not own.scores_vectors:
                raise UserError(
                    f"matcher={MATCHER_SETTINGS.name_of(own)} does not score by vectors, and the discriminators of the "
                    "term adversarial are trained on vectors; leave adversarial out of terms=, or take a matcher of "
                    "vectors such as a3vse, vse or mmca"
                )


def read_further_texts(file: str, collection: Collection) -> Texts:
    """Return the different sentences of a text file; captions of the collection, also of dev and test, are left out."""
    found = sentences_not_in(read_sentences(Path(file).expanduser()), Collection.open(collection.folder))
    if not found:
        raise UserError(f"{file} has no sentences except captions of {collection.name}; give other text")
    log.info("%d further texts from %s", len(found), file)
    return Texts(tuple(f"further#{number}" for number in range(len(found))), tuple(found))


def make_pseudo_pairs(
    collection: Collection, settings: PseudoSettings, context: RunContext | None = None, split: str = "train"
) -> Pairing:
    """Return the images of a split without captions, or all its images, with their pseudo-sentences.

    Images without any sentence are left out. Equal sentences become one text with several images, so that they are not
    false negatives of each other. Only captions of the given collection are used: for names of labels, for learnt words
    and for neighbours. A run that retrieves sentences must not have seen other captions.
    """
    context = context or RunContext()
    everything = settings.images == "all"
    visuals = collection.visuals(collection.images_in(split)) if everything else collection.unannotated(split)
    words = pseudo_sentences(collection, visuals, settings, context.device, context.track)
    sentences = [draw_sentences(sentence, name, settings) for sentence, name in zip(words, visuals.ids, strict=True)]
    if settings.neighbours and len(visuals):
        near = captions_of_neighbours(collection, visuals, settings, context.device, context.track)
        sentences = [own + others for own, others in zip(sentences, near, strict=True)]
    if settings.run and len(visuals):
        found = retrieved_sentences(
            collection,
            visuals,
            settings.run,
            settings.corpus,
            settings.retrieved,
            device=context.device,
            track=context.track,
        )
        sentences = [own + others for own, others in zip(sentences, found, strict=True)]
    described = np.flatnonzero([bool(own) for own in sentences])
    log.info("pseudo-sentences for %d of %d images", len(described), len(visuals))
    if not len(described):
        raise _no_sentences(collection, split, len(visuals))
    chosen = visuals.select(described)
    sentences = [sentences[place] for place in described.tolist()]
    owner = np.repeat(np.arange(len(sentences)), [len(own) for own in sentences])
    ids = (f"{name}#said{n}" for name, own in zip(chosen.ids, sentences, strict=True) for n in range(len(own)))
    texts = Texts(tuple(ids), tuple(sentence for own in sentences for sentence in own))
    matches = Matches(owner, np.arange(len(texts)), (len(chosen), len(texts)))
    return Pairing(chosen, texts, matches).join_equal_texts()


def _no_sentences(collection: Collection, split: str, images: int) -> UserError:
    if not images:
        return UserError(
            f"split {split} of {collection.name} has no image without captions, and pseudo pairs need some: take "
            "sparse.images below 1, add images without captions, or give pseudo.images=all"
        )
    return UserError(
        f"none of {images} images of split {split} of {collection.name} gets a pseudo-sentence: add sources with "
        "pseudo.sources=, lower pseudo.min_score, pseudo.min_label_score or pseudo.min_word_images, or take "
        "pseudo.naming=own"
    )
