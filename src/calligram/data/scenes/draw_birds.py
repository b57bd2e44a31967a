"""Birds: flying, perched, and ducks."""

from __future__ import annotations

from calligram.data.scenes.colours import PALETTE, darker, lighter
from calligram.data.scenes.figure import Figure
from calligram.data.scenes.world import Facts

_INK, _BEAK = (30, 26, 28), (255, 160, 20)


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
