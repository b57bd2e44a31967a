"""What the generator knows of a scene: its things, where they are, and how they hang together."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from calligram.scenes.drawing.figure import Box, Figure

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
class PlacedFigure:
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
    staged_relations: tuple[tuple[int, str, int], ...] = ()
    """relations that were staged (holding, riding, on); those of mere position follow from the boxes"""
    width: float = 1.0
    """of the image, in units of its height"""
    backdrop: str = ""
    """seed of what nobody mentions: clouds, tufts, pebbles"""
    figures: tuple[PlacedFigure, ...] = field(default=(), compare=False)

    def facts(self, relations: list[tuple[int, str, int]]) -> str:
        """Everything known about the scene as JSON."""
        things = [
            {**t.facts, **({} if t.identity is None else {"identity": t.identity}), "box": [round(v, 4) for v in t.box]}
            for t in self.things
        ]
        known = {"setting": self.setting, "time": self.time, "things": things, "relations": relations}
        return json.dumps(known, ensure_ascii=False)


# How things lie to each other, read off their boxes.

RELATIONS = ("holding", "riding", "on", "left of", "right of", "next to", "in front of", "behind", "under")

_LIVING_KINDS = frozenset({"man", "woman", "boy", "girl", "dog", "cat", "horse", "cow", "sheep"})


def find_relations(scene: Scene) -> list[tuple[int, str, int]]:
    """Every relation that holds in a scene, staged or by position, as (thing, relation, thing)."""
    found = list(scene.staged_relations)
    bound = {frozenset((i, j)) for i, _, j in scene.staged_relations}
    for i, a in enumerate(scene.things):
        for j, b in enumerate(scene.things):
            if i != j and frozenset((i, j)) not in bound:
                found += [(i, name, j) for name in _relations_by_position(a, b)]
    return found


def _relations_by_position(a: Thing, b: Thing) -> list[str]:
    names = []
    overlap = min(a.box[2], b.box[2]) - max(a.box[0], b.box[0])
    narrow = min(a.box[2] - a.box[0], b.box[2] - b.box[0])
    offset = (a.box[0] + a.box[2] - b.box[0] - b.box[2]) / 2
    if abs(offset) > 0.1 and overlap < 0.5 * narrow:
        names.append("left of" if offset < 0 else "right of")
    if not (a.standing and b.standing):
        return names
    nearer = a.ground - b.ground
    if -0.12 < overlap < 0.4 * narrow and abs(nearer) < 0.17:
        names.append("next to")
    if overlap >= 0.4 * narrow and abs(nearer) > 0.03:
        names.append("in front of" if nearer > 0 else "behind")
    if _is_under(a, b, overlap):
        names.append("under")
    return names


def _is_under(a: Thing, tree: Thing, overlap: float) -> bool:
    """Someone stands at the trunk, below the crown."""
    if a.kind not in _LIVING_KINDS or tree.kind not in ("leafy tree", "palm tree"):
        return False
    high = tree.box[3] - tree.box[1]
    near = -0.02 < a.ground - tree.ground < 0.3
    return near and overlap > 0.6 * (a.box[2] - a.box[0]) and a.box[1] > tree.box[1] + 0.25 * high
