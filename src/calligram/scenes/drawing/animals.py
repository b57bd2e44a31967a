"""Drawings of animals. They face right, and their height is about one."""

from __future__ import annotations

from calligram.scenes.drawing.figure import PALETTE, RGB, Figure, Point, darker, lighter
from calligram.scenes.world import Facts

_INK, _BEAK = (30, 26, 28), (255, 160, 20)
"""colours of outlines and eyes, and of beaks"""


def _legs(figure: Figure, xs: tuple[float, float], top: float, width: float, colour: RGB, running: bool) -> None:
    """Draw two pairs of legs; a running animal stretches them forward and backward."""
    back, front = xs
    far = darker(colour, 0.3)
    if running:
        figure.limb(((front, top), (front + 0.22, top * 0.55), (front + 0.4, top * 0.42)), width, far)
        figure.limb(((back, top), (back - 0.2, top * 0.5), (back - 0.4, top * 0.3)), width, far)
        figure.limb(((front, top), (front + 0.15, top * 0.45), (front + 0.3, width / 2)), width, colour)
        figure.limb(((back, top), (back - 0.14, top * 0.5), (back - 0.3, width / 2)), width, colour)
        return
    for x, shade in ((back + 0.1, far), (front - 0.1, far), (back, colour), (front, colour)):
        figure.limb(((x, top), (x, width / 2)), width, shade)


def draw_dog(facts: Facts) -> Figure:
    """A dog with hanging ears and a raised tail."""
    figure, coat = Figure(), PALETTE[facts["colour"]]
    dark = darker(coat, 0.35)
    if facts["pose"] == "sitting":
        figure.limb(((-0.3, 0.1), (-0.55, 0.16)), 0.1, dark)
        figure.limb(((0.2, 0.45), (0.24, 0.06)), 0.13, dark)
        figure.ellipse(-0.12, 0.2, 0.3, 0.2, coat)
        figure.ellipse(0.0, 0.4, 0.22, 0.36, coat, -0.35)
        figure.limb(((0.14, 0.45), (0.15, 0.07)), 0.13, coat)
        _dog_head(figure, (0.15, 0.76), coat)
        return figure
    running = facts["pose"] == "running"
    figure.limb(((-0.46, 0.56), (-0.66, 0.72), (-0.7, 0.9)), 0.1, dark)
    _legs(figure, (-0.36, 0.32), 0.38, 0.13, coat, running)
    figure.ellipse(-0.02, 0.46, 0.5, 0.2, coat)
    figure.limb(((0.32, 0.52), (0.46, 0.7)), 0.24, coat)
    _dog_head(figure, (0.5, 0.76), coat)
    return figure


def _dog_head(figure: Figure, at: Point, coat: RGB) -> None:
    (x, y), dark = at, darker(coat, 0.4)
    figure.disc(x, y, 0.2, coat)
    figure.ellipse(x + 0.22, y - 0.06, 0.16, 0.11, lighter(coat, 0.15))
    figure.disc(x + 0.35, y - 0.01, 0.05, _INK)
    figure.ellipse(x - 0.12, y - 0.04, 0.09, 0.2, dark, 0.2)
    figure.disc(x + 0.08, y + 0.05, 0.036, _INK if sum(coat) > 200 else (240, 240, 240))
    figure.limb(((x - 0.1, y - 0.23), (x + 0.08, y - 0.2)), 0.05, PALETTE["red"])


def draw_cat(facts: Facts) -> Figure:
    """A cat with pointed ears and a long curled tail."""
    figure, coat = Figure(), PALETTE[facts["colour"]]
    if facts["pose"] == "sitting":
        figure.limb(((-0.2, 0.08), (-0.5, 0.1), (-0.58, 0.3)), 0.09, darker(coat, 0.25))
        figure.ellipse(0, 0.26, 0.27, 0.27, coat)
        figure.ellipse(0.04, 0.4, 0.2, 0.26, coat)
        figure.limb(((0.06, 0.3), (0.08, 0.05)), 0.1, darker(coat, 0.12))
        figure.limb(((0.2, 0.3), (0.21, 0.05)), 0.1, coat)
        _cat_head(figure, (0.08, 0.72), coat)
        return figure
    figure.limb(((-0.5, 0.45), (-0.72, 0.55), (-0.74, 0.82), (-0.62, 0.95)), 0.09, darker(coat, 0.25))
    _legs(figure, (-0.4, 0.32), 0.32, 0.11, coat, facts["pose"] == "running")
    figure.ellipse(-0.04, 0.42, 0.5, 0.18, coat)
    _cat_head(figure, (0.48, 0.66), coat)
    return figure


def _cat_head(figure: Figure, at: Point, coat: RGB) -> None:
    x, y = at
    for side in (-0.15, 0.15):
        figure.polygon(((x + side - 0.09, y + 0.1), (x + side + 0.09, y + 0.1), (x + side * 1.25, y + 0.33)), coat)
        figure.polygon(
            ((x + side - 0.04, y + 0.12), (x + side + 0.04, y + 0.12), (x + side * 1.2, y + 0.25)), PALETTE["pink"]
        )
    figure.ellipse(x, y, 0.25, 0.2, coat)
    eye = (90, 200, 90) if sum(coat) < 500 else (40, 120, 60)
    for side in (-0.08, 0.12):
        figure.ellipse(x + side, y + 0.03, 0.045, 0.055, eye)
        figure.ellipse(x + side, y + 0.03, 0.018, 0.05, _INK)
    figure.disc(x + 0.02, y - 0.06, 0.03, PALETTE["pink"])
    whisker = (235, 235, 235) if sum(coat) < 300 else (70, 70, 70)
    for dy in (-0.03, -0.09):
        figure.limb(((x - 0.14, y - 0.06), (x - 0.33, y + dy)), 0.012, whisker)
        figure.limb(((x + 0.16, y - 0.06), (x + 0.35, y + dy)), 0.012, whisker)


def draw_horse(facts: Facts) -> Figure:
    """A horse with a mane; the anchor ``seat`` is its back."""
    figure, coat = Figure(), PALETTE[facts["colour"]]
    mane = darker(coat, 0.55) if facts["colour"] != "black" else (110, 90, 80)
    figure.limb(((-0.44, 0.62), (-0.56, 0.5), (-0.56, 0.26)), 0.1, mane)
    _legs(figure, (-0.34, 0.28), 0.48, 0.1, coat, facts["pose"] == "running")
    figure.ellipse(-0.03, 0.57, 0.46, 0.17, coat)
    figure.polygon(((0.16, 0.62), (0.42, 0.52), (0.56, 0.86), (0.38, 0.92)), coat)
    figure.ellipse(0.57, 0.84, 0.19, 0.09, coat, -0.55)
    figure.ellipse(0.69, 0.76, 0.075, 0.065, darker(coat, 0.2))
    figure.polygon(((0.4, 0.88), (0.48, 0.88), (0.44, 1.02)), coat)
    figure.limb(((0.41, 0.92), (0.32, 0.82), (0.24, 0.68)), 0.1, mane)
    figure.disc(0.53, 0.88, 0.02, _INK if sum(coat) > 200 else (240, 240, 240))
    figure.anchors["seat"] = (-0.06, 0.72)
    return figure


def draw_cow(facts: Facts) -> Figure:
    """A cow with horns, patches, an udder and a square head."""
    figure, coat = Figure(), PALETTE[facts["colour"]]
    patch = (45, 40, 42) if facts["colour"] == "white" else lighter(coat, 0.85)
    figure.limb(((-0.56, 0.7), (-0.66, 0.55), (-0.65, 0.34)), 0.045, darker(coat, 0.3))
    figure.disc(-0.65, 0.32, 0.05, _INK)
    _legs(figure, (-0.42, 0.36), 0.4, 0.13, coat, False)
    figure.ellipse(-0.16, 0.32, 0.13, 0.08, PALETTE["pink"])
    figure.ellipse(-0.02, 0.58, 0.58, 0.25, coat)
    for x, y, rx, ry in ((-0.3, 0.64, 0.15, 0.12), (0.06, 0.54, 0.13, 0.1), (0.26, 0.7, 0.1, 0.08)):
        figure.ellipse(x, y, rx, ry, patch)
    for side in (-0.1, 0.12):
        figure.limb(((0.62 + side, 0.9), (0.62 + side * 1.6, 1.0)), 0.045, (225, 215, 190))
    figure.ellipse(0.44, 0.85, 0.11, 0.05, darker(coat, 0.2), -0.2)
    figure.ellipse(0.63, 0.78, 0.16, 0.18, coat)
    figure.ellipse(0.67, 0.64, 0.15, 0.1, (240, 170, 170))
    for x in (0.62, 0.73):
        figure.disc(x, 0.64, 0.02, darker((240, 170, 170), 0.5))
        figure.disc(x - 0.03, 0.82, 0.025, _INK if sum(coat) > 200 else (240, 240, 240))
    return figure


def draw_sheep(facts: Facts) -> Figure:
    """A sheep with round wool and thin legs."""
    figure, wool = Figure(), PALETTE[facts["colour"]]
    face = (70, 60, 58) if facts["colour"] == "white" else (222, 196, 170)
    _legs(figure, (-0.28, 0.24), 0.3, 0.1, face, False)
    soft = darker(wool, 0.08) if facts["colour"] == "white" else lighter(wool, 0.1)
    for x, y, r in ((-0.42, 0.5, 0.2), (-0.26, 0.7, 0.21), (0.02, 0.76, 0.22), (0.26, 0.64, 0.2), (0.3, 0.44, 0.19)):
        figure.disc(x, y, r, soft)
    figure.ellipse(-0.06, 0.52, 0.43, 0.27, wool)
    figure.disc(-0.22, 0.66, 0.15, wool)
    figure.disc(0.08, 0.68, 0.16, wool)
    figure.ellipse(0.5, 0.66, 0.14, 0.2, face, 0.25)
    figure.ellipse(0.36, 0.74, 0.1, 0.05, face, 0.5)
    figure.disc(0.45, 0.86, 0.12, wool)
    figure.disc(0.52, 0.72, 0.028, (250, 250, 250))
    figure.disc(0.525, 0.72, 0.014, _INK)
    return figure


def draw_bird(facts: Facts) -> Figure:
    """A small bird, with its wings spread when it flies."""
    figure, coat = Figure(), PALETTE[facts["colour"]]
    flying = facts["pose"] == "flying"
    if not flying:
        for x in (-0.04, 0.12):
            figure.limb(((x, 0.3), (x, 0.02)), 0.04, _BEAK)
    y = 0.52
    figure.polygon(((-0.3, y), (-0.36, y + 0.16), (-0.85, y + 0.2), (-0.8, y - 0.06)), darker(coat, 0.3))
    if flying:
        figure.polygon(((-0.1, y + 0.1), (0.22, y + 0.1), (0.12, y + 0.62), (-0.32, y + 0.74)), darker(coat, 0.35))
    figure.ellipse(0, y, 0.42, 0.27, coat, 0.2)
    figure.disc(0.36, y + 0.2, 0.22, coat)
    figure.ellipse(0.1, y - 0.12, 0.24, 0.13, lighter(coat, 0.55), 0.3)
    figure.polygon(((0.53, y + 0.28), (0.54, y + 0.1), (0.78, y + 0.16)), _BEAK)
    figure.disc(0.42, y + 0.26, 0.05, (255, 255, 255))
    figure.disc(0.43, y + 0.26, 0.028, _INK)
    if flying:
        figure.polygon(((-0.22, y + 0.06), (0.14, y + 0.12), (-0.1, y + 0.68), (-0.56, y + 0.62)), darker(coat, 0.12))
    else:
        figure.ellipse(-0.12, y + 0.03, 0.3, 0.16, darker(coat, 0.22), 0.05)
    return figure


def draw_duck(facts: Facts) -> Figure:
    """A duck with a round body, a long neck and a flat beak."""
    figure, coat = Figure(), PALETTE[facts["colour"]]
    if facts["pose"] != "swimming":
        for x in (-0.08, 0.12):
            figure.limb(((x, 0.2), (x, 0.04), (x + 0.1, 0.03)), 0.055, _BEAK)
    low = 0.0 if facts["pose"] == "swimming" else 0.14
    figure.polygon(((-0.4, low + 0.2), (-0.3, low + 0.4), (-0.72, low + 0.5)), darker(coat, 0.15))
    figure.ellipse(-0.02, low + 0.24, 0.5, 0.24, coat)
    figure.limb(((0.3, low + 0.3), (0.36, low + 0.6)), 0.2, coat)
    figure.disc(0.38, low + 0.66, 0.19, coat)
    figure.ellipse(0.64, low + 0.62, 0.15, 0.06, _BEAK)
    figure.disc(0.44, low + 0.71, 0.035, _INK if sum(coat) > 200 else (250, 250, 250))
    figure.ellipse(-0.08, low + 0.28, 0.3, 0.14, darker(coat, 0.2), 0.12)
    return figure
