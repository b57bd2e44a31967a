"""``calligram explain``."""

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

    from calligram.evaluation.attention import Attended, Seen
    from calligram.models.stored import Stored
    from calligram.search.word_weights import Explained, WordWeight

KINDS = (".png", ".jpg", ".jpeg", ".webp")
BAR = 24
"""characters of the longest bar"""


def explain(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    image: Annotated[str, typer.Argument(help="A picture, or with --collection the id of an image.")],
    sentence: Annotated[str, typer.Argument(help="A sentence of at least two words.")],
    out: Annotated[
        Path | None, typer.Option(help="Draw the picture and its words into this file, and where each word looks.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="X,Y in shares of the picture: also the words that the region there looks at.")
    ] = None,
    collection: Annotated[
        Path | None, typer.Option(help="Collection that IMAGE is of, for runs that read features stored with it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Show which words of a sentence a run goes by, how far the score falls without each, and where each looks."""
    if out is not None and out.suffix.lower() not in KINDS:
        raise UserError(f"--out {out} must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    point = None if at is None else _point(at)
    with waiting("loading") as waits:
        from calligram.features.unknown_words import UnknownWords
        from calligram.features.word_spans import unread
        from calligram.models.stored import load_matcher
        from calligram.recipes.plan import device_named
        from calligram.search.attention_drawing import draw_attention
        from calligram.search.localizer import refuse_regions
        from calligram.search.word_weights import explain_seen

        stored = load_matcher(run)
        refuse_regions(stored.inputs, stored.source)
        stored.to(device_named(device))
        waits.say("comparing")
        seen, picture = _seen(stored, image, collection)
        found = explain_seen(stored.matcher, stored.inputs, seen, sentence)
        region = None if point is None else _region(found, point)
        unknown = UnknownWords(stored.inputs.texts).of_all([sentence])
        if out is not None:
            if picture is None:
                raise UserError(
                    f"image '{image}' has no picture, only features, so there is nothing to draw; use --json"
                )
            out.parent.mkdir(parents=True, exist_ok=True)
            draw_attention(picture, found, region).save(out)
    if as_json:
        typer.echo(json.dumps({**_plain(found, region), "unknown": unknown}, ensure_ascii=False))
        return
    _print(found)
    if cut := unread(stored.inputs.texts, sentence):
        console.print(f"the last {cut} words were not read: this run reads no more of a sentence")
    if unknown:
        console.print(f"never seen in training, so all the same to this run: {', '.join(unknown)}", markup=False)
    if found.attention is not None and region is not None:
        _print_region(found.attention, found.words, region)
    if out is not None:
        console.print(f"drawn: {out}", markup=False)


def _seen(stored: Stored, image: str, collection: Path | None) -> tuple[Seen, Image.Image | None]:
    """What the matcher sees, and the picture where there is one."""
    from calligram.data.collection import Collection
    from calligram.evaluation.attention import row_of, see_image, see_picture
    from calligram.search.query import read_picture

    if collection is None:
        picture = read_picture(Path(image))
        return see_picture(stored.matcher, stored.inputs, picture), picture
    opened = Collection.open(collection)
    row = row_of(opened, image)
    there = opened.column("images", "path")[row] is not None
    return see_image(stored.matcher, stored.inputs, opened, image), opened.pictures.open(row) if there else None


def _point(text: str) -> tuple[float, float]:
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        x = y = -1.0
    if not (0 <= x <= 1 and 0 <= y <= 1):
        raise UserError(
            f"--at takes X,Y in shares of the picture, as 0.5,0.25 for the middle of its upper half; got '{text}'"
        )
    return x, y


def _region(found: Explained, point: tuple[float, float]) -> int:
    if found.attention is None:
        raise UserError(f"--at asks for a region's words, and {_NO_ATTENTION}")
    region = found.attention.at(*point)
    if region is None:
        raise UserError(
            "--at asks for a place where the run sees no region: it sees the middle square of the picture alone, or "
            "the boxes that were found in it; leave out --at, or choose another place"
            if found.attention.boxes is not None
            else "--at asks for a place, and the features of this collection came without boxes; leave it out"
        )
    return region


_NO_ATTENTION = (
    "this matcher compares one vector of the picture with one of the sentence, so words do not look at regions; "
    'scan, bfan and mmca do ("calligram train fragments")'
)


def _plain(found: Explained, region: int | None) -> dict[str, object]:
    words = [word._asdict() for word in found.words]
    looks = None if found.attention is None else found.attention.plain()
    chosen = {} if region is None else {"region": region}
    return {"score": found.score, "words": words, "attention": looks, **chosen}


def _print(found: Explained) -> None:
    from calligram.evaluation.attention import place_of

    most = max(abs(word.weight) for word in found.words) or 1.0
    telling, looks = found.telling(), found.attention
    boxes = None if looks is None else looks.boxes
    table = Table()
    for heading in ("word", "weight", "", *(() if boxes is None else ("looks most at",))):
        table.add_column(heading, justify="right" if heading == "weight" else "left")
    for number, word in enumerate(found.words):
        bar = "█" * round(BAR * abs(word.weight) / most)
        style = "bold red" if word in telling else "blue" if word.weight < 0 else None
        cells = [escape(word.word), f"{word.weight:+.4f}", bar]
        if looks is not None and boxes is not None:
            shares = looks.words[number]
            cells.append(f"{place_of(boxes[shares.argmax()])} {shares.max():.0%}" if shares.any() else "")
        table.add_row(*cells, style=style)
    console.print(table)
    named = ", ".join(word.word for word in telling)
    console.print(
        f"score {found.score:.4f}; " + (f"it falls most without: {named}" if named else "no word raises it"),
        markup=False,
    )
    if looks is None:
        console.print(_NO_ATTENTION, markup=False)
    elif boxes is None:
        console.print("where words look cannot be drawn: the stored features came without boxes", markup=False)


def _print_region(looks: Attended, words: list[WordWeight], region: int) -> None:
    """What the region at a place looks at, most first."""
    from calligram.evaluation.attention import place_of

    assert looks.boxes is not None
    shares = looks.regions[region]
    listed = ", ".join(f"{words[place].word} {shares[place]:.0%}" for place in (-shares).argsort(kind="stable"))
    rest = f"; ends and punctuation {looks.rest[region]:.0%}"
    console.print(f"the region {place_of(looks.boxes[region])} looks at: {listed}{rest}", markup=False)
