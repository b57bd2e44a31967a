"""Verbs about a whole library: ``calligram clusters`` and ``calligram duplicates``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from calligram.cli.main import fast_imports, import_lancedb_for_command
from calligram.cli.screen import console, progress_bar, show_spinner

if TYPE_CHECKING:  # these imports take seconds, and --help must be fast
    from calligram.search.library.library import Library
    from calligram.search.library.matchers import MatcherEncoder
    from calligram.search.query.clusters import LibraryClusters
    from calligram.search.query.duplicates import DuplicateGroup, Duplicates

LibraryFolder = Annotated[Path, typer.Argument(help="Folder of a library.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
VectorAddress = Annotated[
    str | None, typer.Option("--index", help="Address of the library's vectors, if they are not in its folder.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")]
PRINTED_EXAMPLES = 2


def open_library(folder: Path, engine: str | None, device: str) -> tuple[Library, MatcherEncoder]:
    """Open a library and the encoder of its matcher."""
    with show_spinner(f"opening {folder}"):
        with fast_imports():
            import_lancedb_for_command()
            from calligram.device import device_named
            from calligram.search.library.library import Library
            from calligram.search.library.matchers import load_encoders

        opened = Library.open(folder, index=engine)
        return opened, load_encoders(opened.folder, opened.manifest, device_named(device))[0]


def clusters(
    library: LibraryFolder,
    count: Annotated[
        int | None,
        typer.Option(help="Number of clusters; by default the square root of half the pictures, from 4 to 64."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same clusters.")] = 0,
    as_json: AsJson = False,
    engine: VectorAddress = None,
    device: Device = "auto",
) -> None:
    """Group the pictures of a library into clusters, and name each by words of its captions or by the matcher.

    The page shows the same clusters as a map. Of more than 100,000 pictures, a sample is clustered.
    """
    opened, encoder = open_library(library, engine, device)
    from calligram.search.query.clusters import cluster_library

    found = cluster_library(opened, encoder, count=count, seed=seed, track=progress_bar)
    if as_json:
        typer.echo(json.dumps(_clusters_content(found), indent=1, ensure_ascii=False))
    else:
        _print_clusters(found, opened)


def _clusters_content(found: LibraryClusters) -> dict[str, Any]:
    """The clusters for --json."""
    return {
        "clusters": [
            {
                **{"number": cluster.number, "name": cluster.name, "words": cluster.words},
                **{"named_by": cluster.named_by, "size": cluster.size, "examples": cluster.examples},
                **{"x": cluster.place.x, "y": cluster.place.y, "radius": cluster.radius},
            }
            for cluster in found.clusters
        ],
        "items": found.items,
        "sampled": found.sampled,
        "seed": found.seed,
    }


def _print_clusters(found: LibraryClusters, library: Library) -> None:
    examples = [id for cluster in found.clusters for id in cluster.examples[:PRINTED_EXAMPLES]]
    paths, names = library.paths(examples), library.names(examples)
    table = Table(box=None, pad_edge=False)
    table.add_column("", justify="right")
    table.add_column("pictures", justify="right")
    table.add_column("name")
    table.add_column("nearest to the centre", overflow="fold")
    for cluster in found.clusters:
        shown = [str(paths[id] or names[id]) for id in cluster.examples[:PRINTED_EXAMPLES]]
        table.add_row(str(cluster.number), f"{cluster.size:,}", cluster.name, "\n".join(shown))
    console.print(table if found.clusters else "no clusters: the library has no pictures")
    if found.sampled < found.items:
        console.print(f"sizes are estimates: {found.sampled:,} of {found.items:,} pictures were clustered", style="dim")
    if any(cluster.named_by == "matcher" for cluster in found.clusters):
        console.print("clusters with few captions are named by the matcher, which may be wrong", style="dim")


def duplicates(
    library: LibraryFolder,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Cosine of vectors from which two pictures are compared. By default it is measured: 95% of copies "
            "that are made of some pictures reach it."
        ),
    ] = None,
    as_json: AsJson = False,
    engine: VectorAddress = None,
    device: Device = "auto",
) -> None:
    """List files with the same bytes, and copies in another size, compression or crop. Nothing is deleted.

    Vectors find candidates, and a comparison of pixels decides. Rotated, mirrored and recoloured copies are not found.
    """
    opened, encoder = open_library(library, engine, device)
    from calligram.search.query.duplicates import find_duplicates

    found = find_duplicates(opened, encoder, threshold=threshold, track=progress_bar)
    if as_json:
        typer.echo(json.dumps(_duplicates_content(found), indent=1))
    else:
        _print_duplicates(found)


def _duplicates_content(found: Duplicates) -> dict[str, object]:
    """The groups for --json."""
    return {
        "groups": [
            {
                "pictures": [
                    {
                        **{"id": picture.id, "path": None if picture.path is None else str(picture.path)},
                        **{"name": picture.name, "width": picture.width, "height": picture.height},
                        **{"bytes": picture.bytes, "largest": place == 0, "same_bytes": same},
                    }
                    for place, (picture, same) in enumerate(zip(group.pictures, group.same_bytes, strict=True))
                ],
                "copied_bytes": group.copied_bytes,
            }
            for group in found.groups
        ],
        "threshold": found.threshold,
        "trials": found.trials,
    }


def _print_duplicates(found: Duplicates) -> None:
    for number, group in enumerate(found.groups, 1):
        console.print(f"group {number}: {len(group.pictures)} pictures, copies take {_size(group.copied_bytes)}")
        console.print(_duplicates_table(group))
    copies = sum(len(group.pictures) - 1 for group in found.groups)
    space = _size(sum(group.copied_bytes for group in found.groups))
    groups = f"{len(found.groups):,} groups with {copies:,} copies, which take {space}"
    console.print(groups if found.groups else "no duplicates")
    if found.threshold is None:
        console.print("only files with the same bytes were looked for: the library has no pictures, only features")
    elif found.trials:
        console.print(
            f"pictures with a cosine of {found.threshold:.3f} or more were compared: 95% of {found.trials} copies that "
            "were made as a trial reach it",
            soft_wrap=True,
        )


def _duplicates_table(group: DuplicateGroup) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for place, (picture, same) in enumerate(zip(group.pictures, group.same_bytes, strict=True)):
        kind = "largest" if place == 0 else "same bytes" if same else "copy"
        size = f"{picture.width} x {picture.height}"
        table.add_row(f"  {kind}", size, _size(picture.bytes), str(picture.path or picture.name))
    table.columns[-1].overflow = "fold"
    return table


def _size(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"
