"""Any matcher by name, with its inputs: for recipes that are about how to train rather than what."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, NamedTuple

from calligram.data.pairing import Pairing
from calligram.errors import UserError, unknown
from calligram.features.inputs import Inputs
from calligram.models.a3vse import A3VSE, A3VSESettings
from calligram.models.bfan import BFAN, BFANSettings
from calligram.models.layers.cross_attention import Aggregation, Norm
from calligram.models.layers.networks import HeadKind
from calligram.models.layers.part_towers import PartSettings
from calligram.models.matcher import Matcher
from calligram.models.mmca import MMCA, MMCASettings
from calligram.models.pretrained import load_dual_encoder
from calligram.models.scan import SCAN, SCANSettings
from calligram.models.two_branch import PooledStates, TwoBranchEmbedding, TwoBranchSettings
from calligram.models.vsrn import VSRN, VSRNSettings
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.towers import ImageSettings, TextSettings, Towers, check_sides, need_vectors
from calligram.training.objectives.caption import CaptionObjective
from calligram.training.objectives.objective import Objective

# Matchers of regions and words as recipes set them up: settings, sides, matcher, and what only training needs.

FRAGMENTS = ("scan", "bfan", "vsrn", "a3vse", "mmca")


@dataclass(frozen=True)
class ScanModel:
    """SCAN's attention; the defaults are the release's t-i LSE."""

    direction: Annotated[Literal["t2i", "i2t"], "each word looks at regions, or each region at words"] = "t2i"
    norm: Annotated[Norm, "of products of regions and words, over what looks"] = "clipped_l2norm"
    temperature: Annotated[float, "factor on them before the softmax; the release's i2t has 4", (0, 10000)] = 9.0
    aggregation: Annotated[Aggregation, "of relevances into a score"] = "lse"
    sharpness: Annotated[float, "of LogSumExp; the release's i2t has 5, or 20 on MS-COCO", (0.001, 10000)] = 6.0


@dataclass(frozen=True)
class BFANModel:
    """BFAN's focus."""

    focal: Annotated[Literal["equal", "prob"], "relevant is more than the mean, or than others by confidence"] = "equal"
    norm: Annotated[Norm, "of products of regions and words, over what looks"] = "clipped_l2norm"
    temperature: Annotated[float, "factor on them before the softmax", (0, 10000)] = 20.0


@dataclass(frozen=True)
class VSRNModel:
    """VSRN's reasoning, and the writing of captions."""

    layers: Annotated[int, "steps of reasoning", (0, 100)] = 4
    norm: Annotated[
        Literal["regions", "features"], "axis along which regions get length one; the release's: regions"
    ] = "regions"
    norm_before: Annotated[bool, "also before reasoning; the release on MS-COCO alone"] = True
    batch_norm: Annotated[bool, "of the image's vector; the release on Flickr30K alone"] = False
    reader: Annotated[
        Literal["gru", "mean"], "of regions into a vector: vsrn's GRU, or the mean, for cells that have no order"
    ] = "gru"
    captions: Annotated[
        float, "weight of writing captions; 0 for none. The release's is 1 beside a sum over the batch", (0, 1000)
    ] = 0.01
    writer: Annotated[int, "size of the state that writes captions", (1, 65536)] = 512


@dataclass(frozen=True)
class A3VSEModel:
    """A3VSE's attention of each side to itself (a3vse, Eq. 1)."""

    attention: Annotated[Literal["context", "mean"], "weigh regions and words by their context, or all alike"] = (
        "context"
    )
    heads: Annotated[int, "attentions of each side, K", (1, 1000)] = 3
    context: Annotated[int, "size of the space in which context and parts are compared, K'", (1, 65536)] = 512
    temperature: Annotated[
        float | None, "factor before the softmax, lambda; none for one over the root of context", (0, 10000)
    ] = None
    merge: Annotated[Literal["concat", "mean"], "what the heads become: one after the other, or their mean"] = "concat"
    cell: Annotated[Literal["lstm", "gru"], "what reads words, without a text.encoder"] = "lstm"


@dataclass(frozen=True)
class MMCAModel:
    """MMCA's attention within and between images and texts (mmca, Sec. 4.2)."""

    heads: Annotated[int, "of each Transformer unit; dim is a multiple", (1, 1000)] = 16
    filters: Annotated[int, "for each window of one, two and three words", (1, 65536)] = 256
    alpha: Annotated[float, "weight of attention between image and text; 0 leaves it out", (0, 1000)] = 0.2
    hide: Annotated[float, "share of regions or cells left out in training, of a trained backbone too", (0, 0.99)] = 0.0


@dataclass(frozen=True)
class FragmentModels:
    """Settings of each matcher, of which one's count; a recipe's settings may inherit them."""

    scan: ScanModel = field(default_factory=ScanModel)
    bfan: BFANModel = field(default_factory=BFANModel)
    vsrn: VSRNModel = field(default_factory=VSRNModel)
    a3vse: A3VSEModel = field(default_factory=A3VSEModel)
    mmca: MMCAModel = field(default_factory=MMCAModel)


def check_fragments(matcher: str, image: ImageSettings, text: TextSettings, models: FragmentModels) -> None:
    """Refuse settings that do not go together."""
    need_vectors(image)
    check_sides(image, text)
    if text.network == "cnn":
        raise UserError("text.network=cnn gives a caption one vector; matchers of words take gru, or a text.encoder")
    if image.views == "ten":
        raise UserError("image.views=ten averages over crops, whose cells are different places; take one or flip")
    if matcher == "vsrn" and models.vsrn.captions and text.encoder and not text.train:
        raise UserError(
            "captions are written word by word, and stored encodings have no words; "
            "take vsrn.captions=0, text.train=true, or no text.encoder"
        )


def fragment_sides(image: ImageSettings, text: TextSettings, train: Pairing, around: RunContext, dim: int) -> Towers:
    """Both sides with a backbone's grid in place of its vector."""
    return Towers(image, text, train, around, dim=dim, parts="grid")


def fragment_matcher(matcher: str, models: FragmentModels, sides: Towers) -> Matcher:
    """``scan``, ``bfan``, ``vsrn``, ``a3vse`` or ``mmca``, starting from the sides' weights where there are any."""
    shared: dict[str, Any] = {f.name: getattr(sides.shape, f.name) for f in fields(PartSettings)}
    if matcher == "scan":
        return sides.started(SCAN(SCANSettings(**shared, **vars(models.scan))))
    if matcher == "bfan":
        return sides.started(BFAN(BFANSettings(**shared, **vars(models.bfan))))
    if matcher == "vsrn":
        own = {k: v for k, v in vars(models.vsrn).items() if k not in ("captions", "writer")}
        return sides.started(VSRN(VSRNSettings(**shared, **own)))
    if matcher == "a3vse":
        return sides.started(A3VSE(A3VSESettings(**shared, **vars(models.a3vse))))
    if matcher == "mmca":
        return sides.started(MMCA(MMCASettings(**shared, **vars(models.mmca))))
    raise unknown("matcher of regions and words", matcher, FRAGMENTS)


def extra_objectives(matcher: str, models: FragmentModels, sides: Towers) -> tuple[tuple[float, Objective], ...]:
    """What is minimised beside the scores' loss, with its weight: VSRN's captions."""
    own, words = models.vsrn, sides.inputs.texts
    if matcher != "vsrn" or not own.captions:
        return ()
    blank = words.mask_token if sides.text.hidden_words else None
    writer = CaptionObjective(
        sides.shape.dim, len(words), hidden=own.writer, word_dim=sides.text.word_dim, mask_token=blank
    )
    return ((own.captions, writer),)


MatcherName = Literal["vse", "dual-path", "two-branch", "pretrained", "scan", "bfan", "vsrn", "a3vse", "mmca"]
ExtraObjectives = tuple[tuple[float, Objective], ...]
"""objectives that a matcher is trained with beside any other, with their weights"""


@dataclass(frozen=True)
class MatcherSettings:
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


class BuiltMatcher(NamedTuple):
    """A matcher ready to be trained."""

    matcher: Matcher
    inputs: Inputs
    extra: ExtraObjectives = ()


def build_matcher(model: MatcherSettings, train: Pairing, around: RunContext) -> BuiltMatcher:
    """The matcher with its inputs; ``vse`` and ``dual-path`` differ in their settings alone."""
    model.check()
    if model.matcher == "pretrained":
        matcher, inputs, _ = load_dual_encoder(
            model.model, fit="own", views=model.image.views, max_pieces=model.text.max_words
        )
        return BuiltMatcher(matcher, inputs)
    if model.matcher in FRAGMENTS:
        sides = fragment_sides(model.image, model.text, train, around, model.dim)
        regions = fragment_matcher(model.matcher, model.fragments, sides)
        return BuiltMatcher(regions, sides.inputs, extra_objectives(model.matcher, model.fragments, sides))
    sides = Towers(model.image, model.text, train, around, dim=model.dim, head=model.head)
    if model.matcher == "two-branch":
        return BuiltMatcher(_two_branch(sides), sides.inputs)
    return BuiltMatcher(sides.matcher(), sides.inputs)


def _two_branch(sides: Towers) -> TwoBranchEmbedding:
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
    if isinstance(matcher.text, PooledStates) and matcher.text.encoder is not None and encoder is not None:
        matcher.text.encoder.load_state_dict(encoder.state_dict())
    return sides.started(matcher)
