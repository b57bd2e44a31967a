"""``calligram scenes``, ``calligram import`` and ``calligram info``."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from calligram.cli.screen import bars, console, print_report
from calligram.cli.serve import open_server
from calligram.extras import install_command, missing_modules


class SceneKind(StrEnum):
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
    kind: Annotated[SceneKind, typer.Option(help="Scenes, or single people for person search.")] = SceneKind.scenes,
    overwrite: Annotated[
        bool, typer.Option(help="Replace a collection that is there; a list keeps captions added to it.")
    ] = False,
) -> None:
    """Draw illustrated scenes with captions, boxes, identities, and every true image of every caption."""
    from calligram.scenes.generate import generate_scenes

    made = generate_scenes(
        dest, images=images, seed=seed, size=size, kind=kind.value, overwrite=overwrite, track=bars, report=_tell
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
        report=_tell,
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
    from calligram.data.summary import sample_sheet, summarise_collection

    opened = Collection.open(collection)
    for line in summarise_collection(opened).lines():
        console.print(escape(line))
    target = sheet or collection / "sheet.png"
    sample_sheet(opened, target)
    console.print(f"samples: {target}")
    if problems and opened.has("problems"):
        for row in opened.table("problems").to_pylist():
            what = "skipped" if row["skipped"] else "noted"
            console.print(escape(f"{what}: {row['kind']}: {row['item']} {row['detail']}"))


# ``calligram demo``.

SIZE = 88
"""side of the demo's pictures: what 2 cores can learn from in under four minutes"""
SHOWN, SHOWN_SIZE = 1000, 256
"""pictures to search among, and their side: large enough to look at"""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the demo's collection, run and pictures.")] = Path("demo"),
    images: Annotated[int, typer.Option(min=500, help="Scenes to draw, 200 of them for dev and 200 for test.")] = 8400,
    seed: Annotated[int, typer.Option(help="Of the scenes and of training.")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting of the recipe, as key=value.")] = None,
    serve: Annotated[bool, typer.Option(help="End with the search page.")] = True,
    port: Annotated[int, typer.Option(help="Of the page; another is taken where it is not free.")] = 8000,
) -> None:
    """Draw scenes, train a matcher on them, measure it beside an oracle, and search new ones on a page."""
    from calligram.data.collection import MANIFEST, Collection
    from calligram.device import device_named
    from calligram.evaluation.figures import draw_sheet
    from calligram.evaluation.retrieval import evaluate_retrieval
    from calligram.recipes.catalog import find_recipe
    from calligram.recipes.parts.config import resolve
    from calligram.recipes.parts.run import RunContext, run_recipe
    from calligram.scenes.generate import generate_scenes
    from calligram.training.curves import draw_curves
    from calligram.training.runs import Run

    began = time.perf_counter()
    folder = out / "scenes"
    if (folder / MANIFEST).is_file():
        collection = Collection.open(folder)
    else:
        splits = (1 - 400 / images, 200 / images, 200 / images)
        collection = generate_scenes(folder, images=images, seed=seed, size=SIZE, splits=splits, track=bars)
    console.print(f"[bold]1.[/] {images} scenes with captions: {folder}")
    recipe = find_recipe("vse")
    settings = resolve(recipe.defaults, ["epochs=6", f"image.size={SIZE}", f"seed={seed}", *(set_ or [])])
    run_folder = out / "run"
    context = RunContext(device_named(), track=bars)
    run_recipe(recipe, settings, collection, run_folder, resume=run_folder.exists(), context=context)
    draw_curves(run_folder)
    console.print(f"[bold]2.[/] trained: {run_folder} (curves.png, metrics.jsonl)")
    matcher, inputs = Run.open(run_folder).load()
    pairing = collection.sentences("test")
    report = evaluate_retrieval(matcher.to(context.device), inputs, pairing)
    draw_sheet(matcher, inputs, pairing, out / "found.png")
    print_report(report, f"[bold]3.[/] measured on {report.images} test images it never saw")
    console.print(f"[bold]4.[/] captions with the five images found first: {out / 'found.png'}")
    if missing := missing_modules("lancedb", "fastapi", "uvicorn"):
        console.print(f"no search page without {', '.join(missing)}: {escape(install_command('serve'))}")
        serve = False
    else:
        index_new_scenes(out, seed)
        console.print(f"[bold]5.[/] {SHOWN} scenes it never saw, to be searched: {out / 'library'}")
    console.print(f"{time.perf_counter() - began:.0f} seconds")
    if serve:
        serve_here(out / "library", port)


def index_new_scenes(out: Path, seed: int) -> None:
    """Draw scenes of another seed, larger than those for training, and make them a library."""
    from calligram.data.collection import MANIFEST
    from calligram.scenes.generate import generate_scenes
    from calligram.search.indexing.run import index_source
    from calligram.search.library.matchers import LibraryMatchers

    folder = out / "new-scenes"
    if not (folder / MANIFEST).is_file():
        generate_scenes(folder, images=SHOWN, seed=seed + 1, size=SHOWN_SIZE, track=bars)
    library = out / "library"
    # A demo that was trained anew has another matcher, and the library is then made anew too.
    models = LibraryMatchers.load(out / "run")
    index_source(models, folder, library, rebuild=library.exists() and not models.made(library), track=bars)


def serve_here(library: Path, port: int) -> None:
    """Serve to this machine until Ctrl-C."""
    from calligram.serve.settings import Address, ServerSettings

    with open_server(library, Address("127.0.0.1", port).or_any_port(), ServerSettings()) as server:
        console.print(f"[bold]6.[/] search them: [bold]{server.address.url}[/]  (Ctrl-C ends it)", soft_wrap=True)
        server.run()
