"""``calligram caption`` and ``calligram suggest``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calligram.cli.screen import console, progress_bar, show_spinner
from calligram.errors import UserError, command

if TYPE_CHECKING:
    from calligram.data.add_captions import CaptionRevision
    from calligram.data.collection import Collection
    from calligram.evaluation.suggest import Suggestions


def caption(
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    file: Annotated[
        Path | None, typer.Argument(help="File of images and captions: .csv, .tsv or .jsonl. Captions may be empty.")
    ] = None,
    undo: Annotated[bool, typer.Option(help="Remove the captions that were added last. A list keeps them.")] = False,
    history: Annotated[bool, typer.Option(help="Show all additions.")] = False,
) -> None:
    """Add the captions of a file to a collection: all of them or none. "calligram suggest" writes such a file."""
    from calligram.data.collection import Collection

    if sum((file is not None, undo, history)) != 1:
        raise UserError("give one of: a file of captions to add, --undo, or --history")
    if undo:
        _undo(collection)
    elif history:
        _show(Collection.open(collection))
    elif file is not None:
        _add(Collection.open(collection), file)


def _add(source: Collection, file: Path) -> None:
    from calligram.data.add_captions import add_new_captions
    from calligram.data.caption_file import read_captions
    from calligram.data.collection import SPLITS
    from calligram.data.draft import Problems

    filled = read_captions(source, file, Problems())
    if not filled.captions:
        raise UserError(f"{file} contains no captions; fill in its column 'caption'")
    added = add_new_captions(source.folder, filled.captions)
    parts = [f"{added.captions} {'caption' if added.captions == 1 else 'captions'} added to {source.folder}"]
    parts += [f"{added.duplicates} existed already"] if added.duplicates else []
    parts += [f"{filled.empty_rows} rows had no caption"] if filled.empty_rows else []
    put = [f"{split} ({added.splits[split]})" for split in SPLITS if split in added.splits]
    parts += [f"images without a split are now in {', '.join(put)}"] if put else []
    console.print(", ".join(parts), soft_wrap=True)


def _undo(folder: Path) -> None:
    from calligram.data.add_captions import caption_revisions, remove_last_captions
    from calligram.data.caption_file import write_caption_list
    from calligram.data.collection import Collection

    Collection.open(folder)  # raises an error if the folder is not a collection
    kept: dict[int, Path] = {}

    def keep(addition: CaptionRevision) -> None:
        kept[addition.revision] = folder / f"taken-back.{addition.revision}.csv"
        write_caption_list(kept[addition.revision], addition.captions, ("image", "caption", "split"))

    try:
        taken = remove_last_captions(folder, keep)
    except BaseException:
        # Delete the list if its captions are still in the collection. If they are not, the list is the only copy.
        for addition in caption_revisions(Collection.open(folder)) if kept else ():
            if addition.revision in kept:
                kept[addition.revision].unlink(missing_ok=True)
        raise
    console.print(
        f"{len(taken.captions)} captions of {taken.when} removed; they are kept in {kept[taken.revision]}",
        soft_wrap=True,
    )


def _show(source: Collection) -> None:
    from calligram.data.add_captions import caption_revisions

    for addition in caption_revisions(source):
        first = addition.captions[0]
        console.print(
            f"revision {addition.revision}, {addition.when}: {len(addition.captions)} captions, "
            f"first: {first.image}: {first.text}",
            soft_wrap=True,
        )  # fmt: skip
    if not caption_revisions(source):
        console.print("no captions were added")


SHEET_FILE_TYPES = (".png", ".jpg", ".jpeg", ".webp")


def suggest(
    run: Annotated[
        Path, typer.Argument(help="Folder of a run, or folder or hub name of a dual encoder of transformers.")
    ],
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    count: Annotated[int, typer.Option("-n", min=1, max=100_000, help="Number of images.")] = 50,
    split: Annotated[
        str, typer.Option(help="Suggest images of this split. train includes images without a split.")
    ] = "train",
    uncertainty: Annotated[
        float, typer.Option(min=0, max=1, help="Weight of the matcher's uncertainty; 0 uses coverage alone.")
    ] = 0.5,
    near: Annotated[
        float,
        typer.Option(
            min=0, max=2, help="Cosine above which two images count as the same, so that one of them is not suggested."
        ),
    ] = 0.98,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="File for a sheet of the pictures (.png) or for a list to fill in (.csv); may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Suggest images to caption next, with reasons.

    The images represent the uncaptioned ones, and the matcher is uncertain about them (facility location weighted by
    uncertainty).
    """
    for file in out or ():
        if file.suffix.lower() not in (*SHEET_FILE_TYPES, ".csv"):
            raise UserError(
                f"--out {file} is neither a picture nor a list; give a .png file for a sheet or a .csv file for a list"
            )
    with show_spinner("loading") as spinner:
        from calligram.data.caption_file import refuse_list_with_captions
        from calligram.data.collection import Collection
        from calligram.device import device_named
        from calligram.evaluation.suggest import suggest_images
        from calligram.models.catalog import load_matcher

        for file in out or ():
            if file.suffix.lower() == ".csv":
                refuse_list_with_captions(file)
        source, stored = Collection.open(collection), load_matcher(run).to(device_named(device))
        matcher = stored.matcher
        spinner.update("choosing images")
        found = suggest_images(
            matcher, stored.inputs, source, count, split=split, uncertainty=uncertainty, near=near, track=progress_bar
        )  # fmt: skip
        for file in out or ():
            _write(source, found, file)
    if as_json:
        typer.echo(json.dumps(_plain(source, found), ensure_ascii=False))
        return
    for place, suggestion in enumerate(found.chosen, 1):
        where = source.pictures.path(suggestion.row)
        shown = f"{suggestion.image}  {where}" if where else suggestion.image
        console.print(f"{place:3}  {shown}: {suggestion.why}", soft_wrap=True)
    console.print(
        f"{len(found.chosen)} of {found.candidates:,} images without captions; {found.captioned:,} images have captions"
    )
    if len(found.chosen) < min(count, found.candidates):
        console.print("all others are nearly equal to one of these or to a captioned image")
    for file in out or ():
        console.print(f"written: {file}", soft_wrap=True)
        if file.suffix.lower() == ".csv":
            then = command("calligram", "caption", collection, file)
            console.print(f"fill in the captions, then add them with {then}", soft_wrap=True)


def _write(source: Collection, found: Suggestions, file: Path) -> None:
    from calligram.data.caption_file import refuse_list_with_captions, write_caption_list
    from calligram.evaluation.figures import draw_suggestions

    if file.suffix.lower() == ".csv":
        refuse_list_with_captions(file)  # somebody may have filled in the earlier list in the meantime
        write_caption_list(file, ((s.image, "", source.pictures.path(s.row) or "", s.why) for s in found.chosen))
    else:
        draw_suggestions(source, found.chosen, file, progress_bar)


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
