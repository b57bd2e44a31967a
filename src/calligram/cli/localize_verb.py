"""``calligram localize``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from calligram.cli.screen import console, waiting
from calligram.errors import UserError

if TYPE_CHECKING:  # importing them takes seconds, and help should not
    from PIL import Image

    from calligram.search.localizer import Located

KINDS = (".png", ".jpg", ".jpeg", ".webp")


def localize(
    run: Annotated[Path, typer.Argument(help="Folder of a run of two-branch-phrases.")],
    image: Annotated[Path, typer.Argument(help="A picture.")],
    phrase: Annotated[str, typer.Argument(help="What to find in it, such as 'a black dog'.")],
    out: Annotated[Path | None, typer.Option(help="Draw the boxes into this picture.")] = None,
    k: Annotated[int | None, typer.Option("-k", min=1, help="Boxes at most; 3, or 1 for each phrase.")] = None,
    sentence: Annotated[
        bool, typer.Option("--sentence", help="Find every noun phrase of a whole sentence, each in a colour.")
    ] = False,
    apart: Annotated[
        float, typer.Option(min=0, max=1, help="Leave out boxes that overlap a better one by more; 1 keeps all.")
    ] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Find the boxes of a picture that a phrase, or each noun phrase of a sentence, speaks of."""
    if out is not None and out.suffix.lower() not in KINDS:
        raise UserError(f"--out {out} must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if not phrase.strip():
        raise UserError("the phrase is empty; give some words, such as 'a dog'")
    with waiting("loading") as waits:
        from calligram.features.chunker import Span
        from calligram.features.unknown_words import UnknownWords
        from calligram.models.stored import load_matcher
        from calligram.recipes.plan import device_named
        from calligram.search.localizer import Located, localize_sentence, look, rank
        from calligram.search.query import read_picture

        picture = read_picture(image)
        stored = load_matcher(run)
        matcher = stored.matcher.to(device_named(device))
        waits.say("looking for boxes")
        looked = look(matcher, stored.inputs, picture)
        if sentence:
            found = localize_sentence(matcher, stored.inputs, looked, phrase, k or 1, apart)
        else:
            hits = rank(matcher, stored.inputs, looked, [phrase], k or 3, apart)[0]
            found = [Located(Span(0, len(phrase)), phrase, hits)]
        unknown = UnknownWords(stored.inputs.texts)
        never_seen = unknown.of_all(located.text for located in found)
        found = [located._replace(hits=[]) if unknown.lost(located.text) else located for located in found]
        if out is not None:
            _draw(picture, found, phrase if sentence else "", out)
    if as_json:
        typer.echo(json.dumps(_content(picture, found, never_seen), ensure_ascii=False))
        return
    _print(found, len(looked.boxes), never_seen)
    if out is not None:
        console.print(f"drawn: {out}", markup=False)


def _content(picture: Image.Image, found: list[Located], never_seen: list[str]) -> dict[str, object]:
    phrases = [
        {
            "text": located.text,
            "start": located.span.start,
            "end": located.span.end,
            "hits": [{"box": list(hit.box), "score": hit.score, "rank": hit.rank} for hit in located.hits],
        }
        for located in found
    ]
    return {"width": picture.width, "height": picture.height, "phrases": phrases, "unknown": never_seen}


def _print(found: list[Located], boxes: int, never_seen: list[str]) -> None:
    table = Table()
    for heading in ("phrase", "rank", "score", "x0", "y0", "x1", "y1"):
        table.add_column(heading, justify="left" if heading == "phrase" else "right")
    for located in found:
        for hit in located.hits:
            name = escape(located.text) if hit.rank == 1 else ""
            table.add_row(name, str(hit.rank), f"{hit.score:.3f}", *(f"{value:.0f}" for value in hit.box))
        if not located.hits:
            table.add_row(escape(located.text), *["-"] * 6)
    console.print(table)
    console.print(f"the best of {boxes} {'box' if boxes == 1 else 'boxes'}, in pixels of the picture")
    if never_seen:
        console.print(f"the run has never seen: {', '.join(never_seen)}", markup=False)
    if not all(located.hits for located in found):
        console.print("a phrase has no box where none of its known words says what is meant")


def _draw(picture: Image.Image, found: list[Located], sentence: str, out: Path) -> None:
    """A colour for each phrase; of a single phrase, one for each box."""
    from calligram.search.box_drawing import Drawn, colour_of, draw_boxes

    boxes = [
        Drawn(hit.box, colour_of(number if sentence else hit.rank - 1), str(number + 1 if sentence else hit.rank))
        for number, located in enumerate(found)
        for hit in located.hits
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_boxes(picture, boxes, sentence, [located.span for located in found]).save(out)
