"""A stage to which things are added where there is room, without hiding one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calligram.data.scenes.figure import Box, Figure, Point
from calligram.data.scenes.world import Facts, Painted, Scene, Thing


@dataclass(frozen=True)
class Part:
    """One thing of a unit."""

    facts: Facts
    figure: Figure
    height: float
    """share of the image's height, when near"""
    at: Point = (0.0, 0.0)
    """place relative to the unit's foot: right and up, in image heights when near"""
    standing: bool = True
    layer: int = 0
    """order within the unit: higher is painted later"""
    identity: int | None = None


@dataclass(frozen=True)
class Unit:
    """Things that are placed together: a rider and a horse, a child and a balloon."""

    parts: tuple[Part, ...]
    row: str = "front"
    bonds: tuple[tuple[int, str, int], ...] = ()
    shadow: bool = True


@dataclass(frozen=True)
class Spot:
    """Where a unit stands, and which way it looks."""

    x: float
    y: float
    scale: float
    flip: bool


def placed_box(figure: Figure, x: float, y: float, scale: float, flip: bool) -> Box:
    """The box of a figure once it is in the image."""
    left, low, right, high = figure.box()
    if flip:
        left, right = -right, -left
    return x + left * scale, y - high * scale, x + right * scale, y - low * scale


class Stage:
    """The things placed so far."""

    def __init__(self, width: float = 1.0) -> None:
        self.width = width
        self.things: list[Thing] = []
        self.painted: list[Painted] = []
        self.bonds: list[tuple[int, str, int]] = []
        self._rows: list[str] = []

    def add(self, unit: Unit, spot: Spot) -> bool:
        """Place a unit, unless it would leave the image or hide something."""
        made = [self._place(unit, part, spot) for part in unit.parts]
        if not all(self._inside(thing.box) and self._clear(thing, unit.row) for thing, _ in made):
            return False
        first = len(self.things)
        self.bonds += [(first + i, name, first + j) for i, name, j in unit.bonds]
        for thing, painted in made:
            self.things.append(thing)
            self.painted.append(painted)
            self._rows.append(unit.row)
        return True

    def _place(self, unit: Unit, part: Part, spot: Spot) -> tuple[Thing, Painted]:
        side = -1 if spot.flip else 1
        x, y = spot.x + side * part.at[0] * spot.scale, spot.y - part.at[1] * spot.scale
        scale = part.height * spot.scale
        box = placed_box(part.figure, x, y, scale, spot.flip)
        depth = spot.y + 0.001 * part.layer
        ground = spot.y if part.standing else box[3]
        shadow = 0.4 * (box[2] - box[0]) if unit.shadow and part.standing and part.at == (0.0, 0.0) else 0.0
        thing = Thing(part.facts, box, ground, depth, part.standing, part.identity)
        return thing, Painted(part.figure, x, y, scale, spot.flip, depth, shadow)

    def _inside(self, box: Box) -> bool:
        x0, y0, x1, y1 = box
        slack = 0.06 * (x1 - x0)
        return x0 >= -slack and x1 <= self.width + slack and y0 >= -0.01 and y1 <= 1.0

    def _clear(self, thing: Thing, row: str) -> bool:
        for other, other_row in zip(self.things, self._rows, strict=True):
            shared = _shared(thing.box, other.box)
            if shared <= 0:
                continue
            behind = thing if thing.depth < other.depth else other
            limit = 0.06 if row == other_row else 0.3
            if shared > limit * _area(behind.box) or (row == other_row and shared > limit * _area(thing.box)):
                return False
        return True

    def scene(self, setting: str, time: str, backdrop: str) -> Scene:
        """The finished scene."""
        return Scene(setting, time, tuple(self.things), tuple(self.bonds), self.width, backdrop, tuple(self.painted))


def _area(box: Sequence[float]) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _shared(a: Box, b: Box) -> float:
    return _area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
