"""``calligram explain`` and ``calligram localize``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from calligram.cli.screen import console, show_spinner
from calligram.errors import UserError
from calligram.files import replace_file

if TYPE_CHECKING:
    from PIL import Image

    from calligram.evaluation.attention import AttentionShares, EncodedPicture
    from calligram.models.catalog import StoredMatcher
    from calligram.search.explain.localize import LocatedPhrase
    from calligram.search.explain.word_importance import WordImportance, WordImportances


PICTURE_FILE_TYPES = (".png", ".jpg", ".jpeg", ".webp")
BAR_CHARACTERS = 24
"""length of the longest bar"""


def explain(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    image: Annotated[str, typer.Argument(help="A picture file; with --collection, the id of an image.")],
    sentence: Annotated[str, typer.Argument(help="A sentence of at least two words.")],
    out: Annotated[
        Path | None, typer.Option(help="Draw the picture, the words and their attention into this file.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="X,Y as shares of the picture: also show the words that the region at this point attends to."
        ),
    ] = None,
    collection: Annotated[
        Path | None, typer.Option(help="The collection of IMAGE, for runs that read features stored with it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Show how much each word of a sentence raises the score, and which regions each word attends to."""
    if out is not None and out.suffix.lower() not in PICTURE_FILE_TYPES:
        raise UserError(f"--out {out} must end in {', '.join(PICTURE_FILE_TYPES[:-1])} or {PICTURE_FILE_TYPES[-1]}")
    point = None if at is None else _point(at)
    with show_spinner("loading") as spinner:
        from calligram.device import device_named
        from calligram.evaluation.word_matching import UnknownWords
        from calligram.features.texts.vocabulary import count_truncated_words
        from calligram.models.catalog import load_matcher
        from calligram.search.explain.drawing import draw_attention
        from calligram.search.explain.word_importance import explain_picture
        from calligram.search.library.matchers import refuse_regions

        stored = load_matcher(run)
        refuse_regions(stored.inputs, stored.source)
        stored.to(device_named(device))
        spinner.update("comparing")
        encoded, picture = _encode(stored, image, collection)
        found = explain_picture(stored.matcher, stored.inputs, encoded, sentence)
        region = None if point is None else _region(found, point)
        unknown = UnknownWords(stored.inputs.texts).of_all([sentence])
        if out is not None:
            if picture is None:
                raise UserError(f"image '{image}' has features but no picture, so nothing can be drawn; use --json")
            out.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(out, keep_suffix=True) as partial:
                draw_attention(picture, found, region).save(partial)
    if as_json:
        typer.echo(json.dumps({**_plain(found, region), "unknown": unknown}, ensure_ascii=False))
        return
    _print(found)
    if cut := count_truncated_words(stored.inputs.texts, sentence):
        console.print(f"the last {cut} words were not used: the sentence is longer than the run reads")
    if unknown:
        console.print(f"unknown words, which this run cannot distinguish: {', '.join(unknown)}")
    if found.attention is not None and region is not None:
        _print_region(found.attention, found.words, region)
    if out is not None:
        console.print(f"drawn: {out}")


def _encode(stored: StoredMatcher, image: str, collection: Path | None) -> tuple[EncodedPicture, Image.Image | None]:
    """The encoded image, and the picture if there is one."""
    from calligram.data.collection import Collection
    from calligram.evaluation.attention import encode_collection_image, encode_picture, image_row
    from calligram.search.query.query import read_picture

    if collection is None:
        picture = read_picture(Path(image))
        return encode_picture(stored.matcher, stored.inputs, picture), picture
    opened = Collection.open(collection)
    row = image_row(opened, image)
    there = opened.column("images", "path")[row] is not None
    return encode_collection_image(stored.matcher, stored.inputs, opened, image), opened.pictures.open(
        row
    ) if there else None


def _point(text: str) -> tuple[float, float]:
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        x = y = -1.0
    if not (0 <= x <= 1 and 0 <= y <= 1):
        raise UserError(
            f"--at {text} is not a point; give X,Y as shares of the picture, such as 0.5,0.25 for the middle of its "
            "upper half"
        )
    return x, y


def _region(found: WordImportances, point: tuple[float, float]) -> int:
    if found.attention is None:
        raise UserError(f"--at needs attention, and {_NO_ATTENTION}")
    region = found.attention.region_at(*point)
    if region is None:
        raise UserError(
            "the run has no region at the point of --at: it uses the middle square of the picture, or the boxes that "
            "were found in it; leave out --at, or give another point"
            if found.attention.boxes is not None
            else "--at needs boxes, and the stored features have none; leave it out"
        )
    return region


_NO_ATTENTION = (
    "this matcher compares one vector of the picture with one vector of the sentence, so it has no attention; "
    'scan, bfan and mmca have it ("calligram train scan")'
)


def _plain(found: WordImportances, region: int | None) -> dict[str, object]:
    words = [word._asdict() for word in found.words]
    attention = None if found.attention is None else found.attention.as_json()
    chosen = {} if region is None else {"region": region}
    return {"score": found.score, "words": words, "attention": attention, **chosen}


def _print(found: WordImportances) -> None:
    from calligram.evaluation.attention import position_name

    most = max(abs(word.weight) for word in found.words) or 1.0
    important, attention = found.most_important(), found.attention
    boxes = None if attention is None else attention.boxes
    table = Table()
    for heading in ("word", "weight", "", *(() if boxes is None else ("attends most to",))):
        table.add_column(heading, justify="right" if heading == "weight" else "left")
    for number, word in enumerate(found.words):
        bar = "█" * round(BAR_CHARACTERS * abs(word.weight) / most)
        style = "bold red" if word in important else "blue" if word.weight < 0 else None
        cells = [word.word, f"{word.weight:+.4f}", bar]
        if attention is not None and boxes is not None:
            shares = attention.words[number]
            cells.append(f"{position_name(boxes[shares.argmax()])} {shares.max():.0%}" if shares.any() else "")
        table.add_row(*cells, style=style)
    console.print(table)
    named = ", ".join(word.word for word in important)
    console.print(
        f"score {found.score:.4f}; " + (f"these words raise it most: {named}" if named else "no word raises it"),
    )
    if attention is None:
        console.print(_NO_ATTENTION)
    elif boxes is None:
        console.print("attention cannot be drawn: the stored features have no boxes")


def _print_region(attention: AttentionShares, words: list[WordImportance], region: int) -> None:
    """Print the attention of one region to the words, in descending order."""
    from calligram.evaluation.attention import position_name

    assert attention.boxes is not None
    shares = attention.regions[region]
    listed = ", ".join(f"{words[place].word} {shares[place]:.0%}" for place in (-shares).argsort(kind="stable"))
    rest = f"; punctuation and ends of the text {attention.rest[region]:.0%}"
    console.print(f"the region {position_name(attention.boxes[region])} attends to: {listed}{rest}")


def localize(
    run: Annotated[Path, typer.Argument(help="Folder of a run of preset two-branch-phrases.")],
    image: Annotated[Path, typer.Argument(help="A picture file.")],
    phrase: Annotated[str, typer.Argument(help="A phrase, such as 'a black dog'.")],
    out: Annotated[Path | None, typer.Option(help="Draw the boxes into this picture.")] = None,
    k: Annotated[
        int | None, typer.Option("-k", min=1, help="Maximum number of boxes per phrase; 3, or 1 with --sentence.")
    ] = None,
    sentence: Annotated[
        bool, typer.Option("--sentence", help="Find every noun phrase of a whole sentence, each in its own colour.")
    ] = False,
    apart: Annotated[
        float, typer.Option(min=0, max=1, help="Leave out boxes whose IoU with a better box is higher; 1 keeps all.")
    ] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Find the boxes of a phrase, or of each noun phrase of a sentence, in a picture."""
    if out is not None and out.suffix.lower() not in PICTURE_FILE_TYPES:
        raise UserError(f"--out {out} must end in {', '.join(PICTURE_FILE_TYPES[:-1])} or {PICTURE_FILE_TYPES[-1]}")
    if not phrase.strip():
        raise UserError("the phrase is empty; give words, such as 'a dog'")
    with show_spinner("loading") as spinner:
        from calligram.device import device_named
        from calligram.evaluation.word_matching import UnknownWords
        from calligram.features.texts.chunker import PhraseSpan
        from calligram.models.catalog import load_matcher
        from calligram.search.explain.localize import LocatedPhrase, encode_proposals, localize_sentence, rank_boxes
        from calligram.search.query.query import read_picture

        picture = read_picture(image)
        stored = load_matcher(run)
        matcher = stored.matcher.to(device_named(device))
        spinner.update("finding boxes")
        regions = encode_proposals(matcher, stored.inputs, picture)
        if sentence:
            found = localize_sentence(matcher, stored.inputs, regions, phrase, k or 1, apart)
        else:
            hits = rank_boxes(matcher, stored.inputs, regions, [phrase], k or 3, apart)[0]
            found = [LocatedPhrase(PhraseSpan(0, len(phrase)), phrase, hits)]
        unknown = UnknownWords(stored.inputs.texts)
        unknown_words = unknown.of_all(located.text for located in found)
        found = [located._replace(hits=[]) if unknown.lost(located.text) else located for located in found]
        if out is not None:
            _draw_boxes(picture, found, phrase if sentence else "", out)
    if as_json:
        typer.echo(json.dumps(_image_content(picture, found, unknown_words), ensure_ascii=False))
        return
    _print_boxes(found, len(regions.boxes), unknown_words)
    if out is not None:
        console.print(f"drawn: {out}")


def _image_content(picture: Image.Image, found: list[LocatedPhrase], unknown_words: list[str]) -> dict[str, object]:
    phrases = [
        {
            "text": located.text,
            "start": located.span.start,
            "end": located.span.end,
            "hits": [{"box": list(hit.box), "score": hit.score, "rank": hit.rank} for hit in located.hits],
        }
        for located in found
    ]
    return {"width": picture.width, "height": picture.height, "phrases": phrases, "unknown": unknown_words}


def _print_boxes(found: list[LocatedPhrase], boxes: int, unknown_words: list[str]) -> None:
    table = Table()
    for heading in ("phrase", "rank", "score", "x0", "y0", "x1", "y1"):
        table.add_column(heading, justify="left" if heading == "phrase" else "right")
    for located in found:
        for hit in located.hits:
            name = located.text if hit.rank == 1 else ""
            table.add_row(name, str(hit.rank), f"{hit.score:.3f}", *(f"{value:.0f}" for value in hit.box))
        if not located.hits:
            table.add_row(located.text, *["-"] * 6)
    console.print(table)
    console.print(f"the best of {boxes} {'box' if boxes == 1 else 'boxes'}, in pixels of the picture")
    if unknown_words:
        console.print(f"unknown words: {', '.join(unknown_words)}")
    if not all(located.hits for located in found):
        console.print("a phrase has no box if all of its words are unknown or stop words")


def _draw_boxes(picture: Image.Image, found: list[LocatedPhrase], sentence: str, out: Path) -> None:
    """Draw the boxes with one colour per phrase, or one colour per box of a single phrase."""
    from calligram.search.explain.drawing import LabelledBox, colour_of, draw_boxes

    boxes = [
        LabelledBox(hit.box, colour_of(number if sentence else hit.rank - 1), str(number + 1 if sentence else hit.rank))
        for number, located in enumerate(found)
        for hit in located.hits
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(out, keep_suffix=True) as partial:
        draw_boxes(picture, boxes, sentence, [located.span for located in found]).save(partial)
