"""Words for whole images from a classifier: its labels, and words learnt over its features."""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from calligram.data.pairing import Pairing, Visuals
from calligram.errors import UserError
from calligram.features.backbone_input import BackboneInput
from calligram.features.backbones import Backbone, pixel_input
from calligram.features.classifier import Classifier
from calligram.features.label_words import Naming, said_of
from calligram.features.learnt_words import LearntWords
from calligram.features.vocabulary import tokenise
from calligram.features.wordnet import HINT, WordNet
from calligram.progress import Track, silent

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageWords:
    """A backbone that images are described by, the source of global semantics s_g (a3vse, Sec. 4.6).

    Its features are stored with the collection, like any other's.
    """

    name: str
    images: BackboneInput = field(repr=False)
    track: Track = field(default=silent, repr=False)

    @classmethod
    def load(cls, name: str, device: torch.device | str = "cpu", track: Track = silent) -> ImageWords:
        """From a folder or a hub name."""
        backbone = Backbone.load(name).to(device).eval()
        return cls(name, BackboneInput(backbone, pixel_input(name), Path(name).name, "vector"), track)

    def vectors(self, visuals: Visuals) -> torch.Tensor:
        """(N, dim)."""
        return self.images.load(visuals, self.track).take(np.arange(len(visuals))).float()

    def labels(self, visuals: Visuals, least: float, naming: Naming, known: Container[str]) -> list[str]:
        """Labels of each image with at least a probability, most probable first (global semantics, a3vse, Sec. 4.6)."""
        classifier = Classifier.load(self.name, self.images.backbone)
        wordnet = WordNet.find() if naming == "known" else None
        if naming == "known" and wordnet is None:
            log.info("there is no WordNet here, so labels are said by their own names' words alone; %s", HINT)
        words = [said_of(label, naming, known, wordnet) for label in classifier.labels]
        found = classifier.probabilities(self.vectors(visuals)).numpy()
        return [_said(row, words, least) for row in found]

    def learnt(self, visuals: Visuals, captioned: Pairing, most: int, shrink: float, least: int = 3) -> list[str]:
        """Words that captions use for images like each one.

        Raises:
            UserError: when no image has a caption to learn from.
        """
        described = _described(captioned)
        words = [
            {w for text in captioned.matches.texts_of(image) for w in tokenise(captioned.texts.strings[text])}
            for image in described.tolist()
        ]
        vectors = self.vectors(captioned.visuals.select(described)).double().numpy()
        learnt = LearntWords.fit(vectors, words, shrink=shrink, least=least)
        return [" ".join(best) for best in learnt.best(self.vectors(visuals).double().numpy(), most)]

    def neighbours(self, visuals: Visuals, captioned: Pairing, count: int) -> list[list[str]]:
        """For each image a caption of each of the ``count`` other captioned images whose vectors are nearest by cosine.

        Raises:
            UserError: when no image has a caption.
        """
        described = _described(captioned)
        known = captioned.visuals.select(described)
        theirs, own = (F.normalize(self.vectors(of), dim=1) for of in (known, visuals))
        places = {id: place for place, id in enumerate(known.ids)}
        said = [captioned.texts.strings[captioned.matches.texts_of(image)[0]] for image in described.tolist()]
        found = []
        for id, vector in zip(visuals.ids, own, strict=True):
            cosines = theirs @ vector  # an image at a time: all of them with all captioned ones may not fit into memory
            if id in places:  # an image is most like itself
                cosines[places[id]] = -torch.inf
            nearest = cosines.topk(min(count, len(said) - (id in places))).indices.tolist()
            found.append([said[place] for place in nearest])
        return found


def _described(captioned: Pairing) -> NDArray[np.int64]:
    """Images that have captions.

    Raises:
        UserError: when there are none.
    """
    described = np.flatnonzero(captioned.matches.counts()[0])
    if not len(described):
        raise UserError("this learns from captions, and no training image has one; leave out 'learnt' and neighbours")
    return described


def _said(probabilities: NDArray[np.float32], words: list[tuple[str, ...]], least: float) -> str:
    order = np.argsort(-probabilities, kind="stable")
    certain = order[: int((probabilities >= least).sum())]
    return " ".join(dict.fromkeys(word for label in certain for word in words[label]))
