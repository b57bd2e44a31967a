"""Balls, furniture, things people hold, and other small things."""

from __future__ import annotations

from calligram.data.scenes.colours import PALETTE, darker, lighter
from calligram.data.scenes.figure import Figure
from calligram.data.scenes.world import Facts

_WOOD, _STRING = (150, 96, 52), (120, 110, 110)


def draw_ball(facts: Facts) -> Figure:
    """A ball with a pale band."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.disc(0, 0.5, 0.5, paint)
    figure.ellipse(0, 0.5, 0.16, 0.49, lighter(paint, 0.45) if facts["colour"] != "white" else PALETTE["grey"], 0.6)
    figure.ellipse(-0.2, 0.74, 0.11, 0.08, lighter(paint, 0.75), 0.6)
    return figure


def draw_balloon(facts: Facts) -> Figure:
    """A balloon on its string; the origin is where it is held."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.limb(((0, 0), (0.05, 0.3), (0.0, 0.55)), 0.025, _STRING)
    figure.polygon(((-0.06, 0.5), (0.06, 0.5), (0, 0.6)), darker(paint))
    figure.ellipse(0, 0.8, 0.21, 0.25, paint)
    figure.ellipse(-0.08, 0.9, 0.04, 0.07, lighter(paint, 0.6), 0.4)
    return figure


def draw_umbrella(facts: Facts) -> Figure:
    """An open umbrella; the origin is its handle."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.limb(((0, -0.06), (0, 1.0)), 0.035, _STRING)
    figure.dome(0, 0.55, 0.66, 0.42, paint)
    figure.dome(0, 0.55, 0.24, 0.42, darker(paint, 0.22))
    return figure


def draw_kite(facts: Facts) -> Figure:
    """A kite high on its string; the origin is where it is held."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.limb(((0, 0), (0.16, 0.34), (0.3, 0.6)), 0.016, (235, 235, 235))
    figure.limb(((0.24, 0.56), (0.14, 0.5), (0.2, 0.42)), 0.03, darker(paint, 0.2))
    figure.polygon(((0.22, 0.48), (0.1, 0.82), (0.46, 1.0), (0.56, 0.68)), paint)
    figure.polygon(((0.22, 0.48), (0.1, 0.82), (0.46, 1.0)), lighter(paint, 0.3))
    return figure


def draw_bench(facts: Facts) -> Figure:
    """A bench with a back; the anchor ``seat`` is where one sits."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    dark = darker(paint, 0.3)
    for x in (-0.85, 0.85):
        figure.limb(((x, 0.04), (x, 0.96)), 0.1, dark)
    for y in (0.62, 0.84):
        figure.rectangle(-1.05, y, 1.05, y + 0.16, paint)
    figure.rectangle(-1.1, 0.38, 1.1, 0.52, lighter(paint, 0.12))
    figure.rectangle(-1.1, 0.34, 1.1, 0.4, dark)
    figure.anchors["seat"] = (0.0, 0.46)
    return figure


def draw_chair(facts: Facts) -> Figure:
    """An armchair; the anchor ``seat`` is where one sits."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    for x in (-0.4, 0.4):
        figure.limb(((x, 0.1), (x, 0.03)), 0.08, _WOOD)
    figure.limb(((-0.26, 0.86), (0.26, 0.86)), 0.28, darker(paint, 0.12))
    figure.rectangle(-0.4, 0.3, 0.4, 0.86, darker(paint, 0.12))
    figure.rectangle(-0.44, 0.1, 0.44, 0.42, paint)
    figure.rectangle(-0.34, 0.36, 0.34, 0.48, lighter(paint, 0.25))
    for x in (-0.46, 0.46):
        figure.limb(((x, 0.16), (x, 0.56)), 0.18, paint)
    figure.anchors["seat"] = (0.0, 0.46)
    return figure


def draw_cactus(facts: Facts) -> Figure:
    """A cactus with two arms."""
    del facts
    figure, paint = Figure(), (46, 128, 66)
    figure.limb(((0, 0.0), (0, 0.88)), 0.24, paint)
    figure.limb(((0, 0.4), (-0.3, 0.42), (-0.3, 0.68)), 0.16, paint)
    figure.limb(((0, 0.3), (0.3, 0.32), (0.3, 0.56)), 0.16, paint)
    for x in (-0.05, 0.05):
        figure.limb(((x, 0.05), (x, 0.9)), 0.016, lighter(paint, 0.35))
    figure.disc(0.0, 1.0, 0.06, PALETTE["pink"])
    return figure


def draw_snowman(facts: Facts) -> Figure:
    """A snowman with a carrot nose, in a hat of the fact ``colour``."""
    figure, cloth = Figure(), PALETTE[facts["colour"]]
    snow, edge = (252, 252, 255), (200, 212, 230)
    for y, r in ((0.24, 0.26), (0.56, 0.19), (0.8, 0.14)):
        figure.disc(0.0, y, r, edge)
        figure.disc(-0.015, y + 0.01, r - 0.02, snow)
    for side in (-1, 1):
        figure.limb(((0.16 * side, 0.58), (0.38 * side, 0.72)), 0.03, _WOOD)
    figure.rectangle(-0.16, 0.65, 0.16, 0.71, cloth)
    figure.rectangle(-0.19, 0.9, 0.19, 0.94, cloth)
    figure.rectangle(-0.12, 0.92, 0.12, 1.06, cloth)
    figure.polygon(((0.0, 0.81), (0.0, 0.76), (0.2, 0.77)), PALETTE["orange"])
    for x, y in ((-0.04, 0.85), (0.07, 0.85), (0.02, 0.58), (0.02, 0.5), (0.02, 0.3)):
        figure.disc(x, y, 0.022, (30, 30, 34))
    return figure


def draw_tent(facts: Facts) -> Figure:
    """A tent with an open front."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.polygon(((-0.2, 1.0), (0.5, 0.92), (1.0, 0.0), (0.5, 0.0)), darker(paint, 0.3))
    figure.polygon(((-0.2, 1.0), (-0.85, 0.0), (0.5, 0.0)), paint)
    figure.polygon(((-0.2, 0.72), (-0.48, 0.0), (0.12, 0.0)), (50, 40, 44))
    figure.limb(((-0.2, 1.0), (-0.2, 1.06)), 0.03, _WOOD)
    return figure
