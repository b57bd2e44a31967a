"""Letters for drawn text."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from PIL import ImageFont


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """One that has the letters of most European languages, which Pillow's own has not.

    It comes with matplotlib; that is not imported for it, which takes a second.
    """
    found = find_spec("matplotlib")
    file = Path(found.origin or "").parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf" if found else Path()
    return ImageFont.truetype(file, size) if file.is_file() else ImageFont.load_default(size=size)
