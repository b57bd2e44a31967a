"""Words for whole images from a classifier: its labels, and caption words predicted from its features.

Labels are specific ("whippet"), captions are general ("dog"). A label is therefore expressed by a word that captions
use: one of the label's own names, the last word of a name, or, with WordNet, a synonym or a hypernym.
"""

from __future__ import annotations

import copy
import logging
import re
from collections import Counter
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calligram.data.pairing import Pairing, Visuals
from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.pseudo.wordnet import INSTALL_HINT, Synset, WordNet
from calligram.features.transformers_models import load_model, loading_error
from calligram.progress import Track, silent
from calligram.text import tokenise, without_stop_words
from calligram.vectors import unit_length, unit_rows

log = logging.getLogger(__name__)

Doubles = NDArray[np.float64]
Naming = Literal["known", "own"]

EMPTY_LABELS = frozenset(("background", "none", "n/a", ""))
"""labels of classifiers that name no object"""
MAX_HYPERNYM_STEPS = 4
"""maximum distance of a hypernym that can name an object; dog is four steps above whippet"""
PREFERRED_CATEGORIES = ("animal", "artifact")
"""categories that an ambiguous label most likely means: a setter is a dog, not a person who sets"""


@dataclass(frozen=True)
class ImageWords:
    """Describes images by words, from a backbone and its classifier: global semantics s_g (a3vse, Sec. 4.6).

    The features are stored in the collection, as those of any backbone.
    """

    name: str
    images: BackboneInput = field(repr=False)
    track: Track = field(default=silent, repr=False)

    @classmethod
    def load(cls, name: str, device: torch.device | str = "cpu", track: Track = silent) -> ImageWords:
        """Load the backbone from a folder or by a hub name."""
        backbone = Backbone.load(name).to(device).eval()
        return cls(name, BackboneInput(backbone, pixel_input(name), Path(name).name, "vector"), track)

    def vectors(self, visuals: Visuals) -> torch.Tensor:
        """Return the backbone's vectors (N, dim) of images."""
        return self.images.load(visuals, self.track).take(np.arange(len(visuals))).float()

    def labels(
        self, visuals: Visuals, min_probability: float, naming: Naming, known: Container[str], names: str = ""
    ) -> list[str]:
        """Return the words of each image's likely labels, most probable first (global semantics, a3vse, Sec. 4.6).

        Args:
            names: model whose class names are used; see ``LabelClassifier.load``.
        """
        classifier = LabelClassifier.load(self.name, self.images.backbone, names)
        wordnet = WordNet.find() if naming == "known" else None
        if naming == "known" and wordnet is None:
            log.info(
                "WordNet was not found, so labels are expressed only by words of their own names; %s", INSTALL_HINT
            )
        words = [label_words(label, naming, known, wordnet) for label in classifier.labels]
        probabilities = classifier.probabilities(self.vectors(visuals)).numpy()
        return [_words_of_likely_labels(row, words, min_probability) for row in probabilities]

    def predicted_words(
        self, visuals: Visuals, captioned: Pairing, max_words: int, ridge: float, min_images: int = 3
    ) -> list[str]:
        """Predict caption words of each image by a ``WordClassifier`` that is fitted on captioned images.

        Raises:
            UserError: when no image has a caption to learn from.
        """
        rows = _captioned_images(captioned)
        words = [
            {w for text in captioned.matches.texts_of(image) for w in tokenise(captioned.texts.strings[text])}
            for image in rows.tolist()
        ]
        vectors = self.vectors(captioned.visuals.select(rows)).double().numpy()
        classifier = WordClassifier.fit(vectors, words, ridge=ridge, min_images=min_images)
        predicted = classifier.predict(self.vectors(visuals).double().numpy(), max_words)
        return [" ".join(words_of_image) for words_of_image in predicted]

    def neighbour_captions(self, visuals: Visuals, captioned: Pairing, count: int) -> list[list[str]]:
        """Return for each image one caption of each of the ``count`` nearest other captioned images by cosine.

        Raises:
            UserError: when no image has a caption.
        """
        rows = _captioned_images(captioned)
        candidates = captioned.visuals.select(rows)
        theirs, own = (unit_length(self.vectors(images), 1e-12) for images in (candidates, visuals))
        candidate_rows = {id: row for row, id in enumerate(candidates.ids)}
        captions = [captioned.texts.strings[captioned.matches.texts_of(image)[0]] for image in rows.tolist()]
        found = []
        for id, vector in zip(visuals.ids, own, strict=True):
            cosines = theirs @ vector  # one image at a time: the whole matrix may not fit into memory
            if id in candidate_rows:  # the nearest image of an image is itself
                cosines[candidate_rows[id]] = -torch.inf
            nearest = cosines.topk(min(count, len(captions) - (id in candidate_rows))).indices.tolist()
            found.append([captions[row] for row in nearest])
        return found


def _captioned_images(captioned: Pairing) -> NDArray[np.int64]:
    """Return the images that have captions.

    Raises:
        UserError: when no image has a caption.
    """
    rows = np.flatnonzero(captioned.matches.counts()[0])
    if not len(rows):
        raise UserError(
            "words and captions of similar images need captioned training images, and there are none; "
            "remove 'learnt' from pseudo.sources and use pseudo.neighbours=0"
        )
    return rows


def _words_of_likely_labels(
    probabilities: NDArray[np.float32], words: list[tuple[str, ...]], min_probability: float
) -> str:
    order = np.argsort(-probabilities, kind="stable")
    likely = order[: int((probabilities >= min_probability).sum())]
    return " ".join(dict.fromkeys(word for label in likely for word in words[label]))


@dataclass(frozen=True)
class WordClassifier:
    """Ridge regression from unit image vectors to the words of an image's captions.

    It extends the paper: the classes of a detector are fixed, captions use other words ("beach", "jumps"). The
    regression is solved in the space of images, because there are few of them.
    """

    words: tuple[str, ...]
    centre: Doubles = field(repr=False)
    """(dim,) mean of the unit vectors"""
    weights: Doubles = field(repr=False)
    """(dim, words)"""

    @classmethod
    def fit(
        cls, vectors: Doubles, caption_words: Sequence[Collection[str]], *, ridge: float = 1.0, min_images: int = 3
    ) -> WordClassifier:
        """Fit the regression on captioned images.

        Args:
            vectors: (N, dim), one for each image.
            caption_words: the words of each image's captions.
            ridge: regularisation, added to the diagonal of the covariance of unit vectors.
            min_images: minimum number of images whose captions contain a word.
        """
        counts = Counter(word for words in caption_words for word in set(words))
        known = sorted(without_stop_words(word for word, count in counts.items() if count >= min_images))
        column = {word: number for number, word in enumerate(known)}
        target = np.zeros((len(caption_words), len(known)))
        for row, words in enumerate(caption_words):
            target[row, [column[word] for word in set(words) if word in column]] = 1
        unit = unit_rows(vectors, 1e-12)
        centre = unit.mean(0) if len(unit) else np.zeros(vectors.shape[1])
        centred = unit - centre
        solved = np.linalg.solve(centred @ centred.T + ridge * np.eye(len(centred)), target - target.mean(0))
        return cls(tuple(known), centre, centred.T @ solved)

    def predict(self, vectors: Doubles, max_words: int) -> list[list[str]]:
        """Return for each image the words whose predicted frequency exceeds the mean most, best first."""
        excess = (unit_rows(vectors, 1e-12) - self.centre) @ self.weights
        order = np.argsort(-excess, axis=1, kind="stable")[:, :max_words]
        return [[self.words[number] for number in row if excess[image, number] > 0] for image, row in enumerate(order)]


@dataclass(frozen=True)
class LabelClassifier:
    """The last linear layer of an image classifier, from a backbone's vectors to labels."""

    labels: tuple[str, ...]
    weight: Tensor = field(repr=False)
    """(labels, dim)"""
    bias: Tensor = field(repr=False)
    """(labels,)"""

    @classmethod
    def load(cls, name: str, backbone: Backbone, names: str = "") -> LabelClassifier:
        """Load the classifier of a backbone, from the same folder or hub name.

        Args:
            names: folder or hub name of a model with the same classes, whose names are used; empty for the own names.

        Raises:
            UserError: when there is no classifier, its classes have no names, or its labels are not a linear function
                of the backbone's vector.
        """
        from transformers import AutoModelForImageClassification

        model = load_model(AutoModelForImageClassification, name, what="classifier").eval()
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        found = next((layer for layer in reversed(layers) if layer.out_features == model.config.num_labels), None)
        if found is None or not _reproduces_logits(model, found, backbone):
            raise UserError(
                f"the labels of '{name}' are not one layer over the backbone's vector; give a convolutional network "
                "trained as a classifier, such as a MobileNet or ResNet"
            )
        bias = torch.zeros(found.out_features) if found.bias is None else found.bias.detach()
        return cls(_class_names(names or name, found.out_features), found.weight.detach(), bias)

    def probabilities(self, vectors: Tensor) -> Tensor:
        """Return the probabilities (N, labels) for vectors (N, dim)."""
        return torch.softmax(vectors.float() @ self.weight.T + self.bias, dim=1)


def _class_names(name: str, count: int) -> tuple[str, ...]:
    """Return the names of the ``count`` classes of a model; a class "background" that is too many is left out.

    Raises:
        UserError: when the model has another number of classes, or no names for them.
    """
    from transformers import AutoConfig

    try:
        entries: dict[int, str] = AutoConfig.from_pretrained(name).id2label
    except (OSError, ValueError, KeyError) as error:
        raise loading_error("model with class names", name, error) from error
    found = [entries[number] for number in range(len(entries))]
    if len(found) == count + 1 and found[0] in EMPTY_LABELS:
        del found[0]
    if len(found) != count:
        raise UserError(f"'{name}' has names of {len(found)} classes, and the classifier has {count} classes")
    if all(re.fullmatch(r"LABEL_\d+", label) for label in found):
        raise UserError(
            f"the classes of '{name}' have no names ({found[0]}, ...); give pseudo.class_names= with the folder or hub "
            "name of a model that has the same classes and their names"
        )
    return tuple(found)


@torch.no_grad()
def _reproduces_logits(model: nn.Module, layer: nn.Linear, backbone: Backbone) -> bool:
    """Check on noise that the layer gives the model's logits from the backbone's vectors.

    The check runs on the host, because convolutions on an accelerator round more than the tolerance.
    """
    size = int(getattr(model.config, "image_size", None) or 224)
    noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    vectors = copy.deepcopy(backbone).cpu().eval()(noise).vectors.float()
    if vectors.shape[1] != layer.in_features:
        return False
    return torch.allclose(layer(vectors), model(noise).logits, rtol=1e-3, atol=1e-3)


def label_words(label: str, naming: Naming, known: Container[str], wordnet: WordNet | None = None) -> tuple[str, ...]:
    """Return the words that express a label in a pseudo-sentence.

    With ``own``, the first name of the label. With ``known``, the nearest known word, or nothing if there is none.
    """
    names = [name for name in label_names(label) if name not in EMPTY_LABELS]
    name = None if not names else names[0] if naming == "own" else nearest_known_word(label, known, wordnet)
    return tuple(tokenise(name)) if name else ()


def label_names(label: str) -> list[str]:
    """Return the names of a label; several names are separated by commas, as in ImageNet.

    >>> label_names("Bike, all-terrain bike, bike")
    ['bike', 'all-terrain bike']
    """
    return list(dict.fromkeys(name.strip().lower() for name in label.split(",") if name.strip()))


def nearest_known_word(label: str, known: Container[str], wordnet: WordNet | None = None) -> str | None:
    """Return the known word that is nearest to a label; None if there is none."""
    names = label_names(label)
    own = [*names, *(words[-1] for name in names if (words := tokenise(name)))]
    found = next((name for name in own if name in known), None)
    if found is not None or wordnet is None:
        return found
    synset = label_synset(label, wordnet)
    return next((word for word in _hypernym_words(synset, wordnet) if word in known), None) if synset else None


def label_synset(label: str, wordnet: WordNet) -> Synset | None:
    """Return the synset that contains most of a label's names.

    Among equals, animals and artifacts come first, then the most frequent meaning.
    """
    names = label_names(label)
    found = [wordnet.synset(offset) for name in names for offset in wordnet.index.get(name, ())]
    if not found:
        found = [synset for name in names[:1] for synset in wordnet.synsets((tokenise(name) or [""])[-1])]
    if not found:
        return None

    def rank(synset: Synset) -> tuple[int, int]:
        known = synset.category in PREFERRED_CATEGORIES
        category = PREFERRED_CATEGORIES.index(synset.category) if known else len(PREFERRED_CATEGORIES)
        return -len(set(names) & set(synset.words)), category

    return min(found, key=rank)  # min returns the first of equals


def _hypernym_words(synset: Synset, wordnet: WordNet) -> Iterator[str]:
    """Yield words for a synset and for its hypernyms, nearest first.

    Only words whose most frequent meaning is this synset: WordNet calls a shuttlecock a bird, but "bird" in a caption
    means the animal.
    """
    for near in (synset, *wordnet.hypernyms_of(synset, MAX_HYPERNYM_STEPS)):
        for name in near.words:
            for word in dict.fromkeys((name, name.split()[-1])):
                if wordnet.index.get(word, (None,))[0] == near.offset or (word != name and near is synset):
                    yield word
