"""How collections, hits and reports look in a notebook: HTML without scripts and without addresses."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

THUMBNAIL_SIDE = 160
SHOWN_PICTURES = 24
"""pictures of a display; each is decoded and stored in the notebook"""
JPEG_QUALITY = 80
MAX_PICTURE_BYTES = 100_000_000
CELL_STYLE = "display:inline-block;vertical-align:top;width:168px;margin:4px;font-size:12px;overflow-wrap:anywhere"


def html_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; texts are escaped.

    >>> html_table(["a"], [["<b>"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in headers)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_picture(image: Image.Image | None, text: str) -> str:
    """A small picture with a text below it; the text alone where there is no picture."""
    if image is None:
        return f'<div style="{CELL_STYLE}">{escape(text)}</div>'
    small = image.copy()
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    stream = io.BytesIO()
    small.convert("RGB").save(stream, "JPEG", quality=JPEG_QUALITY)
    data = base64.b64encode(stream.getvalue()).decode()
    shown = f'<img src="data:image/jpeg;base64,{data}" alt="{escape(text, quote=True)}">'
    return f'<div style="{CELL_STYLE}">{shown}<br>{escape(text)}</div>'


class ShownHits:
    """Results of a search that a notebook shows as pictures, or as texts where captions were found."""

    hits: tuple[Any, ...]
    below_cutoff: int

    def _repr_html_(self) -> str:
        if any(hit.text is not None for hit in self.hits):
            return html_table(["rank", "score", "caption"], [(h.rank, f"{h.score:.3f}", h.text) for h in self.hits])
        shown = [html_picture(_read(hit.path), _caption(hit)) for hit in self.hits[:SHOWN_PICTURES]]
        more = len(self.hits) - len(shown)
        notes = [f"{more} more hits"] if more else []
        nearest = len(self.hits) + self.below_cutoff
        notes += [f"{self.below_cutoff} of the nearest {nearest} are not a good match"] if self.below_cutoff else []
        notes += ["no good match"] if not self.hits else []
        return "".join(shown) + (f"<p>{escape('; '.join(notes))}</p>" if notes else "")


def _caption(hit: Any) -> str:
    return f"{hit.rank}: {Path(hit.path).name if hit.path else hit.id} ({hit.score:.3f})"


def _read(path: str | None) -> Image.Image | None:
    """The picture of a hit; None where it cannot be read, such as a frame of a video."""
    if path is None:
        return None
    from PIL import ImageOps

    from calligram.files import read_regular
    from calligram.picture_formats import open_image

    try:
        with open_image(read_regular(Path(path), MAX_PICTURE_BYTES)) as image:
            image.draft("RGB", (2 * THUMBNAIL_SIDE, 2 * THUMBNAIL_SIDE))
            return ImageOps.exif_transpose(image).convert("RGB")
    except Exception:  # decoders raise many types of exceptions, and a display shows what it can
        return None
