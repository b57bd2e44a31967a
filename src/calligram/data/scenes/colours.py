"""The colours that captions name, and how daylight changes them."""

from __future__ import annotations

RGB = tuple[int, int, int]

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

CLOTHES = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black", "white")
BRIGHT = ("red", "orange", "yellow", "green", "blue", "purple", "pink")

HAIR: dict[str, RGB] = {"black": (34, 28, 30), "brown": (104, 62, 32), "blond": (238, 198, 92), "red": (196, 84, 34)}

SKIN: tuple[RGB, ...] = ((250, 214, 184), (232, 184, 142), (184, 128, 88), (122, 80, 54))

_LIGHT: dict[str, tuple[float, float, float]] = {
    "day": (1.0, 1.0, 1.0),
    "sunset": (1.0, 0.9, 0.82),
    "night": (0.82, 0.84, 0.95),
}


def lit(colour: RGB, time: str) -> RGB:
    """The colour as it looks at this time of day."""
    r, g, b = _LIGHT[time]
    return int(colour[0] * r), int(colour[1] * g), int(colour[2] * b)


def mix(first: RGB, second: RGB, share: float) -> RGB:
    """Blend two colours; ``share`` is that of the second."""
    keep = 1.0 - share
    return (
        int(first[0] * keep + second[0] * share),
        int(first[1] * keep + second[1] * share),
        int(first[2] * keep + second[2] * share),
    )


def darker(colour: RGB, share: float = 0.25) -> RGB:
    """A shade of the colour, for sides turned away and for details."""
    return mix(colour, (16, 16, 28), share)


def lighter(colour: RGB, share: float = 0.35) -> RGB:
    """A tint of the colour, for highlights."""
    return mix(colour, (255, 255, 255), share)
