"""``calligram semantics``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calligram.cli.screen import bars, console

if TYPE_CHECKING:
    from calligram.evaluation.retrieval import Retrieval


def semantics(
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="key=value, as recipe a3vse takes them: pseudo.sources=regions,labels, sparse.images=0.1."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Images of this split that have no captions: train; with --found dev, captioned ones."),
    ] = None,
    found: Annotated[
        bool,
        typer.Option(help="Instead, say it of captioned images and find their captions by its words."),
    ] = False,
    show: Annotated[int, typer.Option("-n", min=0, help="Sentences to show.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Show what machines say of images without captions, and how many of its words captions use."""
    from calligram.data.collection import Collection
    from calligram.device import device_named
    from calligram.evaluation.word_matching import found_by_words, word_overlap
    from calligram.recipes.parts.config import resolve
    from calligram.recipes.parts.pseudo_pairs import SemanticsSettings, make_pseudo_pairs, pseudo_sentences
    from calligram.recipes.parts.run import RunContext

    settings, whole = resolve(SemanticsSettings(), set_ or []), Collection.open(collection)
    # Not of train: words are learnt from its captions.
    split = split or ("dev" if found else "train")
    context, sparse = RunContext(device_named(device), track=bars), settings.sparse.of(whole)
    if found:
        pairing = whole.sentences(split)
        by_words = found_by_words(
            pseudo_sentences(sparse, pairing.visuals, settings.pseudo, context), pairing.texts.strings, pairing.matches
        )
        _show_found(by_words, f"{whole.name}, {split}", as_json=as_json)
        return
    pairs = make_pseudo_pairs(sparse, settings.pseudo, context, split)
    said = [pairs.texts.strings[text] for text in pairs.matches.pairs()[1].tolist()]
    # All captions, those that the sparse collection lost too: this measures, and nothing is learnt from it.
    shared = word_overlap(whole.sentences(split).texts.strings, said)
    if as_json:
        typer.echo(json.dumps({"images": len(said), "sentences": len(pairs.texts), **shared.as_dict()}))
        return
    step = max(1, len(said) // max(1, show))
    for place in range(0, step * min(show, len(said)), step):
        console.print(f"{pairs.visuals.ids[place]}: {said[place]}", markup=False, soft_wrap=True)
    console.print(f"{len(said):,} images without captions, {len(pairs.texts):,} different sentences")
    console.print(
        f"{shared.said:,} words (said at least 4 times), of which captions use {shared.shared:,}; "
        f"IoU with the {shared.captions:,} words of captions: {shared.iou:.1f}%"
    )


def _show_found(by_words: Retrieval, where: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(by_words.as_dict()))
        return
    for name, direction in (("captions find images", by_words.t2i), ("images find captions", by_words.i2t)):
        recalls = ", ".join(f"R@{k} {getattr(direction, f'r{k}'):.1f}" for k in (1, 5, 10))
        console.print(f"{name} of {where} by shared words: {recalls}", soft_wrap=True)


# ``calligram words``.


def words(
    source: Annotated[Path, typer.Argument(help="Text file, a caption per line, also .gz; or a collection.")],
    out: Annotated[Path, typer.Argument(help="File for the vectors: .txt or .txt.gz.")],
    dim: Annotated[int, typer.Option(min=1, help="Numbers per word.")] = 300,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the text.")] = 10,
    min_count: Annotated[int, typer.Option(min=1, help="Leave out words seen less often.")] = 2,
    seed: Annotated[int, typer.Option(help="Same seed, same vectors.")] = 0,
) -> None:
    """Train word vectors on captions (word2vec), for --set text.vectors=OUT; of a collection, on its train split."""
    from calligram.features.texts.word_vectors import train_vectors, write_vectors

    vectors = train_vectors(_captions(source), dim, epochs=epochs, min_count=min_count, seed=seed)
    write_vectors(vectors, out)
    console.print(f"{len(vectors)} words of {dim} numbers in {out}")


def _captions(source: Path) -> list[str]:
    from calligram.data.collection import Collection
    from calligram.data.readers.text_files import read_sentences

    return list(Collection.open(source).sentences("train").texts.strings) if source.is_dir() else read_sentences(source)
