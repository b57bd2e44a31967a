"""``calligram train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calligram.cli.screen import bars, console
from calligram.errors import command


def train(
    recipe: Annotated[str, typer.Argument(help='A recipe; "calligram list" shows them.')],
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    out: Annotated[Path, typer.Option(help="Folder for the run.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting, as key=value; may be repeated.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings, applied before --set.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run in --out.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Train a matcher; the run folder gets settings, metrics, curves, the best matcher and the last state."""
    from calligram.data.collection import Collection
    from calligram.recipes.catalog import recipe_named
    from calligram.recipes.config import resolve
    from calligram.recipes.plan import Surroundings, device_named, run_recipe
    from calligram.training.curves import draw_curves
    from calligram.training.distributed import Processes

    chosen = recipe_named(recipe)
    settings = resolve(chosen.defaults, set_ or [], config)
    processes = Processes.join()
    around = Surroundings(device_named(device), processes, bars)
    try:
        best = run_recipe(chosen, settings, Collection.open(collection), out, resume=resume, around=around)
    except KeyboardInterrupt:
        if processes.first and (out / "state").is_dir():
            console.print(f"stopped; the same command with --resume goes on with {out}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    if processes.first:
        draw_curves(out)
        if not best.keys() - {"epoch", "step"}:
            console.print(f"the matcher is in {out}", markup=False)
            return
        measured = f"rsum {best['rsum']:.1f}" if "rsum" in best else f"localization R@1 {best['r1']:.1f}"
        chosen_by = (
            f"best on dev: {measured} in epoch {best['epoch'] + 1:.0f}" if best["epoch"] >= 0 else f"on dev: {measured}"
        )
        console.print(f"{chosen_by}; the matcher is in {out}", markup=False)
        measure = command("calligram", "evaluate", out, collection, "--split", "test")
        console.print(f"measure it with {measure}", markup=False, soft_wrap=True)
