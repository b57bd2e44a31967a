"""Rendering of a scene: supersampled polygons, drawn in depth order."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw

from calligram.scenes.drawing.backdrop import draw_backdrop
from calligram.scenes.drawing.figure import RGB, Figure, Point, apply_light, mix
from calligram.scenes.world import PlacedFigure, Scene

_SHADOW_COLOURS: dict[str, RGB] = {
    "park": (84, 142, 56),
    "beach": (204, 172, 104),
    "street": (70, 72, 80),
    "snow": (176, 194, 220),
    "desert": (190, 124, 62),
    "farm": (106, 138, 52),
    "lake": (86, 132, 58),
    "forest": (62, 72, 38),
    "room": (130, 86, 52),
}


def picture_size(scene: Scene, size: int) -> tuple[int, int]:
    """Width and height of the picture in pixels, for a height of ``size`` pixels."""
    return max(1, round(scene.width * size)), size


def paint_scene(scene: Scene, size: int) -> Image.Image:
    """Render the scene with a height of ``size`` pixels."""
    width, height = picture_size(scene, size)
    # Supersampling: small pictures need a factor of three against aliasing, large ones a factor of two.
    factor = 3 if size <= 256 else 2
    canvas = Image.new("RGB", (width * factor, height * factor))
    draw = ImageDraw.Draw(canvas)
    unit = float(height * factor)
    for points, colour in draw_backdrop(scene.setting, scene.time, scene.backdrop).shapes:
        draw.polygon([(x * unit, y * unit) for x, y in points], colour)
    for placed in sorted(scene.figures, key=lambda p: p.depth):
        _paint_shadow(draw, placed, scene, unit)
        _paint(draw, placed, scene.time, unit)
    return canvas.reduce(factor)


def paint_alone(placed: Sequence[PlacedFigure], size: int, background: RGB, width: float = 1.0) -> Image.Image:
    """Render figures without a backdrop, in daylight."""
    factor = 3 if size <= 256 else 2
    canvas = Image.new("RGB", (round(width * size) * factor, size * factor), background)
    draw = ImageDraw.Draw(canvas)
    for one in placed:
        _paint(draw, one, "day", float(size * factor))
    return canvas.reduce(factor)


def encode_png(image: Image.Image) -> bytes:
    """Encode the picture as PNG, because JPEG would blur the flat colours."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


def _paint(draw: ImageDraw.ImageDraw, placed: PlacedFigure, time: str, unit: float) -> None:
    sx = (-placed.scale if placed.flip else placed.scale) * unit
    sy, tx, ty = -placed.scale * unit, placed.x * unit, placed.y * unit
    for points, colour in placed.figure.shapes:
        draw.polygon([(tx + sx * x, ty + sy * y) for x, y in points], apply_light(colour, time))


def _paint_shadow(draw: ImageDraw.ImageDraw, placed: PlacedFigure, scene: Scene, unit: float) -> None:
    """Draw the shadow of a thing on the ground. The shadow is not part of the box of the thing."""
    if not placed.shadow:
        return
    flat = Figure()
    flat.ellipse(placed.x, placed.y, placed.shadow, min(0.018, placed.shadow * 0.16), _SHADOW_COLOURS[scene.setting])
    points: Sequence[Point] = flat.shapes[0][0]
    colour = (
        _SHADOW_COLOURS[scene.setting]
        if scene.time != "night"
        else mix(_SHADOW_COLOURS[scene.setting], (10, 12, 40), 0.7)
    )
    draw.polygon([(x * unit, y * unit) for x, y in points], apply_light(colour, scene.time))
