"""Verbs about a whole library: ``clusters``, ``duplicates``, ``searches`` and ``export``."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from calligram.cli.main import fast_imports, import_lancedb_for_command
from calligram.cli.screen import console, errors, progress_bar, show_spinner
from calligram.errors import UserError

if TYPE_CHECKING:  # these imports take seconds, and --help must be fast
    from calligram.search.library.library import Library
    from calligram.search.library.matchers import MatcherEncoder
    from calligram.search.query.clusters import LibraryClusters
    from calligram.search.query.duplicates import DuplicateGroup, Duplicates
    from calligram.search.query.selection import Placement, SavedSearch, SelectedPicture

LibraryFolder = Annotated[Path, typer.Argument(help="Folder of a library.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
VectorAddress = Annotated[
    str | None, typer.Option("--index", help="Address of the library's vectors, if they are not in its folder.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")]
PRINTED_EXAMPLES = 2
EXPORTED_HITS = 100
"""hits of a query that are exported if no number is given"""


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


def searches(
    library: LibraryFolder,
    delete: Annotated[str | None, typer.Option(help="Delete this saved search.", metavar="NAME")] = None,
    as_json: AsJson = False,
) -> None:
    """List the saved searches of a library. "calligram search --save NAME" and the page save them."""
    from calligram.search.library.manifest import read_manifest
    from calligram.search.query.selection import delete_search, saved_searches

    read_manifest(library)
    if delete is not None:
        delete_search(library, delete)
        console.print(f"deleted the saved search '{delete}'")
        return
    found = saved_searches(library)
    if as_json:
        typer.echo(json.dumps([asdict(search) for search in found], indent=1, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "query", "where"):
        table.add_column(column, overflow="fold")
    for search in found:
        terms = [search.q, *(f"+ {t}" for t in search.plus), *(f"- {t}" for t in search.minus)]
        terms += [f"like {id}" for id in search.like]
        table.add_row(search.name, " ".join(term for term in terms if term), search.where)
    console.print(table if found else "no saved searches")


class PicturePlacement(StrEnum):
    """How exported pictures are written."""

    copy = "copy"
    link = "link"
    symlink = "symlink"


def export(
    source: Annotated[
        Path,
        typer.Argument(help="Folder of a run, of a collection or of a library.", metavar="RUN|COLLECTION|LIBRARY"),
    ],
    onnx: Annotated[
        Path | None, typer.Option(help="Of a run: folder for image.onnx, text.onnx, inputs/ and README.json.")
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="With --onnx: convolutions and matrix products with weights of eight bits.")
    ] = False,
    webdataset: Annotated[
        Path | None, typer.Option(help="Of a collection: new folder for WebDataset tars, SPLIT-000000.tar.")
    ] = None,
    datasets: Annotated[
        Path | None, typer.Option(help="Of a collection: new folder for load_from_disk of Hugging Face datasets.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Of a collection: new folder for pairs.csv (filepath, title) and its pictures.")
    ] = None,
    vectors: Annotated[
        Path | None, typer.Option(help="Of a library: new Parquet file with the vectors of all pictures.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Of a library: new folder for the selected pictures.")] = None,
    query: Annotated[str | None, typer.Option(help="Export the hits of this text.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Export pictures that satisfy a condition, such as 'year >= 2020'.")
    ] = None,
    saved: Annotated[str | None, typer.Option(help="Export the hits of a saved search.", metavar="NAME")] = None,
    album: Annotated[str | None, typer.Option(help="Export the pictures of an album.", metavar="NAME")] = None,
    k: Annotated[
        int | None, typer.Option("-k", min=1, help="Maximum number of pictures: 100 for a query, all for a condition.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also export hits that are not a good match.")] = False,
    placing: Annotated[
        PicturePlacement, typer.Option(help="copy, link (hard links) or symlink.")
    ] = PicturePlacement.copy,
    engine: VectorAddress = None,
) -> None:
    """Export a run (--onnx), a collection (--webdataset, --datasets, --csv), or selected pictures of a library (--out)
    or its vectors (--vectors).

    ONNX files are compared with the matcher, and deleted if onnxruntime gives other vectors. "calligram import
    webdataset" and "calligram import datasets" restore a collection. Next to the pictures of a library are
    selection.csv and selection.json with ids, scores, captions and metadata.
    """
    if sum(target is not None for target in (onnx, webdataset, datasets, csv, vectors, out)) != 1:
        raise UserError(
            "give --onnx FOLDER for a run, --webdataset, --datasets or --csv FOLDER for a collection, --out FOLDER for "
            "pictures of a library, or --vectors FILE for its vectors"
        )
    if int8 and onnx is None:
        raise UserError("--int8 is for ONNX files; add --onnx FOLDER")
    if vectors is not None:
        from calligram.search.library.library import Library
        from calligram.search.library.vector_files import write_vectors

        count = write_vectors(Library.open(source, index=engine), vectors, progress_bar)
        console.print(f"{count:,} vectors in {vectors}", soft_wrap=True)
        return
    for kind, target in (("webdataset", webdataset), ("datasets", datasets), ("csv", csv)):
        if target is not None:
            _export_collection(source, kind, target)
            return
    if onnx is not None:
        from calligram.cli.train import export_onnx_files

        export_onnx_files(source, onnx, int8=int8)
        return
    assert out is not None
    _export_selection(source, out, query, where, saved, album, k, everything, placing.value, engine)


def _export_collection(source: Path, kind: str, target: Path) -> None:
    """Export a collection to one of the other formats."""
    from calligram.data.collection import Collection
    from calligram.data.readers.hugging_face import export_datasets
    from calligram.data.readers.samples import export_csv
    from calligram.data.readers.webdataset import export_webdataset

    exports = {"webdataset": export_webdataset, "datasets": export_datasets, "csv": export_csv}
    report = exports[kind](Collection.open(source), target, track=progress_bar)
    console.print(f"{report.images:,} images and {report.captions:,} captions in {target}", soft_wrap=True)
    for id, reason in report.problems:
        errors.print(f"left out: {id}: {reason}", soft_wrap=True)
    if report.left_out:
        errors.print(f"not exported, because the format has no place for them: {', '.join(report.left_out)}")


def _export_selection(
    library: Path,
    out: Path,
    query: str | None,
    where: str | None,
    saved: str | None,
    album: str | None,
    k: int | None,
    everything: bool,
    placing: Placement,
    engine: str | None,
) -> None:
    """Export the pictures of a query, a condition, both, a saved search, or an album."""
    if saved is not None and (query or where):
        raise UserError("--saved names a whole search; leave out --query and --where")
    if album is not None and (query or where or saved):
        raise UserError("--album names all its pictures; leave out --query, --where and --saved")
    if not (query or where or saved or album):
        raise UserError("nothing is selected; give --query, --where, --saved or --album")
    with show_spinner(f"opening {library}") as spinner:
        with fast_imports():
            import_lancedb_for_command()
            from calligram.search.query.selection import SavedSearch, export_folder, find_search

        if album is not None:
            opened, chosen = _album_pictures(library, album, k, engine)
        else:
            search = find_search(library, saved) if saved else SavedSearch("export", query or "", where=where or "")
            spinner.update("searching")
            opened, chosen = _selected(library, search, k, everything or search.all, engine)
    report = export_folder(opened, chosen, out, placing=placing, track=progress_bar)
    console.print(f"{report.pictures:,} pictures in {out}, listed in selection.csv and selection.json", soft_wrap=True)
    for id, reason in report.problems:
        errors.print(f"left out: {id}: {reason}", soft_wrap=True)


def _album_pictures(
    folder: Path, name: str, k: int | None, engine: str | None
) -> tuple[Library, list[SelectedPicture]]:
    """The library, and the pictures of an album that it has."""
    from calligram.search.library.library import Library
    from calligram.search.query.albums import album_items, find_album

    album = find_album(folder, name)
    opened = Library.open(folder, index=engine)
    found = album_items(opened, album.pictures)
    if found.missing:
        errors.print(f"{found.missing} pictures of the album are no longer in the library")
    return opened, found.selected[:k]


def _selected(
    folder: Path, search: SavedSearch, k: int | None, everything: bool, engine: str | None
) -> tuple[Library, list[SelectedPicture]]:
    """The library, and the pictures of a search: its hits, or all that satisfy its condition."""
    from calligram.search.library.library import Library
    from calligram.search.query.searcher import Searcher
    from calligram.search.query.selection import SelectedPicture, select_by_condition

    if not search.has_query:
        opened = Library.open(folder, index=engine)
        return opened, select_by_condition(opened, search.where)[:k]
    searcher = Searcher.open(folder, measure_costs=False, index=engine)
    where, count = search.where or None, EXPORTED_HITS if k is None else k
    found = searcher.images(search.query(), count, where=where, all=everything)
    return searcher.library, [SelectedPicture(hit.id, hit.rank, hit.score) for hit in found.hits]
