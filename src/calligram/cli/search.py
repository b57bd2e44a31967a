"""``calligram search``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from calligram.cli.screen import console, errors, waiting
from calligram.errors import UserError
from calligram.extras import import_lancedb_for_command

if TYPE_CHECKING:  # importing it takes seconds, and help should not
    from calligram.search.query.query import Query
    from calligram.search.query.searcher import Results, Searcher


def search(
    library: Annotated[Path, typer.Argument(help="Folder of a library.")],
    query: Annotated[
        str | None, typer.Argument(help="What to look for, or the path of a picture. '2:dog' gives it a weight.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits at most.")] = 10,
    image: Annotated[Path | None, typer.Option(help="A picture to look for, alone or with a text.")] = None,
    plus: Annotated[
        list[str] | None, typer.Option(help="Also like this text or picture; '2:dog' with a weight.")
    ] = None,
    minus: Annotated[list[str] | None, typer.Option(help="Not like this text or picture.")] = None,
    weight: Annotated[
        float | None, typer.Option(help="Weight of the query beside --image, --plus and --minus.")
    ] = None,
    where: Annotated[str | None, typer.Option(help="A condition on the metadata, such as 'year >= 2020'.")] = None,
    depth: Annotated[
        int | None, typer.Option(min=0, help="Candidates that a second stage orders; 0 for all. Without it, 100.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget-ms", help="Order as many candidates as this many milliseconds allow, once it is open."),
    ] = None,
    hybrid: Annotated[
        bool | None,
        typer.Option(
            "--any-word/--no-words",
            help="Join with images that have any word of the query in captions or file name, or look for no words; "
            "without either, only every word counts.",
        ),
    ] = None,
    captions: Annotated[bool, typer.Option(help="Find captions instead of images.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also show hits that are no good match.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    paths: Annotated[bool, typer.Option("--paths", help="Print paths only, one a line.")] = False,
    null: Annotated[
        bool, typer.Option("--null", "-0", help="Print paths only, each with a zero byte after it, as xargs -0 reads.")
    ] = False,
) -> None:
    """Find images, or captions, of a library by a text, a picture, or several of both."""
    if captions and (paths or null):
        raise UserError("captions have no paths; leave out --paths and --null, or --captions")
    if as_json and (paths or null):
        raise UserError("give --json, or --paths or --null, not both")
    if depth is not None and budget is not None:
        raise UserError("give --depth, how many candidates are ordered, or --budget-ms, which chooses it; not both")
    _check(library, where, staged=depth is not None or budget is not None)
    with waiting("loading") as waits:
        import_lancedb_for_command()
        from calligram.search.query.rerank import TimeBudget

        budgeted = None if budget is None else TimeBudget.of_milliseconds(budget)
        asked = _query(query, image, plus or [], minus or [], weight)
        from calligram.search.query.searcher import DEPTH, Searcher

        within = (DEPTH if depth is None else depth or None) if budgeted is None else budgeted
        waits.say(f"opening {library}" if budgeted is None else f"opening {library} and measuring its pace")
        searcher = Searcher.open(library, paced=budgeted is not None)
        find = searcher.texts if captions else searcher.images
        waits.say("searching")
        results = find(asked, k, where=where, all=everything, hybrid=hybrid, depth=within)
    if results.unread:
        errors.print(f"{results.unread} words at the end were not read: the matcher reads no more of a text")
    if as_json:
        typer.echo(json.dumps(_content(results, captions), ensure_ascii=False))
    elif paths or null:
        _print_paths(results, searcher, "\0" if null else "\n")
    else:
        _print_table(results, searcher, captions)


def _check(library: Path, where: str | None, *, staged: bool) -> None:
    """Refuse what the library's manifest shows to be wrong, before matchers are loaded."""
    from calligram.search.filters.parser import parse
    from calligram.search.library.manifest import read_manifest

    manifest = read_manifest(library)
    if staged and manifest.reranker is None:
        raise UserError(
            f"{library} has no second stage: all of it is compared by vectors; leave out --depth and --budget-ms, or "
            "index it with --reranker RUN"
        )
    if where is not None and where.strip():
        parse(where, manifest.kinds)


def _query(query: str | None, image: Path | None, plus: list[str], minus: list[str], weight: float | None) -> Query:
    """The terms in the order in which the help names them."""
    from calligram.search.query.query import Query, Term, parse_term, parse_what, read_picture

    terms = []
    if query is not None:
        # With a weight of its own, "2:dog" is taken as it is written.
        terms.append(parse_term(query) if weight is None else Term(parse_what(query), weight))
    elif weight is not None:
        raise UserError("--weight is that of the query, and there is none; give other terms theirs as in '2:dog'")
    terms += [Term(read_picture(image))] if image is not None else []
    terms += [parse_term(text) for text in plus]
    if not terms:
        raise UserError("give something to look for: a text, --image or --plus")
    avoided = [parse_term(text) for text in minus]
    return Query((*terms, *(Term(term.what, -term.weight) for term in avoided)))


def _content(results: Results, captions: bool) -> dict[str, object]:
    """What others read."""
    hits = [{"id": hit.id, "score": hit.score, "rank": hit.rank, "path": hit.path} for hit in results.hits]
    if captions:
        hits = [{**content, "text": hit.text} for content, hit in zip(hits, results.hits, strict=True)]
    return {"hits": hits, "below": results.below, "depth": results.depth, "took": round(1000 * results.took, 3)}


def _print_paths(results: Results, searcher: Searcher, end: str) -> None:
    """Nothing but paths, so that they can be piped; the rest goes where errors go."""
    for hit in results.hits:
        if hit.path is not None:
            typer.echo(f"{hit.path}{end}", nl=False)
    torn = sum("\n" in hit.path for hit in results.hits if hit.path is not None)
    if torn and end == "\n":
        errors.print(f"{torn} of the paths have a line break in them; --null tells them apart")
    if inside := sum(hit.path is None for hit in results.hits):
        errors.print(f"{inside} of the hits are no files of their own: they lie in a collection's shards")
    if not results.hits:
        errors.print(_nothing(results, searcher, captions=False))
    elif results.below:
        errors.print(_more(results))


def _print_table(results: Results, searcher: Searcher, captions: bool) -> None:
    if not results.hits:
        console.print(_nothing(results, searcher, captions))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    table.add_column("caption" if captions else "image", overflow="fold")
    # What lies in a collection's shards has no path; its name says more than its id.
    unnamed = [hit.id for hit in results.hits if not captions and hit.path is None]
    names = {item.id: item.name for item in searcher.library.items(unnamed)}
    for hit in results.hits:
        table.add_row(str(hit.rank), f"{hit.score:.3f}", escape(hit.text or hit.path or names[hit.id]))
    console.print(table)
    if results.below:
        console.print(_more(results))
    if results.depth:
        of = len(searcher.library.captions if captions else searcher.library.images)
        console.print(f"{results.depth:,} of {of:,} compared closely, {1000 * results.took:.0f} ms", style="dim")


def _more(results: Results) -> str:
    return f"{results.below} more are no good match; --all shows them"


def _nothing(results: Results, searcher: Searcher, captions: bool) -> str:
    if results.below:
        unknown = f" (the matcher has never seen: {escape(', '.join(results.unknown))})" if results.unknown else ""
        return f"no good match{unknown}; --all shows the nearest {results.below}"
    if not len(searcher.library.captions if captions else searcher.library.images):
        return f"nothing found: this library has no {'captions' if captions else 'images'}"
    return "nothing found: nothing in the library satisfies the condition"
