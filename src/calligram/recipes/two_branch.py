"""Recipes ``two-branch`` and ``two-branch-similarity``: networks with two branches for images and sentences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.images.backbones import Backbone
from calligram.features.images.stored_input import unknown_feature
from calligram.features.inputs import Inputs, TextInput
from calligram.features.texts.text_encoder import EncoderInput, TextEncoder
from calligram.features.texts.text_vectors import TextVectorInput
from calligram.features.texts.vocabulary import Vocabulary
from calligram.features.texts.word_vectors import pretrained_embeddings
from calligram.features.texts.wordpieces import WordPieces
from calligram.models.layers.networks import BertText
from calligram.models.layers.towers import ImageArchitecture, RecurrentText, TextArchitecture
from calligram.models.two_branch import (
    TwoBranchEmbedding,
    TwoBranchMatcher,
    TwoBranchSettings,
    TwoBranchSimilarity,
    TwoBranchSimilaritySettings,
)
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import BatchSize, Dim, Epochs, LearningRate, Optimisation, TrainedSettings
from calligram.recipes.parts.text_vectors import VectorTextSettings, fitted_text
from calligram.recipes.parts.towers import ImageSettings, image_input, need_features
from calligram.training.batches.batch import Batches, NeighbourhoodSampler
from calligram.training.loop import Stage
from calligram.training.objectives.objective import Objective
from calligram.training.objectives.two_branch import LogisticObjective, NeighbourhoodObjective

HiddenSize = Annotated[int, "dimension between the layers of a branch", (1, 65536)]
BranchLayers = Annotated[int, "number of FC layers of each branch; 1 is linear, without batch norm", (1, 3)]
BranchDropout = Annotated[float, "dropout rate after each ReLU", (0, 0.99)]
DistanceMargin = Annotated[float, "margin of the hinge, in Euclidean distance", (0, 2)]
TripletsKept = Annotated[
    int | None, "number of triplets with the highest loss that are kept for every pair; none for all", (1, 1000000)
]
ConstraintEpochs = Annotated[int, "number of further epochs with neighbourhood constraints in the loss", (0, 1000000)]
ConstraintLR = Annotated[float, "factor on the learning rate in the epochs with constraints", (0, 1000)]


@dataclass(frozen=True)
class BranchTextSettings(VectorTextSettings):
    """Settings of the text tower: fitted vectors, or a network that is trained too (two-branch, Sec. 3.2.1)."""

    source: Annotated[
        Literal["vectors", "gru", "encoder"],
        "text representation: fitted vectors, a GRU over a word table (gru), or a BERT-like encoder (encoder)",
    ] = "vectors"
    encoder: Annotated[str, "folder or hub name of a BERT-like encoder, with text.source=encoder"] = ""
    train: Annotated[bool, "train the encoder instead of storing its states once"] = False
    min_count: Annotated[
        int, "smallest number of occurrences of a word for the GRU; rarer words are unknown", (1, 1000000)
    ] = 4
    max_words: Annotated[
        int, "largest number of words of a caption, for a GRU or an encoder; further words are cut off", (1, 10000)
    ] = 60
    word_dim: Annotated[int, "dimension of the GRU's word vectors", (1, 65536)] = 300
    hidden: Annotated[int, "dimension of the GRU's state", (1, 65536)] = 512
    bidirectional: Annotated[bool, "let the GRU read captions in both directions"] = False
    pooling: Annotated[Literal["last", "mean", "max", "cls"], "pooling of states into one vector"] = "mean"


@dataclass(frozen=True)
class BranchesRecipe(TrainedSettings):
    """Settings of both networks; sizes and dropout are those of the paper for sentences (two-branch, Sec. 5.3)."""

    epochs: Epochs = 20
    batch: BatchSize = 500
    lr: LearningRate = 1e-3
    hidden: HiddenSize = 2048
    dim: Dim = 512
    layers: BranchLayers = 2
    text_layers: Annotated[int, "number of FC layers of the text branch; 0 for as many as the image branch", (0, 3)] = 0
    dropout: BranchDropout = 0.5
    statistics: Annotated[
        Literal["training", "batch"],
        "statistics of batch norm at test: running ones of training, or those of the items encoded together (batch)",
    ] = "training"
    image: ImageSettings = field(default_factory=ImageSettings)
    text: BranchTextSettings = field(default_factory=BranchTextSettings)
    optim: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        text = self.text
        if (text.source == "encoder") != bool(text.encoder):
            raise UserError("text.source=encoder and text.encoder go together; give both or neither")
        if text.train and text.source != "encoder":
            raise UserError("text.train=true needs text.source=encoder; a GRU is always trained")
        if text.pooling == "cls" and text.source == "gru":
            raise UserError("text.pooling=cls needs a text.encoder; a GRU takes last, mean or max")
        if text.pooling == "last" and text.source == "encoder":
            raise UserError("text.pooling=last is for the GRU; a text.encoder takes mean, max or cls")


@dataclass(frozen=True)
class TwoBranchRecipe(BranchesRecipe):
    """Settings of ``two-branch``; margin, weights and triplets of the paper for sentences (two-branch, Sec. 5)."""

    weights: Annotated[tuple[float, float], "weights of image anchors and of text anchors", (0, 1000)] = (1.0, 2.0)
    margin: DistanceMargin = 0.1
    top_k: TripletsKept = 50
    extra: Annotated[
        Literal["none", "neighbours", "random"],
        "further pairs in a batch: second texts of the same images (neighbours), or as many random pairs",
    ] = "neighbours"
    constraint_epochs: ConstraintEpochs = 0
    constraint_weights: Annotated[
        tuple[float, float], "weights of image neighbourhoods and of text neighbourhoods in these epochs", (0, 1000)
    ] = (0.0, 0.2)
    constraint_lr: ConstraintLR = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(self.weights):
            raise UserError("weights are both zero, so there is nothing to train; give a weight above zero")
        if self.constraint_epochs and self.extra != "neighbours":
            raise UserError("neighbourhood constraints need neighbours in a batch: give extra=neighbours")
        if self.constraint_epochs and not any(self.constraint_weights):
            raise UserError("constraint_epochs needs a constraint_weights above zero")


@dataclass(frozen=True)
class TwoBranchSimilarityRecipe(BranchesRecipe):
    """Settings of ``two-branch-similarity``."""

    heads: Annotated[int, "number of FC layers after the element-wise product", (1, 3)] = 3


def plan(settings: TwoBranchRecipe, collection: Collection, context: RunContext) -> Plan:
    """Plan the embedding network: ranking, then ranking with neighbourhood constraints."""
    towers = _SentenceTowers(settings, collection, context)
    batches = towers.batches(
        NeighbourhoodSampler(towers.train.matches, settings.batch, settings.seed, extra=settings.extra)
    )
    objective = NeighbourhoodObjective((*settings.weights, 0.0, 0.0), settings.margin, settings.top_k)
    stages = [_stage("ranking", settings.epochs, objective, batches, settings)]
    if settings.constraint_epochs:
        constrained = NeighbourhoodObjective(
            (*settings.weights, *settings.constraint_weights), settings.margin, settings.top_k
        )
        second = _stage("constraints", settings.constraint_epochs, constrained, batches, settings)
        # The best epoch is selected among these only: the user asked for constraints, helpful or not.
        stages.append(replace(second, lr=settings.lr * settings.constraint_lr, resets_best=True))
    return Plan(
        towers.with_pretrained_weights(TwoBranchEmbedding(towers.shape)), towers.inputs, tuple(stages), settings.loop()
    )


def plan_similarity(settings: TwoBranchSimilarityRecipe, collection: Collection, context: RunContext) -> Plan:
    """Plan the similarity network, trained by logistic regression of pairs."""
    towers = _SentenceTowers(settings, collection, context)
    batches = towers.batches(NeighbourhoodSampler(towers.train.matches, settings.batch, settings.seed, extra="none"))
    matcher = TwoBranchSimilarity(TwoBranchSimilaritySettings(**vars(towers.shape), heads=settings.heads))
    stage = _stage("logistic", settings.epochs, LogisticObjective("texts"), batches, settings)
    return Plan(towers.with_pretrained_weights(matcher), towers.inputs, (stage,), settings.loop())


def _stage(name: str, epochs: int, objective: Objective, batches: Batches, settings: BranchesRecipe) -> Stage:
    optim = settings.optim
    return Stage(
        name, epochs, objective, batches, optim.build, settings.lr, optim.part_lr(), optim.frozen, optim.factor(),
        optim.clip, optim.accumulate,
    )  # fmt: skip


class _SentenceTowers:
    """The inputs, the settings of the network and its initial weights."""

    def __init__(self, settings: BranchesRecipe, collection: Collection, context: RunContext) -> None:
        image, text = settings.image, settings.text
        need_features(image)
        self.settings, self.context = settings, context
        self.train: Pairing = collection.sentences("train").join_equal_texts()
        self.backbone = Backbone.load(image.backbone).to(context.device) if image.backbone else None
        self.encoder = TextEncoder.load(text.encoder).to(context.device) if text.encoder else None
        self.inputs = Inputs(image_input(image, self.backbone), self._text_input())
        self.shape = TwoBranchSettings(
            image=self._image_architecture(collection),
            text=self._text_architecture(),
            hidden=settings.hidden,
            dim=settings.dim,
            layers=settings.layers,
            text_layers=settings.text_layers,
            dropout=settings.dropout,
            statistics=settings.statistics,
        )

    def _image_architecture(self, collection: Collection) -> ImageArchitecture:
        if self.backbone is not None and self.settings.image.train:
            return ImageArchitecture("backbone", backbone=self.backbone.description)
        if self.backbone is not None:
            return ImageArchitecture("features", self.backbone.dim)
        name = self.settings.image.features
        if name not in collection.features:
            raise unknown_feature(name, collection.features)
        return ImageArchitecture("features", int(collection.features[name].row_shape[-1]))

    def _text_input(self) -> TextInput:
        text, strings = self.settings.text, self.train.texts.strings
        if text.source == "vectors":
            return fitted_text(text, strings, self.context.track, self.train.visuals.pictures.cache)
        if self.encoder is None:
            return Vocabulary.build(strings, text.min_count, text.max_words)
        pieces = WordPieces.load_pretrained(text.encoder, text.max_words)
        return pieces if text.train else EncoderInput(self.encoder.eval(), pieces, Path(text.encoder).name)

    def _text_architecture(self) -> TextArchitecture:
        text, words = self.settings.text, self.inputs.texts
        shape = TextArchitecture(
            word_dim=text.word_dim, hidden=text.hidden, bidirectional=text.bidirectional, pooling=text.pooling
        )
        if text.source == "gru":
            return replace(shape, kind="gru", vocabulary=len(words))
        if self.encoder is not None and text.train:
            return replace(shape, kind="bert", encoder=self.encoder.description)
        if self.encoder is not None:
            return replace(shape, kind="states", state_dim=self.encoder.dim)
        assert isinstance(words, TextVectorInput)
        return replace(shape, kind="vectors", state_dim=words.dim)

    def with_pretrained_weights(self, matcher: TwoBranchMatcher) -> TwoBranchMatcher:
        """Load the weights of the backbone, the text encoder and the word vectors, where they are given."""
        text, words = self.settings.text, self.inputs.texts
        if self.shape.image.kind == "backbone" and self.backbone is not None:
            matcher.image.load_state_dict(self.backbone.state_dict())
        if isinstance(matcher.text, BertText) and self.encoder is not None:
            matcher.text.encoder.load_state_dict(self.encoder.state_dict())
        if text.words and isinstance(words, Vocabulary) and isinstance(matcher.text, RecurrentText):
            matcher.text.words.weight.data.copy_(pretrained_embeddings(words, Path(text.words), text.word_dim).vectors)
        return matcher

    def batches(self, sampler: NeighbourhoodSampler) -> Batches:
        """Return the training batches."""
        image = self.settings.image
        return Batches(
            self.train,
            self.inputs,
            sampler,
            augment=image.augment,
            device=self.context.device,
            processes=self.context.processes,
            track=self.context.track,
        )
