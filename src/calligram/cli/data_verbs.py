"""``calligram scenes``, ``calligram import`` and ``calligram info``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from calligram.cli.screen import bars, console


class Kind(StrEnum):
    """What is drawn."""

    scenes = "scenes"
    people = "people"


class Placing(StrEnum):
    """How pictures get into a collection."""

    link = "link"
    copy = "copy"
    reference = "reference"


def scenes(
    dest: Annotated[Path, typer.Argument(help="Folder for the collection.")],
    images: Annotated[int, typer.Option(min=10, help="How many.")] = 2000,
    seed: Annotated[int, typer.Option(help="Same seed, same pictures.")] = 0,
    size: Annotated[int, typer.Option(min=16, max=4096, help="Side in pixels.")] = 128,
    kind: Annotated[Kind, typer.Option(help="Scenes, or single people for person search.")] = Kind.scenes,
    overwrite: Annotated[
        bool, typer.Option(help="Replace a collection that is there; a list keeps captions added to it.")
    ] = False,
) -> None:
    """Draw illustrated scenes with captions, boxes, identities, and every true image of every caption."""
    from calligram.data.scenes.generate import generate_scenes

    made = generate_scenes(
        dest, images=images, seed=seed, size=size, kind=kind.value, overwrite=overwrite, track=bars, tell=_tell
    )
    counts = made.manifest["counts"]
    assert isinstance(counts, dict)
    console.print(f"{counts['images']} images and {counts['captions']} captions in {dest}")


def import_(
    format: Annotated[str, typer.Argument(help='Format of the source; "calligram list" shows them.')],
    source: Annotated[Path, typer.Argument(help="Folder or file.")],
    dest: Annotated[Path, typer.Argument(help="Folder for the collection.")],
    images: Annotated[Path | None, typer.Option(help="Where the pictures are, if not beside the source.")] = None,
    placing: Annotated[
        Placing, typer.Option(help="Hard links (copies across file systems), copies, or leave pictures in place.")
    ] = Placing.link,
    strict: Annotated[bool, typer.Option(help="Refuse on the first problem instead of skipping.")] = False,
    overwrite: Annotated[
        bool, typer.Option(help="Replace a collection that is there; a list keeps captions added to it.")
    ] = False,
) -> None:
    """Read captioned images into a collection; bad items are skipped, counted and listed."""
    from calligram.data.readers.catalog import import_collection

    made, problems = import_collection(
        format, source, dest, images=images, strict=strict, placing=placing.value, overwrite=overwrite, track=bars,
        tell=_tell,
    )  # fmt: skip
    counts = made.manifest["counts"]
    assert isinstance(counts, dict)
    console.print(", ".join(f"{n} {name}" for name, n in counts.items() if n and name != "problems") + f" in {dest}")
    splits = ", ".join(f"{name or 'in no split'} {count}" for name, count in made.splits().items())
    console.print(f"images: {splits}")
    for line in problems.summary():
        console.print(f"[yellow]{escape(line)}[/]")


def _tell(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


def info(
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    sheet: Annotated[
        Path | None, typer.Option(help="Where to draw sample images; COLLECTION/sheet.png if not given.")
    ] = None,
    problems: Annotated[bool, typer.Option(help="List every problem found at import.")] = False,
) -> None:
    """Show what is in a collection: counts, splits, caption lengths, a sheet of samples, problems."""
    from calligram.data.collection import Collection
    from calligram.data.inspection import sample_sheet, summarise

    opened = Collection.open(collection)
    for line in summarise(opened).lines():
        console.print(escape(line))
    target = sheet or collection / "sheet.png"
    sample_sheet(opened, target)
    console.print(f"samples: {target}")
    if problems and opened.has("problems"):
        for row in opened.table("problems").to_pylist():
            what = "skipped" if row["skipped"] else "noted"
            console.print(escape(f"{what}: {row['kind']}: {row['item']} {row['detail']}"))
