"""Random layout of a scene or a portrait: the setting, the things, their poses and positions.

A canvas adds groups of things one after another, where they fit and do not hide each other.
"""

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

CastMember = tuple[int, Appearance]
T = TypeVar("T")


PORTRAIT_WIDTH = 0.625
"""width of a portrait, in units of its height"""
PORTRAIT_POSES = ("standing", "standing", "walking", "walking", "running", "waving")


PERSON_POSES = ("standing", "walking", "walking", "running", "running", "jumping", "waving", "sitting")
HELD_KINDS = ("balloon", "umbrella", "kite", "ball")
INDOOR_HELD_KINDS = ("balloon", "ball")
_GROUP_COUNT_WEIGHTS = {1: 0.3, 2: 0.5, 3: 0.2}
_PLACEMENT_ATTEMPTS = 14

# The range of y for the things of a row, by (setting, row); the empty setting is the default.
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


def compose_scene(seed: int, index: int, cast: Sequence[CastMember]) -> Scene:
    """Scene ``index`` of a seed, with people from ``cast``. It depends only on these arguments."""
    rng = random.Random(f"{seed}/scene/{index}")
    setting, time = rng.choice(tuple(SETTING_THINGS)), weighted_choice(rng, TIME_WEIGHTS)
    canvas = Canvas()
    # Sometimes no group fits at the sampled positions; then the layout starts again.
    while not canvas.things:
        _fill(canvas, setting, list(cast), rng)
    return canvas.scene(setting, time, f"{seed}/backdrop/{index}")


def _fill(canvas: Canvas, setting: str, free: list[CastMember], rng: random.Random) -> None:
    rng.shuffle(free)
    left = dict(SETTING_THINGS[setting])
    for place in range(weighted_choice(rng, _GROUP_COUNT_WEIGHTS)):
        if free and rng.random() < (0.75 if place == 0 else 0.25):
            _add_somewhere(canvas, person_group(rng, free.pop(), setting, left), setting, rng)
        else:
            kind = weighted_choice(rng, left)
            del left[kind]
            for group in _groups_of_kind(rng, kind, setting):
                _add_somewhere(canvas, group, setting, rng)


def compose_portrait(seed: int, index: int, member: CastMember) -> Scene:
    """Portrait ``index`` of a seed, for person search: one large person in a random pose and setting."""
    rng = random.Random(f"{seed}/portrait/{index}")
    setting, time = rng.choice(tuple(SETTING_THINGS)), weighted_choice(rng, {**TIME_WEIGHTS, "day": 1.0})
    identity, appearance = member
    pose = rng.choice(PORTRAIT_POSES)
    figure = draw_person(appearance, pose)
    left, low, right, high = figure.box()
    height = rng.uniform(0.8, 0.92) / max(1.0, high - low)
    # Children are drawn smaller, because their heads would otherwise fill the picture.
    height *= 0.94 if PERSON_HEIGHT[appearance.kind] < 0.45 else 1.0
    height = min(height, (PORTRAIT_WIDTH - 0.02) / (right - left))
    canvas, flip = Canvas(PORTRAIT_WIDTH), rng.random() < 0.5
    middle = (left + right) / 2 * height * (-1 if flip else 1)
    slack = max(0.0, (PORTRAIT_WIDTH - (right - left) * height) / 2 - 0.01)
    x = PORTRAIT_WIDTH / 2 - middle + rng.uniform(-slack, slack) * 0.6
    part = GroupPart({**appearance.facts(), "pose": pose}, figure, 1.0, identity=identity)
    placed = canvas.add(ThingGroup((part,)), GroupPosition(x, rng.uniform(0.955, 0.985), height, flip))
    assert placed, "a portrait always fits"
    return canvas.scene(setting, time, f"{seed}/portrait-backdrop/{index}")


def write_portrait_captions(rng: random.Random, view: SceneView, count: int) -> list[SceneCaption]:
    """Write ``count`` different descriptions of a person's appearance. They do not mention pose and setting."""

    def write() -> SceneCaption:
        text, end, query = describe_person(rng, view.facts[0])
        return SceneCaption(text, (CaptionSpan(0, end, (0,)),), query)

    return write_distinct(write, count)


@dataclass(frozen=True)
class GroupPart:
    """One thing of a group."""

    facts: Facts
    figure: Figure
    height: float
    """height of a near thing, in units of the image height"""
    offset: Point = (0.0, 0.0)
    """position relative to the foot of the group: right and up, in units of the image height for a near group"""
    standing: bool = True
    layer: int = 0
    """drawing order within the group: higher is drawn later"""
    identity: int | None = None


@dataclass(frozen=True)
class ThingGroup:
    """Things that are placed together, such as a rider and a horse, or a child and a balloon."""

    parts: tuple[GroupPart, ...]
    row: str = "front"
    staged_relations: tuple[tuple[int, str, int], ...] = ()
    shadow: bool = True


@dataclass(frozen=True)
class GroupPosition:
    """Position and scale of a group, and whether it is mirrored."""

    x: float
    y: float
    scale: float
    flip: bool


class Canvas:
    """A scene under construction: the things that are placed so far."""

    def __init__(self, width: float = 1.0) -> None:
        self.width = width
        self.things: list[Thing] = []
        self.figures: list[PlacedFigure] = []
        self.staged_relations: list[tuple[int, str, int]] = []
        self._rows: list[str] = []

    def add(self, group: ThingGroup, position: GroupPosition) -> bool:
        """Place a group if it stays inside the image and hides nothing; returns whether it was placed."""
        placed = [self._place(group, part, position) for part in group.parts]
        if not all(self._inside(thing.box) and self._clear(thing, group.row) for thing, _ in placed):
            return False
        first = len(self.things)
        self.staged_relations += [(first + i, name, first + j) for i, name, j in group.staged_relations]
        for thing, figure in placed:
            self.things.append(thing)
            self.figures.append(figure)
            self._rows.append(group.row)
        return True

    def _place(self, group: ThingGroup, part: GroupPart, position: GroupPosition) -> tuple[Thing, PlacedFigure]:
        side = -1 if position.flip else 1
        x, y = position.x + side * part.offset[0] * position.scale, position.y - part.offset[1] * position.scale
        scale = part.height * position.scale
        box = placed_box(part.figure, x, y, scale, position.flip)
        depth = position.y + 0.001 * part.layer
        ground = position.y if part.standing else box[3]
        shadow = 0.4 * (box[2] - box[0]) if group.shadow and part.standing and part.offset == (0.0, 0.0) else 0.0
        thing = Thing(part.facts, box, ground, depth, part.standing, part.identity)
        return thing, PlacedFigure(part.figure, x, y, scale, position.flip, depth, shadow)

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
        """The scene with the placed things."""
        return Scene(
            setting, time, tuple(self.things), tuple(self.staged_relations), self.width, backdrop, tuple(self.figures)
        )


def placed_box(figure: Figure, x: float, y: float, scale: float, flip: bool) -> Box:
    """The box of a figure at a position in the image."""
    left, low, right, high = figure.box()
    if flip:
        left, right = -right, -left
    return x + left * scale, y - high * scale, x + right * scale, y - low * scale


def _area(box: Sequence[float]) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _shared_area(a: Box, b: Box) -> float:
    return _area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))


def person_group(rng: random.Random, member: CastMember, setting: str, available: Mapping[str, float]) -> ThingGroup:
    """A person with a random action; ``available`` has the kinds of things that can still be added to the scene."""
    action = rng.random()
    rides = [kind for kind in ("bicycle", "horse") if kind in available]
    seats = [kind for kind in ("bench", "chair") if kind in available]
    if action < 0.12 and rides:
        return _mounted_group(rng, member, rng.choice(rides), "riding")
    if action < 0.24 and seats:
        return _mounted_group(rng, member, rng.choice(seats), "on")
    if action < 0.5:
        return _holding_group(rng, member, rng.choice(HELD_KINDS if setting != "room" else INDOOR_HELD_KINDS))
    return ThingGroup((_person_part(member, rng.choice(PERSON_POSES)),))


def _person_part(member: CastMember, pose: str, held: str = "", drawn: str = "") -> GroupPart:
    identity, appearance = member
    facts = {**appearance.facts(), "pose": pose}
    height = PERSON_HEIGHT[appearance.kind]
    return GroupPart(facts, draw_person(appearance, drawn or pose, held), height, layer=1, identity=identity)


def _object_part(rng: random.Random, kind: str, avoid: str) -> tuple[Facts, GroupPart]:
    """A thing with a colour that differs from the clothing of the person next to it."""
    known = THING_KINDS[kind]
    colours = [c for c in known.colours if c != avoid and PALETTE[c] != PALETTE.get(avoid)]
    facts = {"kind": kind, "colour": rng.choice(colours)}
    if known.poses:
        facts["pose"] = "standing" if kind != "horse" else rng.choice(known.poses)
    if known.has_sizes:
        facts["size"] = "medium"
    return facts, GroupPart(facts, known.draw(facts), known.height)


def _holding_group(rng: random.Random, member: CastMember, kind: str) -> ThingGroup:
    pose = rng.choice(("standing", "walking"))
    person = _person_part(member, pose, kind)
    facts, thing = _object_part(rng, kind, member[1].top_colour)
    x, y = person.figure.anchors["hand"]
    height = thing.height * (0.85 if member[1].kind in ("boy", "girl") and kind != "ball" else 1.0)
    # The hand holds a ball at its centre, and every other thing at its origin.
    drop = 0.5 * height if kind == "ball" else 0.0
    offset = (x * person.height, y * person.height - drop)
    layer = 2 if kind == "ball" else 0
    held = GroupPart(facts, thing.figure, height, offset, standing=False, layer=layer)
    return ThingGroup((person, held), staged_relations=((0, "holding", 1),))


def _mounted_group(rng: random.Random, member: CastMember, kind: str, relation: str) -> ThingGroup:
    appearance = member[1]
    facts, thing = _object_part(rng, kind, appearance.top_colour)
    x, y = thing.figure.anchors["seat"]
    seat = (x * thing.height, y * thing.height)
    if relation == "riding":
        person = _person_part(member, "riding")
        offset = seat
    else:
        person = _person_part(member, "sitting", drawn="seated")
        # In the pose ``seated``, the body is 0.29 of its height above the foot.
        offset = (seat[0] + rng.choice((-0.1, 0.0, 0.1) if kind == "bench" else (0.0,)), seat[1] - 0.27 * person.height)
    placed = GroupPart(person.facts, person.figure, person.height, offset, layer=1, identity=person.identity)
    return ThingGroup(
        (placed, GroupPart(facts, thing.figure, thing.height, layer=0)), staged_relations=((0, relation, 1),)
    )


def _groups_of_kind(rng: random.Random, kind: str, setting: str) -> list[ThingGroup]:
    """One or several things of a kind, most of them with the same colour and pose."""
    max_size = THING_KINDS[kind].max_group_size
    count = rng.choice((1, 1, 1, 2, 2, 3, 4)) if max_size > 1 else 1
    facts = sample_facts(rng, kind, setting)
    groups = []
    for _ in range(min(count, max_size)):
        if rng.random() < 0.2:
            facts = {**sample_facts(rng, kind, setting), **{k: facts[k] for k in ("pose", "size") if k in facts}}
        groups.append(_single_group(facts))
    return groups


def sample_facts(rng: random.Random, kind: str, setting: str = "") -> Facts:
    """Sample the facts of a thing: colour, pose and size."""
    known = THING_KINDS[kind]
    facts: Facts = {"kind": kind}
    if known.colours:
        facts["colour"] = rng.choice(known.colours)
    elif kind != "snowman":
        facts["colour"] = "green"
    if known.poses:
        facts["pose"] = rng.choice(known.poses)
    if known.has_sizes:
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


def _add_somewhere(canvas: Canvas, group: ThingGroup, setting: str, rng: random.Random) -> bool:
    return any(canvas.add(group, _sample_position(rng, group, setting)) for _ in range(_PLACEMENT_ATTEMPTS))


def _sample_position(rng: random.Random, group: ThingGroup, setting: str) -> GroupPosition:
    low, high = _ROW_RANGES.get((setting, group.row)) or _ROW_RANGES["", group.row]
    if setting == "street" and group.parts[0].facts["kind"] in ("car", "bus", "truck"):
        low, high = 0.76, 0.83
    y = rng.uniform(low, high)
    scale = 1.0 if group.row == "sky" else 0.84 + 0.28 * (y - 0.62) / 0.34
    return GroupPosition(rng.uniform(0.08, 0.92), y, scale, rng.random() < 0.5)


def weighted_choice(rng: random.Random, weights: Mapping[T, float]) -> T:
    """A random key, with probabilities in proportion to the weights."""
    return rng.choices(tuple(weights), tuple(weights.values()))[0]
