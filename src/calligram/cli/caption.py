"""``calligram caption``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calligram.cli.screen import bars, console, waiting
from calligram.errors import UserError, command

if TYPE_CHECKING:
    from calligram.data.add_captions import CaptionRevision
    from calligram.data.collection import Collection
    from calligram.evaluation.suggest import Suggestions


def caption(
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    file: Annotated[
        Path | None, typer.Argument(help="List of images and captions: .csv, .tsv or .jsonl; one may be left empty.")
    ] = None,
    undo: Annotated[bool, typer.Option(help="Take back the captions that were added last; a list keeps them.")] = False,
    history: Annotated[bool, typer.Option(help="Show what was added since the collection was made.")] = False,
) -> None:
    """Add captions to a collection, such as the list of "calligram suggest" filled in; all of them, or none."""
    from calligram.data.collection import Collection

    if sum((file is not None, undo, history)) != 1:
        raise UserError("give a list of captions to add, or --undo, or --history")
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
        raise UserError(f"{file} holds no caption; write some into its column 'caption'")
    added = add_new_captions(source.folder, filled.captions)
    parts = [f"{added.captions} {'caption' if added.captions == 1 else 'captions'} added to {source.folder}"]
    parts += [f"{added.duplicates} were there already"] if added.duplicates else []
    parts += [f"{filled.empty_rows} rows had none"] if filled.empty_rows else []
    put = [f"{split} ({added.splits[split]})" for split in SPLITS if split in added.splits]
    parts += [f"images of no split are now in {', '.join(put)}"] if put else []
    console.print(", ".join(parts), markup=False, soft_wrap=True)


def _undo(folder: Path) -> None:
    from calligram.data.add_captions import caption_revisions, remove_last_captions
    from calligram.data.caption_file import write_caption_list
    from calligram.data.collection import Collection

    Collection.open(folder)  # says what is wrong with a folder that is none
    kept: dict[int, Path] = {}

    def keep(addition: CaptionRevision) -> None:
        kept[addition.revision] = folder / f"taken-back.{addition.revision}.csv"
        write_caption_list(kept[addition.revision], addition.captions, ("image", "caption", "split"))

    try:
        taken = remove_last_captions(folder, keep)
    except BaseException:
        # A list of captions that are where they were would mislead; where they are gone, it is all that is left.
        for addition in caption_revisions(Collection.open(folder)) if kept else ():
            if addition.revision in kept:
                kept[addition.revision].unlink(missing_ok=True)
        raise
    console.print(
        f"{len(taken.captions)} captions of {taken.when} taken back; they are in {kept[taken.revision]}",
        markup=False,
        soft_wrap=True,
    )


def _show(source: Collection) -> None:
    from calligram.data.add_captions import caption_revisions

    for addition in caption_revisions(source):
        first = addition.captions[0]
        console.print(
            f"revision {addition.revision}, {addition.when}: {len(addition.captions)} captions, "
            f"the first of {first.image}: {first.text}",
            markup=False, soft_wrap=True,
        )  # fmt: skip
    if not caption_revisions(source):
        console.print("no captions were added since the collection was made")


# ``calligram suggest``.

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
        from calligram.data.caption_file import refuse_list_with_captions
        from calligram.data.collection import Collection
        from calligram.device import device_named
        from calligram.evaluation.suggest import suggest_images as work
        from calligram.models.load import load_matcher

        for file in out or ():
            if file.suffix.lower() == ".csv":
                refuse_list_with_captions(file)
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
    from calligram.data.caption_file import refuse_list_with_captions, write_caption_list
    from calligram.evaluation.figures import draw_suggestions

    if file.suffix.lower() == ".csv":
        refuse_list_with_captions(file)  # choosing takes a while, in which an earlier list may have been filled in
        write_caption_list(file, ((s.image, "", source.pictures.path(s.row) or "", s.why) for s in found.chosen))
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
