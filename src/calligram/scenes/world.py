"""The ground truth of a scene: its things, their positions, and the relations between them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from calligram.scenes.drawing.figure import Box, Figure

Facts = dict[str, str]

_LIVING_KINDS = frozenset({"man", "woman", "boy", "girl", "dog", "cat", "horse", "cow", "sheep"})


@dataclass(frozen=True)
class Thing:
    """One thing in a scene. Coordinates start at the top left corner and are in units of the image height."""

    facts: Facts
    """properties that captions can mention: ``kind``, ``colour``, ``size``, ``pose``, clothing"""
    box: Box
    """tight box around the figure, not clipped to the image"""
    ground: float
    """y of the point where it stands; for a flying, hanging or held thing, its lower edge"""
    depth: float
    """drawing order: higher is nearer"""
    standing: bool = True
    """whether it stands on the ground; "in front of" and "behind" are defined only for such things"""
    identity: int | None = None
    """number of the person in the cast; None for other things"""

    @property
    def kind(self) -> str:
        """The most specific kind of the thing."""
        return self.facts["kind"]


@dataclass(frozen=True)
class PlacedFigure:
    """The figure of a thing and its position in the image."""

    figure: Figure
    x: float
    y: float
    scale: float
    flip: bool
    depth: float
    shadow: float = 0.0
    """half of the width of the shadow on the ground; no shadow when zero"""


@dataclass(frozen=True)
class Scene:
    """A setting at a time of day with things in it."""

    setting: str
    time: str
    things: tuple[Thing, ...]
    staged_relations: tuple[tuple[int, str, int], ...] = ()
    """relations created by the layout (holding, riding, on); positional relations follow from the boxes"""
    width: float = 1.0
    """width of the image, in units of its height"""
    backdrop: str = ""
    """seed of details that no caption mentions: clouds, grass, pebbles"""
    figures: tuple[PlacedFigure, ...] = field(default=(), compare=False)

    def facts(self, relations: list[tuple[int, str, int]]) -> str:
        """All facts about the scene as JSON."""
        things = [
            {**t.facts, **({} if t.identity is None else {"identity": t.identity}), "box": [round(v, 4) for v in t.box]}
            for t in self.things
        ]
        known = {"setting": self.setting, "time": self.time, "things": things, "relations": relations}
        return json.dumps(known, ensure_ascii=False)


def find_relations(scene: Scene) -> list[tuple[int, str, int]]:
    """All relations in a scene, staged and positional, as (thing, relation, thing)."""
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
    """Whether ``a`` is a person or an animal at the trunk of ``tree``, below the crown."""
    if a.kind not in _LIVING_KINDS or tree.kind not in ("leafy tree", "palm tree"):
        return False
    high = tree.box[3] - tree.box[1]
    near = -0.02 < a.ground - tree.ground < 0.3
    return near and overlap > 0.6 * (a.box[2] - a.box[0]) and a.box[1] > tree.box[1] + 0.25 * high
