"""Drawings of backdrops: the sky and the ground, which show the setting and the time of day.

Coordinates are image coordinates: x to the right, y down, both in units of the image height.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from calligram.scenes.drawing.figure import RGB, Figure, apply_light, darker, lighter, mix

HORIZON = 0.52
"""y of the line between sky and ground"""


_LEFT, _RIGHT, _END = -0.1, 1.1, 1.05
_SKY_COLOURS: dict[str, tuple[RGB, RGB]] = {
    "day": ((88, 176, 242), (206, 236, 252)),
    "sunset": ((120, 70, 140), (255, 168, 72)),
    "night": ((8, 10, 38), (36, 44, 98)),
}


def draw_backdrop(setting: str, time: str, seed: str) -> Figure:
    """Draw a setting at a time of day; ``seed`` determines the random details."""
    rng = random.Random(seed)
    sky = Figure()
    _draw_sky(sky, time, rng)
    ground = Figure()
    _GROUND_PAINTERS[setting](ground, rng, HORIZON)
    ground.shapes = [
        (points, apply_light(colour, time) if time != "night" else _dim(colour)) for points, colour in ground.shapes
    ]
    if setting == "room":
        _draw_window(ground, time)
        return ground
    sky.shapes += ground.shapes
    return sky


def _draw_sky(sky: Figure, time: str, rng: random.Random) -> None:
    top, low = _SKY_COLOURS[time]
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
    """Draw a window in the wall that shows the time of day."""
    x, y, half = 0.5, 0.22, 0.19
    frame = apply_light((250, 246, 238), time)
    room.rectangle(x - half - 0.02, y - 0.16, x + half + 0.02, y + 0.16, frame)
    top, low = _SKY_COLOURS[time]
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
        cloth = apply_light((190, 70, 80), time)
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


def _dim(colour: RGB) -> RGB:
    """The colour of the ground at night: darker than the things on it, which stay recognizable."""
    return mix(apply_light(colour, "night"), (10, 14, 50), 0.46)


def _plain(figure: Figure, top: float, colour: RGB, bands: int = 4) -> None:
    """Draw flat ground that becomes lighter towards the viewer."""
    step = (_END - top) / bands
    for k in range(bands):
        figure.rectangle(_LEFT, top + k * step, _RIGHT, _END, lighter(colour, 0.06 * k))


def _hills(figure: Figure, rng: random.Random, base: float, height: float, colour: RGB, count: int = 3) -> None:
    for k in range(count):
        x = (k + rng.uniform(0.1, 0.9)) / count
        figure.dome(x, base, rng.uniform(0.25, 0.42), -height * rng.uniform(0.6, 1.1), colour)


def _peaks(figure: Figure, rng: random.Random, base: float, colour: RGB, snow: RGB) -> None:
    for k in range(4):
        x, half = (k + rng.uniform(0.2, 0.8)) / 4, rng.uniform(0.2, 0.28)
        high = base - rng.uniform(0.2, 0.32)
        figure.polygon(((x - half, base), (x, high), (x + half, base)), darker(colour, 0.08 * (k % 2)))
        top = high + 0.07
        share = (top - high) / (base - high)
        figure.polygon(((x - half * share, top), (x, high), (x + half * share, top), (x, top - 0.02)), snow)


def _tufts(figure: Figure, rng: random.Random, top: float, colour: RGB, count: int = 12) -> None:
    for _ in range(count):
        x, y = rng.random(), rng.uniform(top, 0.98)
        for dx in (-0.012, 0.0, 0.012):
            figure.polygon(((x - 0.005, y), (x + 0.005, y), (x + dx, y - 0.028)), colour)


def draw_park(figure: Figure, rng: random.Random, horizon: float) -> None:
    """Lawn with a winding path, bushes at the back and flowers."""
    _hills(figure, rng, horizon + 0.01, 0.1, (112, 178, 92), 4)
    _plain(figure, horizon, (116, 190, 72))
    for _ in range(5):
        figure.dome(rng.random(), horizon + 0.02, rng.uniform(0.06, 0.1), -rng.uniform(0.05, 0.08), (62, 142, 62))
    x, drift = rng.uniform(0.2, 0.8), rng.uniform(-0.3, 0.3)
    figure.polygon(
        ((x - 0.02, horizon + 0.01), (x + 0.02, horizon + 0.01), (x + drift + 0.22, _END), (x + drift - 0.2, _END)),
        (226, 206, 160),
    )
    _tufts(figure, rng, horizon + 0.1, (76, 152, 52))
    for _ in range(8):
        figure.disc(
            rng.random(),
            rng.uniform(horizon + 0.12, 0.98),
            0.008,
            rng.choice(((255, 255, 255), (255, 230, 90), (250, 160, 190))),
        )


def draw_beach(figure: Figure, rng: random.Random, horizon: float) -> None:
    """A band of sea with waves, then sand with shells."""
    sea = horizon - 0.06
    figure.rectangle(_LEFT, sea, _RIGHT, horizon + 0.12, (24, 128, 190))
    figure.rectangle(_LEFT, horizon + 0.04, _RIGHT, horizon + 0.16, (62, 172, 204))
    for _ in range(9):
        x, y = rng.random(), rng.uniform(sea + 0.02, horizon + 0.1)
        figure.rectangle(x - 0.04, y, x + 0.04, y + 0.006, (190, 232, 244))
    shore = horizon + 0.14
    for k in range(9):
        figure.ellipse(0.125 * k, shore + 0.012, 0.1, 0.022, (246, 252, 252))
    _plain(figure, shore + 0.014, (240, 212, 142))
    for _ in range(22):
        figure.disc(rng.random(), rng.uniform(shore + 0.06, 1.0), 0.005, (206, 170, 104))


def draw_street(figure: Figure, rng: random.Random, horizon: float) -> None:
    """A row of distant houses, pavement, and a road with a broken line."""
    x = -0.05
    while x < 1.0:
        width, height = rng.uniform(0.09, 0.16), rng.uniform(0.1, 0.24)
        wall = rng.choice(((168, 172, 186), (186, 178, 172), (154, 162, 180)))
        figure.rectangle(x, horizon - height, x + width - 0.008, horizon + 0.05, wall)
        for row in range(int(height / 0.05)):
            for column in range(int(width / 0.04)):
                wx, wy = x + 0.014 + 0.04 * column, horizon - height + 0.02 + 0.05 * row
                figure.rectangle(wx, wy, wx + 0.016, wy + 0.022, (222, 228, 236))
        x += width
    figure.rectangle(_LEFT, horizon + 0.04, _RIGHT, _END, (186, 184, 180))
    figure.rectangle(_LEFT, horizon + 0.1, _RIGHT, horizon + 0.115, (150, 148, 146))
    figure.rectangle(_LEFT, horizon + 0.115, _RIGHT, 0.86, (84, 86, 94))
    shift = rng.uniform(0, 0.2)
    for k in range(-1, 6):
        figure.rectangle(k * 0.2 + shift, 0.735, k * 0.2 + shift + 0.11, 0.752, (240, 236, 220))
    figure.rectangle(_LEFT, 0.86, _RIGHT, 0.875, (150, 148, 146))
    for k in range(12):
        figure.rectangle(k * 0.1 + shift / 2, 0.875, k * 0.1 + shift / 2 + 0.004, _END, (164, 162, 158))


def draw_snow(figure: Figure, rng: random.Random, horizon: float) -> None:
    """White hills and a white field with drifts."""
    _peaks(figure, rng, horizon + 0.02, (150, 172, 204), (246, 250, 255))
    _hills(figure, rng, horizon + 0.03, 0.07, (206, 222, 242), 4)
    _plain(figure, horizon + 0.02, (222, 233, 247), 3)
    for _ in range(9):
        x, y = rng.random(), rng.uniform(horizon + 0.1, 0.98)
        figure.ellipse(x, y, rng.uniform(0.06, 0.14), 0.012, (200, 216, 238))
    for _ in range(26):
        figure.disc(rng.random(), rng.random(), 0.006, (255, 255, 255))


def draw_desert(figure: Figure, rng: random.Random, horizon: float) -> None:
    """Orange dunes and mesas."""
    for _ in range(2):
        x, half, high = rng.random(), rng.uniform(0.08, 0.15), rng.uniform(0.1, 0.18)
        figure.polygon(
            (
                (x - half - 0.04, horizon + 0.02),
                (x - half, horizon - high),
                (x + half, horizon - high),
                (x + half + 0.04, horizon + 0.02),
            ),
            (186, 96, 58),
        )
        figure.rectangle(x - half, horizon - high, x + half, horizon - high + 0.03, (208, 118, 72))
    _hills(figure, rng, horizon + 0.03, 0.07, (222, 152, 82), 3)
    _plain(figure, horizon + 0.01, (232, 166, 92))
    for _ in range(7):
        x, y = rng.random(), rng.uniform(horizon + 0.08, 0.97)
        figure.ellipse(x, y, rng.uniform(0.08, 0.18), 0.009, (208, 136, 68))
    for _ in range(6):
        figure.ellipse(rng.random(), rng.uniform(horizon + 0.12, 0.98), 0.016, 0.01, (150, 100, 70))


def draw_farm(figure: Figure, rng: random.Random, horizon: float) -> None:
    """Rows of crops behind a white fence, then pasture."""
    _hills(figure, rng, horizon + 0.01, 0.09, (150, 180, 84), 3)
    figure.rectangle(_LEFT, horizon, _RIGHT, horizon + 0.12, (218, 186, 72))
    for k in range(14):
        x = k / 13
        figure.polygon(
            (
                (0.5 + (x - 0.5) * 0.7, horizon),
                (0.5 + (x - 0.5) * 0.7 + 0.008, horizon),
                (0.5 + (x - 0.5) * 1.6 + 0.03, horizon + 0.12),
                (0.5 + (x - 0.5) * 1.6, horizon + 0.12),
            ),
            (178, 140, 46),
        )
    _plain(figure, horizon + 0.1, (146, 184, 74))
    shift = rng.uniform(0, 0.1)
    for y in (horizon + 0.055, horizon + 0.095):
        figure.rectangle(_LEFT, y, _RIGHT, y + 0.014, (248, 244, 236))
    for k in range(-1, 11):
        figure.rectangle(k * 0.1 + shift, horizon + 0.035, k * 0.1 + shift + 0.018, horizon + 0.135, (248, 244, 236))
    _tufts(figure, rng, horizon + 0.2, (98, 146, 44), 14)


def draw_lake(figure: Figure, rng: random.Random, horizon: float) -> None:
    """Mountains, blue water and a green shore."""
    _peaks(figure, rng, horizon, (112, 124, 152), (246, 248, 252))
    figure.rectangle(_LEFT, horizon - 0.02, _RIGHT, 0.8, (66, 150, 210))
    figure.rectangle(_LEFT, horizon - 0.025, _RIGHT, horizon, (84, 134, 96))
    for _ in range(14):
        x, y = rng.random(), rng.uniform(horizon + 0.02, 0.76)
        figure.rectangle(x - 0.05, y, x + 0.05, y + 0.006, (150, 206, 240))
    for k in range(9):
        figure.ellipse(0.125 * k, 0.8, 0.11, rng.uniform(0.02, 0.035), (122, 176, 84))
    figure.rectangle(_LEFT, 0.8, _RIGHT, _END, (122, 176, 84))
    _tufts(figure, rng, 0.86, (78, 140, 56), 9)
    for _ in range(4):
        figure.ellipse(rng.random(), rng.uniform(0.8, 0.84), 0.03, 0.016, (140, 136, 132))


def draw_forest(figure: Figure, rng: random.Random, horizon: float) -> None:
    """A dense row of dark trunks and crowns, and a dark floor with ferns."""
    figure.rectangle(_LEFT, 0.27, _RIGHT, horizon + 0.06, (34, 84, 58))
    for k in range(12):
        figure.disc((k + rng.random()) / 12, 0.27 + rng.uniform(-0.03, 0.04), rng.uniform(0.06, 0.09), (34, 84, 58))
    for k in range(10):
        x, w = (k + rng.random()) / 10, rng.uniform(0.014, 0.03)
        figure.rectangle(x, 0.34, x + w, horizon + 0.06, (70, 50, 38))
    for k in range(14):
        figure.disc((k + rng.random()) / 14, rng.uniform(0.29, 0.37), rng.uniform(0.04, 0.06), (46, 104, 64))
    _plain(figure, horizon + 0.05, (92, 104, 56))
    for _ in range(16):
        figure.ellipse(rng.random(), rng.uniform(horizon + 0.1, 0.98), 0.02, 0.008, (128, 96, 52))
    _tufts(figure, rng, horizon + 0.1, (52, 110, 50), 16)


def draw_room(figure: Figure, rng: random.Random, horizon: float) -> None:
    """A papered wall, a wooden floor and a carpet."""
    wall = rng.choice(((246, 222, 186), (206, 226, 214), (226, 214, 236)))
    figure.rectangle(_LEFT, -0.05, _RIGHT, 0.66, wall)
    for k in range(12):
        figure.rectangle(k * 0.1, -0.05, k * 0.1 + 0.03, 0.66, lighter(wall, 0.3))
    figure.rectangle(_LEFT, horizon + 0.1, _RIGHT, _END, (178, 122, 76))
    figure.rectangle(_LEFT, horizon + 0.08, _RIGHT, horizon + 0.115, (246, 242, 234))
    for k in range(5):
        y = horizon + 0.14 + 0.07 * k
        figure.rectangle(_LEFT, y, _RIGHT, y + 0.005, (150, 98, 58))
    figure.ellipse(rng.uniform(0.3, 0.7), 0.86, rng.uniform(0.3, 0.42), 0.1, (214, 196, 176))
    if rng.random() < 0.7:
        x = rng.choice((0.08, 0.92))
        figure.rectangle(x - 0.05, 0.14, x + 0.05, 0.3, (120, 84, 52))
        figure.rectangle(x - 0.04, 0.155, x + 0.04, 0.285, (170, 206, 190))


_GROUND_PAINTERS: Mapping[str, Callable[[Figure, random.Random, float], None]] = {
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
