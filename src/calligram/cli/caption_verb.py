"""``calligram caption``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calligram.cli.screen import console
from calligram.errors import UserError

if TYPE_CHECKING:  # importing it takes seconds, and help should not
    from calligram.data.caption_adding import Addition
    from calligram.data.collection import Collection


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
    from calligram.data.caption_adding import add_captions
    from calligram.data.caption_file import read_captions
    from calligram.data.collection import SPLITS
    from calligram.data.problems import Problems

    filled = read_captions(source, file, Problems())
    if not filled.captions:
        raise UserError(f"{file} holds no caption; write some into its column 'caption'")
    added = add_captions(source.folder, filled.captions)
    parts = [f"{added.captions} {'caption' if added.captions == 1 else 'captions'} added to {source.folder}"]
    parts += [f"{added.known} were there already"] if added.known else []
    parts += [f"{filled.empty} rows had none"] if filled.empty else []
    put = [f"{split} ({added.splits[split]})" for split in SPLITS if split in added.splits]
    parts += [f"images of no split are now in {', '.join(put)}"] if put else []
    console.print(", ".join(parts), markup=False, soft_wrap=True)


def _undo(folder: Path) -> None:
    from calligram.data.caption_adding import additions, take_back
    from calligram.data.caption_file import write_list
    from calligram.data.collection import Collection

    Collection.open(folder)  # says what is wrong with a folder that is none
    kept: dict[int, Path] = {}

    def keep(addition: Addition) -> None:
        kept[addition.revision] = folder / f"taken-back.{addition.revision}.csv"
        write_list(kept[addition.revision], addition.captions, ("image", "caption", "split"))

    try:
        taken = take_back(folder, keep)
    except BaseException:
        # A list of captions that are where they were would mislead; where they are gone, it is all that is left.
        for addition in additions(Collection.open(folder)) if kept else ():
            if addition.revision in kept:
                kept[addition.revision].unlink(missing_ok=True)
        raise
    console.print(
        f"{len(taken.captions)} captions of {taken.when} taken back; they are in {kept[taken.revision]}",
        markup=False,
        soft_wrap=True,
    )


def _show(source: Collection) -> None:
    from calligram.data.caption_adding import additions

    for addition in additions(source):
        first = addition.captions[0]
        console.print(
            f"revision {addition.revision}, {addition.when}: {len(addition.captions)} captions, "
            f"the first of {first.image}: {first.text}",
            markup=False, soft_wrap=True,
        )  # fmt: skip
    if not additions(source):
        console.print("no captions were added since the collection was made")
