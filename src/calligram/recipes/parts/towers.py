"""The image tower and the text tower of a run: settings, inputs, and a matcher with pretrained weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.images.pixels import Augment, PixelInput
from calligram.features.inputs import ImageInput, Inputs, TextInput
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models.layers.networks import BertText, HeadKind
from calligram.models.layers.text_cnn import TextCNN, TextCNNSettings
from calligram.models.layers.towers import ImageArchitecture, RecurrentText, TextArchitecture
from calligram.models.matcher import Matcher
from calligram.models.vse import VSE, VSESettings
from calligram.recipes.parts.run import RunContext

if TYPE_CHECKING:
    from calligram.features.texts.text_encoder import TextEncoder

log = logging.getLogger(__name__)

MatcherType = TypeVar("MatcherType", bound=Matcher)
ImageParts = Literal["vector", "grid"]
DEFAULT_IMAGE_SIZE = 96
"""side in pixels of images for the small CNN"""
DEFAULT_WORD_DROPOUT = 0.1
"""share of words where text.word_dropout is none"""


@dataclass(frozen=True)
class ImageSettings:
    """Settings of the image tower."""

    backbone: Annotated[
        str,
        "folder or hub name of a vision model; empty for a small CNN (vse, dual-path) or for image.features",
    ] = ""
    train: Annotated[bool, "train the backbone instead of storing its features once"] = False
    features: Annotated[str, "name of feature arrays stored with the collection, used instead of pixels"] = ""
    size: Annotated[
        int, "side of the square input image in pixels; 0 for the size of the backbone, or 96 for the CNN", (0, 4096)
    ] = 0
    fit: Annotated[
        Literal["squash", "crop"], "way to make an image square: distort it (squash), or keep its middle (crop)"
    ] = "squash"
    views: Annotated[
        Literal["one", "flip", "ten"],
        "views of an image that are averaged at test: the image, also its mirror image (flip), or ten crops (ten)",
    ] = "one"
    channels: Annotated[tuple[int, ...], "number of channels of each block of the small CNN", (1, 8192)] = (
        16, 48, 96, 192,
    )  # fmt: skip
    crop: Annotated[float, "smallest share of an image's area that a random training crop keeps", (0.01, 1)] = 0.9
    flip: Annotated[bool, "mirror half of the training images; harmful where captions say left and right"] = False
    jitter: Annotated[float, "largest random change of brightness, contrast and saturation in training", (0, 1)] = 0.0
    dropout: Annotated[float, "dropout rate of the entries of stored features in training", (0, 0.99)] = 0.0
    region_dropout: Annotated[
        float, "share of stored regions or grid cells that are left out in training", (0, 0.99)
    ] = 0.0

    @property
    def augment(self) -> Augment:
        """The augmentation of training images, or of their stored features."""
        return Augment(self.crop, self.flip, self.jitter, self.dropout, self.region_dropout)


@dataclass(frozen=True)
class CNNSettings:
    """Settings of the text CNN (dual-path, Sec. III-B)."""

    blocks: Annotated[
        tuple[int, ...], "number of residual blocks of each group; 3,8,36,3 for 152 layers", (1, 1000)
    ] = (3, 4, 6, 3)
    width: Annotated[int, "number of channels of the inner layers of the first group", (1, 4096)] = 64
    length: Annotated[int, "number of word positions; further words are cut off", (1, 10000)] = 32
    align: Annotated[
        Literal["shift", "left"], "position of a text in training: random (shift), or the first one (left)"
    ] = "shift"
    shifts: Annotated[int, "number of positions of a text that are averaged at test; 0 for all", (0, 10000)] = 1
    pooling: Annotated[Literal["max", "mean"], "pooling over all positions"] = "max"


@dataclass(frozen=True)
class TextSettings:
    """Settings of the text tower."""

    encoder: Annotated[str, "folder or hub name of a BERT-like encoder; empty for a network over a word table"] = ""
    network: Annotated[Literal["gru", "cnn"], "network over the word table, where there is no encoder"] = "gru"
    train: Annotated[bool, "train the encoder instead of storing its states once"] = False
    vectors: Annotated[str, "file of word vectors that initialize the word table; empty for random ones"] = ""
    min_count: Annotated[
        int, "smallest number of occurrences of a word in the training captions; rarer words are unknown", (1, 1000000)
    ] = 2
    max_words: Annotated[int, "largest number of words of a caption; further words are cut off", (1, 10000)] = 60
    word_dim: Annotated[int, "dimension of word vectors", (1, 65536)] = 64
    hidden: Annotated[
        int, "dimension of the GRU's state; a linear layer follows where it differs from dim", (1, 65536)
    ] = 256
    bidirectional: Annotated[bool, "read captions in both directions"] = False
    pooling: Annotated[
        Literal["last", "mean", "max", "cls"], "pooling of a caption's states into one vector; cls needs an encoder"
    ] = "mean"
    dropout: Annotated[float, "dropout rate of word vectors, or of the vector of an encoder", (0, 0.99)] = 0.0
    word_dropout: Annotated[
        float | None,
        "share of words that are masked in training; none for 0.1, or 0 where states of an encoder are stored",
        (0, 0.99),
    ] = 0.0
    cnn: CNNSettings = field(default_factory=CNNSettings)

    @property
    def effective_word_dropout(self) -> float:
        """Share of words that are masked in training."""
        if self.word_dropout is None:
            return 0.0 if self.encoder and not self.train else DEFAULT_WORD_DROPOUT
        return self.word_dropout


def check_towers(image: ImageSettings, text: TextSettings) -> None:
    """Refuse settings that contradict each other."""
    if text.pooling == "cls" and not text.encoder:
        raise UserError("text.pooling=cls needs a text.encoder; a GRU takes last, mean or max")
    if text.pooling == "last" and text.encoder:
        raise UserError("text.pooling=last is for the GRU; a text.encoder takes mean, max or cls")
    if text.train and not text.encoder:
        raise UserError("text.train=true needs a text.encoder; a GRU or CNN is always trained")
    if text.effective_word_dropout and text.encoder and not text.train:
        raise UserError(
            f"text.word_dropout={text.word_dropout:g} masks words, and words of stored encoder states cannot be "
            "masked; give text.word_dropout=0, or train the encoder with text.train=true"
        )
    if text.encoder and text.network == "cnn":
        raise UserError("text.network=cnn and text.encoder are two different text towers; give one of them")
    if not text.cnn.blocks:
        raise UserError("text.cnn.blocks needs at least one group of blocks")
    if (image.dropout or image.region_dropout) and (image.train or not (image.backbone or image.features)):
        raise UserError(
            "image.dropout and image.region_dropout change stored features; for pixels use image.crop, image.flip and "
            "image.jitter"
        )
    if image.views != "one" and image.features:
        raise UserError("image.views needs pixels; stored features are already computed from one view")
    if not image.channels:
        raise UserError("image.channels needs at least one number of channels")


def need_features(image: ImageSettings) -> None:
    """Refuse an image tower without a backbone and without stored features."""
    if not image.backbone and not image.features:
        raise UserError(
            "this recipe needs image features: give image.backbone= with a vision model, or image.features= with the "
            "name of arrays stored with the collection"
        )
    if image.views != "one" and image.features:
        raise UserError("image.views needs pixels; stored features are already computed from one view")


def image_input(image: ImageSettings, backbone: Backbone | None, parts: ImageParts = "vector") -> ImageInput:
    """Return the image input: stored features, pixels, or the vector or grid of a backbone that is not trained."""
    if image.features:
        from calligram.features.images.stored_input import StoredInput

        return StoredInput(image.features)
    if backbone is None:
        return PixelInput(image.size or DEFAULT_IMAGE_SIZE, image.fit, views=image.views)
    pixels = replace(pixel_input(image.backbone, image.size or None, image.fit), views=image.views)
    return pixels if image.train else BackboneInput(backbone.eval(), pixels, Path(image.backbone).name, parts)


class Towers:
    """The inputs and the matcher of two towers, from the training pairs of a collection.

    Args:
        parts: whether a backbone that is not trained gives one vector or its grid of cells.
    """

    def __init__(
        self,
        image: ImageSettings,
        text: TextSettings,
        train: Pairing,
        context: RunContext,
        *,
        dim: int,
        head: HeadKind = "linear",
        parts: ImageParts = "vector",
    ) -> None:
        self.image, self.text, self.context, self.train, self.parts = image, text, context, train, parts
        self.backbone = Backbone.load(image.backbone).to(context.device) if image.backbone else None
        self.encoder = self._load_encoder()
        self.inputs = Inputs(image_input(image, self.backbone, parts), self._text_input())
        self.shape = VSESettings(self._image_architecture(), self._text_architecture(), dim, head)

    def frozen_inputs(self) -> Inputs:
        """Return the same inputs with stored features of the backbone in place of pixels."""
        return replace(self.inputs, images=image_input(replace(self.image, train=False), self.backbone, self.parts))

    def matcher(self) -> VSE:
        """Return a ``VSE`` with pretrained weights."""
        return self.with_pretrained_weights(VSE(self.shape))

    def with_pretrained_weights(self, matcher: MatcherType) -> MatcherType:
        """Load the weights of the backbone, the text encoder and the word vectors, where they are given.

        Args:
            matcher: has the modules ``image`` and ``text``, as ``VSE`` has.
        """
        words, network = self.inputs.texts, matcher.text
        if isinstance(matcher.image, Backbone) and self.backbone is not None:
            matcher.image.load_state_dict(self.backbone.state_dict())
        if isinstance(network, BertText) and self.encoder is not None:
            network.encoder.load_state_dict(self.encoder.state_dict())
        if self.text.vectors and isinstance(words, Vocabulary) and isinstance(network, RecurrentText | TextCNN):
            from calligram.features.texts.word_vectors import pretrained_embeddings

            table = pretrained_embeddings(words, Path(self.text.vectors), self.text.word_dim)
            log.info("word vectors for %d of %d words", table.found, len(words))
            network.words.weight.data.copy_(table.vectors)
        return matcher

    def _load_encoder(self) -> TextEncoder | None:
        if not self.text.encoder:
            return None
        from calligram.features.texts.text_encoder import TextEncoder

        return TextEncoder.load(self.text.encoder).to(self.context.device)

    def _text_input(self) -> TextInput:
        text = self.text
        if self.encoder is None:
            return Vocabulary.build(self.train.texts.strings, text.min_count, text.max_words)
        from calligram.features.texts.text_encoder import EncoderInput
        from calligram.features.texts.wordpieces import WordPieces

        pieces = WordPieces.load_pretrained(text.encoder, text.max_words)
        return pieces if text.train else EncoderInput(self.encoder.eval(), pieces, Path(text.encoder).name)

    def _text_architecture(self) -> TextArchitecture:
        text, words = self.text, len(self.inputs.texts) if self.encoder is None else 0
        shape = TextArchitecture(
            vocabulary=words,
            word_dim=text.word_dim,
            hidden=text.hidden,
            bidirectional=text.bidirectional,
            pooling=text.pooling,
            dropout=text.dropout,
        )
        if self.encoder is None and text.network == "cnn":
            cnn = TextCNNSettings(words, text.word_dim, dropout=text.dropout, **vars(text.cnn))
            return replace(shape, kind="cnn", cnn=cnn.description)
        if self.encoder is None:
            return shape
        if text.train:
            return replace(shape, kind="bert", encoder=self.encoder.description)
        return replace(shape, kind="states", state_dim=self.encoder.dim)

    def _image_architecture(self) -> ImageArchitecture:
        image, stored = self.image, self.train.visuals.features
        if image.features:
            if image.features not in stored:
                from calligram.features.images.stored_input import unknown_feature

                raise unknown_feature(image.features, stored)
            return ImageArchitecture("features", stored[image.features].row_shape[-1])
        if self.backbone is None:
            return ImageArchitecture("cnn", channels=image.channels)
        if image.train:
            return ImageArchitecture("backbone", backbone=self.backbone.description)
        return ImageArchitecture("features", self.backbone.dim)
