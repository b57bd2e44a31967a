"""What the generator knows of a scene: its things, where they are, and how they hang together."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from calligram.data.scenes.figure import Box, Figure

Facts = dict[str, str]


@dataclass(frozen=True)
class Thing:
    """One thing in a scene. Positions are shares of the image's height, from its top left corner."""

    facts: Facts
    """what captions can say: ``kind``, ``colour``, ``size``, ``pose``, clothing"""
    box: Box
    """the tight box around all that is drawn of it, not cut by the image's edge"""
    ground: float
    """height of the point where it stands; for what flies, hangs or is held, its own lower edge"""
    depth: float
    """painting order: higher is nearer"""
    standing: bool = True
    """whether it stands on the ground, so that in front and behind make sense"""
    identity: int | None = None

    @property
    def kind(self) -> str:
        """The most specific name."""
        return self.facts["kind"]


@dataclass(frozen=True)
class Painted:
    """A thing's drawing and where it goes."""

    figure: Figure
    x: float
    y: float
    scale: float
    flip: bool
    depth: float
    shadow: float = 0.0
    """half width of the shadow on the ground, none when zero"""


@dataclass(frozen=True)
class Scene:
    """A setting at a time of day with things in it."""

    setting: str
    time: str
    things: tuple[Thing, ...]
    bonds: tuple[tuple[int, str, int], ...] = ()
    """relations that were staged (holding, riding, on); those of mere position follow from the boxes"""
    width: float = 1.0
    """of the image, in units of its height"""
    backdrop: str = ""
    """seed of what nobody mentions: clouds, tufts, pebbles"""
    paint: tuple[Painted, ...] = field(default=(), compare=False)

    def facts(self, relations: list[tuple[int, str, int]]) -> str:
        """Everything known about the scene as JSON."""
        things = [
            {**t.facts, **({} if t.identity is None else {"identity": t.identity}), "box": [round(v, 4) for v in t.box]}
            for t in self.things
        ]
        known = {"setting": self.setting, "time": self.time, "things": things, "relations": relations}
        return json.dumps(known, ensure_ascii=False)
