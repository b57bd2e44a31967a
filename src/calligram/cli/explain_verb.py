"""``calligram explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from calligram.cli.screen import console
from calligram.errors import UserError

if TYPE_CHECKING:  # importing it takes seconds, and help should not
    from calligram.search.word_weights import Explained

KINDS = (".png", ".jpg", ".jpeg", ".webp")
BAR = 24
"""characters of the longest bar"""


def explain(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    image: Annotated[Path, typer.Argument(help="A picture.")],
    sentence: Annotated[str, typer.Argument(help="A sentence of at least two words.")],
    out: Annotated[Path | None, typer.Option(help="Draw the picture and its words into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Show which words of a sentence a run goes by: how far the score of the picture falls without each."""
    if out is not None and out.suffix.lower() not in KINDS:
        raise UserError(f"--out {out} must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    from calligram.models.stored import load_matcher
    from calligram.recipes.plan import device_named
    from calligram.search.localizer import refuse_regions
    from calligram.search.query import read_picture
    from calligram.search.word_drawing import draw_words
    from calligram.search.word_weights import explain as weigh_words

    picture = read_picture(image)
    stored = load_matcher(run)
    refuse_regions(stored.inputs, stored.source)
    found = weigh_words(stored.matcher.to(device_named(device)), stored.inputs, picture, sentence)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        draw_words(picture, found).save(out)
    if as_json:
        content = {"score": found.score, "words": [word._asdict() for word in found.words]}
        typer.echo(json.dumps(content, ensure_ascii=False))
        return
    _print(found)
    if out is not None:
        console.print(f"drawn: {out}", markup=False)


def _print(found: Explained) -> None:
    most = max(abs(word.weight) for word in found.words) or 1.0
    telling = found.telling()
    table = Table()
    for heading in ("word", "weight", ""):
        table.add_column(heading, justify="right" if heading == "weight" else "left")
    for word in found.words:
        bar = "█" * round(BAR * abs(word.weight) / most)
        style = "bold red" if word in telling else "blue" if word.weight < 0 else None
        table.add_row(escape(word.word), f"{word.weight:+.4f}", bar, style=style)
    console.print(table)
    named = ", ".join(word.word for word in telling)
    console.print(
        f"score {found.score:.4f}; " + (f"it falls most without: {named}" if named else "no word raises it"),
        markup=False,
    )
