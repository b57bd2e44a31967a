"""``calligram index`` and ``calligram forget``."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from calligram.cli.main import fast_imports, import_lancedb_for_command
from calligram.cli.screen import console, errors, progress_bar, show_spinner, stop_at_once
from calligram.errors import UserError, command

if TYPE_CHECKING:
    from calligram.search.indexing.run import IndexReport


RUN_FILE = "run.json"
"""what makes a folder a run; as in ``models.catalog``, whose import takes seconds"""
MODEL_FILE = "config.json"
"""what the folder of a model of transformers has beside its weights"""
SHOWN_PRESETS = 3
"""presets that ``calligram models`` lists"""
COUNT_LABELS = {
    "added": "new",
    "copied": "copies",
    "changed": "changed",
    "moved": "renamed",
    "returned": "restored",
    "touched": "with another date but the same content",
    "described": "with other captions or metadata",
    "text_in_picture": "read for text",
    "town": "located",
    "gone": "gone",
    "problem": "unusable",
    "still bad": "unusable as before",
    "forgotten": "skipped because they were forgotten",
    "unchanged": "unchanged",
}
"""how each count of a report is printed"""


def index(
    run: Annotated[
        str | None,
        typer.Argument(
            help="Folder of a run, or folder or hub name of a dual encoder of transformers. May be left out: the "
            "matcher of the library, or a small default model, is used then.",
            metavar="[RUN]",
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Argument(help="Folder of pictures, or a collection.", metavar="SOURCE")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the library; the default is one in your data folder.")
    ] = None,
    reranker: Annotated[
        str | None, typer.Option(help="A run whose score orders the candidates again; none for no second stage.")
    ] = None,
    localizer: Annotated[str | None, typer.Option(help="A run that localizes phrases in pictures.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--index",
            help="Store the vectors in a Milvus server, such as milvus://host:19530, instead of in the library.",
        ),
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="Encode one share, such as 3/16. A run without --shard commits all shares.")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Encode on a Ray cluster: its address, auto, or local.")] = None,
    again: Annotated[bool, typer.Option(help='Include pictures that "calligram forget" removed.')] = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            help="Encode everything again, also with another matcher. The old library serves until that is complete."
        ),
    ] = False,
    read_text: Annotated[
        bool | None,
        typer.Option("--read-text/--no-read-text", help="Find text inside pictures, for searches by words."),
    ] = None,
    towns: Annotated[
        bool | None, typer.Option("--towns/--no-towns", help="Name the nearest town of each picture with a position.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never ask the network for a model.")] = False,
    problems: Annotated[Path | None, typer.Option(help="Only list the unusable files of this library.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
    precision: Annotated[
        Literal["auto", "fp32"] | None,
        typer.Option(
            help="Of transformers: auto is bfloat16 where it is faster, on GPUs and on CPUs with AMX; fp32 is float32 "
            "everywhere. The default is as before, and auto for a new library.",
        ),
    ] = None,
) -> None:
    """Put a folder of pictures, or a collection, into a library. Run it again to update the library.

    It can be stopped at any time: the next run continues.
    """
    if problems is not None:
        _list_problems(problems, engine)
        return
    run, source, out = _choices(run, source, out, offline)
    kept = "the library keeps what was committed" if shard is None else "the shard keeps what was written"
    stopped = f"stopped; {kept} (every 20 seconds), and the same command continues"
    with stop_at_once(stopped), show_spinner("loading") as spinner:
        with fast_imports():
            import_lancedb_for_command()
            from calligram.device import device_named
            from calligram.search.filters.columns import PLACE_COLUMN, TEXT_COLUMN
            from calligram.search.indexing.run import index_source
            from calligram.search.indexing.shards import Shard, stage_source
            from calligram.search.library.matchers import LibraryMatchers

        share = None if shard is None else Shard.parse(shard)
        where = device_named(device)
        models = LibraryMatchers.load(run, reranker, localizer, None if rebuild else out)
        spinner.update(f"updating {out} from {source}")
        if share is not None:
            count = stage_source(
                models, source, out, share, rebuild=rebuild, device=where, precision=precision, track=progress_bar
            )
        else:
            if ray is not None:
                from calligram.search.indexing.ray import stage_over_ray

                stage_over_ray(
                    ray, models, source, out, rebuild=rebuild, device=device, precision=precision, track=progress_bar
                )
            added = {TEXT_COLUMN: read_text, PLACE_COLUMN: towns}
            report = index_source(
                models, source, out, engine=engine, again=again, rebuild=rebuild, added=added, device=where,
                precision=precision, track=progress_bar,
            )  # fmt: skip
    if share is not None:
        console.print(
            f"shard {shard}: {count:,} pictures encoded; when all shards are done, run the command without --shard",
            soft_wrap=True,
        )
    else:
        _print(report, out)


def _choices(run: str | None, source: Path | None, out: Path | None, offline: bool) -> tuple[str, Path, Path]:
    """Matcher, source and library, where some of them may be left out."""
    from calligram.search.library.defaults import library_of
    from calligram.search.library.manifest import MANIFEST, read_manifest

    if offline:
        from calligram.hub import use_cache_alone

        use_cache_alone()
    if run is None:
        raise UserError('a folder of pictures is needed, as in "calligram index photos"')
    if source is not None:
        if (source / RUN_FILE).is_file() and Path(run).is_dir() and not (Path(run) / RUN_FILE).is_file():
            raise UserError(f"{source} is a run; the run comes first: {command('calligram', 'index', source, run)}")
        return run, source, out or library_of(source)
    source = Path(run)
    if (source / RUN_FILE).is_file() or not source.is_dir():
        what = "a run" if source.is_dir() else "no folder"
        raise UserError(
            f"{run} is {what}; SOURCE is a folder of pictures or a collection, as in "
            f"{command('calligram', 'index', run, 'photos')} or {command('calligram', 'index', 'photos')}"
        )
    if (source / MODEL_FILE).is_file() and any(source.glob("*.safetensors")):
        raise UserError(
            f"{run} is a model; give a folder of pictures after it: {command('calligram', 'index', run, 'photos')}"
        )
    out = out or library_of(source)
    if (out / MANIFEST).is_file():
        return read_manifest(out).matcher.source, source, out
    from calligram.search.library.defaults import DEFAULT_MODEL, default_matcher

    name, download = default_matcher(offline=offline)
    if download:
        size = f"{DEFAULT_MODEL.megabytes} MB, licence {DEFAULT_MODEL.licence}"
        errors.print(f"downloading the default model {name} once ({size}); --offline never asks the network")
    return name, source, out


def models(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List dual encoders that search photographs without training, and which of them are on this machine.

    "calligram index NAME PICTURES" downloads one that is not. The first one is the default. In a clone, the best
    presets that were trained on Flickr8k are listed too.
    """
    from calligram.search.library.defaults import DEFAULT_MODEL, KNOWN_MODELS, PUBLISHED_IN, cached_folder, folder_bytes

    found = []
    for model in KNOWN_MODELS:
        folder = cached_folder(model.name)
        size = model.megabytes if folder is None else round(folder_bytes(folder) / 1e6)
        place = {"folder": None if folder is None else str(folder), "default": model is DEFAULT_MODEL}
        source = {"flickr8k_source": PUBLISHED_IN if model.flickr8k else None}
        found.append({**model._asdict(), "megabytes": size, **place, **source})
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "licence", "MB", "here", "R@5 *", "about"):
        table.add_column(column, justify="right" if column == "MB" else "left", no_wrap=column != "about")
    for row, model in zip(found, KNOWN_MODELS, strict=True):
        recall = "{} / {}".format(*model.flickr8k) if model.flickr8k else "unknown"
        about = f"{'the default; ' if row['default'] else ''}{model.about}"
        table.add_row(model.name, model.licence, str(row["megabytes"]), "yes" if row["folder"] else "no", recall, about)
    console.print(table)
    console.print(
        "* on the test images of Flickr8k: captions for an image / images for a caption; published in "
        f"{PUBLISHED_IN}. Measure others with calligram train pretrained COLLECTION --set pretrained.model=NAME "
        "--set epochs=0, and calligram evaluate.",
        style="dim",
        soft_wrap=True,
    )
    _print_trained()


def _print_trained() -> None:
    """Print the best presets of this project on Flickr8k, from its recorded results, which only a clone has."""
    from calligram.studies.claims import SEEN_MARK

    if best := _trained():
        console.print("\nTrained on Flickr8k and measured by this project (calligram train PRESET):")
        table = Table(box=None, pad_edge=False)
        for column in ("preset", "R@5 *", "rsum", "seeds", "image and text network"):
            table.add_column(column, overflow="fold")
        for cells in best:
            table.add_row(*cells)
        console.print(table)
        console.print(f"{SEEN_MARK} its text encoder was trained on texts with the captions of Flickr8k", style="dim")


def _trained() -> list[list[str]]:
    """For each preset, its best row on the test images of Flickr8k: the means over the seeds."""
    from calligram.extras import clone_folder
    from calligram.studies.claims import SEEN_MARK, has_seen_captions

    rows: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for file in sorted(Path(clone_folder() or "", "results").glob("*.jsonl")):
        if file.name in ("claims.jsonl", "withdrawn.jsonl"):
            continue
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if line.get("study") and (line["collection"], line["split"]) == ("flickr8k", "test") and line["rsum"]:
                rows.setdefault((line["recipe"], line["study"]), {})[line["seed"]] = line
    shown: dict[str, list[str]] = {}
    for (preset, _), by_seed in sorted(rows.items(), key=lambda row: -fmean(line["rsum"] for line in row[1].values())):
        lines = list(by_seed.values())
        recalls = [f"{fmean(line[side]['r5'] for line in lines):.1f}" for side in ("i2t", "t2i")]
        networks = [str(lines[0]["settings"].get(key, "")) for key in ("image.backbone", "text.encoder")]
        mark = f" {SEEN_MARK}" if has_seen_captions(networks[1]) else ""
        rsum = f"{fmean(line['rsum'] for line in lines):.1f}"
        parts = ", ".join(Path(network).name for network in networks if network)
        shown.setdefault(preset, [preset + mark, " / ".join(recalls), rsum, str(len(lines)), parts])
    return list(shown.values())[:SHOWN_PRESETS]


def _print(report: IndexReport, out: Path) -> None:
    """Print the counts of changes, and the size of the library."""
    counts = [f"{report.counts[name]:,} {words}" for name, words in COUNT_LABELS.items() if report.counts[name]]
    console.print(f"{', '.join(counts) or 'no pictures found'} ({report.seconds:.1f} s)", soft_wrap=True)
    size = report.library
    captions = f" and {size['captions']:,} captions" if size.get("captions") else ""
    console.print(f"{out} contains {size['items']:,} pictures{captions}", highlight=False, soft_wrap=True)
    if size.get("problems"):
        lists = command("calligram", "index", "--problems", out)
        console.print(f"files that could not be used: {size['problems']:,}; {lists} lists them", soft_wrap=True)


def _list_problems(library: Path, engine: str | None) -> None:
    with show_spinner(f"opening {library}"):
        from calligram.search.library.library import Library

        found = Library.open(library, index=engine).problems()
    for path, reason in found:
        console.print(f"{path}: {reason}", soft_wrap=True)
    if not found:
        console.print("no problems")


def forget(
    library: Annotated[Path, typer.Argument(help="Folder of a library.")],
    what: Annotated[list[str] | None, typer.Argument(help="Ids of items, or paths of pictures or folders.")] = None,
    where: Annotated[str | None, typer.Option(help="A condition, such as 'year < 2010'.")] = None,
    gone: Annotated[bool, typer.Option(help="Pictures whose files the last index did not find.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the pictures, and delete nothing.")] = False,
    engine: Annotated[
        str | None, typer.Option("--index", help="Address of the library's vectors, if they are not in its folder.")
    ] = None,
) -> None:
    """Delete items and all their data from a library. The picture files stay.

    If you give several conditions, all must hold.

    A later "calligram index" skips these pictures, also under another name, unless their content has changed or --again
    is given.
    """
    from calligram.search.indexing.forget import forget_items

    def show(path: str) -> None:
        if dry_run:
            console.print(path, soft_wrap=True)

    count = forget_items(
        library, what or [], where=where, gone=gone, index=engine, dry_run=dry_run, report=show, track=progress_bar
    )
    console.print(f"{count:,} pictures would be forgotten" if dry_run else f"{count:,} pictures forgotten")
