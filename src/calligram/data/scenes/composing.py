"""Draws a scene at random: which setting, which things, doing what, where."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from calligram.data.scenes.kinds import KINDS, ROOFS, SETTINGS, SIZES, TIMES
from calligram.data.scenes.look import Look
from calligram.data.scenes.persons import person_unit
from calligram.data.scenes.stage import Part, Spot, Stage, Unit
from calligram.data.scenes.world import Facts, Scene

Member = tuple[int, Look]
T = TypeVar("T")

_UNITS = {1: 0.3, 2: 0.5, 3: 0.2}
_TRIES = 14


def compose_scene(seed: int, index: int, cast: Sequence[Member]) -> Scene:
    """Scene ``index`` of a seed, with people from ``cast``; it depends on nothing else."""
    rng = random.Random(f"{seed}/scene/{index}")
    setting, time = rng.choice(tuple(SETTINGS)), pick(rng, TIMES)
    stage = Stage()
    # Now and then nothing fits where it was tried.
    while not stage.things:
        _fill(stage, setting, list(cast), rng)
    return stage.scene(setting, time, f"{seed}/backdrop/{index}")


def _fill(stage: Stage, setting: str, free: list[Member], rng: random.Random) -> None:
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


def _add(stage: Stage, unit: Unit, setting: str, rng: random.Random) -> bool:
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
