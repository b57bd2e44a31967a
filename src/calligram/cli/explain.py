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

if TYPE_CHECKING:
    from PIL import Image

    from calligram.evaluation.attention import AttentionShares, EncodedPicture
    from calligram.models.load import StoredMatcher
    from calligram.search.explain.localize import LocatedPhrase
    from calligram.search.explain.word_importance import WordImportance, WordImportances


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
        from calligram.device import device_named
        from calligram.evaluation.word_matching import UnknownWords
        from calligram.features.texts.vocabulary import count_truncated_words
        from calligram.models.load import load_matcher
        from calligram.search.explain.drawing import draw_attention
        from calligram.search.explain.word_importance import explain_picture
        from calligram.search.library.matchers import refuse_regions

        stored = load_matcher(run)
        refuse_regions(stored.inputs, stored.source)
        stored.to(device_named(device))
        waits.say("comparing")
        seen, picture = _seen(stored, image, collection)
        found = explain_picture(stored.matcher, stored.inputs, seen, sentence)
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
    if cut := count_truncated_words(stored.inputs.texts, sentence):
        console.print(f"the last {cut} words were not read: this run reads no more of a sentence")
    if unknown:
        console.print(f"never seen in training, so all the same to this run: {', '.join(unknown)}", markup=False)
    if found.attention is not None and region is not None:
        _print_region(found.attention, found.words, region)
    if out is not None:
        console.print(f"drawn: {out}", markup=False)


def _seen(stored: StoredMatcher, image: str, collection: Path | None) -> tuple[EncodedPicture, Image.Image | None]:
    """What the matcher sees, and the picture where there is one."""
    from calligram.data.collection import Collection
    from calligram.evaluation.attention import row_of, see_image, see_picture
    from calligram.search.query.query import read_picture

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


def _region(found: WordImportances, point: tuple[float, float]) -> int:
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


def _plain(found: WordImportances, region: int | None) -> dict[str, object]:
    words = [word._asdict() for word in found.words]
    looks = None if found.attention is None else found.attention.plain()
    chosen = {} if region is None else {"region": region}
    return {"score": found.score, "words": words, "attention": looks, **chosen}


def _print(found: WordImportances) -> None:
    from calligram.evaluation.attention import place_of

    most = max(abs(word.weight) for word in found.words) or 1.0
    telling, looks = found.most_important(), found.attention
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


def _print_region(looks: AttentionShares, words: list[WordImportance], region: int) -> None:
    """What the region at a place looks at, most first."""
    from calligram.evaluation.attention import place_of

    assert looks.boxes is not None
    shares = looks.regions[region]
    listed = ", ".join(f"{words[place].word} {shares[place]:.0%}" for place in (-shares).argsort(kind="stable"))
    rest = f"; ends and punctuation {looks.rest[region]:.0%}"
    console.print(f"the region {place_of(looks.boxes[region])} looks at: {listed}{rest}", markup=False)


# ``calligram localize``.

LOCALIZE_FILE_TYPES = (".png", ".jpg", ".jpeg", ".webp")


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
    if out is not None and out.suffix.lower() not in LOCALIZE_FILE_TYPES:
        raise UserError(f"--out {out} must end in {', '.join(LOCALIZE_FILE_TYPES[:-1])} or {LOCALIZE_FILE_TYPES[-1]}")
    if not phrase.strip():
        raise UserError("the phrase is empty; give some words, such as 'a dog'")
    with waiting("loading") as waits:
        from calligram.device import device_named
        from calligram.evaluation.word_matching import UnknownWords
        from calligram.features.texts.chunker import PhraseSpan
        from calligram.models.load import load_matcher
        from calligram.search.explain.localize import LocatedPhrase, localize_sentence, look, rank
        from calligram.search.query.query import read_picture

        picture = read_picture(image)
        stored = load_matcher(run)
        matcher = stored.matcher.to(device_named(device))
        waits.say("looking for boxes")
        looked = look(matcher, stored.inputs, picture)
        if sentence:
            found = localize_sentence(matcher, stored.inputs, looked, phrase, k or 1, apart)
        else:
            hits = rank(matcher, stored.inputs, looked, [phrase], k or 3, apart)[0]
            found = [LocatedPhrase(PhraseSpan(0, len(phrase)), phrase, hits)]
        unknown = UnknownWords(stored.inputs.texts)
        never_seen = unknown.of_all(located.text for located in found)
        found = [located._replace(hits=[]) if unknown.lost(located.text) else located for located in found]
        if out is not None:
            _draw_boxes(picture, found, phrase if sentence else "", out)
    if as_json:
        typer.echo(json.dumps(_image_content(picture, found, never_seen), ensure_ascii=False))
        return
    _print_boxes(found, len(looked.boxes), never_seen)
    if out is not None:
        console.print(f"drawn: {out}", markup=False)


def _image_content(picture: Image.Image, found: list[LocatedPhrase], never_seen: list[str]) -> dict[str, object]:
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


def _print_boxes(found: list[LocatedPhrase], boxes: int, never_seen: list[str]) -> None:
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


def _draw_boxes(picture: Image.Image, found: list[LocatedPhrase], sentence: str, out: Path) -> None:
    """A colour for each phrase; of a single phrase, one for each box."""
    from calligram.search.explain.drawing import LabelledBox, colour_of, draw_boxes

    boxes = [
        LabelledBox(hit.box, colour_of(number if sentence else hit.rank - 1), str(number + 1 if sentence else hit.rank))
        for number, located in enumerate(found)
        for hit in located.hits
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_boxes(picture, boxes, sentence, [located.span for located in found]).save(out)
