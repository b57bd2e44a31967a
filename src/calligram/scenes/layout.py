"""Draws a scene at random: which setting, which things, doing what, where."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from calligram.scenes.drawing.figure import PALETTE, Box, Figure, Point
from calligram.scenes.drawing.people import draw_person
from calligram.scenes.kinds import KINDS, PERSON_HEIGHT, ROOFS, SETTINGS, SIZES, TIMES
from calligram.scenes.people import Look
from calligram.scenes.phrases import CaptionSpan, SceneCaption, describe_person, write_different
from calligram.scenes.truth import View
from calligram.scenes.world import Facts, Painted, Scene, Thing

# A stage to which things are added where there is room, without hiding one another.


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


class Canvas:
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


# A person as part of a scene: what they do, hold, ride or sit on.

POSES = ("standing", "walking", "walking", "running", "running", "jumping", "waving", "sitting")
HELD = ("balloon", "umbrella", "kite", "ball")
INDOORS = ("balloon", "ball")


def person_unit(rng: random.Random, member: tuple[int, Look], setting: str, around: Mapping[str, float]) -> Unit:
    """A cast member doing something; ``around`` has the kinds that may still be added to the scene."""
    deed = rng.random()
    rides = [kind for kind in ("bicycle", "horse") if kind in around]
    seats = [kind for kind in ("bench", "chair") if kind in around]
    if deed < 0.12 and rides:
        return _on(rng, member, rng.choice(rides), "riding")
    if deed < 0.24 and seats:
        return _on(rng, member, rng.choice(seats), "on")
    if deed < 0.5:
        return _holding(rng, member, rng.choice(HELD if setting != "room" else INDOORS))
    return Unit((_person(member, rng.choice(POSES)),))


def _person(member: tuple[int, Look], pose: str, held: str = "", drawn: str = "") -> Part:
    identity, look = member
    facts = {**look.facts(), "pose": pose}
    height = PERSON_HEIGHT[look.kind]
    return Part(facts, draw_person(look, drawn or pose, held), height, layer=1, identity=identity)


def _object(rng: random.Random, kind: str, avoid: str) -> tuple[Facts, Part]:
    """A thing whose colour stands out from the clothes before or behind it."""
    known = KINDS[kind]
    colours = [c for c in known.colours if c != avoid and PALETTE[c] != PALETTE.get(avoid)]
    facts = {"kind": kind, "colour": rng.choice(colours)}
    if known.poses:
        facts["pose"] = "standing" if kind != "horse" else rng.choice(known.poses)
    if known.sized:
        facts["size"] = "medium"
    return facts, Part(facts, known.draw(facts), known.height)


def _holding(rng: random.Random, member: tuple[int, Look], kind: str) -> Unit:
    pose = rng.choice(("standing", "walking"))
    person = _person(member, pose, kind)
    facts, thing = _object(rng, kind, member[1].top_colour)
    x, y = person.figure.anchors["hand"]
    height = thing.height * (0.85 if member[1].kind in ("boy", "girl") and kind != "ball" else 1.0)
    # A ball is held by its middle, everything else at its origin.
    drop = 0.5 * height if kind == "ball" else 0.0
    at = (x * person.height, y * person.height - drop)
    layer = 2 if kind == "ball" else 0
    held = Part(facts, thing.figure, height, at, standing=False, layer=layer)
    return Unit((person, held), bonds=((0, "holding", 1),))


def _on(rng: random.Random, member: tuple[int, Look], kind: str, bond: str) -> Unit:
    look = member[1]
    facts, thing = _object(rng, kind, look.top_colour)
    x, y = thing.figure.anchors["seat"]
    seat = (x * thing.height, y * thing.height)
    if bond == "riding":
        person = _person(member, "riding")
        at = seat
    else:
        person = _person(member, "sitting", drawn="seated")
        # The drawn body sits 0.29 of its height above its foot.
        at = (seat[0] + rng.choice((-0.1, 0.0, 0.1) if kind == "bench" else (0.0,)), seat[1] - 0.27 * person.height)
    placed = Part(person.facts, person.figure, person.height, at, layer=1, identity=person.identity)
    return Unit((placed, Part(facts, thing.figure, thing.height, layer=0)), bonds=((0, bond, 1),))


Member = tuple[int, Look]
T = TypeVar("T")

_UNITS = {1: 0.3, 2: 0.5, 3: 0.2}
_TRIES = 14


def compose_scene(seed: int, index: int, cast: Sequence[Member]) -> Scene:
    """Scene ``index`` of a seed, with people from ``cast``; it depends on nothing else."""
    rng = random.Random(f"{seed}/scene/{index}")
    setting, time = rng.choice(tuple(SETTINGS)), pick(rng, TIMES)
    stage = Canvas()
    # Now and then nothing fits where it was tried.
    while not stage.things:
        _fill(stage, setting, list(cast), rng)
    return stage.scene(setting, time, f"{seed}/backdrop/{index}")


def _fill(stage: Canvas, setting: str, free: list[Member], rng: random.Random) -> None:
    rng.shuffle(free)
    left = dict(SETTINGS[setting])
    for place in range(pick(rng, _UNITS)):
        if free and rng.random() < (0.75 if place == 0 else 0.25):
            _add(stage, person_unit(rng, free.pop(), setting, left), setting, rng)
        else:
            kind = pick(rng, left)
            del left[kind]
            for unit in _group(rng, kind, setting):
                _add(stage, unit, setting, rng)


def pick(rng: random.Random, weights: Mapping[T, float]) -> T:
    """One key, by weight."""
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


def _group(rng: random.Random, kind: str, setting: str) -> list[Unit]:
    """One or several things of a kind, mostly of one colour and pose."""
    most = KINDS[kind].most
    count = rng.choice((1, 1, 1, 2, 2, 3, 4)) if most > 1 else 1
    facts = sample_facts(rng, kind, setting)
    units = []
    for _ in range(min(count, most)):
        if rng.random() < 0.2:
            facts = {**sample_facts(rng, kind, setting), **{k: facts[k] for k in ("pose", "size") if k in facts}}
        units.append(_unit(facts))
    return units


def sample_facts(rng: random.Random, kind: str, setting: str = "") -> Facts:
    """Colour, pose and size of a thing."""
    known = KINDS[kind]
    facts: Facts = {"kind": kind}
    if known.colours:
        facts["colour"] = rng.choice(known.colours)
    elif kind != "snowman":
        facts["colour"] = "green"
    if known.poses:
        facts["pose"] = rng.choice(known.poses)
    if known.sized:
        facts["size"] = rng.choice(("small", "medium", "medium", "large"))
    if kind == "house":
        facts["roof"] = rng.choice([c for c in ROOFS if c != facts["colour"]])
    if kind == "duck" and setting == "lake":
        facts["pose"] = "swimming"
    return facts


def _unit(facts: Facts) -> Unit:
    known = KINDS[facts["kind"]]
    flying, swimming = facts.get("pose") == "flying", facts.get("pose") == "swimming"
    part = Part(facts, known.draw(facts), known.height * SIZES[facts.get("size", "medium")], standing=not flying)
    row = "sky" if flying else "water" if swimming else known.row
    return Unit((part,), row, shadow=row not in ("sky", "water"))


def _add(stage: Canvas, unit: Unit, setting: str, rng: random.Random) -> bool:
    return any(stage.add(unit, _spot(rng, unit, setting)) for _ in range(_TRIES))


def _spot(rng: random.Random, unit: Unit, setting: str) -> Spot:
    low, high = _ROWS.get((setting, unit.row)) or _ROWS["", unit.row]
    if setting == "street" and unit.parts[0].facts["kind"] in ("car", "bus", "truck"):
        low, high = 0.76, 0.83
    y = rng.uniform(low, high)
    scale = 1.0 if unit.row == "sky" else 0.84 + 0.28 * (y - 0.62) / 0.34
    return Spot(rng.uniform(0.08, 0.92), y, scale, rng.random() < 0.5)


# The range of y in which a row's things stand, where the setting differs and otherwise.
_ROWS: dict[tuple[str, str], tuple[float, float]] = {
    ("", "front"): (0.84, 0.97),
    ("", "back"): (0.66, 0.76),
    ("", "sky"): (0.2, 0.42),
    ("", "water"): (0.56, 0.62),
    ("lake", "water"): (0.64, 0.76),
    ("lake", "back"): (0.83, 0.86),
    ("lake", "front"): (0.88, 0.97),
    ("street", "back"): (0.635, 0.65),
    ("street", "front"): (0.88, 0.97),
    ("room", "back"): (0.74, 0.8),
}


# People seen large, one to an image, for person search: the same look in several poses and places.

WIDTH = 0.625
"""of a portrait, in units of its height"""
PORTRAIT_POSES = ("standing", "standing", "walking", "walking", "running", "waving")


def compose_portrait(seed: int, index: int, member: Member) -> Scene:
    """Portrait ``index`` of a seed: ``member`` in some pose before some background."""
    rng = random.Random(f"{seed}/portrait/{index}")
    setting, time = rng.choice(tuple(SETTINGS)), pick(rng, {**TIMES, "day": 1.0})
    identity, look = member
    pose = rng.choice(PORTRAIT_POSES)
    figure = draw_person(look, pose)
    left, low, right, high = figure.box()
    tall = rng.uniform(0.8, 0.92) / max(1.0, high - low)
    # Children stay a little smaller, as their heads would otherwise fill the frame.
    tall *= 0.94 if PERSON_HEIGHT[look.kind] < 0.45 else 1.0
    tall = min(tall, (WIDTH - 0.02) / (right - left))
    stage, flip = Canvas(WIDTH), rng.random() < 0.5
    middle = (left + right) / 2 * tall * (-1 if flip else 1)
    slack = max(0.0, (WIDTH - (right - left) * tall) / 2 - 0.01)
    x = WIDTH / 2 - middle + rng.uniform(-slack, slack) * 0.6
    part = Part({**look.facts(), "pose": pose}, figure, 1.0, identity=identity)
    placed = stage.add(Unit((part,)), Spot(x, rng.uniform(0.955, 0.985), tall, flip))
    assert placed, "a portrait always fits"
    return stage.scene(setting, time, f"{seed}/portrait-backdrop/{index}")


def write_portrait_captions(rng: random.Random, view: View, count: int) -> list[SceneCaption]:
    """Describe the look in ``count`` different wordings. Pose and place are left out: they are not the person's."""

    def write() -> SceneCaption:
        text, end, query = describe_person(rng, view.facts[0])
        return SceneCaption(text, (CaptionSpan(0, end, (0,)),), query)

    return write_different(write, count)
