"""The kinds of things in scenes: their drawings, sizes, colours and poses, and the settings that have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calligram.scenes.drawing import animals, objects
from calligram.scenes.drawing.figure import BRIGHT_COLOURS, Figure
from calligram.scenes.world import Facts


@dataclass(frozen=True)
class ThingKind:
    """The properties that things of a kind can have. People are not kinds of things: they come from the cast."""

    draw: Callable[[Facts], Figure]
    height: float
    """height of a near thing, in units of the image height"""
    row: str = "front"
    """where it stands: front, back (behind the others) or water"""
    colours: tuple[str, ...] = ()
    poses: tuple[str, ...] = ()
    has_sizes: bool = False
    """whether it can be small or large"""
    max_group_size: int = 1
    """maximum number of things in a group"""


_COAT_COLOURS = ("brown", "black", "white")
_PAINT_COLOURS = (*BRIGHT_COLOURS, "white", "black")

THING_KINDS: Mapping[str, ThingKind] = {
    "dog": ThingKind(
        animals.draw_dog, 0.27, "front", (*_COAT_COLOURS, "grey"), ("standing", "running", "sitting"), True, 3
    ),
    "cat": ThingKind(
        animals.draw_cat,
        0.24,
        "front",
        ("black", "white", "orange", "grey"),
        ("standing", "running", "sitting"),
        True,
        3,
    ),
    "horse": ThingKind(animals.draw_horse, 0.42, "front", _COAT_COLOURS, ("standing", "running"), False, 2),
    "cow": ThingKind(animals.draw_cow, 0.36, "front", _COAT_COLOURS, ("standing",), False, 2),
    "sheep": ThingKind(animals.draw_sheep, 0.28, "front", ("white", "black"), ("standing",), False, 4),
    "bird": ThingKind(
        animals.draw_bird,
        0.17,
        "front",
        ("red", "blue", "yellow", "black", "white"),
        ("flying", "standing"),
        False,
        4,
    ),
    "duck": ThingKind(animals.draw_duck, 0.19, "front", ("yellow", "white", "brown"), ("standing",), False, 3),
    "car": ThingKind(objects.draw_car, 0.23, "back", _PAINT_COLOURS, (), False, 2),
    "bus": ThingKind(objects.draw_bus, 0.38, "back", BRIGHT_COLOURS),
    "truck": ThingKind(objects.draw_truck, 0.34, "back", BRIGHT_COLOURS),
    "tractor": ThingKind(objects.draw_tractor, 0.36, "back", ("red", "green", "blue", "orange", "yellow")),
    "bicycle": ThingKind(objects.draw_bicycle, 0.28, "front", _PAINT_COLOURS),
    "boat": ThingKind(objects.draw_boat, 0.34, "water", BRIGHT_COLOURS, (), True, 3),
    "ball": ThingKind(objects.draw_ball, 0.15, "front", BRIGHT_COLOURS, (), True, 3),
    "balloon": ThingKind(objects.draw_balloon, 0.36, "front", BRIGHT_COLOURS),
    "umbrella": ThingKind(objects.draw_umbrella, 0.36, "front", BRIGHT_COLOURS),
    "kite": ThingKind(objects.draw_kite, 0.55, "front", BRIGHT_COLOURS),
    "bench": ThingKind(objects.draw_bench, 0.2, "front", ("brown", "green", "red", "blue", "white")),
    "chair": ThingKind(objects.draw_chair, 0.34, "back", BRIGHT_COLOURS),
    "cactus": ThingKind(objects.draw_cactus, 0.44, "back", (), (), True, 3),
    "snowman": ThingKind(objects.draw_snowman, 0.42, "front", ("red", "blue", "green", "black"), (), True, 2),
    "tent": ThingKind(objects.draw_tent, 0.32, "back", ("red", "orange", "yellow", "blue", "green"), (), False, 2),
    "leafy tree": ThingKind(objects.draw_leafy_tree, 0.66, "back", ("green", "green", "orange", "pink"), (), True, 3),
    "pine tree": ThingKind(objects.draw_pine_tree, 0.64, "back", (), (), True, 3),
    "palm tree": ThingKind(objects.draw_palm_tree, 0.66, "back", (), (), True, 3),
    "house": ThingKind(
        objects.draw_house, 0.48, "back", ("white", "yellow", "blue", "pink", "red", "green"), (), True, 2
    ),
    "tower": ThingKind(objects.draw_tower, 0.78, "back", ("grey", "red", "blue", "brown", "white"), (), False, 2),
    "barn": ThingKind(objects.draw_barn, 0.48, "back", ("red", "brown", "white", "green"), (), True),
}

PERSON_HEIGHT: Mapping[str, float] = {"man": 0.54, "woman": 0.51, "boy": 0.39, "girl": 0.38}

ROOF_COLOURS = ("red", "brown", "blue", "grey", "black")

SIZE_FACTORS: Mapping[str, float] = {"small": 0.7, "medium": 1.0, "large": 1.32}

SETTING_THINGS: Mapping[str, Mapping[str, float]] = {
    "park": {
        "dog": 4,
        "cat": 2,
        "bird": 2,
        "duck": 1,
        "bicycle": 2,
        "ball": 3,
        "leafy tree": 3,
        "bench": 2,
        "pine tree": 1,
    },
    "beach": {"dog": 3, "bird": 3, "ball": 3, "boat": 4, "palm tree": 3, "duck": 1, "horse": 1},
    "street": {
        "car": 4,
        "bus": 3,
        "truck": 2,
        "bicycle": 2,
        "house": 3,
        "tower": 3,
        "dog": 2,
        "cat": 2,
        "leafy tree": 1,
        "bench": 1,
    },
    "snow": {"snowman": 3, "pine tree": 3, "dog": 3, "house": 2, "bird": 2, "truck": 1, "car": 1, "cat": 1},
    "desert": {"cactus": 4, "horse": 3, "truck": 2, "car": 2, "tent": 2, "palm tree": 2, "bird": 1, "dog": 1},
    "farm": {"cow": 4, "sheep": 4, "horse": 3, "duck": 2, "barn": 3, "tractor": 3, "dog": 1, "cat": 1, "leafy tree": 1},
    "lake": {"boat": 4, "duck": 4, "bird": 2, "pine tree": 2, "bench": 2, "dog": 2, "tent": 2, "house": 1},
    "forest": {"pine tree": 2, "leafy tree": 2, "tent": 3, "bird": 3, "dog": 2, "horse": 2, "bicycle": 2, "cat": 1},
    "room": {"cat": 4, "dog": 4, "ball": 4, "chair": 4},
}
"""the kinds of things in each setting, with sampling weights"""

TIME_WEIGHTS: Mapping[str, float] = {"day": 0.5, "sunset": 0.25, "night": 0.25}
