"""The image tower and the text tower of a run: settings, inputs, architectures and pretrained weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.images.pixels import Augment, PixelInput
from calligram.features.inputs import ImageInput, Inputs, TextInput
from calligram.features.texts.text_vectors import TextVectorSettings
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import Matcher
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.run_settings import RARE

if TYPE_CHECKING:
    from calligram.features.texts.text_encoder import TextEncoder

log = logging.getLogger(__name__)

MatcherType = TypeVar("MatcherType", bound=Matcher)
ImageParts = Literal["vector", "grid"]
DEFAULT_IMAGE_SIZE = 96
"""side in pixels of images for the small CNN"""
DEFAULT_WORD_DROPOUT = 0.1
"""share of words where text.word_dropout is none"""

RANK_NOTE = "a number from 2 on is the rank of adapters (LoRA) that are trained in place of its weights"
Rank = bool | int
"""whether a model is trained, or the rank of its adapters"""


@dataclass(frozen=True)
class ImageSettings:
    """Settings of the image tower."""

    backbone: Annotated[
        str,
        "folder or hub name of a vision model, or several with commas, which are joined and stay frozen; empty for a "
        "small CNN or for image.features",
    ] = ""
    features: Annotated[str, "name of feature arrays stored with the collection, used instead of pixels"] = ""
    train: Annotated[Rank, f"train the backbone instead of storing its features once; {RANK_NOTE}", (0, 4096)] = False
    size: Annotated[
        int,
        "side of the square input image in pixels; 0 for the size of the backbone, or 96 for the CNN",
        (0, 4096),
        RARE,
    ] = 0
    fit: Annotated[
        Literal["squash", "crop", "own"],
        "way to make an image square: distort it (squash), keep its middle (crop), or that of a pretrained dual "
        "encoder (own)",
        RARE,
    ] = "squash"
    views: Annotated[
        Literal["one", "flip", "ten"],
        "views of an image that are averaged at test: the image, also its mirror image (flip), or ten crops (ten)",
        RARE,
    ] = "one"
    channels: Annotated[tuple[int, ...], "number of channels of each block of the small CNN", (1, 8192), RARE] = (
        16, 48, 96, 192,
    )  # fmt: skip
    crop: Annotated[float, "smallest share of an image's area that a random training crop keeps", (0.01, 1), RARE] = 0.9
    flip: Annotated[bool, "mirror half of the training images; harmful where captions say left and right", RARE] = False
    jitter: Annotated[
        float, "largest random change of brightness, contrast and saturation in training", (0, 1), RARE
    ] = 0.0
    dropout: Annotated[float, "dropout rate of the entries of stored features in training", (0, 0.99)] = 0.0
    region_dropout: Annotated[
        float, "share of stored regions or cells, or of patches of a trained ViT, left out in training", (0, 0.99)
    ] = 0.0

    @property
    def stored(self) -> bool:
        """Whether training reads stored features instead of pixels."""
        return bool(self.features) or (bool(self.backbone) and not self.train)

    @property
    def augment(self) -> Augment:
        """The augmentation of training images, or of their stored features."""
        return Augment(self.crop, self.flip, self.jitter, self.dropout, self.region_dropout)

    @property
    def inert(self) -> frozenset[str]:
        """Settings without effect."""
        if self.features:
            return frozenset(("backbone", "train", "size", "fit", "views", "channels", "crop", "flip", "jitter"))
        if self.backbone:
            return frozenset(
                ("features", "channels", "crop", "flip", "jitter")
                if self.stored
                else ("features", "channels", "dropout")
            )
        return frozenset(("train", "dropout", "region_dropout"))

    @property
    def backbones(self) -> tuple[str, ...]:
        """The names of all backbones; a name with a comma that is a folder is one name."""
        whole = self.backbone
        names = (whole,) if "," not in whole or Path(whole).exists() else whole.split(",")
        return tuple(name.strip() for name in names if name.strip())

    def __post_init__(self) -> None:
        if self.train and len(self.backbones) > 1:
            raise UserError("image.backbone names several models, which stay frozen; give one of them to train it")
        if self.views != "one" and self.features:
            raise UserError("image.views needs pixels, and stored features are already computed; give image.views=one")
        if not self.channels:
            raise UserError("image.channels needs at least one number of channels")


@dataclass(frozen=True)
class CNNSettings:
    """Settings of the text CNN (dual-path, Sec. III-B)."""

    blocks: Annotated[
        tuple[int, ...], "number of residual blocks of each group; 3,8,36,3 for 152 layers", (1, 1000), RARE
    ] = (3, 4, 6, 3)
    width: Annotated[int, "number of channels of the inner layers of the first group", (1, 4096), RARE] = 64
    length: Annotated[int, "number of word positions; further words are cut off", (1, 10000), RARE] = 32
    align: Annotated[
        Literal["shift", "left"], "position of a text in training: random (shift), or the first one (left)", RARE
    ] = "shift"
    shifts: Annotated[int, "number of positions of a text that are averaged at test; 0 for all", (0, 10000), RARE] = 1
    pooling: Annotated[Literal["max", "mean"], "pooling over all positions", RARE] = "max"

    def __post_init__(self) -> None:
        if not self.blocks:
            raise UserError("text.cnn.blocks needs at least one group of blocks")


@dataclass(frozen=True)
class TextSettings:
    """Settings of the text tower."""

    encoder: Annotated[str, "folder or hub name of a BERT-like encoder; empty for text.network"] = ""
    network: Annotated[
        Literal["gru", "lstm", "cnn", "vectors"],
        "text tower without an encoder: a GRU, LSTM or CNN over a word table, or fitted text vectors (vectors)",
    ] = "gru"
    train: Annotated[Rank, f"train the encoder instead of storing its states once; {RANK_NOTE}", (0, 4096)] = False
    vectors: Annotated[
        str, "file of word vectors that initialize the word table, or that text vectors are fitted on; empty for none"
    ] = ""
    min_count: Annotated[
        int,
        "smallest number of occurrences of a word in the training captions; rarer words are unknown",
        (1, 1000000),
        RARE,
    ] = 2
    max_words: Annotated[int, "largest number of words of a caption; further words are cut off", (1, 10000), RARE] = 60
    word_dim: Annotated[int, "dimension of word vectors", (1, 65536)] = 64
    hidden: Annotated[
        int, "dimension of the state of a GRU or LSTM; a linear layer follows where it differs from dim", (1, 65536)
    ] = 256
    bidirectional: Annotated[bool, "read captions in both directions", RARE] = False
    pooling: Annotated[
        Literal["last", "mean", "max", "cls"],
        "pooling of a caption's states into one vector; cls needs an encoder",
        RARE,
    ] = "mean"
    dropout: Annotated[float, "dropout rate of word vectors, or of the vector of an encoder", (0, 0.99), RARE] = 0.0
    word_dropout: Annotated[
        float | None,
        "share of words that are masked in training; none for 0.1, or 0 where states of an encoder are stored",
        (0, 0.99),
        RARE,
    ] = 0.0
    cnn: CNNSettings = field(default_factory=CNNSettings)
    fitted: TextVectorSettings = field(default_factory=TextVectorSettings)

    @property
    def effective_word_dropout(self) -> float:
        """Share of words that are masked in training."""
        if self.network == "vectors" and not self.encoder:
            return 0.0
        if self.word_dropout is None:
            return 0.0 if self.encoder and not self.train else DEFAULT_WORD_DROPOUT
        return self.word_dropout

    @property
    def inert(self) -> frozenset[str]:
        """Settings without effect."""
        table = {"vectors", "min_count", "word_dim", "hidden", "bidirectional"}
        if self.encoder:
            return frozenset({"network", "cnn", "fitted", *table} | (set() if self.train else {"word_dropout"}))
        if self.network == "vectors":
            return frozenset({"train", "cnn", "max_words", "pooling", "dropout", "word_dropout", *table} - {"vectors"})
        if self.network == "cnn":
            return frozenset(("encoder", "train", "fitted", "hidden", "bidirectional", "pooling"))
        return frozenset(("train", "cnn", "fitted"))

    def __post_init__(self) -> None:
        if self.pooling == "cls" and not self.encoder:
            raise UserError("text.pooling=cls needs a text.encoder; a GRU takes last, mean or max")
        if self.pooling == "last" and self.encoder:
            raise UserError("text.pooling=last is for the GRU; a text.encoder takes mean, max or cls")
        if self.effective_word_dropout and self.encoder and not self.train:
            raise UserError(
                f"text.word_dropout={self.word_dropout:g} masks words, and words of stored encoder states cannot be "
                "masked; give text.word_dropout=0, or train the encoder with text.train=true"
            )
        if self.encoder and self.network == "cnn":
            raise UserError("text.network=cnn and text.encoder are two different text towers; give one of them")


def need_features(image: ImageSettings, what: str) -> None:
    """Refuse an image tower without a backbone and without stored features."""
    if not image.backbone and not image.features:
        raise UserError(
            f"{what} needs image features: give image.backbone= with a vision model, or image.features= with the name "
            "of arrays stored with the collection"
        )


def image_input(image: ImageSettings, backbone: Backbone | None, parts: ImageParts = "vector") -> ImageInput:
    """Return the image input: stored features, pixels, or the vector or grid of a backbone that is not trained."""
    if image.features:
        from calligram.features.images.stored_input import StoredInput

        return StoredInput(image.features)
    fit = "squash" if image.fit == "own" else image.fit
    if len(image.backbones) > 1:
        from calligram.features.joined_input import JoinedBackbones

        each = (replace(image, backbone=name) for name in image.backbones)
        return JoinedBackbones.of([image_input(one, Backbone.load(one.backbone), parts) for one in each])  # type: ignore[misc]
    if backbone is None:
        return PixelInput(image.size or DEFAULT_IMAGE_SIZE, fit, views=image.views)
    pixels = replace(pixel_input(image.backbone, image.size or None, fit), views=image.views)
    return pixels if image.train else BackboneInput(backbone.eval(), pixels, Path(image.backbone).name, parts)


class Towers:
    """The inputs and the architectures of two towers, from the training pairs of a collection.

    Args:
        vocabulary: pairing whose texts have all words that the run needs.
        words: words of a word table, in place of one that is made of these texts.
        parts: whether a backbone that is not trained gives one vector or its grid of cells.
    """

    def __init__(
        self,
        image: ImageSettings,
        text: TextSettings,
        vocabulary: Pairing,
        context: RunContext,
        parts: ImageParts = "vector",
        seed: int = 0,
        words: Vocabulary | None = None,
    ) -> None:
        if not image.stored and image.dropout:
            raise UserError(
                "image.dropout changes stored features; for pixels use image.crop, image.flip and image.jitter"
            )
        if text.train and not text.encoder:
            raise UserError(
                "text.train=true needs a text.encoder: give text.encoder= with a folder or a hub name, or "
                "text.train=false for a GRU, LSTM or CNN, which is always trained"
            )
        self.image, self.text, self.context, self.parts = image, text, context, parts
        self.vocabulary, self.seed, self.words = vocabulary, seed, words
        self.backbone = Backbone.load(image.backbone).to(context.device) if len(image.backbones) == 1 else None
        self.encoder = self._load_encoder()
        self.inputs = Inputs(image_input(image, self.backbone, parts), self._text_input())
        self.inputs.images.to(context.device)
        self.architectures = self._image_architecture(), self._text_architecture()

    def frozen_inputs(self) -> Inputs:
        """Return the same inputs with stored features of the backbone in place of pixels."""
        return replace(self.inputs, images=image_input(replace(self.image, train=False), self.backbone, self.parts))

    def with_pretrained_weights(self, matcher: MatcherType) -> MatcherType:
        """Load the weights of the backbone, the text encoder and the word vectors, where they are given.

        Args:
            matcher: has the modules ``image`` and ``text``.
        """
        own: Any = matcher
        image, text = own.settings.image, own.settings.text
        if image.kind == "backbone" and self.backbone is not None:
            own.image.load_state_dict(self.backbone.state_dict())
            if self.image.region_dropout:
                own.image.drop_patches(self.image.region_dropout)
        if text.kind == "bert" and self.encoder is not None:
            own.text.encoder.load_state_dict(self.encoder.state_dict())
        words = self.inputs.texts.vocabulary
        if self.text.vectors and text.kind in ("gru", "lstm", "cnn") and words is not None:
            from calligram.features.texts.word_vectors import pretrained_embeddings

            table = pretrained_embeddings(words, Path(self.text.vectors), self.text.word_dim)
            log.info("word vectors for %d of %d words", table.found, len(words))
            own.text.words.weight.data.copy_(table.vectors)
        return matcher

    def _load_encoder(self) -> TextEncoder | None:
        if not self.text.encoder:
            return None
        from calligram.features.texts.text_encoder import TextEncoder

        return TextEncoder.load(self.text.encoder).to(self.context.device)

    def _text_input(self) -> TextInput:
        text, strings = self.text, self.vocabulary.texts.strings
        if self.encoder is not None:
            from calligram.features.texts.text_encoder import EncoderInput
            from calligram.features.texts.wordpieces import WordPieces

            pieces = WordPieces.load_pretrained(text.encoder, text.max_words)
            return pieces if text.train else EncoderInput(self.encoder.eval(), pieces, Path(text.encoder).name)
        if text.network == "vectors":
            from calligram.features.texts.fitted_vectors import fitted_text

            cache, run = self.vocabulary.visuals.pictures.cache, self.context
            return fitted_text(text.fitted, text.vectors, strings, run.track, cache, self.seed, run.device)
        if self.words is not None:
            return replace(self.words, max_words=text.max_words)
        return Vocabulary.build(strings, text.min_count, text.max_words)

    def _image_architecture(self) -> ImageArchitecture:
        image, stored = self.image, self.vocabulary.visuals.features
        if image.features:
            if image.features not in stored:
                from calligram.features.images.stored_input import unknown_feature

                raise unknown_feature(image.features, stored)
            return ImageArchitecture("features", int(stored[image.features].row_shape[-1]))
        if len(image.backbones) > 1:
            return ImageArchitecture("features", self.inputs.images.dim)  # type: ignore[attr-defined]
        if self.backbone is None:
            return ImageArchitecture("cnn", channels=image.channels)
        if image.train:
            return ImageArchitecture("backbone", backbone=self.backbone.description)
        return ImageArchitecture("features", self.backbone.dim)

    def _text_architecture(self) -> TextArchitecture:
        text = self.text
        shared = TextArchitecture(
            word_dim=text.word_dim, hidden=text.hidden, bidirectional=text.bidirectional, pooling=text.pooling,
            dropout=text.dropout,
        )  # fmt: skip
        if self.encoder is not None and text.train:
            return replace(shared, kind="bert", encoder=self.encoder.description)
        if self.encoder is not None:
            return replace(shared, kind="states", state_dim=self.encoder.dim)
        if text.network == "vectors":
            return replace(shared, kind="vectors", state_dim=self.inputs.texts.dim)  # type: ignore[attr-defined]
        words = len(self.inputs.texts)
        if text.network != "cnn":
            return replace(shared, kind=text.network, vocabulary=words)
        from calligram.models.layers.text_cnn import TextCNNSettings

        cnn = TextCNNSettings(words, text.word_dim, dropout=text.dropout, **vars(text.cnn))
        return replace(shared, kind="cnn", vocabulary=words, cnn=cnn.description)
