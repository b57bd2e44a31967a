"""``calligram index``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calligram.cli.screen import bars, console, waiting
from calligram.errors import UserError, command
from calligram.extras import import_lancedb_for_command

if TYPE_CHECKING:
    from calligram.search.indexing.run import IndexReport


SHOWN = {
    "added": "new",
    "copied": "copies of known ones",
    "changed": "changed",
    "moved": "renamed",
    "returned": "back again",
    "touched": "touched but the same",
    "described": "described otherwise",
    "gone": "gone",
    "problem": "unusable",
    "still bad": "unusable as before",
    "forgotten": "left out as forgotten",
    "unchanged": "unchanged",
}
"""what is said of each count"""


def index(
    run: Annotated[
        str | None, typer.Argument(help="Folder of a run, or folder or hub name of a dual encoder of transformers.")
    ] = None,
    source: Annotated[Path | None, typer.Argument(help="Folder of pictures, or a collection.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the library.")] = None,
    reranker: Annotated[
        str | None, typer.Option(help="A run whose score re-orders what was found; none to leave that out.")
    ] = None,
    localizer: Annotated[str | None, typer.Option(help="A run that finds phrases within pictures.")] = None,
    engine: Annotated[
        str | None, typer.Option("--index", help="Keep vectors elsewhere: milvus://host:19530. Else in the library.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="Encode one share, as 3/16, and stage it; a run without --shard takes all in.")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Encode on a Ray cluster: its address, auto, or local.")] = None,
    again: Annotated[bool, typer.Option(help='Also take pictures that "calligram forget" removed.')] = False,
    rebuild: Annotated[
        bool, typer.Option(help="Make it anew, with another matcher; the old one serves until then.")
    ] = False,
    problems: Annotated[Path | None, typer.Option(help="Only list the unusable files of this library.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Put pictures into a library that can be searched; run it again to take in what changed, and stop it any time."""
    if problems is not None:
        _list_problems(problems)
        return
    if run is None or source is None or out is None:
        raise UserError('give RUN, SOURCE and --out LIBRARY, as in "calligram index runs/vse photos --out library"')
    with waiting("loading") as waits:
        import_lancedb_for_command()
        from calligram.device import device_named
        from calligram.search.indexing.run import index_source, stage_source
        from calligram.search.indexing.shards import Shard
        from calligram.search.library.matchers import LibraryMatchers

        share = None if shard is None else Shard.parse(shard)
        where = device_named(device)
        models = LibraryMatchers.load(run, reranker, localizer, None if rebuild else out)
        waits.say(f"bringing {out} up to date with {source}")
        if share is not None:
            count = stage_source(models, source, out, share, rebuild=rebuild, device=where, track=bars)
        else:
            if ray is not None:
                from calligram.search.indexing.ray import stage_over_ray

                stage_over_ray(ray, models, source, out, rebuild=rebuild, device=device, track=bars)
            report = index_source(
                models, source, out, engine=engine, again=again, rebuild=rebuild, device=where, track=bars
            )
    if share is not None:
        console.print(f"shard {shard}: {count:,} pictures encoded; when all shards are done, run it without --shard")
    else:
        _print(report, out)


def _print(report: IndexReport, out: Path) -> None:
    """What was done, in one line, and what the library holds now."""
    said = [f"{report.counts[name]:,} {words}" for name, words in SHOWN.items() if report.counts[name]]
    console.print(f"{', '.join(said) or 'no pictures found'} ({report.seconds:.1f} s)")
    held = report.library
    captions = f" and {held['captions']:,} captions" if held.get("captions") else ""
    console.print(f"{out} holds {held['items']:,} pictures{captions}", highlight=False, markup=False)
    if held.get("problems"):
        lists = command("calligram", "index", "--problems", out)
        console.print(f"{held['problems']:,} files could not be used: {lists} lists them", markup=False, soft_wrap=True)


def _list_problems(library: Path) -> None:
    with waiting(f"opening {library}"):
        from calligram.search.library.library import Library

        found = Library.open(library).problems()
    for path, reason in found:
        console.print(f"{path}: {reason}", markup=False, soft_wrap=True)
    if not found:
        console.print("no problems")


# ``calligram forget``.


def forget(
    library: Annotated[Path, typer.Argument(help="Folder of a library.")],
    what: Annotated[list[str] | None, typer.Argument(help="Ids, or paths of pictures or of folders.")] = None,
    where: Annotated[str | None, typer.Option(help="A condition, such as 'year < 2010'.")] = None,
    gone: Annotated[bool, typer.Option(help="Pictures whose file is no longer there.")] = False,
) -> None:
    """Delete items from a library, with everything of theirs; the picture files stay.

    Of several, --where and --gone among them, all must hold.

    A later "calligram index" leaves them out, also under another name, until their content changes or --again is given.
    """
    from calligram.search.indexing.forget import forget_items as forget_items

    count = forget_items(library, what or [], where=where, gone=gone, track=bars)
    console.print(f"{count:,} pictures forgotten")
