"""``calligram demo``."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from calligram.cli.screen import bars, console, print_report
from calligram.cli.serve_verb import open_server

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
    from calligram.data.scenes.generate import generate_scenes
    from calligram.evaluation.retrieval import evaluate_retrieval
    from calligram.evaluation.sheets import draw_sheet
    from calligram.recipes.catalog import recipe_named
    from calligram.recipes.config import resolve
    from calligram.recipes.plan import Surroundings, device_named, run_recipe
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
    recipe = recipe_named("vse")
    settings = resolve(recipe.defaults, ["epochs=6", f"image.size={SIZE}", f"seed={seed}", *(set_ or [])])
    run_folder = out / "run"
    around = Surroundings(device_named(), track=bars)
    run_recipe(recipe, settings, collection, run_folder, resume=run_folder.exists(), around=around)
    draw_curves(run_folder)
    console.print(f"[bold]2.[/] trained: {run_folder} (curves.png, metrics.jsonl)")
    matcher, inputs = Run.open(run_folder).load()
    pairing = collection.sentences("test")
    report = evaluate_retrieval(matcher.to(around.device), inputs, pairing)
    draw_sheet(matcher, inputs, pairing, out / "found.png")
    print_report(report, f"[bold]3.[/] measured on {report.images} test images it never saw")
    console.print(f"[bold]4.[/] captions with the five images found first: {out / 'found.png'}")
    if missing := [name for name in ("lancedb", "fastapi", "uvicorn") if find_spec(name) is None]:
        console.print(f'no search page without {", ".join(missing)}: pip install "calligram\\[serve]"')
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
    from calligram.data.scenes.generate import generate_scenes
    from calligram.search.indexing import index_source
    from calligram.search.models import Models

    folder = out / "new-scenes"
    if not (folder / MANIFEST).is_file():
        generate_scenes(folder, images=SHOWN, seed=seed + 1, size=SHOWN_SIZE, track=bars)
    library = out / "library"
    # A demo that was trained anew has another matcher, and the library is then made anew too.
    models = Models.load(out / "run")
    index_source(models, folder, library, rebuild=library.exists() and not models.made(library), track=bars)


def serve_here(library: Path, port: int) -> None:
    """Serve to this machine until Ctrl-C."""
    from calligram.serve.address import Address
    from calligram.serve.settings import Settings

    with open_server(library, Address("127.0.0.1", port).or_any(), Settings()) as server:
        console.print(f"[bold]6.[/] search them: [bold]{server.address.url}[/]  (Ctrl-C ends it)", soft_wrap=True)
        server.run()
