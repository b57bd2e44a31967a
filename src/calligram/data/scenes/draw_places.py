"""Trees and buildings, with their height about one."""

from __future__ import annotations

from calligram.data.scenes.colours import PALETTE, RGB, darker, lighter
from calligram.data.scenes.figure import Figure
from calligram.data.scenes.world import Facts

_TRUNK = (112, 72, 42)
_WINDOW = (190, 228, 245)
_LEAVES: dict[str, RGB] = {"green": (38, 140, 52), "orange": (230, 120, 30), "pink": (245, 160, 195)}


def draw_leafy_tree(facts: Facts) -> Figure:
    """A tree with a round crown."""
    figure, leaf = Figure(), _LEAVES[facts["colour"]]
    figure.polygon(((-0.07, 0), (0.07, 0), (0.045, 0.5), (-0.045, 0.5)), _TRUNK)
    figure.limb(((0, 0.34), (0.14, 0.5)), 0.04, _TRUNK)
    for x, y, r in ((-0.2, 0.56, 0.18), (0.2, 0.56, 0.18), (0.0, 0.52, 0.18), (-0.15, 0.76, 0.18), (0.15, 0.76, 0.18)):
        figure.disc(x, y, r, darker(leaf, 0.16))
    figure.disc(0.0, 0.8, 0.2, leaf)
    figure.disc(-0.08, 0.66, 0.2, leaf)
    figure.disc(0.12, 0.66, 0.15, leaf)
    figure.ellipse(-0.08, 0.82, 0.08, 0.05, lighter(leaf, 0.25), 0.5)
    return figure


def draw_pine_tree(facts: Facts) -> Figure:
    """A pine: three dark triangles on a short trunk."""
    del facts
    figure, leaf = Figure(), (18, 92, 62)
    figure.rectangle(-0.05, 0, 0.05, 0.2, _TRUNK)
    for low, high, half in ((0.14, 0.56, 0.3), (0.36, 0.78, 0.24), (0.58, 1.0, 0.17)):
        figure.polygon(((-half, low), (half, low), (0, high)), leaf)
        figure.polygon(((-half, low), (-half * 0.3, low), (0, high)), lighter(leaf, 0.18))
    return figure


def draw_palm_tree(facts: Facts) -> Figure:
    """A palm with a bent trunk and hanging leaves."""
    del facts
    figure, leaf = Figure(), (40, 150, 70)
    figure.limb(((0, 0.02), (0.05, 0.3), (0.03, 0.58), (-0.03, 0.8)), 0.075, (160, 116, 70))
    for dx, dy in ((0.36, 0.02), (-0.36, 0.0), (0.3, -0.2), (-0.3, -0.2), (0.22, 0.16), (-0.2, 0.16)):
        x, y = -0.03, 0.82
        bend = (x + dx * 0.55, y + dy * 0.5 + 0.1)
        figure.polygon(
            (
                (x, y - 0.03),
                (bend[0], bend[1] - 0.06),
                (x + dx, y + dy - 0.06),
                (bend[0], bend[1] + 0.03),
                (x, y + 0.03),
            ),
            leaf,
        )
    figure.disc(-0.06, 0.78, 0.04, (110, 70, 30))
    figure.disc(0.02, 0.77, 0.04, (110, 70, 30))
    return figure


def draw_house(facts: Facts) -> Figure:
    """A house with a pitched roof, a door and two windows."""
    figure, wall, roof = Figure(), PALETTE[facts["colour"]], PALETTE[facts["roof"]]
    figure.rectangle(0.2, 0.72, 0.32, 0.98, darker(roof, 0.4))
    figure.rectangle(-0.46, 0, 0.46, 0.58, wall)
    figure.polygon(((-0.58, 0.56), (0.58, 0.56), (0.3, 0.94), (-0.3, 0.94)), roof)
    figure.rectangle(-0.58, 0.54, 0.58, 0.59, darker(roof, 0.3))
    figure.rectangle(-0.1, 0, 0.1, 0.36, (98, 60, 36))
    figure.disc(0.06, 0.18, 0.018, PALETTE["yellow"])
    for x in (-0.29, 0.29):
        figure.rectangle(x - 0.11, 0.2, x + 0.11, 0.44, (250, 250, 245))
        figure.rectangle(x - 0.085, 0.225, x + 0.085, 0.415, _WINDOW)
        figure.rectangle(x - 0.01, 0.225, x + 0.01, 0.415, (250, 250, 245))
    figure.anchors["roof"] = (-0.12, 0.94)
    return figure


def draw_tower(facts: Facts) -> Figure:
    """A tall block of flats with rows of windows."""
    figure, wall = Figure(), PALETTE[facts["colour"]]
    figure.rectangle(-0.26, 0, 0.26, 1.0, wall)
    figure.rectangle(0.14, 0, 0.26, 1.0, darker(wall, 0.18))
    figure.rectangle(-0.29, 0.96, 0.29, 1.0, darker(wall, 0.35))
    for row in range(6):
        for x in (-0.19, -0.05, 0.09):
            y = 0.2 + 0.125 * row
            figure.rectangle(x, y, x + 0.09, y + 0.08, _WINDOW)
    figure.rectangle(-0.06, 0, 0.06, 0.13, (70, 54, 44))
    figure.anchors["roof"] = (0.0, 1.0)
    return figure


def draw_barn(facts: Facts) -> Figure:
    """A barn with a bent roof and a crossed door."""
    figure, wall = Figure(), PALETTE[facts["colour"]]
    trim = (248, 246, 240) if facts["colour"] != "white" else (150, 60, 50)
    figure.polygon(((-0.56, 0), (0.56, 0), (0.56, 0.56), (0.34, 0.84), (0, 0.98), (-0.34, 0.84), (-0.56, 0.56)), wall)
    figure.limb(((-0.6, 0.54), (-0.36, 0.85), (0, 1.0), (0.36, 0.85), (0.6, 0.54)), 0.07, (86, 80, 84))
    figure.rectangle(-0.26, 0, 0.26, 0.44, trim)
    figure.rectangle(-0.22, 0, 0.22, 0.4, darker(wall, 0.25))
    figure.limb(((-0.2, 0.02), (0.2, 0.38)), 0.04, trim)
    figure.limb(((-0.2, 0.38), (0.2, 0.02)), 0.04, trim)
    figure.rectangle(-0.1, 0.6, 0.1, 0.76, trim)
    figure.rectangle(-0.07, 0.63, 0.07, 0.73, (60, 50, 50))
    figure.anchors["roof"] = (0.0, 1.02)
    return figure
