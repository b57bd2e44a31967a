"""A person as part of a scene: what they do, hold, ride or sit on."""

from __future__ import annotations

import random
from collections.abc import Mapping

from calligram.data.scenes.colours import PALETTE
from calligram.data.scenes.draw_people import draw_person
from calligram.data.scenes.kinds import KINDS, PERSON_HEIGHT
from calligram.data.scenes.look import Look
from calligram.data.scenes.stage import Part, Unit
from calligram.data.scenes.world import Facts

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
