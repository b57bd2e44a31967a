"""Sentences of others that a trained run finds for images: what it has learnt becomes pseudo pairs to learn from."""

from __future__ import annotations

import logging
from pathlib import Path

from calligram.data.collection import Collection
from calligram.data.pairing import Visuals
from calligram.data.sentence_files import read_sentences
from calligram.errors import UserError
from calligram.evaluation.encoding import encode_images, encode_texts
from calligram.evaluation.hubs import nearest_texts
from calligram.features.vocabulary import tokenise
from calligram.models.stored import load_matcher
from calligram.recipes.plan import Surroundings

log = logging.getLogger(__name__)


def found_sentences(
    collection: Collection, visuals: Visuals, run: str, file: str, count: int, around: Surroundings
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
    return [[candidates[place] for place in row] for row in nearest_texts(images, texts, count).tolist()]


def other_sentences(sentences: list[str], whole: Collection) -> list[str]:
    """Each once, as its words stand in it, without those of a collection's captions and without empty ones."""
    own = {" ".join(tokenise(str(caption))) for caption in whole.column("captions", "text")}
    different = dict.fromkeys(" ".join(tokenise(sentence)) for sentence in sentences)
    return [sentence for sentence in different if sentence and sentence not in own]
