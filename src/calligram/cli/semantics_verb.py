"""``calligram semantics``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from calligram.cli.screen import bars, console


def semantics(
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="key=value, as recipe a3vse takes them: pseudo.said=regions,labels, sparse.images=0.1."
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Images of this split that have no captions.")] = "train",
    show: Annotated[int, typer.Option("-n", min=0, help="Sentences to show.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Show what machines say of images without captions, and how many of its words captions use."""
    from calligram.data.collection import Collection
    from calligram.evaluation.word_overlap import word_overlap
    from calligram.recipes.config import resolve
    from calligram.recipes.plan import Surroundings, device_named
    from calligram.recipes.pseudo_pairs import SemanticsSettings, pseudo_pairs

    settings, whole = resolve(SemanticsSettings(), set_ or []), Collection.open(collection)
    pairs = pseudo_pairs(
        settings.sparse.of(whole), settings.pseudo, Surroundings(device_named(device), track=bars), split
    )
    said = [pairs.texts.strings[text] for text in pairs.matches.pairs()[1].tolist()]
    # All captions, those that the sparse collection lost too: this measures, and nothing is learnt from it.
    found = word_overlap(whole.sentences(split).texts.strings, said)
    if as_json:
        typer.echo(json.dumps({"images": len(said), "sentences": len(pairs.texts), **found.as_dict()}))
        return
    step = max(1, len(said) // max(1, show))
    for place in range(0, step * min(show, len(said)), step):
        console.print(f"{pairs.visuals.ids[place]}: {said[place]}", markup=False, soft_wrap=True)
    console.print(f"{len(said):,} images without captions, {len(pairs.texts):,} different sentences")
    console.print(
        f"{found.said:,} words (said at least 4 times), of which captions use {found.shared:,}; "
        f"IoU with the {found.captions:,} words of captions: {found.iou:.1f}%"
    )
