"""``calligram semantics`` and ``calligram words``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calligram.cli.screen import console, progress_bar

if TYPE_CHECKING:
    from calligram.evaluation.retrieval import Retrieval


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
