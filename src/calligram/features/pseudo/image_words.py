"""Words for whole images from a classifier: its labels, and words learnt over its features."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from calligram.data.pairing import Pairing, Visuals
from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.pseudo.wordnet import INSTALL_HINT, Synset, WordNet
from calligram.features.texts.vocabulary import tokenise
from calligram.features.transformers_models import load_model
from calligram.progress import Track, silent
from calligram.text import without_stop_words

# Words of captions for images without any, learnt from images that have some.
#
# Beyond the paper: a detector knows the words of its makers, captions have others ("beach", "jumps"). Ridge regression
# from image vectors to the words of an image's captions gives them to every image. It is solved over images, since
# those
# are few.

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WordClassifier:
    """A linear map from vectors of length one to how much more often than usual each word is said."""

    words: tuple[str, ...]
    centre: Floats = field(repr=False)
    weights: Floats = field(repr=False)
    """(dim, words)"""

    @classmethod
    def fit(
        cls, vectors: Floats, said: Sequence[Collection[str]], *, shrink: float = 1.0, least: int = 3
    ) -> WordClassifier:
        """Learn from images whose captions' words are known.

        Args:
            vectors: (N, dim), one for each image.
            said: the words of each image's captions.
            shrink: what is added to the covariance of unit vectors; more trusts single images less.
            least: images that a word must be said of to be learnt.
        """
        counts = Counter(word for words in said for word in set(words))
        known = sorted(without_stop_words(word for word, count in counts.items() if count >= least))
        place = {word: number for number, word in enumerate(known)}
        target = np.zeros((len(said), len(known)))
        for row, words in enumerate(said):
            target[row, [place[word] for word in set(words) if word in place]] = 1
        unit = _unit(vectors)
        centre = unit.mean(0) if len(unit) else np.zeros(vectors.shape[1])
        apart = unit - centre
        solved = np.linalg.solve(apart @ apart.T + shrink * np.eye(len(apart)), target - target.mean(0))
        return cls(tuple(known), centre, apart.T @ solved)

    def best(self, vectors: Floats, most: int) -> list[list[str]]:
        """For each image the words that are said of it most beyond what is usual, best first."""
        more = (_unit(vectors) - self.centre) @ self.weights
        order = np.argsort(-more, axis=1, kind="stable")[:, :most]
        return [[self.words[number] for number in row if more[image, number] > 0] for image, row in enumerate(order)]


def _unit(vectors: Floats) -> Floats:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), dtype=np.float64)


# The labels that a backbone was trained for: its last layer, over vectors that are stored already.


@dataclass(frozen=True)
class LabelClassifier:
    """A linear layer from a backbone's vectors to labels."""

    labels: tuple[str, ...]
    weight: Tensor = field(repr=False)
    """(labels, dim)"""
    bias: Tensor = field(repr=False)

    @classmethod
    def load(cls, name: str, backbone: Backbone) -> LabelClassifier:
        """The classifier that came with a backbone, from the same folder or hub name.

        Raises:
            UserError: when it came without one, or its labels are not a linear function of the backbone's vector.
        """
        from transformers import AutoModelForImageClassification

        model = load_model(AutoModelForImageClassification, name, what="classifier").eval()
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        known: dict[int, str] = model.config.id2label
        found = next((layer for layer in reversed(layers) if layer.out_features == len(known)), None)
        if found is None or not _reproduces_logits(model, found, backbone):
            raise UserError(
                f"the labels of '{name}' are not one layer over the backbone's vector; take a convolutional network "
                "trained as a classifier, such as a MobileNet or ResNet"
            )
        bias = torch.zeros(found.out_features) if found.bias is None else found.bias.detach()
        return cls(tuple(known[number] for number in range(len(known))), found.weight.detach(), bias)

    def probabilities(self, vectors: Tensor) -> Tensor:
        """(N, labels) for vectors (N, dim)."""
        return torch.softmax(vectors.float() @ self.weight.T + self.bias, dim=1)


@torch.no_grad()
def _reproduces_logits(model: nn.Module, layer: nn.Linear, backbone: Backbone) -> bool:
    """Whether the layer gives the model's labels from the backbone's vectors, on noise.

    On the host: an accelerator's convolutions round more than labels should differ.
    """
    size = int(getattr(model.config, "image_size", None) or 224)
    noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    vectors = copy.deepcopy(backbone).cpu().eval()(noise).vectors.float()
    if vectors.shape[1] != layer.in_features:
        return False
    return torch.allclose(layer(vectors), model(noise).logits, rtol=1e-3, atol=1e-3)


# Words for a classifier's labels that people would use.
#
# Labels are fine ("whippet") and captions are not ("dog"). A label is said by a name that captions are known to use:
# one
# of its own names, their last words, or, where there is a WordNet, a synonym or what the thing is a kind of.

Naming = Literal["known", "own"]

EMPTY_LABELS = frozenset(("background", "none", "n/a", ""))
"""labels of classifiers that name nothing"""
MAX_HYPERNYM_STEPS = 4
"""up to here a hypernym is a name for the thing; a whippet is four steps from a dog"""
PREFERRED_CATEGORIES = ("animal", "artifact")
"""what a label without further names most likely means: a setter is a dog, not someone who sets"""


def label_names(label: str) -> list[str]:
    """A label's names; several are separated by commas, as ImageNet's are.

    >>> names_of("Bike, all-terrain bike, bike")
    ['bike', 'all-terrain bike']
    """
    return list(dict.fromkeys(name.strip().lower() for name in label.split(",") if name.strip()))


def label_synset(label: str, wordnet: WordNet) -> Synset | None:
    """The meaning that most of a label's names share.

    Of several it is an animal or an artifact first, then the most frequent one.
    """
    names = label_names(label)
    found = [wordnet.synset(offset) for name in names for offset in wordnet.index.get(name, ())]
    if not found:
        found = [synset for name in names[:1] for synset in wordnet.meanings((tokenise(name) or [""])[-1])]
    if not found:
        return None

    def rank(synset: Synset) -> tuple[int, int]:
        kind = (
            PREFERRED_CATEGORIES.index(synset.kind)
            if synset.kind in PREFERRED_CATEGORIES
            else len(PREFERRED_CATEGORIES)
        )
        return -len(set(names) & set(synset.words)), kind

    return min(found, key=rank)  # the first of equals


def nearest_known_word(label: str, known: Container[str], wordnet: WordNet | None = None) -> str | None:
    """The nearest name of a label that is among the known words; None where none is."""
    names = label_names(label)
    own = [*names, *(words[-1] for name in names if (words := tokenise(name)))]
    found = next((name for name in own if name in known), None)
    if found is not None or wordnet is None:
        return found
    synset = label_synset(label, wordnet)
    return next((word for word in _hypernym_words(synset, wordnet) if word in known), None) if synset else None


def _hypernym_words(synset: Synset, wordnet: WordNet) -> Iterator[str]:
    """Words for a thing and for what it is a kind of, nearest first.

    Only words that mean this before anything else: a shuttlecock is a bird, but whoever says bird does not mean it.
    """
    for near in (synset, *wordnet.kinds_of(synset, MAX_HYPERNYM_STEPS)):
        for word in near.words:
            for said in dict.fromkeys((word, word.split()[-1])):
                if wordnet.index.get(said, (None,))[0] == near.offset or (said != word and near is synset):
                    yield said


def label_words(label: str, naming: Naming, known: Container[str], wordnet: WordNet | None = None) -> tuple[str, ...]:
    """The words that stand for a label in a pseudo-sentence.

    ``own`` is the first of its names; ``known`` a known word, or nothing where none is near.
    """
    names = [name for name in label_names(label) if name not in EMPTY_LABELS]
    name = None if not names else names[0] if naming == "own" else nearest_known_word(label, known, wordnet)
    return tuple(tokenise(name)) if name else ()


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
        classifier = LabelClassifier.load(self.name, self.images.backbone)
        wordnet = WordNet.find() if naming == "known" else None
        if naming == "known" and wordnet is None:
            log.info("there is no WordNet here, so labels are said by their own names' words alone; %s", INSTALL_HINT)
        words = [label_words(label, naming, known, wordnet) for label in classifier.labels]
        found = classifier.probabilities(self.vectors(visuals)).numpy()
        return [_words_of_likely_labels(row, words, least) for row in found]

    def predicted_words(
        self, visuals: Visuals, captioned: Pairing, most: int, shrink: float, least: int = 3
    ) -> list[str]:
        """Words that captions use for images like each one.

        Raises:
            UserError: when no image has a caption to learn from.
        """
        described = _captioned_images(captioned)
        words = [
            {w for text in captioned.matches.texts_of(image) for w in tokenise(captioned.texts.strings[text])}
            for image in described.tolist()
        ]
        vectors = self.vectors(captioned.visuals.select(described)).double().numpy()
        learnt = WordClassifier.fit(vectors, words, shrink=shrink, least=least)
        return [" ".join(best) for best in learnt.best(self.vectors(visuals).double().numpy(), most)]

    def neighbour_captions(self, visuals: Visuals, captioned: Pairing, count: int) -> list[list[str]]:
        """For each image a caption of each of the ``count`` other captioned images whose vectors are nearest by cosine.

        Raises:
            UserError: when no image has a caption.
        """
        described = _captioned_images(captioned)
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


def _captioned_images(captioned: Pairing) -> NDArray[np.int64]:
    """Images that have captions.

    Raises:
        UserError: when there are none.
    """
    described = np.flatnonzero(captioned.matches.counts()[0])
    if not len(described):
        raise UserError("this learns from captions, and no training image has one; leave out 'learnt' and neighbours")
    return described


def _words_of_likely_labels(probabilities: NDArray[np.float32], words: list[tuple[str, ...]], least: float) -> str:
    order = np.argsort(-probabilities, kind="stable")
    certain = order[: int((probabilities >= least).sum())]
    return " ".join(dict.fromkeys(word for label in certain for word in words[label]))
