"""A figure made of polygons, which has an exact box and can be drawn at any size; and the colours of scenes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

RGB = tuple[int, int, int]
Point = tuple[float, float]
Box = tuple[float, float, float, float]
PALETTE: dict[str, RGB] = {
    "red": (216, 36, 40),
    "orange": (245, 130, 25),
    "yellow": (252, 212, 40),
    "green": (20, 150, 80),
    "blue": (36, 88, 215),
    "purple": (132, 54, 178),
    "pink": (248, 122, 182),
    "brown": (128, 78, 40),
    "black": (36, 36, 42),
    "white": (250, 250, 250),
    "grey": (138, 143, 152),
}
CLOTHING_COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black", "white")
BRIGHT_COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink")
HAIR_COLOURS: dict[str, RGB] = {
    "black": (34, 28, 30),
    "brown": (104, 62, 32),
    "blond": (238, 198, 92),
    "red": (196, 84, 34),
}
SKIN_COLOURS: tuple[RGB, ...] = ((250, 214, 184), (232, 184, 142), (184, 128, 88), (122, 80, 54))
_LIGHT_FACTORS: dict[str, tuple[float, float, float]] = {
    "day": (1.0, 1.0, 1.0),
    "sunset": (1.0, 0.9, 0.82),
    "night": (0.82, 0.84, 0.95),
}


def _circle(corners: int) -> tuple[Point, ...]:
    turns = (2 * math.pi * k / corners for k in range(corners))
    return tuple((math.cos(t), math.sin(t)) for t in turns)


# With sixteen corners, a small disc differs from a circle by at most a quarter of a pixel at 512 pixels. Large discs
# need more corners.
_SMALL_CIRCLE, _LARGE_CIRCLE = _circle(16), _circle(36)


@dataclass
class Figure:
    """Polygons in drawing order.

    The figure of a thing touches the ground at the origin, has y up and a height of about one, and faces right.
    """

    shapes: list[tuple[Sequence[Point], RGB]] = field(default_factory=list)
    anchors: dict[str, Point] = field(default_factory=dict)
    """named points where other things are attached: hand, seat, roof"""
    _cached_box: tuple[int, Box] = (0, (0.0, 0.0, 0.0, 0.0))

    def polygon(self, points: Sequence[Point], colour: RGB) -> None:
        """Fill a polygon."""
        self.shapes.append((points, colour))

    def rectangle(self, x0: float, y0: float, x1: float, y1: float, colour: RGB) -> None:
        """Fill an axis-aligned rectangle."""
        self.shapes.append((((x0, y0), (x1, y0), (x1, y1), (x0, y1)), colour))

    def ellipse(self, x: float, y: float, rx: float, ry: float, colour: RGB, turn: float = 0.0) -> None:
        """Fill an ellipse with its centre at (x, y), rotated by ``turn`` radians."""
        unit = _LARGE_CIRCLE if max(rx, ry) > 0.06 else _SMALL_CIRCLE
        if turn:
            c, s = math.cos(turn), math.sin(turn)
            points = [(x + rx * u * c - ry * v * s, y + rx * u * s + ry * v * c) for u, v in unit]
        else:
            points = [(x + rx * u, y + ry * v) for u, v in unit]
        self.shapes.append((points, colour))

    def disc(self, x: float, y: float, r: float, colour: RGB) -> None:
        """Fill a circle."""
        self.ellipse(x, y, r, r, colour)

    def dome(self, x: float, y: float, rx: float, ry: float, colour: RGB) -> None:
        """Fill the upper half of an ellipse with its centre at (x, y); a negative ``ry`` gives the lower half."""
        half = _LARGE_CIRCLE[: len(_LARGE_CIRCLE) // 2 + 1]
        self.shapes.append(([(x + rx * u, y + ry * v) for u, v in half], colour))

    def limb(self, points: Sequence[Point], width: float, colour: RGB) -> None:
        """Draw a thick line with round joints and ends."""
        r = width / 2
        for (x0, y0), (x1, y1) in pairwise(points):
            length = math.hypot(x1 - x0, y1 - y0) or 1.0
            nx, ny = -(y1 - y0) / length * r, (x1 - x0) / length * r
            self.shapes.append(
                (((x0 + nx, y0 + ny), (x1 + nx, y1 + ny), (x1 - nx, y1 - ny), (x0 - nx, y0 - ny)), colour)
            )
        for x, y in points:
            self.shapes.append(([(x + r * u, y + r * v) for u, v in _SMALL_CIRCLE], colour))

    def box(self) -> Box:
        """Left, lower, right and upper edge of all polygons."""
        # The placement of a thing needs the box many times; it changes only when a polygon is added.
        if self._cached_box[0] != len(self.shapes):
            xs = [p[0] for points, _ in self.shapes for p in points]
            ys = [p[1] for points, _ in self.shapes for p in points]
            self._cached_box = len(self.shapes), (min(xs), min(ys), max(xs), max(ys))
        return self._cached_box[1]

    def moved(self, dx: float, dy: float) -> Figure:
        """A copy of the figure, moved by (dx, dy)."""
        shapes: list[tuple[Sequence[Point], RGB]] = [
            ([(x + dx, y + dy) for x, y in points], colour) for points, colour in self.shapes
        ]
        return Figure(shapes, {name: (x + dx, y + dy) for name, (x, y) in self.anchors.items()})


def apply_light(colour: RGB, time: str) -> RGB:
    """The colour under the light of a time of day."""
    r, g, b = _LIGHT_FACTORS[time]
    return int(colour[0] * r), int(colour[1] * g), int(colour[2] * b)


def mix(first: RGB, second: RGB, share: float) -> RGB:
    """Blend two colours; ``share`` is the weight of the second."""
    keep = 1.0 - share
    return (
        int(first[0] * keep + second[0] * share),
        int(first[1] * keep + second[1] * share),
        int(first[2] * keep + second[2] * share),
    )


def darker(colour: RGB, share: float = 0.25) -> RGB:
    """A darker shade of the colour, for far sides and details."""
    return mix(colour, (16, 16, 28), share)


def lighter(colour: RGB, share: float = 0.35) -> RGB:
    """A lighter tint of the colour, for highlights."""
    return mix(colour, (255, 255, 255), share)
