"""The matchers of a run: which ones there are, and how they are built from two towers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.models import catalog
from calligram.models.catalog import MATCHERS
from calligram.models.layers.towers import TwoTowerSettings
from calligram.models.matcher import Matcher
from calligram.recipes.parts.towers import Towers

PRETRAINED = "pretrained"


@dataclass(frozen=True)
class PretrainedModel:
    """A dual encoder of transformers, which brings its own towers."""

    regions: ClassVar[bool] = False
    reranks: ClassVar[bool] = False
    scores_vectors: ClassVar[bool] = True

    model: Annotated[str, "folder or hub name of a dual encoder, such as openai/clip-vit-base-patch32"] = ""


@dataclass(frozen=True)
class GivenMatcher:
    """A matcher object that the caller of ``calligram.fit`` made."""

    regions: ClassVar[bool] = False
    reranks: ClassVar[bool] = False
    scores_vectors: ClassVar[bool] = True

    source: Annotated[str, "where its class is defined"] = ""

    @classmethod
    def of(cls, matcher: Matcher) -> GivenMatcher:
        """Describe a matcher object."""
        return cls(f"{type(matcher).__module__}:{type(matcher).__qualname__}")


class MatcherSettingsCatalog:
    """Settings classes of matchers that can be built from two towers, by the name of the matcher."""

    def __getitem__(self, name: str) -> type[Any]:
        if name == PRETRAINED:
            return PretrainedModel
        found = MATCHERS[name].settings
        if not (isinstance(found, type) and issubclass(found, TwoTowerSettings)):
            raise UserError(
                f"matcher '{name}' is not built from two towers: its settings class must be a subclass of "
                "calligram.models.TwoTowerSettings; or build it in Python and give it to calligram.fit"
            )
        return found

    def __iter__(self) -> Iterator[str]:
        yield PRETRAINED
        for name in MATCHERS:
            if name not in ("cca", "weighted", "ensemble", "tags", PRETRAINED):
                yield name

    def __contains__(self, name: object) -> bool:
        return name in tuple(self)

    def name_of(self, settings: Any) -> str:
        """Return the name of the matcher that has these settings."""
        if isinstance(settings, PretrainedModel | GivenMatcher):
            return PRETRAINED if isinstance(settings, PretrainedModel) else "given"
        return MATCHERS.name_of_settings(type(settings))


MATCHER_SETTINGS = MatcherSettingsCatalog()


def build_matchers(settings: Sequence[Any], dim: int, towers: Towers, *, shared: bool = False) -> list[Matcher]:
    """Return matchers over the same towers: equal pretrained weights, and different random weights elsewhere.

    Args:
        shared: the towers of several matchers are one backbone and one text encoder, which the ensemble holds; the
            matchers then take their output as stored features.
    """
    image, text = towers.architectures
    if shared:
        if image.kind == "backbone" and towers.backbone is not None:
            image = replace(image, kind="features", feature_dim=towers.backbone.dim, backbone="")
        if text.kind == "bert" and towers.encoder is not None:
            text = replace(text, kind="states", state_dim=towers.encoder.dim, encoder="")
    return [
        towers.with_pretrained_weights(MATCHERS[MATCHER_SETTINGS.name_of(own)].matcher(
            replace(own, image=image, text=text, dim=dim)
        ))
        for own in settings
    ]  # fmt: skip


def join_matchers(members: Sequence[Matcher], towers: Towers, *, shared: bool = False) -> Matcher:
    """Return the ensemble of several matchers, or the only one."""
    if len(members) == 1:
        return members[0]
    from calligram.models.ensemble import Ensemble, EnsembleSettings

    described = tuple(json.dumps(catalog.describe(member)) for member in members)
    image, text = towers.architectures
    backbone, encoder = (image.backbone, text.encoder) if shared else ("", "")
    made = Ensemble(EnsembleSettings(described, backbone, encoder))
    for own, member in zip(made.members, members, strict=True):
        own.load_state_dict(member.state_dict())
    if backbone and towers.backbone is not None:
        made.image.load_state_dict(towers.backbone.state_dict())
    if encoder and towers.encoder is not None:
        made.text["encoder"].load_state_dict(towers.encoder.state_dict())
    return made


def load_pretrained(
    settings: Any, *, fit: str, views: Literal["one", "flip", "ten"], max_pieces: int
) -> tuple[Matcher, Inputs, float]:
    """Return a dual encoder of transformers, its inputs and its temperature."""
    if not settings.model:
        raise UserError("matcher=pretrained needs a model: give --set pretrained.model= with a folder or a hub name")
    from calligram.models.pretrained import load_dual_encoder

    return load_dual_encoder(settings.model, fit=fit, views=views, max_pieces=max_pieces)
