"""Any matcher by name, with its inputs: for recipes that are about how to train rather than what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.models.branches import WordStates
from calligram.models.heads import HeadKind
from calligram.models.matcher import Matcher
from calligram.models.pretrained import load_dual_encoder
from calligram.models.two_branch import TwoBranchEmbedding, TwoBranchSettings
from calligram.recipes.embedding import ImageSettings, Sides, TextSettings, check_sides
from calligram.recipes.fragment_models import (
    FRAGMENTS,
    FragmentModels,
    check_fragments,
    extra_objectives,
    fragment_matcher,
    fragment_sides,
)
from calligram.recipes.plan import Surroundings
from calligram.recipes.vector_text import need_vectors
from calligram.training.objectives import Objective

MatcherName = Literal["vse", "dual-path", "two-branch", "pretrained", "scan", "bfan", "vsrn", "a3vse", "mmca"]
Extra = tuple[tuple[float, Objective], ...]
"""objectives that a matcher is trained with beside any other, with their weights"""


@dataclass(frozen=True)
class Model:
    """What is built."""

    matcher: MatcherName
    image: ImageSettings
    text: TextSettings
    dim: int
    head: HeadKind
    model: str
    """folder or hub name, of ``pretrained``"""
    fragments: FragmentModels = field(default_factory=FragmentModels)

    def check(self) -> None:
        """Refuse settings that do not go together."""
        if self.matcher in FRAGMENTS:
            check_fragments(self.matcher, self.image, self.text, self.fragments)
        else:
            check_sides(self.image, self.text)
        if self.matcher == "dual-path" and self.text.network != "cnn":
            raise UserError(
                "matcher=dual-path reads texts with a CNN: give --set text.network=cnn, or take matcher=vse for a GRU "
                "or a text.encoder"
            )
        if self.matcher == "pretrained" and not self.model:
            raise UserError("matcher=pretrained needs a model: give --set model= with a folder or a hub name")
        if self.matcher == "two-branch":
            need_vectors(self.image)
            if self.text.network == "cnn":
                raise UserError("text.network=cnn is not for matcher=two-branch; it takes gru, or a text.encoder")


class Built(NamedTuple):
    """A matcher ready to be trained."""

    matcher: Matcher
    inputs: Inputs
    extra: Extra = ()


def built(model: Model, train: Pairing, around: Surroundings) -> Built:
    """The matcher with its inputs; ``vse`` and ``dual-path`` differ in their settings alone."""
    model.check()
    if model.matcher == "pretrained":
        matcher, inputs, _ = load_dual_encoder(
            model.model, fit="own", views=model.image.views, max_pieces=model.text.max_words
        )
        return Built(matcher, inputs)
    if model.matcher in FRAGMENTS:
        sides = fragment_sides(model.image, model.text, train, around, model.dim)
        regions = fragment_matcher(model.matcher, model.fragments, sides)
        return Built(regions, sides.inputs, extra_objectives(model.matcher, model.fragments, sides))
    sides = Sides(model.image, model.text, train, around, dim=model.dim, head=model.head)
    if model.matcher == "two-branch":
        return Built(_two_branch(sides), sides.inputs)
    return Built(sides.matcher(), sides.inputs)


def _two_branch(sides: Sides) -> TwoBranchEmbedding:
    """The two-branch network over a GRU or an encoder; its recipe has fitted text vectors as well."""
    shape, backbone, encoder = sides.shape, sides.backbone, sides.encoder
    assert shape.text in ("gru", "bert", "states")
    matcher = TwoBranchEmbedding(
        TwoBranchSettings(
            image_dim=backbone.dim if backbone is not None else shape.feature_dim,
            text_dim=encoder.dim if encoder is not None else shape.hidden,
            dim=shape.dim,
            image="backbone" if shape.image == "backbone" else "features",
            backbone=shape.backbone,
            text=shape.text,
            encoder=shape.encoder,
            vocabulary=shape.vocabulary,
            word_dim=shape.word_dim,
            bidirectional=shape.bidirectional,
            pooling=shape.pooling,
        )
    )
    if isinstance(matcher.text, WordStates) and matcher.text.encoder is not None and encoder is not None:
        matcher.text.encoder.load_state_dict(encoder.state_dict())
    return sides.started(matcher)
