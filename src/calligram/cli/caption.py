"""Verbs about captions: ``caption``, ``suggest``, ``semantics`` and ``words``."""

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
    from calligram.evaluation.retrieval import Retrieval
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


def semantics(
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting of preset a3vse, such as pseudo.sources=regions,labels; may be repeated.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Images of this split. The default is train; with --found it is dev."),
    ] = None,
    found: Annotated[
        bool,
        typer.Option(help="Use captioned images, and retrieve their captions by the words of the pseudo-sentences."),
    ] = False,
    show: Annotated[int, typer.Option("-n", min=0, help="Number of sentences to show.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Show the pseudo-sentences of uncaptioned images, and how many of their words occur in captions."""
    from calligram.data.collection import Collection
    from calligram.device import device_named
    from calligram.evaluation.word_matching import retrieval_by_words, word_overlap
    from calligram.features.pseudo.sentences import pseudo_sentences
    from calligram.recipes.parts.config import resolve
    from calligram.recipes.parts.pseudo_pairs import SemanticsSettings, make_pseudo_pairs
    from calligram.recipes.parts.run import RunContext

    settings, whole = resolve(SemanticsSettings(), set_ or []), Collection.open(collection)
    # Not train for --found: the words come from the captions of train.
    split = split or ("dev" if found else "train")
    context, sparse = RunContext(device_named(device), track=progress_bar), settings.sparse.of(whole, settings.seed)
    if found:
        pairing = whole.sentences(split)
        by_words = retrieval_by_words(
            pseudo_sentences(sparse, pairing.visuals, settings.pseudo, context.device, context.track),
            pairing.texts.strings,
            pairing.matches,
        )
        _show_found(by_words, f"{whole.name}, {split}", as_json=as_json)
        return
    pairs = make_pseudo_pairs(sparse, settings.pseudo, context, split)
    sentences = [pairs.texts.strings[text] for text in pairs.matches.pairs()[1].tolist()]
    # All captions, also the captions that the sparse collection leaves out: this is a measurement, not training.
    shared = word_overlap(whole.sentences(split).texts.strings, sentences)
    if as_json:
        typer.echo(json.dumps({"images": len(sentences), "sentences": len(pairs.texts), **shared.as_dict()}))
        return
    step = max(1, len(sentences) // max(1, show))
    for place in range(0, step * min(show, len(sentences)), step):
        console.print(f"{pairs.visuals.ids[place]}: {sentences[place]}", soft_wrap=True)
    console.print(f"{len(sentences):,} images without captions, {len(pairs.texts):,} different pseudo-sentences")
    console.print(
        f"{shared.pseudo:,} words (that occur at least 4 times); captions contain {shared.shared:,}; "
        f"IoU with the {shared.captions:,} words of the captions: {shared.iou:.1f}%"
    )


def _show_found(by_words: Retrieval, where: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(by_words.as_dict()))
        return
    for name, direction in (("text to image", by_words.t2i), ("image to text", by_words.i2t)):
        recalls = ", ".join(f"R@{k} {getattr(direction, f'r{k}'):.1f}" for k in (1, 5, 10))
        console.print(f"{name} retrieval by shared words, {where}: {recalls}", soft_wrap=True)


def words(
    source: Annotated[
        Path, typer.Argument(help="A text file with one caption per line, also .gz, or the folder of a collection.")
    ],
    out: Annotated[Path, typer.Argument(help="File for the vectors: .txt or .txt.gz.")],
    dim: Annotated[int, typer.Option(min=1, help="Dimensions of a vector.")] = 300,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the text.")] = 10,
    min_count: Annotated[int, typer.Option(min=1, help="Leave out words with fewer occurrences.")] = 2,
    seed: Annotated[int, typer.Option(help="The same seed gives the same vectors.")] = 0,
) -> None:
    """Train word vectors (word2vec) on a text file, or on the training captions of a collection.

    Use the result with --set text.vectors=OUT.
    """
    from calligram.features.texts.word_vectors import train_vectors, write_vectors

    vectors = train_vectors(_captions(source), dim, epochs=epochs, min_count=min_count, seed=seed)
    write_vectors(vectors, out)
    console.print(f"{len(vectors)} word vectors of {dim} dimensions in {out}")


def _captions(source: Path) -> list[str]:
    from calligram.data.collection import Collection
    from calligram.data.readers.text_files import read_sentences

    return list(Collection.open(source).sentences("train").texts.strings) if source.is_dir() else read_sentences(source)
