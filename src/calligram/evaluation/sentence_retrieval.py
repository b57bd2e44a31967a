"""Sentences of a text file that the vectors of a run find nearest to images."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from calligram.data.collection import Collection
from calligram.data.pairing import Visuals
from calligram.data.readers.text_files import read_sentences
from calligram.errors import UserError
from calligram.evaluation.recall import encode_images, encode_texts
from calligram.models.catalog import load_matcher
from calligram.progress import Track, silent
from calligram.text import tokenise
from calligram.vectors import unit_length

CSLS_NEIGHBOURS = 10
"""number of nearest images in the mean similarity of a text, as in Conneau et al. (2018)"""
CSLS_TILE_TEXTS = 8192
"""number of texts compared at once"""

log = logging.getLogger(__name__)


def retrieved_sentences(
    collection: Collection,
    visuals: Visuals,
    run: str,
    file: str,
    count: int,
    *,
    device: torch.device | str = "cpu",
    track: Track = silent,
) -> list[list[str]]:
    """Return for each image the ``count`` sentences of a text file that a run's vectors find nearest, best first.

    Sentences equal to a caption of the collection are left out, also captions that a sparse collection leaves out:
    otherwise true captions of uncaptioned images would be retrieved.
    """
    candidates = sentences_not_in(read_sentences(Path(file).expanduser()), Collection.open(collection.folder))
    if not candidates:
        raise UserError(f"{file} has no sentences except captions of {collection.name}; give other text")
    stored = load_matcher(Path(run).expanduser()).to(device)
    if not stored.matcher.scoring.vectors:
        raise UserError(f"pseudo.run={run} has no vectors to retrieve sentences with; give a run such as vse or mmca")
    log.info("retrieving sentences for %d images from %d of %s", len(visuals), len(candidates), file)
    matcher = stored.matcher.eval()
    images = encode_images(matcher, stored.inputs, stored.inputs.images.load(visuals, track), track=track).vectors
    texts = encode_texts(
        matcher, stored.inputs.texts.load(candidates, visuals.pictures.cache, track), track=track
    ).vectors
    return [[candidates[place] for place in row] for row in csls_nearest_texts(images, texts, count).tolist()]


def sentences_not_in(sentences: list[str], whole: Collection) -> list[str]:
    """Return each tokenised sentence once, without empty ones and without captions of a collection."""
    own = {" ".join(tokenise(str(caption))) for caption in whole.column("captions", "text")}
    different = dict.fromkeys(" ".join(tokenise(sentence)) for sentence in sentences)
    return [sentence for sentence in different if sentence and sentence not in own]


@torch.no_grad()
def csls_nearest_texts(
    images: Tensor, texts: Tensor, count: int, *, near: int = CSLS_NEIGHBOURS, tile: int = CSLS_TILE_TEXTS
) -> Tensor:
    """Return (I, count) texts with the highest CSLS for each image, best first: 2 cos(i, t) - r(i) - r(t).

    r(x) is the mean cosine of x with its ``near`` nearest items of the other modality (Conneau et al., "Word
    translation without parallel data", 2018). r(i) is equal for all texts of an image and is left out. Without r(t), a
    few texts (hubs) would be retrieved for most images.
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
