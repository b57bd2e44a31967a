"""Vehicles, all driving to the right, with their height about one."""

from __future__ import annotations

from calligram.data.scenes.colours import PALETTE, darker, lighter
from calligram.data.scenes.figure import Figure
from calligram.data.scenes.world import Facts

_TYRE, _HUB, _GLASS = (32, 32, 36), (190, 194, 200), (186, 226, 246)
_LAMP = (255, 240, 150)


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
    """A truck: a coloured cabin before a large pale box."""
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
    """A bicycle seen from its side; the anchor ``seat`` is its saddle."""
    figure, paint = Figure(), PALETTE[facts["colour"]]
    for x in (-0.5, 0.5):
        ring = Figure()
        ring.disc(x, 0.34, 0.34, _TYRE)
        outer, inner = (
            ring.shapes[0][0],
            [(x + (px - x) * 0.8, 0.34 + (py - 0.34) * 0.8) for px, py in ring.shapes[0][0]],
        )
        # A ring of quads, so that the ground shows through the wheel.
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
