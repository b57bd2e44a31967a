"""Draws a scene at random: which setting, which things, doing what, where."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from calligram.scenes.drawing.figure import PALETTE, Box, Figure, Point
from calligram.scenes.drawing.people import draw_person
from calligram.scenes.kinds import PERSON_HEIGHT, ROOF_COLOURS, SETTING_THINGS, SIZE_FACTORS, THING_KINDS, TIME_WEIGHTS
from calligram.scenes.people import Appearance
from calligram.scenes.phrases import CaptionSpan, SceneCaption, describe_person, write_distinct
from calligram.scenes.truth import SceneView
from calligram.scenes.world import Facts, PlacedFigure, Scene, Thing

# A stage to which things are added where there is room, without hiding one another.


@dataclass(frozen=True)
class GroupPart:
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
class ThingGroup:
    """Things that are placed together: a rider and a horse, a child and a balloon."""

    parts: tuple[GroupPart, ...]
    row: str = "front"
    staged_relations: tuple[tuple[int, str, int], ...] = ()
    shadow: bool = True


@dataclass(frozen=True)
class GroupPosition:
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
        self.painted: list[PlacedFigure] = []
        self.staged_relations: list[tuple[int, str, int]] = []
        self._rows: list[str] = []

    def add(self, unit: ThingGroup, spot: GroupPosition) -> bool:
        """Place a unit, unless it would leave the image or hide something."""
        made = [self._place(unit, part, spot) for part in unit.parts]
        if not all(self._inside(thing.box) and self._clear(thing, unit.row) for thing, _ in made):
            return False
        first = len(self.things)
        self.staged_relations += [(first + i, name, first + j) for i, name, j in unit.staged_relations]
        for thing, painted in made:
            self.things.append(thing)
            self.painted.append(painted)
            self._rows.append(unit.row)
        return True

    def _place(self, unit: ThingGroup, part: GroupPart, spot: GroupPosition) -> tuple[Thing, PlacedFigure]:
        side = -1 if spot.flip else 1
        x, y = spot.x + side * part.at[0] * spot.scale, spot.y - part.at[1] * spot.scale
        scale = part.height * spot.scale
        box = placed_box(part.figure, x, y, scale, spot.flip)
        depth = spot.y + 0.001 * part.layer
        ground = spot.y if part.standing else box[3]
        shadow = 0.4 * (box[2] - box[0]) if unit.shadow and part.standing and part.at == (0.0, 0.0) else 0.0
        thing = Thing(part.facts, box, ground, depth, part.standing, part.identity)
        return thing, PlacedFigure(part.figure, x, y, scale, spot.flip, depth, shadow)

    def _inside(self, box: Box) -> bool:
        x0, y0, x1, y1 = box
        slack = 0.06 * (x1 - x0)
        return x0 >= -slack and x1 <= self.width + slack and y0 >= -0.01 and y1 <= 1.0

    def _clear(self, thing: Thing, row: str) -> bool:
        for other, other_row in zip(self.things, self._rows, strict=True):
            shared = _shared_area(thing.box, other.box)
            if shared <= 0:
                continue
            behind = thing if thing.depth < other.depth else other
            limit = 0.06 if row == other_row else 0.3
            if shared > limit * _area(behind.box) or (row == other_row and shared > limit * _area(thing.box)):
                return False
        return True

    def scene(self, setting: str, time: str, backdrop: str) -> Scene:
        """The finished scene."""
        return Scene(
            setting, time, tuple(self.things), tuple(self.staged_relations), self.width, backdrop, tuple(self.painted)
        )


def _area(box: Sequence[float]) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _shared_area(a: Box, b: Box) -> float:
    return _area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))


# A person as part of a scene: what they do, hold, ride or sit on.

PERSON_POSES = ("standing", "walking", "walking", "running", "running", "jumping", "waving", "sitting")
HELD_KINDS = ("balloon", "umbrella", "kite", "ball")
INDOOR_HELD_KINDS = ("balloon", "ball")


def person_group(
    rng: random.Random, member: tuple[int, Appearance], setting: str, around: Mapping[str, float]
) -> ThingGroup:
    """A cast member doing something; ``around`` has the kinds that may still be added to the scene."""
    deed = rng.random()
    rides = [kind for kind in ("bicycle", "horse") if kind in around]
    seats = [kind for kind in ("bench", "chair") if kind in around]
    if deed < 0.12 and rides:
        return _mounted_group(rng, member, rng.choice(rides), "riding")
    if deed < 0.24 and seats:
        return _mounted_group(rng, member, rng.choice(seats), "on")
    if deed < 0.5:
        return _holding_group(rng, member, rng.choice(HELD_KINDS if setting != "room" else INDOOR_HELD_KINDS))
    return ThingGroup((_person_part(member, rng.choice(PERSON_POSES)),))


def _person_part(member: tuple[int, Appearance], pose: str, held: str = "", drawn: str = "") -> GroupPart:
    identity, look = member
    facts = {**look.facts(), "pose": pose}
    height = PERSON_HEIGHT[look.kind]
    return GroupPart(facts, draw_person(look, drawn or pose, held), height, layer=1, identity=identity)


def _object_part(rng: random.Random, kind: str, avoid: str) -> tuple[Facts, GroupPart]:
    """A thing whose colour stands out from the clothes before or behind it."""
    known = THING_KINDS[kind]
    colours = [c for c in known.colours if c != avoid and PALETTE[c] != PALETTE.get(avoid)]
    facts = {"kind": kind, "colour": rng.choice(colours)}
    if known.poses:
        facts["pose"] = "standing" if kind != "horse" else rng.choice(known.poses)
    if known.sized:
        facts["size"] = "medium"
    return facts, GroupPart(facts, known.draw(facts), known.height)


def _holding_group(rng: random.Random, member: tuple[int, Appearance], kind: str) -> ThingGroup:
    pose = rng.choice(("standing", "walking"))
    person = _person_part(member, pose, kind)
    facts, thing = _object_part(rng, kind, member[1].top_colour)
    x, y = person.figure.anchors["hand"]
    height = thing.height * (0.85 if member[1].kind in ("boy", "girl") and kind != "ball" else 1.0)
    # A ball is held by its middle, everything else at its origin.
    drop = 0.5 * height if kind == "ball" else 0.0
    at = (x * person.height, y * person.height - drop)
    layer = 2 if kind == "ball" else 0
    held = GroupPart(facts, thing.figure, height, at, standing=False, layer=layer)
    return ThingGroup((person, held), staged_relations=((0, "holding", 1),))


def _mounted_group(rng: random.Random, member: tuple[int, Appearance], kind: str, bond: str) -> ThingGroup:
    look = member[1]
    facts, thing = _object_part(rng, kind, look.top_colour)
    x, y = thing.figure.anchors["seat"]
    seat = (x * thing.height, y * thing.height)
    if bond == "riding":
        person = _person_part(member, "riding")
        at = seat
    else:
        person = _person_part(member, "sitting", drawn="seated")
        # The drawn body sits 0.29 of its height above its foot.
        at = (seat[0] + rng.choice((-0.1, 0.0, 0.1) if kind == "bench" else (0.0,)), seat[1] - 0.27 * person.height)
    placed = GroupPart(person.facts, person.figure, person.height, at, layer=1, identity=person.identity)
    return ThingGroup((placed, GroupPart(facts, thing.figure, thing.height, layer=0)), staged_relations=((0, bond, 1),))


CastMember = tuple[int, Appearance]
T = TypeVar("T")

_GROUP_COUNT_WEIGHTS = {1: 0.3, 2: 0.5, 3: 0.2}
_PLACEMENT_ATTEMPTS = 14


def compose_scene(seed: int, index: int, cast: Sequence[CastMember]) -> Scene:
    """Scene ``index`` of a seed, with people from ``cast``; it depends on nothing else."""
    rng = random.Random(f"{seed}/scene/{index}")
    setting, time = rng.choice(tuple(SETTING_THINGS)), weighted_choice(rng, TIME_WEIGHTS)
    stage = Canvas()
    # Now and then nothing fits where it was tried.
    while not stage.things:
        _fill(stage, setting, list(cast), rng)
    return stage.scene(setting, time, f"{seed}/backdrop/{index}")


def _fill(stage: Canvas, setting: str, free: list[CastMember], rng: random.Random) -> None:
    rng.shuffle(free)
    left = dict(SETTING_THINGS[setting])
    for place in range(weighted_choice(rng, _GROUP_COUNT_WEIGHTS)):
        if free and rng.random() < (0.75 if place == 0 else 0.25):
            _add_somewhere(stage, person_group(rng, free.pop(), setting, left), setting, rng)
        else:
            kind = weighted_choice(rng, left)
            del left[kind]
            for unit in _groups_of_kind(rng, kind, setting):
                _add_somewhere(stage, unit, setting, rng)


def weighted_choice(rng: random.Random, weights: Mapping[T, float]) -> T:
    """One key, by weight."""
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


def _groups_of_kind(rng: random.Random, kind: str, setting: str) -> list[ThingGroup]:
    """One or several things of a kind, mostly of one colour and pose."""
    most = THING_KINDS[kind].most
    count = rng.choice((1, 1, 1, 2, 2, 3, 4)) if most > 1 else 1
    facts = sample_facts(rng, kind, setting)
    units = []
    for _ in range(min(count, most)):
        if rng.random() < 0.2:
            facts = {**sample_facts(rng, kind, setting), **{k: facts[k] for k in ("pose", "size") if k in facts}}
        units.append(_single_group(facts))
    return units


def sample_facts(rng: random.Random, kind: str, setting: str = "") -> Facts:
    """Colour, pose and size of a thing."""
    known = THING_KINDS[kind]
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
        facts["roof"] = rng.choice([c for c in ROOF_COLOURS if c != facts["colour"]])
    if kind == "duck" and setting == "lake":
        facts["pose"] = "swimming"
    return facts


def _single_group(facts: Facts) -> ThingGroup:
    known = THING_KINDS[facts["kind"]]
    flying, swimming = facts.get("pose") == "flying", facts.get("pose") == "swimming"
    part = GroupPart(
        facts, known.draw(facts), known.height * SIZE_FACTORS[facts.get("size", "medium")], standing=not flying
    )
    row = "sky" if flying else "water" if swimming else known.row
    return ThingGroup((part,), row, shadow=row not in ("sky", "water"))


def _add_somewhere(stage: Canvas, unit: ThingGroup, setting: str, rng: random.Random) -> bool:
    return any(stage.add(unit, _sample_position(rng, unit, setting)) for _ in range(_PLACEMENT_ATTEMPTS))


def _sample_position(rng: random.Random, unit: ThingGroup, setting: str) -> GroupPosition:
    low, high = _ROW_RANGES.get((setting, unit.row)) or _ROW_RANGES["", unit.row]
    if setting == "street" and unit.parts[0].facts["kind"] in ("car", "bus", "truck"):
        low, high = 0.76, 0.83
    y = rng.uniform(low, high)
    scale = 1.0 if unit.row == "sky" else 0.84 + 0.28 * (y - 0.62) / 0.34
    return GroupPosition(rng.uniform(0.08, 0.92), y, scale, rng.random() < 0.5)


# The range of y in which a row's things stand, where the setting differs and otherwise.
_ROW_RANGES: dict[tuple[str, str], tuple[float, float]] = {
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

PORTRAIT_WIDTH = 0.625
"""of a portrait, in units of its height"""
PORTRAIT_POSES = ("standing", "standing", "walking", "walking", "running", "waving")


def compose_portrait(seed: int, index: int, member: CastMember) -> Scene:
    """Portrait ``index`` of a seed: ``member`` in some pose before some background."""
    rng = random.Random(f"{seed}/portrait/{index}")
    setting, time = rng.choice(tuple(SETTING_THINGS)), weighted_choice(rng, {**TIME_WEIGHTS, "day": 1.0})
    identity, look = member
    pose = rng.choice(PORTRAIT_POSES)
    figure = draw_person(look, pose)
    left, low, right, high = figure.box()
    tall = rng.uniform(0.8, 0.92) / max(1.0, high - low)
    # Children stay a little smaller, as their heads would otherwise fill the frame.
    tall *= 0.94 if PERSON_HEIGHT[look.kind] < 0.45 else 1.0
    tall = min(tall, (PORTRAIT_WIDTH - 0.02) / (right - left))
    stage, flip = Canvas(PORTRAIT_WIDTH), rng.random() < 0.5
    middle = (left + right) / 2 * tall * (-1 if flip else 1)
    slack = max(0.0, (PORTRAIT_WIDTH - (right - left) * tall) / 2 - 0.01)
    x = PORTRAIT_WIDTH / 2 - middle + rng.uniform(-slack, slack) * 0.6
    part = GroupPart({**look.facts(), "pose": pose}, figure, 1.0, identity=identity)
    placed = stage.add(ThingGroup((part,)), GroupPosition(x, rng.uniform(0.955, 0.985), tall, flip))
    assert placed, "a portrait always fits"
    return stage.scene(setting, time, f"{seed}/portrait-backdrop/{index}")


def write_portrait_captions(rng: random.Random, view: SceneView, count: int) -> list[SceneCaption]:
    """Describe the look in ``count`` different wordings. Pose and place are left out: they are not the person's."""

    def write() -> SceneCaption:
        text, end, query = describe_person(rng, view.facts[0])
        return SceneCaption(text, (CaptionSpan(0, end, (0,)),), query)

    return write_distinct(write, count)
