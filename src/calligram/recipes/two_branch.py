"""Recipes ``two-branch`` and ``two-branch-similarity``: images and sentences by two branches."""

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
from calligram.models.layers.networks import RecurrentText
from calligram.models.two_branch import (
    PooledStates,
    TwoBranchEmbedding,
    TwoBranchMatcher,
    TwoBranchSettings,
    TwoBranchSimilarity,
    TwoBranchSimilaritySettings,
)
from calligram.recipes.parts.run import Plan, RunContext
from calligram.recipes.parts.settings import BatchSize, Dim, LearningRate, Optimisation, TrainedSettings
from calligram.recipes.parts.towers import ImageSettings, VectorTextSettings, fitted_text, image_input, need_vectors
from calligram.training.batches.batch import Batches
from calligram.training.batches.pair_sampler import NeighbourhoodSampler
from calligram.training.loop import Stage
from calligram.training.objectives.objective import Objective
from calligram.training.objectives.two_branch import LogisticObjective, NeighbourhoodObjective


@dataclass(frozen=True)
class BranchTextSettings(VectorTextSettings):
    """The text side: fitted vectors, or a network whose weights are trained along (two-branch, Sec. 3.2.1)."""

    source: Annotated[Literal["vectors", "gru", "encoder"], "fitted vectors, a word table and GRU, or a BERT"] = (
        "vectors"
    )
    encoder: Annotated[str, "folder or hub name of a BERT-like encoder, with source=encoder"] = ""
    train: Annotated[bool, "train the encoder too, instead of storing its encodings once"] = False
    min_count: Annotated[int, "words seen less often are unknown to the GRU", (1, 1000000)] = 4
    max_words: Annotated[int, "longer captions are cut, before a GRU or an encoder", (1, 10000)] = 60
    word_dim: Annotated[int, "size of the GRU's word vectors", (1, 65536)] = 300
    hidden: Annotated[int, "size of the GRU's state", (1, 65536)] = 512
    bidirectional: Annotated[bool, "the GRU reads captions both ways"] = False
    pooling: Annotated[Literal["last", "mean", "max", "cls"], "how states become a vector"] = "mean"


@dataclass(frozen=True)
class BranchesRecipe(TrainedSettings):
    """What both networks share; sizes and dropout are the paper's for sentences (two-branch, Sec. 5.3)."""

    epochs: Annotated[int, "passes over the training pairs", (1, 1000000)] = 20
    batch: BatchSize = 500
    lr: LearningRate = 1e-3
    hidden: Annotated[int, "size between the layers of a branch", (1, 65536)] = 2048
    dim: Dim = 512
    layers: Annotated[int, "FC layers of each branch; 1 is linear, without batch norm", (1, 3)] = 2
    text_layers: Annotated[int, "FC layers of the text branch; 0 for as many", (0, 3)] = 0
    dropout: Annotated[float, "share of entries set to zero after each ReLU", (0, 0.99)] = 0.5
    statistics: Annotated[
        Literal["training", "batch"], "of batch norm at test: learnt in training, or of what is encoded together"
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
    """Settings of ``two-branch``; margin, weights and triplets are the paper's for sentences (two-branch, Sec. 5)."""

    weights: Annotated[tuple[float, float], "of image anchors and of text anchors", (0, 1000)] = (1.0, 2.0)
    margin: Annotated[float, "of the hinge, in distance", (0, 2)] = 0.1
    top_k: Annotated[int | None, "triplets of highest loss kept for every pair, or none for all", (1, 1000000)] = 50
    extra: Annotated[
        Literal["none", "neighbours", "random"], "further pairs: second texts of the same images, or as many others"
    ] = "neighbours"
    constraint_epochs: Annotated[int, "further epochs with neighbourhood constraints in the loss", (0, 1000000)] = 0
    constraint_weights: Annotated[
        tuple[float, float], "of image neighbourhoods and of text neighbourhoods, in these", (0, 1000)
    ] = (0.0, 0.2)
    constraint_lr: Annotated[float, "factor on the learning rate, in these", (0, 1000)] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(self.weights):
            raise UserError("weights are both zero; there is nothing to learn")
        if self.constraint_epochs and self.extra != "neighbours":
            raise UserError("neighbourhood constraints need batches that hold neighbours: set extra=neighbours")
        if self.constraint_epochs and not any(self.constraint_weights):
            raise UserError("constraint_epochs needs a constraint_weights that is not zero")


@dataclass(frozen=True)
class TwoBranchSimilarityRecipe(BranchesRecipe):
    """Settings of ``two-branch-similarity``."""

    heads: Annotated[int, "FC layers after the element-wise product", (1, 3)] = 3


def plan(settings: TwoBranchRecipe, collection: Collection, around: RunContext) -> Plan:
    """The embedding network: ranking, then ranking with neighbourhood constraints."""
    sides = _SentenceTowers(settings, collection, around)
    batches = sides.batches(
        NeighbourhoodSampler(sides.train.matches, settings.batch, settings.seed, extra=settings.extra)
    )
    objective = NeighbourhoodObjective((*settings.weights, 0.0, 0.0), settings.margin, settings.top_k)
    stages = [_stage("ranking", settings.epochs, objective, batches, settings)]
    if settings.constraint_epochs:
        constrained = NeighbourhoodObjective(
            (*settings.weights, *settings.constraint_weights), settings.margin, settings.top_k
        )
        second = _stage("constraints", settings.constraint_epochs, constrained, batches, settings)
        # Chosen anew: the constraints are asked for, whether or not they help across modalities.
        stages.append(replace(second, lr=settings.lr * settings.constraint_lr, resets_best=True))
    return Plan(sides.start(TwoBranchEmbedding(sides.shape)), sides.inputs, tuple(stages), settings.loop())


def plan_similarity(settings: TwoBranchSimilarityRecipe, collection: Collection, around: RunContext) -> Plan:
    """The similarity network."""
    sides = _SentenceTowers(settings, collection, around)
    batches = sides.batches(NeighbourhoodSampler(sides.train.matches, settings.batch, settings.seed, extra="none"))
    matcher = TwoBranchSimilarity(TwoBranchSimilaritySettings(**vars(sides.shape), heads=settings.heads))
    stage = _stage("logistic", settings.epochs, LogisticObjective("texts"), batches, settings)
    return Plan(sides.start(matcher), sides.inputs, (stage,), settings.loop())


def _stage(name: str, epochs: int, objective: Objective, batches: Batches, settings: BranchesRecipe) -> Stage:
    optim = settings.optim
    return Stage(
        name, epochs, objective, batches, optim.build, settings.lr, optim.part_lr(), optim.frozen, optim.factor(),
        optim.clip, optim.accumulate,
    )  # fmt: skip


class _SentenceTowers:
    """Both sides of a recipe: inputs, shape and starting weights."""

    def __init__(self, settings: BranchesRecipe, collection: Collection, around: RunContext) -> None:
        image, text = settings.image, settings.text
        need_vectors(image)
        self.settings, self.around = settings, around
        self.train: Pairing = collection.sentences("train").join_equal_texts()
        self.backbone = Backbone.load(image.backbone).to(around.device) if image.backbone else None
        self.encoder = TextEncoder.load(text.encoder).to(around.device) if text.encoder else None
        self.inputs = Inputs(image_input(image, self.backbone), self._text_input())
        shape = TwoBranchSettings(
            image_dim=self._image_dim(collection),
            text_dim=text.hidden,
            hidden=settings.hidden,
            dim=settings.dim,
            layers=settings.layers,
            text_layers=settings.text_layers,
            dropout=settings.dropout,
            statistics=settings.statistics,
            word_dim=text.word_dim,
            bidirectional=text.bidirectional,
            pooling=text.pooling,
        )
        if image.train and self.backbone is not None:
            shape = replace(shape, image="backbone", backbone=self.backbone.description)
        self.shape = self._with_text(shape)

    def _image_dim(self, collection: Collection) -> int:
        if self.backbone is not None:
            return self.backbone.dim
        name = self.settings.image.features
        if name not in collection.features:
            raise unknown_feature(name, collection.features)
        return int(collection.features[name].row_shape[-1])

    def _text_input(self) -> TextInput:
        text, strings = self.settings.text, self.train.texts.strings
        if text.source == "vectors":
            return fitted_text(text, strings, self.around.track, self.train.visuals.pictures.cache)
        if self.encoder is None:
            return Vocabulary.build(strings, text.min_count, text.max_words)
        pieces = WordPieces.load_pretrained(text.encoder, text.max_words)
        return pieces if text.train else EncoderInput(self.encoder.eval(), pieces, Path(text.encoder).name)

    def _with_text(self, shape: TwoBranchSettings) -> TwoBranchSettings:
        text, words = self.settings.text, self.inputs.texts
        if text.source == "gru":
            return replace(shape, text="gru", vocabulary=len(words))
        if self.encoder is not None:
            shape = replace(shape, text="states", text_dim=self.encoder.dim)
            return replace(shape, text="bert", encoder=self.encoder.description) if text.train else shape
        assert isinstance(words, TextVectorInput)
        return replace(shape, text_dim=words.dim)

    def start(self, matcher: TwoBranchMatcher) -> TwoBranchMatcher:
        """The matcher with the backbone's, the encoder's or the word vectors' weights where they are given."""
        text, words = self.settings.text, self.inputs.texts
        if self.shape.image == "backbone" and self.backbone is not None:
            matcher.image.load_state_dict(self.backbone.state_dict())
        if isinstance(matcher.text, PooledStates) and matcher.text.encoder is not None and self.encoder is not None:
            matcher.text.encoder.load_state_dict(self.encoder.state_dict())
        if text.words and isinstance(words, Vocabulary) and isinstance(matcher.text, RecurrentText):
            matcher.text.words.weight.data.copy_(pretrained_embeddings(words, Path(text.words), text.word_dim).vectors)
        return matcher

    def batches(self, sampler: NeighbourhoodSampler) -> Batches:
        """Training batches."""
        image = self.settings.image
        return Batches(
            self.train,
            self.inputs,
            sampler,
            augment=image.augment,
            device=self.around.device,
            processes=self.around.processes,
            track=self.around.track,
        )
