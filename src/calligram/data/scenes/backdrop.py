"""What lies behind the things: sky and ground, so that setting and time of day are plain to see.

Coordinates are those of the image: x to the right, y down, both in units of its height.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from calligram.data.scenes.colours import RGB, darker, lighter, lit, mix
from calligram.data.scenes.figure import Figure
from calligram.data.scenes.ground import (
    draw_beach,
    draw_desert,
    draw_farm,
    draw_forest,
    draw_lake,
    draw_park,
    draw_room,
    draw_snow,
    draw_street,
)

HORIZON = 0.52
"""where sky and ground meet"""

_SKY: dict[str, tuple[RGB, RGB]] = {
    "day": ((88, 176, 242), (206, 236, 252)),
    "sunset": ((120, 70, 140), (255, 168, 72)),
    "night": ((8, 10, 38), (36, 44, 98)),
}

_GROUNDS: Mapping[str, Callable[[Figure, random.Random, float], None]] = {
    "park": draw_park,
    "beach": draw_beach,
    "street": draw_street,
    "snow": draw_snow,
    "desert": draw_desert,
    "farm": draw_farm,
    "lake": draw_lake,
    "forest": draw_forest,
    "room": draw_room,
}


def draw_backdrop(setting: str, time: str, seed: str) -> Figure:
    """Draw a setting at a time of day; details follow from ``seed``."""
    rng = random.Random(seed)
    sky = Figure()
    _draw_sky(sky, time, rng)
    ground = Figure()
    _GROUNDS[setting](ground, rng, HORIZON)
    ground.shapes = [
        (points, lit(colour, time) if time != "night" else _dim(colour)) for points, colour in ground.shapes
    ]
    if setting == "room":
        _draw_window(ground, time)
        return ground
    sky.shapes += ground.shapes
    return sky


def _dim(colour: RGB) -> RGB:
    """Ground at night: darker than the things on it, which stay recognizable."""
    return mix(lit(colour, "night"), (10, 14, 50), 0.46)


def _draw_sky(sky: Figure, time: str, rng: random.Random) -> None:
    top, low = _SKY[time]
    bands = 24
    for k in range(bands):
        y = k * (HORIZON + 0.06) / bands
        sky.rectangle(-0.1, y, 1.1, y + 0.06, mix(top, low, k / (bands - 1)))
    x, y = rng.uniform(0.12, 0.88), rng.uniform(0.09, 0.2)
    if time == "day":
        sky.disc(x, y, 0.085, (255, 240, 150))
        sky.disc(x, y, 0.068, (255, 222, 60))
    elif time == "sunset":
        sky.disc(x, HORIZON - 0.09, 0.16, (255, 190, 80))
        sky.disc(x, HORIZON - 0.09, 0.12, (255, 118, 52))
    else:
        for _ in range(30):
            sky.disc(rng.random(), rng.uniform(0.0, HORIZON), rng.uniform(0.003, 0.007), (250, 248, 220))
        sky.disc(x, y, 0.075, (248, 244, 214))
        sky.disc(x + 0.035, y - 0.02, 0.062, mix(top, low, 0.3))
        return
    for _ in range(rng.randint(1, 3)):
        _draw_cloud(sky, rng, (255, 255, 255) if time == "day" else (250, 150, 130))


def _draw_cloud(sky: Figure, rng: random.Random, colour: RGB) -> None:
    x, y, s = rng.random(), rng.uniform(0.06, 0.3), rng.uniform(0.6, 1.2)
    for dx, dy, r in ((-0.07, 0.0, 0.04), (0.0, -0.025, 0.055), (0.07, 0.0, 0.042)):
        sky.disc(x + dx * s, y + dy * s, r * s, colour)
    sky.rectangle(x - 0.08 * s, y, x + 0.08 * s, y + 0.04 * s, colour)


def _draw_window(room: Figure, time: str) -> None:
    """A window in the wall through which one sees what time it is."""
    x, y, half = 0.5, 0.22, 0.19
    frame = lit((250, 246, 238), time)
    room.rectangle(x - half - 0.02, y - 0.16, x + half + 0.02, y + 0.16, frame)
    top, low = _SKY[time]
    for k in range(7):
        room.rectangle(x - half, y - 0.14 + 0.04 * k, x + half, y - 0.1 + 0.04 * k, mix(top, low, k / 6))
    if time == "night":
        for dx, dy in ((-0.12, -0.07), (-0.05, 0.06), (0.03, -0.09), (0.14, 0.08), (-0.15, 0.1)):
            room.disc(x + dx, y + dy, 0.006, (250, 248, 220))
        room.disc(x + 0.1, y - 0.05, 0.04, (248, 244, 214))
    else:
        room.disc(
            x + 0.1, y - 0.04 if time == "day" else y + 0.06, 0.045, (255, 222, 60) if time == "day" else (255, 118, 52)
        )
    room.rectangle(x - 0.008, y - 0.14, x + 0.008, y + 0.14, frame)
    room.rectangle(x - half, y - 0.008, x + half, y + 0.008, frame)
    for side in (-1, 1):
        edge = x + side * (half + 0.01)
        cloth = lit((190, 70, 80), time)
        room.polygon(
            (
                (edge, y - 0.19),
                (edge + side * 0.08, y - 0.19),
                (edge + side * 0.09, y + 0.2),
                (edge + side * 0.03, y + 0.2),
            ),
            cloth,
        )
        room.rectangle(edge + side * 0.045 - 0.004, y - 0.19, edge + side * 0.045 + 0.004, y + 0.2, darker(cloth, 0.15))
    room.rectangle(x - half - 0.1, y - 0.2, x + half + 0.1, y - 0.185, lighter(frame, 0.1))
