"""Both sides of recipes that train an image branch and a text branch into one space: settings, inputs, matcher."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from calligram.data.pairing import Pairing
from calligram.errors import UserError, command
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.images.pixels import Augment, PixelInput
from calligram.features.images.stored_input import StoredInput, unknown_feature
from calligram.features.inputs import ImageInput, Inputs, TextInput
from calligram.features.texts.text_encoder import EncoderInput, TextEncoder
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.features.texts.vocabulary import Vocabulary
from calligram.features.texts.word_counts import WordVectors
from calligram.features.texts.word_vectors import pretrained_embeddings
from calligram.features.texts.wordpieces import WordPieces
from calligram.files import parts_hash, replace_text
from calligram.models.layers.networks import HeadKind, RecurrentText
from calligram.models.layers.part_towers import BertText
from calligram.models.layers.text_cnn import TextCNN, TextCNNSettings
from calligram.models.matcher import Matcher
from calligram.models.vse import VSE, VSESettings
from calligram.progress import Track, silent
from calligram.recipes.parts.run import RunContext

log = logging.getLogger(__name__)

MatcherType = TypeVar("MatcherType", bound=Matcher)
ImageParts = Literal["vector", "grid"]


@dataclass(frozen=True)
class ImageSettings:
    """The image side."""

    backbone: Annotated[
        str,
        "folder or hub name of a vision model; without one vse and dual-path train a small CNN, others need features",
    ] = ""
    train: Annotated[bool, "train the backbone too, instead of storing its features once"] = False
    features: Annotated[str, "name of feature arrays stored with the collection, instead of pixels"] = ""
    size: Annotated[int, "side of the square pictures are resized to; 0 for the backbone's own, or 96", (0, 4096)] = 0
    fit: Annotated[Literal["squash", "crop"], "keep all of the picture, distorted, or its middle square"] = "squash"
    views: Annotated[Literal["one", "flip", "ten"], "outside training: as it is, also mirrored, or ten crops"] = "one"
    channels: Annotated[tuple[int, ...], "width of the small CNN's blocks", (1, 8192)] = (16, 48, 96, 192)
    crop: Annotated[float, "smallest share of a picture that a random training crop keeps", (0.01, 1)] = 0.9
    flip: Annotated[bool, "mirror half of the training pictures; harmful where captions say left and right"] = False
    jitter: Annotated[float, "largest random change of brightness, contrast and saturation", (0, 1)] = 0.0
    dropout: Annotated[float, "share of entries of stored features set to zero in training", (0, 0.99)] = 0.0
    hide: Annotated[float, "share of stored regions or cells left out in training", (0, 0.99)] = 0.0

    @property
    def augment(self) -> Augment:
        """What training does to pictures, or to their features."""
        return Augment(self.crop, self.flip, self.jitter, self.dropout, self.hide)


@dataclass(frozen=True)
class CNNSettings:
    """The text CNN (dual-path, Sec. III-B)."""

    blocks: Annotated[tuple[int, ...], "residual blocks of each group; 3,8,36,3 for the deeper one", (1, 1000)] = (
        3, 4, 6, 3,
    )  # fmt: skip
    width: Annotated[int, "channels of the first group's inner layers", (1, 4096)] = 64
    length: Annotated[int, "places for words; further words are cut off", (1, 10000)] = 32
    align: Annotated[Literal["shift", "left"], "in training, begin at a random place or at the first"] = "shift"
    shifts: Annotated[int, "places to begin at that are averaged outside training; 0 for all", (0, 10000)] = 1
    pooling: Annotated[Literal["max", "mean"], "over all places"] = "max"


@dataclass(frozen=True)
class TextSettings:
    """The text side."""

    encoder: Annotated[str, "folder or hub name of a BERT-like encoder; empty trains a network over words"] = ""
    network: Annotated[Literal["gru", "cnn"], "what is trained over a table of words, without an encoder"] = "gru"
    train: Annotated[bool, "train the encoder too, instead of storing its encodings once"] = False
    vectors: Annotated[str, "file of word vectors that the word table starts from"] = ""
    min_count: Annotated[int, "words seen less often in the training captions are unknown", (1, 1000000)] = 2
    max_words: Annotated[int, "longer captions are cut", (1, 10000)] = 60
    word_dim: Annotated[int, "size of word vectors", (1, 65536)] = 64
    hidden: Annotated[int, "size of the GRU's state; a linear map follows where it is not dim", (1, 65536)] = 256
    bidirectional: Annotated[bool, "read captions both ways"] = False
    pooling: Annotated[Literal["last", "mean", "max", "cls"], "how a caption's states become its vector"] = "mean"
    dropout: Annotated[float, "share of entries of word vectors, or of an encoder's vector, set to zero", (0, 0.99)] = (
        0.0
    )
    blank: Annotated[
        float | None, "share of words hidden in training; none for 0.1, but not where encodings are stored", (0, 0.99)
    ] = 0.0
    cnn: CNNSettings = field(default_factory=CNNSettings)

    @property
    def hidden_words(self) -> float:
        """Share of words that training hides; those of stored encodings cannot be."""
        if self.blank is None:
            return 0.0 if self.encoder and not self.train else 0.1
        return self.blank


def check_sides(image: ImageSettings, text: TextSettings) -> None:
    """Refuse settings that do not go together."""
    if text.pooling == "cls" and not text.encoder:
        raise UserError("text.pooling=cls needs a text.encoder; a GRU takes last, mean or max")
    if text.pooling == "last" and text.encoder:
        raise UserError("text.pooling=last is for the GRU; a text.encoder takes mean, max or cls")
    if text.train and not text.encoder:
        raise UserError("text.train=true needs a text.encoder; a GRU or CNN is always trained")
    if text.hidden_words and text.encoder and not text.train:
        raise UserError(
            f"text.blank={text.blank:g} hides words, and those of stored encodings cannot be hidden; "
            "give text.blank=0, or train the encoder with text.train=true"
        )
    if text.encoder and text.network == "cnn":
        raise UserError("text.network=cnn and text.encoder are two text branches; give one of them")
    if not text.cnn.blocks:
        raise UserError("text.cnn.blocks needs at least one group of blocks")
    if (image.dropout or image.hide) and (image.train or not (image.backbone or image.features)):
        raise UserError(
            "image.dropout and image.hide change stored features; pixels have image.crop, image.flip and image.jitter"
        )
    if image.views != "one" and image.features:
        raise UserError("image.views needs pictures; stored features have been computed already")
    if not image.channels:
        raise UserError("image.channels needs at least one width")


def image_input(image: ImageSettings, backbone: Backbone | None, parts: ImageParts = "vector") -> ImageInput:
    """Stored features, pixels, or features of a backbone that is not trained: its vector, or its grid."""
    if image.features:
        return StoredInput(image.features)
    if backbone is None:
        return PixelInput(image.size or 96, image.fit, views=image.views)
    pixels = replace(pixel_input(image.backbone, image.size or None, image.fit), views=image.views)
    return pixels if image.train else BackboneInput(backbone.eval(), pixels, Path(image.backbone).name, parts)


class Towers:
    """Inputs and matcher of two branches, from a collection's training pairs."""

    def __init__(
        self,
        image: ImageSettings,
        text: TextSettings,
        train: Pairing,
        around: RunContext,
        *,
        dim: int,
        head: HeadKind = "linear",
        parts: ImageParts = "vector",
    ) -> None:
        self.image, self.text, self.around, self.train, self.parts = image, text, around, train, parts
        self.backbone = Backbone.load(image.backbone).to(around.device) if image.backbone else None
        self.encoder = TextEncoder.load(text.encoder).to(around.device) if text.encoder else None
        self.inputs = Inputs(image_input(image, self.backbone, parts), self._text_input())
        self.shape = self._with_text(self._with_image(self._shape(dim, head)))

    def frozen_inputs(self) -> Inputs:
        """The same with a backbone's features in place of pixels, stored once."""
        return replace(self.inputs, images=image_input(replace(self.image, train=False), self.backbone, self.parts))

    def matcher(self) -> VSE:
        """The matcher, as it starts."""
        return self.started(VSE(self.shape))

    def started(self, matcher: MatcherType) -> MatcherType:
        """A matcher of this shape with the backbone's, the encoder's or the word vectors' weights, where there are any.

        Args:
            matcher: with the parts ``image`` and ``text``, as ``VSE`` has them.
        """
        words, branch = self.inputs.texts, matcher.text
        if isinstance(matcher.image, Backbone) and self.backbone is not None:
            matcher.image.load_state_dict(self.backbone.state_dict())
        if isinstance(branch, BertText) and self.encoder is not None:
            branch.encoder.load_state_dict(self.encoder.state_dict())
        if self.text.vectors and isinstance(words, Vocabulary) and isinstance(branch, RecurrentText | TextCNN):
            table = pretrained_embeddings(words, Path(self.text.vectors), self.text.word_dim)
            log.info("word vectors for %d of %d words", table.found, len(words))
            branch.words.weight.data.copy_(table.vectors)
        return matcher

    def _text_input(self) -> TextInput:
        text = self.text
        if self.encoder is None:
            return Vocabulary.build(self.train.texts.strings, text.min_count, text.max_words)
        pieces = WordPieces.load_pretrained(text.encoder, text.max_words)
        return pieces if text.train else EncoderInput(self.encoder.eval(), pieces, Path(text.encoder).name)

    def _shape(self, dim: int, head: HeadKind) -> VSESettings:
        """Both branches as far as the settings alone say."""
        text = self.text
        return VSESettings(
            vocabulary=0,
            dim=dim,
            channels=self.image.channels,
            head=head,
            word_dim=text.word_dim,
            hidden=text.hidden,
            bidirectional=text.bidirectional,
            pooling=text.pooling,
            dropout=text.dropout,
        )

    def _with_text(self, shape: VSESettings) -> VSESettings:
        text, words = self.text, len(self.inputs.texts) if self.encoder is None else 0
        if self.encoder is None and text.network == "cnn":
            cnn = TextCNNSettings(words, text.word_dim, dropout=text.dropout, **vars(text.cnn))
            return replace(shape, text="cnn", vocabulary=words, cnn=cnn.description)
        if self.encoder is None:
            return replace(shape, vocabulary=words)
        if text.train:
            return replace(shape, text="bert", encoder=self.encoder.description)
        return replace(shape, text="states", state_dim=self.encoder.dim)

    def _with_image(self, shape: VSESettings) -> VSESettings:
        image, stored = self.image, self.train.visuals.features
        if image.features:
            if image.features not in stored:
                raise unknown_feature(image.features, stored)
            return replace(shape, image="features", feature_dim=stored[image.features].row_shape[-1])
        if self.backbone is None:
            return shape
        if image.train:
            return replace(shape, image="backbone", backbone=self.backbone.description)
        return replace(shape, image="features", feature_dim=self.backbone.dim)


# Text vectors as recipes set them up: one vector for each text, fitted on the training captions.

VERSION = 1
"""raised when the same settings fit other vectors, so that fits kept earlier are made again"""


@dataclass(frozen=True)
class VectorTextSettings:
    """The text side as fitted vectors."""

    words: Annotated[str, "file of word vectors; tf-idf needs none"] = ""
    vectors: TextVectorSettings = field(default_factory=TextVectorSettings)


def need_vectors(image: ImageSettings) -> None:
    """Refuse an image side that would train a network from scratch: these recipes start from features."""
    if not image.backbone and not image.features:
        raise UserError(
            "this recipe starts from image features: give image.backbone= with a vision model, or image.features= with "
            "the name of arrays stored with the collection"
        )
    if image.views != "one" and image.features:
        raise UserError("image.views needs pictures; stored features have been computed already")


def fitted_text(
    settings: VectorTextSettings, strings: Sequence[str], track: Track = silent, cache: Path | None = None
) -> TextVectorInput:
    """Text vectors fitted on training texts; a fit that takes long is kept in ``cache``, a collection's."""
    if cache is None or settings.vectors.kind in ("mean", "tfidf"):
        return _fit(settings, strings, track)
    kept = cache / f"text-vectors-{_key(settings, strings)}"
    about = kept / "about.json"
    if not about.is_file():
        found = _fit(settings, strings, track)
        kept.mkdir(parents=True, exist_ok=True)
        # Last and whole: a folder without it was cut short and does not count.
        replace_text(about, json.dumps(found.save(kept)))
        return found
    return TextVectorInput.read(kept, json.loads(about.read_text(encoding="utf-8")))


def _fit(settings: VectorTextSettings, strings: Sequence[str], track: Track) -> TextVectorInput:
    words = WordVectors.read(Path(settings.words), strings) if settings.words else None
    return TextVectorInput.fit(strings, words, settings.vectors, track)


def _key(settings: VectorTextSettings, strings: Sequence[str]) -> str:
    """A hash of everything that a fit depends on."""
    parts = [json.dumps([VERSION, asdict(settings.vectors), list(strings)]).encode()]
    if settings.words:
        try:
            parts.append(Path(settings.words).read_bytes())
        except OSError as error:
            raise UserError(
                f"word vectors {settings.words} could not be read ({error.strerror}); train some with "
                + command("calligram", "words", "TEXT", settings.words)
            ) from error
    return parts_hash(parts, 8)
