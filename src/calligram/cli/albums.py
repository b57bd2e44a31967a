"""``calligram albums``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from calligram.cli.main import fast_imports, import_lancedb_for_command
from calligram.cli.screen import console, errors, show_spinner
from calligram.errors import UserError

if TYPE_CHECKING:  # these imports take seconds, and --help must be fast
    from calligram.search.library.library import Library


def albums(
    library: Annotated[Path, typer.Argument(help="Folder of a library.")],
    name: Annotated[str | None, typer.Argument(help="Of an album; without it, all albums are listed.")] = None,
    pictures: Annotated[
        list[str] | None,
        typer.Argument(help="Ids or paths of pictures; - reads them from standard input, one per line."),
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add the pictures; begins the album if it does not exist.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the pictures out of the album.")] = False,
    reject: Annotated[
        bool, typer.Option("--reject", help="Note that the pictures do not belong to the album.")
    ] = False,
    suggest: Annotated[
        int | None, typer.Option(min=1, help="Print so many pictures that may belong to the album.", metavar="K")
    ] = None,
    rename: Annotated[str | None, typer.Option(help="Give the album this name.", metavar="NEW")] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the album; its pictures stay in the library.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print ids instead of paths.")] = False,
    null: Annotated[bool, typer.Option("--null", "-0", help="End each line with a zero byte, for xargs -0.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    engine: Annotated[
        str | None, typer.Option("--index", help="Address of the library's vectors, if they are not in its folder.")
    ] = None,
) -> None:
    """List the albums of a library, print the files of one, or change it. The page changes the same albums."""
    from calligram.search.library.manifest import read_manifest
    from calligram.search.query.albums import delete_album, rename_album

    read_manifest(library)
    changes = {"--add": add, "--remove": remove, "--reject": reject}
    chosen = [option for option, given in changes.items() if given]
    others = [suggest is not None, rename is not None, delete]
    if len(chosen) + sum(others) > 1:
        raise UserError("give one of --add, --remove, --reject, --suggest, --rename and --delete")
    if name is None and (chosen or any(others)):
        raise UserError("which album? give its name after the library")
    if bool(pictures) and not chosen:
        raise UserError("what is to be done with the pictures? give --add, --remove or --reject")
    if name is None:
        _list(library, as_json=as_json)
    elif rename is not None:
        rename_album(library, name, rename)
        console.print(f"the album '{name}' is now '{rename}'", soft_wrap=True)
    elif delete:
        kept = delete_album(library, name)
        console.print(f"deleted the album '{name}'; its {len(kept.pictures):,} pictures stay in the library")
    elif chosen:
        _change(library, engine, name, _names(pictures or []), chosen[0].removeprefix("--"))
    elif suggest is not None:
        _suggest(library, engine, name, suggest, ids=ids, end="\0" if null else "\n", as_json=as_json)
    else:
        _print_pictures(library, engine, name, ids=ids, end="\0" if null else "\n", as_json=as_json)


def _list(library: Path, *, as_json: bool) -> None:
    from calligram.search.query.albums import read_albums

    found = read_albums(library)
    if as_json:
        typer.echo(json.dumps([asdict(album) for album in found], indent=1, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    table.add_column("pictures", justify="right")
    table.add_column("rejected", justify="right")
    for album in found:
        table.add_row(album.name, f"{len(album.pictures):,}", f"{len(album.rejected):,}")
    console.print(table if found else "no albums")


def _names(pictures: list[str]) -> list[str]:
    """Names of pictures, with those of standard input in place of ``-``."""
    if "-" not in pictures:
        return pictures
    data = sys.stdin.buffer.read()
    lines = [os.fsdecode(line) for line in data.split(b"\0" if b"\0" in data else b"\n") if line.strip()]
    return [each for name in pictures for each in (lines if name == "-" else [name])]


def _opened(folder: Path, engine: str | None) -> Library:
    with show_spinner(f"opening {folder}"), fast_imports():
        import_lancedb_for_command()
        from calligram.search.library.library import Library

        return Library.open(folder, index=engine)


def _change(folder: Path, engine: str | None, name: str, pictures: list[str], change: str) -> None:
    library = _opened(folder, engine)
    from calligram.search.query.albums import change_album, find_album, ids_of

    # A picture that left the library can be taken out by its id.
    inside = set(find_album(folder, name).pictures) if change == "remove" else set()
    ids = [picture for picture in pictures if picture in inside]
    ids += ids_of(library, [picture for picture in pictures if picture not in inside])
    if change == "add":
        album = change_album(folder, name, add=ids)
    elif change == "remove":
        album = change_album(folder, name, remove=ids)
    else:
        album = change_album(folder, name, reject=ids)
    rejected = f", {len(album.rejected):,} rejected" if album.rejected else ""
    console.print(f"{name}: {len(album.pictures):,} pictures{rejected}", soft_wrap=True)


def _print_pictures(folder: Path, engine: str | None, name: str, *, ids: bool, end: str, as_json: bool) -> None:
    """Print the paths of an album's pictures, or their ids."""
    from calligram.search.query.albums import find_album

    album = find_album(folder, name)
    library = _opened(folder, engine)
    from calligram.search.query.albums import album_items

    found = album_items(library, album.pictures)
    if as_json:
        rows = [{"id": item.id, "path": None if item.path is None else str(item.path)} for item in found.items]
        typer.echo(json.dumps({"name": name, "pictures": rows, "missing": found.missing}, indent=1, ensure_ascii=False))
        return
    _print_lines([(item.id, None if item.path is None else str(item.path)) for item in found.items], ids=ids, end=end)
    if found.missing:
        errors.print(f"{found.missing} of its pictures are no longer in the library")


def _print_lines(pictures: list[tuple[str, str | None]], *, ids: bool, end: str) -> None:
    for id, path in pictures:
        if ids or path is not None:
            typer.echo(os.fsencode(id if ids or path is None else path) + end.encode(), nl=False)
    if inside := 0 if ids else sum(path is None for _, path in pictures):
        errors.print(f"{inside} of the pictures have no path: they are stored in other files; --ids prints their ids")


def _suggest(folder: Path, engine: str | None, name: str, k: int, *, ids: bool, end: str, as_json: bool) -> None:
    """Print pictures that may belong to an album."""
    from calligram.search.query.albums import find_album

    album = find_album(folder, name)
    with show_spinner(f"opening {folder}"), fast_imports():
        import_lancedb_for_command()
        from calligram.search.query.album_suggestions import suggest_pictures
        from calligram.search.query.searcher import Searcher

        searcher = Searcher.open(folder, measure_costs=False, index=engine)
        found = suggest_pictures(searcher, album, k)
    paths = searcher.library.paths([item.id for item in found.items])
    rows = [(item.id, None if paths[item.id] is None else str(paths[item.id])) for item in found.items]
    if as_json:
        hits = [{"id": id, "path": path} for id, path in rows]
        about = {"learnt_from": found.learnt_from, "examples": found.examples, "rejected": found.rejected}
        typer.echo(json.dumps({"name": name, **about, "pictures": hits}, indent=1, ensure_ascii=False))
        return
    _print_lines(rows, ids=ids, end=end)
    if found.learnt_from == "nothing":
        errors.print("nothing to learn from: the album is empty, and the matcher does not know the words of its name")
