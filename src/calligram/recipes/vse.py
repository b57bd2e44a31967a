"""Recipe ``vse``: a visual-semantic embedding from pixels, a backbone or stored features, by hinge or softmax loss."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from calligram.data.collection import Collection
from calligram.errors import UserError, unknown
from calligram.features.backbone_input import BackboneInput
from calligram.features.backbones import Backbone, pixel_input
from calligram.features.encoder_input import EncoderInput
from calligram.features.inputs import ImageInput, Inputs, TextInput
from calligram.features.pixels import Augment, PixelInput
from calligram.features.stored import StoredInput
from calligram.features.text_encoder import TextEncoder
from calligram.features.vocabulary import Vocabulary
from calligram.features.word_vectors import initial_table
from calligram.features.wordpieces import WordPieces
from calligram.models.layers import RecurrentText
from calligram.models.text_encoders import BertText
from calligram.models.vse import VSE, VSESettings
from calligram.recipes.optimisation import Optimisation
from calligram.recipes.plan import Plan, Surroundings
from calligram.recipes.stages import PairLoss, pair_stages
from calligram.training.batch import Batches
from calligram.training.loop import Loop, Precision
from calligram.training.samplers import PairSampler

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageSettings:
    """The image side."""

    backbone: Annotated[str, "folder or hub name of a vision model; empty trains a small CNN from scratch"] = ""
    train: Annotated[bool, "train the backbone too, instead of storing its features once"] = False
    features: Annotated[str, "name of feature arrays stored with the collection, instead of pixels"] = ""
    size: Annotated[int, "side of the square pictures are resized to; 0 for the backbone's own, or 96", (0, 4096)] = 0
    fit: Annotated[Literal["squash", "crop"], "keep all of the picture, distorted, or its middle square"] = "squash"
    views: Annotated[Literal["one", "flip", "ten"], "outside training: as it is, also mirrored, or ten crops"] = "one"
    channels: Annotated[tuple[int, ...], "width of the small CNN's blocks", (1, 8192)] = (16, 48, 96, 192)
    crop: Annotated[float, "smallest share of a picture that a random training crop keeps", (0.01, 1)] = 0.9
    flip: Annotated[bool, "mirror half of the training pictures; harmful where captions say left and right"] = False
    jitter: Annotated[float, "largest random change of brightness, contrast and saturation", (0, 1)] = 0.0


@dataclass(frozen=True)
class TextSettings:
    """The text side."""

    encoder: Annotated[str, "folder or hub name of a BERT-like encoder; empty trains a word table and a GRU"] = ""
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
    blank: Annotated[float, "share of words hidden in training", (0, 0.99)] = 0.0


@dataclass(frozen=True)
class VSERecipe:
    """Settings of ``vse``; the defaults suit a small network trained from scratch on a few thousand pictures."""

    seed: Annotated[int, "source of all randomness", (0, 4611686018427387904)] = 0
    epochs: Annotated[int, "passes over the training pairs, warm-up included", (1, 1000000)] = 12
    warmup_epochs: Annotated[int, "first epochs that use all negatives before top_k hardest ones", (0, 1000000)] = 2
    batch: Annotated[int, "images in a batch, over all processes", (2, 1000000)] = 64
    texts: Annotated[int, "captions that come with each image of a batch", (1, 1000)] = 3
    epoch_of: Annotated[Literal["pairs", "images"], "an epoch takes all pairs, or every image once"] = "images"
    loss: Annotated[Literal["ranking", "infonce"], "triplet hinge or symmetric InfoNCE"] = "infonce"
    margin: Annotated[float, "of the hinge", (0, 100)] = 0.2
    top_k: Annotated[int | None, "hardest negatives per anchor that count, or none for all", (1, 1000000)] = 1
    temperature: Annotated[float, "of InfoNCE at the start; it is learnt", (0.001, 100)] = 0.07
    ignore_also_true: Annotated[bool, "leave out negatives known to be true; scenes know them"] = False
    lr: Annotated[float, "learning rate", (0, 1000)] = 4e-3
    dim: Annotated[int, "size of the joint space", (1, 65536)] = 256
    precision: Annotated[Precision, "arithmetic of the network"] = "fp32"
    average: Annotated[float, "decay of the weight average that is evaluated and saved; 0 for none", (0, 0.999999)] = (
        0.99
    )
    save_steps: Annotated[
        int, "save the state every so many steps, besides after every epoch; 0 for not", (0, 1000000000)
    ] = 0
    image: ImageSettings = field(default_factory=ImageSettings)
    text: TextSettings = field(default_factory=TextSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        if self.text.pooling == "cls" and not self.text.encoder:
            raise UserError("text.pooling=cls needs a text.encoder; a GRU takes last, mean or max")
        if self.text.pooling == "last" and self.text.encoder:
            raise UserError("text.pooling=last is for the GRU; a text.encoder takes mean, max or cls")
        if self.text.train and not self.text.encoder:
            raise UserError("text.train=true needs a text.encoder; a GRU is always trained")
        if self.text.blank and self.text.encoder and not self.text.train:
            raise UserError("text.blank needs text.train=true: the words of stored encodings cannot be hidden")
        if self.image.views != "one" and self.image.features:
            raise UserError("image.views needs pictures; stored features have been computed already")
        if not self.image.channels:
            raise UserError("image.channels needs at least one width")


def plan(settings: VSERecipe, collection: Collection, around: Surroundings) -> Plan:
    """Inputs, matcher and stages."""
    train = collection.sentences("train").join_equal_texts()
    image, text = settings.image, settings.text
    backbone = Backbone.load(image.backbone).to(around.device) if image.backbone else None
    encoder = TextEncoder.load(text.encoder).to(around.device) if text.encoder else None
    inputs = Inputs(image_input(image, backbone), _text_input(text, encoder, train.texts.strings))
    shape = _with_text(_with_image(_shape(settings), image, collection, backbone), text, inputs.texts, encoder)
    matcher = _matcher(shape, text, inputs.texts, backbone, encoder)
    per_image = settings.epoch_of == "images"
    batches = Batches(
        train,
        inputs,
        PairSampler(train.matches, settings.batch, settings.seed, texts=settings.texts, per_image=per_image),
        augment=Augment(image.crop, image.flip, image.jitter),
        blank=text.blank,
        device=around.device,
        processes=around.processes,
        ignore_also_true=settings.ignore_also_true,
        track=around.track,
    )
    loop = Loop(settings.seed, settings.precision, settings.average, save_steps=settings.save_steps)
    loss = PairLoss(settings.loss, settings.margin, settings.top_k, settings.warmup_epochs, settings.temperature)
    optim = settings.optim
    return Plan(matcher, inputs, pair_stages(loss, settings.epochs, batches, optim, settings.lr, optim.frozen), loop)


def image_input(image: ImageSettings, backbone: Backbone | None) -> ImageInput:
    """Stored features, pixels, or features of a backbone that is not trained."""
    if image.features:
        return StoredInput(image.features)
    if backbone is None:
        return PixelInput(image.size or 96, image.fit, views=image.views)
    pixels = replace(pixel_input(image.backbone, image.size or None, image.fit), views=image.views)
    return pixels if image.train else BackboneInput(backbone.eval(), pixels, Path(image.backbone).name)


def _text_input(text: TextSettings, encoder: TextEncoder | None, strings: Sequence[str]) -> TextInput:
    if encoder is None:
        return Vocabulary.build(strings, text.min_count, text.max_words)
    pieces = WordPieces.load_pretrained(text.encoder, text.max_words)
    return pieces if text.train else EncoderInput(encoder.eval(), pieces, Path(text.encoder).name)


def _matcher(
    shape: VSESettings, text: TextSettings, words: TextInput, backbone: Backbone | None, encoder: TextEncoder | None
) -> VSE:
    """The matcher, starting from the backbone's, the encoder's or the word vectors' weights where they are given."""
    matcher = VSE(shape)
    if shape.image == "backbone" and backbone is not None:
        matcher.image.load_state_dict(backbone.state_dict())
    if isinstance(matcher.text, BertText) and encoder is not None:
        matcher.text.encoder.load_state_dict(encoder.state_dict())
    if text.vectors and isinstance(words, Vocabulary) and isinstance(matcher.text, RecurrentText):
        table = initial_table(words, Path(text.vectors), text.word_dim)
        log.info("word vectors for %d of %d words", table.found, len(words))
        matcher.text.words.weight.data.copy_(table.vectors)
    return matcher


def _shape(settings: VSERecipe) -> VSESettings:
    """Both branches as far as the settings alone say."""
    text = settings.text
    return VSESettings(
        vocabulary=0,
        dim=settings.dim,
        channels=settings.image.channels,
        word_dim=text.word_dim,
        hidden=text.hidden,
        bidirectional=text.bidirectional,
        pooling=text.pooling,
        dropout=text.dropout,
    )


def _with_text(shape: VSESettings, text: TextSettings, words: TextInput, encoder: TextEncoder | None) -> VSESettings:
    if encoder is None:
        return replace(shape, vocabulary=len(words))
    if text.train:
        return replace(shape, text="bert", encoder=encoder.description)
    return replace(shape, text="states", state_dim=encoder.dim)


def _with_image(
    shape: VSESettings, image: ImageSettings, collection: Collection, backbone: Backbone | None
) -> VSESettings:
    if image.features:
        if image.features not in collection.features:
            raise unknown("stored feature", image.features, collection.features)
        return replace(shape, image="features", feature_dim=collection.features[image.features].row_shape[-1])
    if backbone is None:
        return shape
    if image.train:
        return replace(shape, image="backbone", backbone=backbone.description)
    return replace(shape, image="features", feature_dim=backbone.dim)
