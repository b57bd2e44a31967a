"""``calligram suggest``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calligram.cli.screen import bars, console, waiting
from calligram.errors import UserError, command

if TYPE_CHECKING:  # importing it takes seconds, and help should not
    from calligram.data.collection import Collection
    from calligram.evaluation.suggesting import Suggestions

SHEETS = (".png", ".jpg", ".jpeg", ".webp")


def suggest(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a dual encoder of transformers.")],
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    count: Annotated[int, typer.Option("-n", min=1, max=100_000, help="How many images.")] = 50,
    split: Annotated[str, typer.Option(help="Images of this split; with train also those of none.")] = "train",
    uncertainty: Annotated[
        float, typer.Option(min=0, max=1, help="How much the run's uncertainty counts; 0 for coverage alone.")
    ] = 0.5,
    near: Annotated[
        float, typer.Option(min=0, max=2, help="Cosine at which two images are the same, and one is not proposed.")
    ] = 0.98,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="A sheet of the pictures (.png), or a list to fill in (.csv); may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Propose images to caption next: like many that nothing captioned is like, above all where the run is unsure."""
    for file in out or ():
        if file.suffix.lower() not in (*SHEETS, ".csv"):
            raise UserError(f"--out {file} is neither a picture nor a list; give a .png for a sheet or a .csv")
    with waiting("loading") as waits:
        from calligram.data.caption_file import refuse_filled_in
        from calligram.data.collection import Collection
        from calligram.evaluation.suggesting import suggest as work
        from calligram.models.stored import load_matcher
        from calligram.recipes.plan import device_named

        for file in out or ():
            if file.suffix.lower() == ".csv":
                refuse_filled_in(file)
        source, stored = Collection.open(collection), load_matcher(run).to(device_named(device))
        matcher = stored.matcher
        waits.say("choosing images")
        found = work(
            matcher, stored.inputs, source, count, split=split, uncertainty=uncertainty, near=near, track=bars
        )  # fmt: skip
        for file in out or ():
            _write(source, found, file)
    if as_json:
        typer.echo(json.dumps(_plain(source, found), ensure_ascii=False))
        return
    for place, suggestion in enumerate(found.chosen, 1):
        where = source.pictures.path(suggestion.row)
        shown = f"{suggestion.image}  {where}" if where else suggestion.image
        console.print(f"{place:3}  {shown}: {suggestion.why}", markup=False, soft_wrap=True)
    console.print(
        f"{len(found.chosen)} of {found.candidates:,} images without captions, beside {found.captioned:,} with"
    )
    if len(found.chosen) < min(count, found.candidates):
        console.print("all others are nearly the same as one of these or as a captioned one")
    for file in out or ():
        console.print(f"written: {file}", markup=False, soft_wrap=True)
        if file.suffix.lower() == ".csv":
            then = command("calligram", "caption", collection, file)
            console.print(f"fill in the captions and add them with {then}", markup=False, soft_wrap=True)


def _write(source: Collection, found: Suggestions, file: Path) -> None:
    from calligram.data.caption_file import refuse_filled_in, write_list
    from calligram.evaluation.suggestion_sheet import draw_suggestions

    if file.suffix.lower() == ".csv":
        refuse_filled_in(file)  # choosing takes a while, in which an earlier list may have been filled in
        write_list(file, ((s.image, "", source.pictures.path(s.row) or "", s.why) for s in found.chosen))
    else:
        draw_suggestions(source, found.chosen, file, bars)


def _plain(source: Collection, found: Suggestions) -> dict[str, object]:
    chosen = [
        {
            "image": s.image, "path": None if (path := source.pictures.path(s.row)) is None else str(path),
            "why": s.why, "nearest": round(s.nearest, 4), "uncertainty": round(s.uncertainty, 4),
            "stands_for": s.stands_for,
        }
        for s in found.chosen
    ]  # fmt: skip
    return {"suggestions": chosen, "candidates": found.candidates, "captioned": found.captioned}
