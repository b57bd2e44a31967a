"""``calligram scenes``, ``calligram import`` and ``calligram info``."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from calligram.cli.screen import console, progress_bar
from calligram.errors import UserError


class SceneKind(StrEnum):
    """Kinds of generated images."""

    scenes = "scenes"
    people = "people"


class CountGrouping(StrEnum):
    """What the pictures of a library are counted by."""

    day = "day"
    month = "month"
    year = "year"
    folder = "folder"
    place = "place"


class PicturePlacing(StrEnum):
    """How the pictures of a source are stored in a collection."""

    link = "link"
    copy = "copy"
    reference = "reference"


def scenes(
    dest: Annotated[Path, typer.Argument(help="Folder for the collection.")],
    images: Annotated[int, typer.Option(min=10, help="Number of images.")] = 2000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same pictures.")] = 0,
    size: Annotated[int, typer.Option(min=16, max=4096, help="Side in pixels.")] = 128,
    kind: Annotated[
        SceneKind, typer.Option(help="Scenes, or people: single people for person search.")
    ] = SceneKind.scenes,
    overwrite: Annotated[
        bool, typer.Option(help="Replace an existing collection. Captions that were added to it are saved in a list.")
    ] = False,
) -> None:
    """Generate illustrated scenes with captions, boxes, identities, and every true pair of image and caption."""
    from calligram.scenes.generate import generate_scenes

    made = generate_scenes(
        dest,
        images=images,
        seed=seed,
        size=size,
        kind=kind.value,
        overwrite=overwrite,
        track=progress_bar,
        report=_print_line,
    )
    counts = made.manifest["counts"]
    assert isinstance(counts, dict)
    console.print(f"{counts['images']} images and {counts['captions']} captions in {dest}")


def import_(
    format: Annotated[str, typer.Argument(help='Format of the source; "calligram list" shows them.')],
    source: Annotated[Path, typer.Argument(help="Folder or file.")],
    dest: Annotated[Path, typer.Argument(help="Folder for the collection.")],
    images: Annotated[
        Path | None, typer.Option(help="Folder of the pictures, if they are not next to the source.")
    ] = None,
    placing: Annotated[
        PicturePlacing,
        typer.Option(
            help="link: hard links, or copies across file systems; copy; reference: leave the pictures in place."
        ),
    ] = PicturePlacing.link,
    strict: Annotated[bool, typer.Option(help="Stop at the first problem instead of skipping the item.")] = False,
    overwrite: Annotated[
        bool, typer.Option(help="Replace an existing collection. Captions that were added to it are saved in a list.")
    ] = False,
) -> None:
    """Read captioned images into a collection. Unusable items are skipped, counted and listed."""
    from calligram.data.readers.catalog import import_collection

    made, problems = import_collection(
        format, source, dest, images=images, strict=strict, placing=placing.value, overwrite=overwrite,
        track=progress_bar, report=_print_line,
    )  # fmt: skip
    counts = made.manifest["counts"]
    assert isinstance(counts, dict)
    console.print(", ".join(f"{n} {name}" for name, n in counts.items() if n and name != "problems") + f" in {dest}")
    splits = ", ".join(f"{name or 'without a split'} {count}" for name, count in made.splits().items())
    console.print(f"images: {splits}")
    for line in problems.summary():
        console.print(line, style="yellow")


def _print_line(line: str) -> None:
    console.print(line, soft_wrap=True)


def info(
    collection: Annotated[Path, typer.Argument(help="Folder of a collection, of a library or of a run.")],
    sheet: Annotated[
        Path | None, typer.Option(help="File for a sheet of sample images; the default is COLLECTION/sheet.png.")
    ] = None,
    problems: Annotated[bool, typer.Option(help="List every problem of the import.")] = False,
    by: Annotated[
        CountGrouping | None,
        typer.Option(help="Of a library: count pictures by day, month, year, folder or place."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts of --by as JSON.")] = False,
    engine: Annotated[
        str | None, typer.Option("--index", help="Address of the library's vectors, if they are not in its folder.")
    ] = None,
) -> None:
    """Show the counts, splits, caption lengths and problems of a collection, and draw a sheet of sample images.

    Of a library, show the counts, the matcher and the kind of search. Of a run, show its preset, its command and the
    best epoch. A place is a position of the camera, rounded to a
    tenth of a degree.
    """
    from calligram.search.library.manifest import MANIFEST, read_manifest

    if (collection / MANIFEST).is_file():
        if by is not None:
            _print_counts(collection, by, as_json, engine)
            return
        for line in read_manifest(collection).lines():
            console.print(line, soft_wrap=not console.is_terminal)
        return
    if by is not None:
        raise UserError(f"{collection} is not a library; --by counts the pictures of a library")
    from calligram.data.collection import Collection
    from calligram.data.summary import sample_sheet, summarise_collection

    try:
        opened = Collection.open(collection)
    except UserError:
        from calligram.models.catalog import RUN_FILE

        if not (collection / RUN_FILE).is_file():
            raise
        _print_run(collection)
        return
    for line in summarise_collection(opened).lines():
        console.print(line)
    target = sheet or collection / "sheet.png"
    sample_sheet(opened, target)
    console.print(f"samples: {target}")
    if problems and opened.has("problems"):
        for row in opened.table("problems").to_pylist():
            what = "skipped" if row["skipped"] else "kept"
            console.print(f"{what}: {row['kind']}: {row['item']} {row['detail']}")


def _print_run(folder: Path) -> None:
    """Print what a run trained, and how far it is."""
    from calligram.training.runs import Run

    run = Run(folder)
    about = run.about
    console.print(f"run of preset {about.get('preset')} on collection {about.get('collection')}", soft_wrap=True)
    if command := about.get("command"):
        console.print(f"command: {command}", soft_wrap=True)
    epochs = [row for row in run.metrics() if "dev" in row]
    if epochs:
        name = "rsum" if "rsum" in epochs[0]["dev"] else "r1"
        best = max(epochs, key=lambda row: row["dev"].get(name, 0.0))
        measured = "rsum" if name == "rsum" else "localization R@1"
        console.print(f"best of {len(epochs)} epochs on dev: {measured} {best['dev'][name]:.1f}, step {best['step']}")
    state = f"complete after {about.get('seconds', 0):.0f} s" if run.complete else "not complete; --resume continues it"
    console.print(f"{state}; {about.get('device')}", soft_wrap=True)


def _print_counts(library: Path, by: CountGrouping, as_json: bool, engine: str | None) -> None:
    """Print how many pictures each day, month, year, folder or place has."""
    from calligram.search.filters.columns import counts_by
    from calligram.search.library.library import Library

    counts = counts_by(Library.open(library, index=engine), by.value)
    missing = counts.pop(None, 0)
    order = sorted(counts, key=lambda value: (-counts[value], value) if by == "place" else (0, value))
    if as_json:
        typer.echo(json.dumps({"counts": {value: counts[value] for value in order}, "missing": missing}, indent=1))
        return
    most = max(counts.values(), default=1)
    width = max([len(str(value)) for value in order] or [0])
    for value in order:
        bar = "█" * max(1, round(BAR_CHARACTERS * counts[value] / most))
        console.print(f"{value or '.':{width}}  {counts[value]:>9,}  {bar}", soft_wrap=True)
    if missing:
        console.print(f"{missing:,} pictures have no {'place' if by == 'place' else 'date'}", style="dim")


BAR_CHARACTERS = 40
"""length of the longest bar of counts"""
