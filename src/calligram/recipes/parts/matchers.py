"""Matchers by name, with their inputs, for recipes that can train any matcher. A model is imported when it is built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from calligram.data.pairing import Pairing
from calligram.errors import UserError, unknown
from calligram.features.inputs import Inputs
from calligram.models.layers.cross_attention import Aggregation, Norm
from calligram.models.layers.networks import HeadKind
from calligram.models.layers.towers import TextArchitecture
from calligram.models.matcher import Matcher
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.settings import WeightedObjectives
from calligram.recipes.parts.towers import ImageSettings, TextSettings, Towers, check_towers, need_features

if TYPE_CHECKING:
    from calligram.models.two_branch import TwoBranchEmbedding

FRAGMENTS = ("scan", "bfan", "vsrn", "a3vse", "mmca")
"""matchers of image regions (or grid cells) and words"""
MatcherName = Literal["vse", "dual-path", "two-branch", "pretrained", "scan", "bfan", "vsrn", "a3vse", "mmca"]
AttentionTemperature = Annotated[float, "factor on attention scores before the softmax", (0, 10000)]


@dataclass(frozen=True)
class ScanModel:
    """Settings of SCAN; the defaults are those of the release for t-i LSE."""

    direction: Annotated[
        Literal["t2i", "i2t"], "direction of attention: words attend to regions (t2i), or regions to words (i2t)"
    ] = "t2i"
    norm: Annotated[Norm, "normalization of the products of regions and words, over the attending items"] = (
        "clipped_l2norm"
    )
    temperature: Annotated[
        float, "factor on attention scores before the softmax; 4 in the release for i2t", (0, 10000)
    ] = 9.0
    aggregation: Annotated[Aggregation, "aggregation of relevances into a score"] = "lse"
    sharpness: Annotated[
        float, "factor of LogSumExp; in the release 5 for i2t, or 20 for i2t on MS-COCO", (0.001, 10000)
    ] = 6.0


@dataclass(frozen=True)
class BFANModel:
    """Settings of BFAN."""

    focal: Annotated[
        Literal["equal", "prob"],
        "relevant parts: attention above the mean (equal), or above a mean weighted by confidence (prob)",
    ] = "equal"
    norm: Annotated[Norm, "normalization of the products of regions and words, over the attending items"] = (
        "clipped_l2norm"
    )
    temperature: AttentionTemperature = 20.0


@dataclass(frozen=True)
class VSRNModel:
    """Settings of VSRN, and of its caption decoder."""

    layers: Annotated[int, "number of reasoning layers", (0, 100)] = 4
    norm: Annotated[
        Literal["regions", "features"],
        "axis over which values are L2-normalised: over the regions of an image (the release), or over features",
    ] = "regions"
    norm_before: Annotated[bool, "also normalize before reasoning; only on MS-COCO in the release"] = True
    batch_norm: Annotated[bool, "batch normalization of the image vector; only on Flickr30K in the release"] = False
    reader: Annotated[
        Literal["gru", "mean"], "pooling of regions into a vector: GRU as in vsrn, or mean for cells without an order"
    ] = "gru"
    caption_weight: Annotated[
        float,
        "weight of the captioning loss; 0 for none; 1 in the release, which sums its loss over a batch",
        (0, 1000),
    ] = 0.01
    decoder_dim: Annotated[int, "dimension of the state of the caption decoder", (1, 65536)] = 512


@dataclass(frozen=True)
class A3VSEModel:
    """Settings of A3VSE, whose towers attend to their own parts (a3vse, Eq. 1)."""

    attention: Annotated[
        Literal["context", "mean"], "weights of regions and words: by their context, or all equal (mean)"
    ] = "context"
    heads: Annotated[int, "number of attention heads of each tower, K", (1, 1000)] = 3
    context: Annotated[int, "dimension of the space in which context and parts are compared, K'", (1, 65536)] = 512
    temperature: Annotated[
        float | None, "factor before the softmax, lambda; none for 1 / sqrt(a3vse.context)", (0, 10000)
    ] = None
    merge: Annotated[Literal["concat", "mean"], "combination of the heads: concatenation or mean"] = "concat"
    cell: Annotated[Literal["lstm", "gru"], "recurrent network over words, where there is no text.encoder"] = "lstm"


@dataclass(frozen=True)
class MMCAModel:
    """Settings of MMCA, with attention within and between images and texts (mmca, Sec. 4.2)."""

    heads: Annotated[int, "number of heads of each Transformer unit; dim must be a multiple of it", (1, 1000)] = 16
    filters: Annotated[int, "number of filters for each window of one, two and three words", (1, 65536)] = 256
    alpha: Annotated[float, "weight of the attention between image and text; 0 for none", (0, 1000)] = 0.2
    region_dropout: Annotated[
        float, "share of regions or cells that are left out in training, also with a trained backbone", (0, 0.99)
    ] = 0.0


@dataclass(frozen=True)
class FragmentModels:
    """Settings of each matcher of regions and words; a run uses those of its matcher."""

    scan: ScanModel = field(default_factory=ScanModel)
    bfan: BFANModel = field(default_factory=BFANModel)
    vsrn: VSRNModel = field(default_factory=VSRNModel)
    a3vse: A3VSEModel = field(default_factory=A3VSEModel)
    mmca: MMCAModel = field(default_factory=MMCAModel)


def check_fragments(matcher: str, image: ImageSettings, text: TextSettings, models: FragmentModels) -> None:
    """Refuse settings that contradict each other."""
    need_features(image)
    check_towers(image, text)
    if text.network == "cnn":
        raise UserError(
            "text.network=cnn gives one vector per caption, and this matcher needs one per word; take gru, or a "
            "text.encoder"
        )
    if image.views == "ten":
        raise UserError("image.views=ten averages ten crops, whose cells show different places; take one or flip")
    if matcher == "vsrn" and models.vsrn.caption_weight and text.encoder and not text.train:
        raise UserError(
            "the caption decoder of vsrn needs words, and stored encoder states have none; take "
            "vsrn.caption_weight=0, text.train=true, or no text.encoder"
        )


def fragment_towers(image: ImageSettings, text: TextSettings, train: Pairing, context: RunContext, dim: int) -> Towers:
    """Return towers with the grid of a backbone in place of its vector."""
    return Towers(image, text, train, context, dim=dim, parts="grid")


def fragment_matcher(matcher: str, models: FragmentModels, towers: Towers) -> Matcher:
    """Return ``scan``, ``bfan``, ``vsrn``, ``a3vse`` or ``mmca`` with the pretrained weights of the towers."""
    shape = towers.shape
    text = _fragment_text(matcher, models, shape.text)
    shared: dict[str, Any] = {"image": shape.image, "text": text, "dim": shape.dim}
    return towers.with_pretrained_weights(_fragment_model(matcher, models, shared))


def _fragment_text(matcher: str, models: FragmentModels, text: TextArchitecture) -> TextArchitecture:
    """Return the text tower with the pooling of vsrn, or with the recurrent network of a3vse."""
    if matcher == "vsrn":
        return replace(text, pooling="last" if text.kind == "gru" else "mean")
    return replace(text, kind=models.a3vse.cell) if matcher == "a3vse" and text.kind == "gru" else text


def _fragment_model(matcher: str, models: FragmentModels, shared: dict[str, Any]) -> Matcher:
    if matcher == "scan":
        from calligram.models.scan import SCAN, SCANSettings

        return SCAN(SCANSettings(**shared, **vars(models.scan)))
    if matcher == "bfan":
        from calligram.models.bfan import BFAN, BFANSettings

        return BFAN(BFANSettings(**shared, **vars(models.bfan)))
    if matcher == "vsrn":
        from calligram.models.vsrn import VSRN, VSRNSettings

        own = {k: v for k, v in vars(models.vsrn).items() if k not in ("caption_weight", "decoder_dim")}
        return VSRN(VSRNSettings(**shared, **own))
    if matcher == "a3vse":
        from calligram.models.a3vse import A3VSE, A3VSESettings

        own = {k: v for k, v in vars(models.a3vse).items() if k != "cell"}
        return A3VSE(A3VSESettings(**shared, **own))
    if matcher == "mmca":
        from calligram.models.mmca import MMCA, MMCASettings

        return MMCA(MMCASettings(**shared, **vars(models.mmca)))
    raise unknown("matcher of regions and words", matcher, FRAGMENTS)


def extra_objectives(matcher: str, models: FragmentModels, towers: Towers) -> WeightedObjectives:
    """Return the objectives besides the loss over scores: the captioning loss of VSRN."""
    own, words = models.vsrn, towers.inputs.texts
    if matcher != "vsrn" or not own.caption_weight:
        return ()
    from calligram.training.objectives.caption import CaptionObjective

    masked = words.mask_token if towers.text.effective_word_dropout else None
    captioning = CaptionObjective(
        towers.shape.dim, len(words), hidden=own.decoder_dim, word_dim=towers.text.word_dim, mask_token=masked
    )
    return ((own.caption_weight, captioning),)


@dataclass(frozen=True)
class MatcherSettings:
    """A matcher by name, with the settings of its towers."""

    matcher: MatcherName
    image: ImageSettings
    text: TextSettings
    dim: int
    head: HeadKind
    model: str
    """folder or hub name, for ``pretrained``"""
    fragments: FragmentModels = field(default_factory=FragmentModels)

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        if self.matcher in FRAGMENTS:
            check_fragments(self.matcher, self.image, self.text, self.fragments)
        else:
            check_towers(self.image, self.text)
        if self.matcher == "dual-path" and self.text.network != "cnn":
            raise UserError(
                "matcher=dual-path reads texts with a CNN: give --set text.network=cnn, or take matcher=vse for a GRU "
                "or a text.encoder"
            )
        if self.matcher == "pretrained" and not self.model:
            raise UserError("matcher=pretrained needs a model: give --set model= with a folder or a hub name")
        if self.matcher == "two-branch":
            need_features(self.image)
            if self.text.network == "cnn":
                raise UserError("text.network=cnn is not for matcher=two-branch; it takes gru, or a text.encoder")


class BuiltMatcher(NamedTuple):
    """A matcher ready for training."""

    matcher: Matcher
    inputs: Inputs
    extra: WeightedObjectives = ()
    """objectives that the matcher needs besides the loss over scores"""


def build_matcher(model: MatcherSettings, train: Pairing, context: RunContext) -> BuiltMatcher:
    """Return a matcher with its inputs; ``vse`` and ``dual-path`` differ only in their settings."""
    model.check()
    if model.matcher == "pretrained":
        from calligram.models.pretrained import load_dual_encoder

        matcher, inputs, _ = load_dual_encoder(
            model.model, fit="own", views=model.image.views, max_pieces=model.text.max_words
        )
        return BuiltMatcher(matcher, inputs)
    if model.matcher in FRAGMENTS:
        towers = fragment_towers(model.image, model.text, train, context, model.dim)
        regions = fragment_matcher(model.matcher, model.fragments, towers)
        return BuiltMatcher(regions, towers.inputs, extra_objectives(model.matcher, model.fragments, towers))
    towers = Towers(model.image, model.text, train, context, dim=model.dim, head=model.head)
    if model.matcher == "two-branch":
        return BuiltMatcher(_two_branch(towers), towers.inputs)
    return BuiltMatcher(towers.matcher(), towers.inputs)


def _two_branch(towers: Towers) -> TwoBranchEmbedding:
    """Return the two-branch network over a GRU or an encoder; recipe two-branch also takes fitted text vectors."""
    from calligram.models.two_branch import TwoBranchEmbedding, TwoBranchSettings

    shape = towers.shape
    # The matcher's own dropout is that of its branches.
    text = replace(shape.text, dropout=0.0)
    return towers.with_pretrained_weights(TwoBranchEmbedding(TwoBranchSettings(shape.image, text, shape.dim)))
