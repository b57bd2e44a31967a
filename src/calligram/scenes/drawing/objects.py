"""Drawings of objects, furniture, trees, buildings and vehicles. Their height is about one, and vehicles face right."""

from __future__ import annotations

from calligram.scenes.drawing.figure import PALETTE, RGB, Figure, darker, lighter
from calligram.scenes.world import Facts

# Colours.
_WOOD, _STRING = (150, 96, 52), (120, 110, 110)
_TRUNK = (112, 72, 42)
_WINDOW = (190, 228, 245)
_LEAVES: dict[str, RGB] = {"green": (38, 140, 52), "orange": (230, 120, 30), "pink": (245, 160, 195)}
_TYRE, _HUB, _GLASS = (32, 32, 36), (190, 194, 200), (186, 226, 246)
_LAMP = (255, 240, 150)


def draw_ball(facts: Facts) -> Figure:
    """A ball with a pale band."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.disc(0, 0.5, 0.5, paint)
    figure.ellipse(0, 0.5, 0.16, 0.49, lighter(paint, 0.45) if facts["colour"] != "white" else PALETTE["grey"], 0.6)
    figure.ellipse(-0.2, 0.74, 0.11, 0.08, lighter(paint, 0.75), 0.6)
    return figure


def draw_balloon(facts: Facts) -> Figure:
    """A balloon on its string; the origin is the point where a hand holds it."""
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
    """A kite on a long string; the origin is the point where a hand holds it."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.limb(((0, 0), (0.16, 0.34), (0.3, 0.6)), 0.016, (235, 235, 235))
    figure.limb(((0.24, 0.56), (0.14, 0.5), (0.2, 0.42)), 0.03, darker(paint, 0.2))
    figure.polygon(((0.22, 0.48), (0.1, 0.82), (0.46, 1.0), (0.56, 0.68)), paint)
    figure.polygon(((0.22, 0.48), (0.1, 0.82), (0.46, 1.0)), lighter(paint, 0.3))
    return figure


def draw_bench(facts: Facts) -> Figure:
    """A bench with a back; the anchor ``seat`` is the point where a person sits."""
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
    """An armchair; the anchor ``seat`` is the point where a person sits."""
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
    """A snowman with a carrot nose and a hat in the colour of the fact ``colour``."""
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


def _wheel(figure: Figure, x: float, r: float) -> None:
    figure.disc(x, r, r, _TYRE)
    figure.disc(x, r, r * 0.5, _HUB)


def draw_car(facts: Facts) -> Figure:
    """A car with a rounded cabin and two windows."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.polygon(((-0.7, 0.5), (-0.46, 0.98), (0.26, 0.98), (0.62, 0.5)), paint)
    figure.polygon(((-0.55, 0.54), (-0.38, 0.88), (-0.12, 0.88), (-0.12, 0.54)), _GLASS)
    figure.polygon(((-0.04, 0.54), (-0.04, 0.88), (0.22, 0.88), (0.46, 0.54)), _GLASS)
    figure.limb(((-0.93, 0.4), (0.92, 0.36)), 0.3, paint)
    figure.rectangle(-1.0, 0.2, 1.0, 0.36, paint)
    figure.rectangle(-1.0, 0.17, 1.0, 0.23, darker(paint, 0.45))
    figure.disc(0.98, 0.4, 0.07, _LAMP)
    figure.rectangle(-0.14, 0.4, 0.0, 0.44, darker(paint, 0.4))
    for x in (-0.58, 0.58):
        figure.dome(x, 0.2, 0.28, 0.28, darker(paint, 0.45))
        _wheel(figure, x, 0.22)
    return figure


def draw_bus(facts: Facts) -> Figure:
    """A long bus with a row of windows and a door."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.rectangle(-0.86, 0.14, 0.88, 0.96, paint)
    figure.limb(((-0.84, 0.95), (0.83, 0.95)), 0.1, paint)
    figure.rectangle(-0.88, 0.14, 0.9, 0.22, darker(paint, 0.4))
    for k in range(4):
        x = -0.78 + 0.34 * k
        figure.rectangle(x, 0.56, x + 0.27, 0.86, _GLASS)
    figure.rectangle(0.6, 0.24, 0.82, 0.86, lighter(_GLASS, 0.2))
    figure.rectangle(0.7, 0.24, 0.72, 0.86, darker(paint, 0.4))
    figure.rectangle(-0.86, 0.42, 0.56, 0.48, lighter(paint, 0.6))
    figure.disc(0.88, 0.3, 0.05, _LAMP)
    for x in (-0.52, 0.42):
        _wheel(figure, x, 0.16)
    return figure


def draw_truck(facts: Facts) -> Figure:
    """A truck with a coloured cabin and a large pale box behind it."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    box = (232, 232, 226) if facts["colour"] != "white" else (120, 124, 130)
    figure.rectangle(-0.95, 0.26, 0.36, 1.0, box)
    for k in range(4):
        figure.rectangle(-0.72 + 0.26 * k, 0.3, -0.7 + 0.26 * k, 0.96, darker(box, 0.15))
    figure.rectangle(-0.95, 0.18, 0.9, 0.28, (60, 60, 66))
    figure.polygon(((0.4, 0.2), (0.95, 0.2), (0.95, 0.48), (0.8, 0.8), (0.4, 0.8)), paint)
    figure.polygon(((0.54, 0.5), (0.86, 0.5), (0.75, 0.73), (0.54, 0.73)), _GLASS)
    figure.disc(0.93, 0.32, 0.055, _LAMP)
    for x in (-0.66, -0.26, 0.64):
        _wheel(figure, x, 0.17)
    return figure


def draw_tractor(facts: Facts) -> Figure:
    """A tractor with one huge and one small wheel."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.limb(((0.36, 0.6), (0.36, 0.92)), 0.06, (60, 60, 66))
    figure.polygon(((-0.5, 0.5), (-0.44, 1.0), (0.08, 1.0), (0.16, 0.5)), paint)
    figure.polygon(((-0.38, 0.58), (-0.34, 0.9), (0.0, 0.9), (0.05, 0.58)), _GLASS)
    figure.rectangle(-0.5, 0.3, 0.7, 0.62, paint)
    figure.rectangle(0.3, 0.4, 0.64, 0.44, darker(paint, 0.35))
    figure.rectangle(0.3, 0.5, 0.64, 0.54, darker(paint, 0.35))
    figure.disc(-0.34, 0.33, 0.33, _TYRE)
    figure.disc(-0.34, 0.33, 0.17, PALETTE["yellow"] if facts["colour"] != "yellow" else PALETTE["red"])
    figure.disc(0.5, 0.19, 0.19, _TYRE)
    figure.disc(0.5, 0.19, 0.09, PALETTE["yellow"] if facts["colour"] != "yellow" else PALETTE["red"])
    return figure


def draw_bicycle(facts: Facts) -> Figure:
    """A bicycle from the side; the anchor ``seat`` is its saddle."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    for x in (-0.5, 0.5):
        ring = Figure()
        ring.disc(x, 0.34, 0.34, _TYRE)
        outer, inner = (
            ring.shapes[0][0],
            [(x + (px - x) * 0.8, 0.34 + (py - 0.34) * 0.8) for px, py in ring.shapes[0][0]],
        )
        # The wheel is a ring of quadrilaterals, so that the ground is visible through it.
        for k in range(len(outer)):
            figure.polygon((outer[k - 1], outer[k], inner[k], inner[k - 1]), _TYRE)
        for dx, dy in ((0.28, 0), (0, 0.28), (0.2, 0.2), (0.2, -0.2)):
            figure.limb(((x - dx, 0.34 - dy), (x + dx, 0.34 + dy)), 0.014, (150, 150, 156))
    frame = ((-0.5, 0.34), (-0.08, 0.34), (0.34, 0.76), (-0.2, 0.76), (-0.5, 0.34))
    figure.limb(frame, 0.09, paint)
    figure.limb(((-0.08, 0.34), (-0.22, 0.86)), 0.08, paint)
    figure.limb(((0.5, 0.34), (0.32, 0.92), (0.48, 0.98)), 0.08, paint)
    figure.limb(((-0.34, 0.88), (-0.12, 0.88)), 0.09, _TYRE)
    figure.disc(-0.08, 0.34, 0.1, darker(paint, 0.4))
    figure.anchors["seat"] = (-0.2, 0.9)
    return figure


def draw_boat(facts: Facts) -> Figure:
    """A sailing boat: coloured hull, pale sails."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    figure.limb(((0.0, 0.22), (0.0, 1.0)), 0.045, PALETTE["brown"])
    figure.polygon(((0.05, 0.34), (0.05, 0.98), (0.52, 0.34)), (252, 250, 242))
    figure.polygon(((-0.05, 0.36), (-0.05, 0.88), (-0.4, 0.36)), (232, 230, 222))
    figure.polygon(((-0.62, 0.3), (0.7, 0.3), (0.46, 0.0), (-0.44, 0.0)), paint)
    figure.polygon(((-0.62, 0.3), (0.7, 0.3), (0.66, 0.24), (-0.58, 0.24)), lighter(paint, 0.6))
    return figure
