"""``calligram search``."""

from __future__ import annotations

import json
import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from calligram.cli.main import fast_imports, import_lancedb_for_command
from calligram.cli.screen import console, errors, show_spinner
from calligram.errors import UserError, command

if TYPE_CHECKING:  # these imports take seconds, and --help must be fast
    from calligram.search.query.query import Query
    from calligram.search.query.searcher import Results, Searcher
    from calligram.search.query.selection import SavedSearch


SHOWN_TEXT_CHARACTERS = 80
PIPE_WIDTH = 10_000
"""columns of a table that another program reads, so that a path stays on one line"""


def search(
    library: Annotated[
        Path | None,
        typer.Argument(
            help='Folder of a library; may be left out after "calligram index FOLDER".', metavar="[LIBRARY]"
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Argument(help="A text, or the path of a picture. '2:dog' has the weight 2.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Maximum number of hits.")] = 10,
    image: Annotated[Path | None, typer.Option(help="A picture to search for, alone or with a text.")] = None,
    plus: Annotated[
        list[str] | None, typer.Option(help="Add a text or picture. '2:dog' has the weight 2. May be repeated.")
    ] = None,
    minus: Annotated[list[str] | None, typer.Option(help="Subtract a text or picture. May be repeated.")] = None,
    weight: Annotated[
        float | None, typer.Option(help="Weight of the query relative to --image, --plus and --minus.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            help="A condition on the metadata, such as \"year >= 2020 and folder under 'trips'\": = != < <= > >=, "
            '~ (contains), in (...), under, is missing, and, or, not. "calligram info LIBRARY" lists the columns.'
        ),
    ] = None,
    when: Annotated[
        str | None,
        typer.Option(help="When the pictures were taken: 2019, 'March 2019', 'last summer', 'last 3 months'."),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(min=0, help="Candidates that the second stage compares; 0 for all. The default is 100."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget-ms", help="Time limit in milliseconds: the second stage compares as many candidates as fit."
        ),
    ] = None,
    hybrid: Annotated[
        bool | None,
        typer.Option(
            "--any-word/--no-words",
            help="--any-word: the keyword search counts pictures that have any word of the query in captions or file "
            "name. --no-words: no keyword search. By default it counts pictures that have every word.",
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--index", help="Address of the library's vectors, if they are not in its folder.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare all vectors, also in a large library; this takes longer.")
    ] = False,
    captions: Annotated[bool, typer.Option(help="Find captions instead of images.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also show hits that are not a good match.")] = False,
    save: Annotated[
        str | None, typer.Option(help="Save the search under this name; the page lists it too.", metavar="NAME")
    ] = None,
    saved: Annotated[
        str | None, typer.Option(help='Run a saved search; "calligram searches" lists them.', metavar="NAME")
    ] = None,
    album: Annotated[str | None, typer.Option(help="Search within the pictures of this album.", metavar="NAME")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    paths: Annotated[bool, typer.Option("--paths", help="Print paths only, one per line.")] = False,
    null: Annotated[
        bool, typer.Option("--null", "-0", help="Print paths only, each followed by a zero byte, for xargs -0.")
    ] = False,
) -> None:
    """Find images or captions in a library by a text, a picture, or several of both."""
    if captions and (paths or null):
        raise UserError("captions have no paths; leave out --paths and --null, or --captions")
    if captions and album is not None:
        raise UserError("an album has pictures and no captions; leave out --album or --captions")
    if as_json and (paths or null):
        raise UserError("--json cannot be combined with --paths or --null; give one of them")
    if depth is not None and budget is not None:
        raise UserError("--depth and --budget-ms cannot be combined; give a number of candidates or a time limit")
    if query is None and library is not None and not (image or plus or saved or library.exists()):
        library, query = None, str(library)
    if library is not None and query is not None and not library.exists() and (Path(query) / "library.json").is_file():
        raise UserError(f"the library comes first: {command('calligram', 'search', query, library)}")
    library = _found_library(library, query)
    where = _with_date(where, when)
    chosen = None
    if saved is not None:
        if query or image or plus or minus or where or save:
            raise UserError("--saved names a whole search; leave out the query, --image, --plus, --minus and --where")
        chosen = _saved_query(library, saved)
        where, everything = chosen.where or None, everything or chosen.all
    _check(library, where, staged=depth is not None or budget is not None)
    within = None if album is None else _album(library, album)
    with show_spinner("loading") as spinner, fast_imports():
        import_lancedb_for_command()
        from calligram.search.query.rerank import TimeBudget

        budgeted = None if budget is None else TimeBudget.of_milliseconds(budget)
        terms = chosen.query() if chosen else _query(query, image, plus or [], minus or [], weight)
        from calligram.search.query.rerank import RERANK_DEPTH
        from calligram.search.query.searcher import Searcher

        limit = (RERANK_DEPTH if depth is None else depth or None) if budgeted is None else budgeted
        spinner.update(f"opening {library}" if budgeted is None else f"opening {library} and measuring its speed")
        searcher = Searcher.open(library, measure_costs=budgeted is not None, index=engine)
        find = searcher.texts if captions else partial(searcher.images, within=within)
        spinner.update("searching")
        results = find(terms, k, where=where, all=everything, hybrid=hybrid, depth=limit, exact=exact)
    if save is not None:  # a search that works
        _save(library, save, query, image, plus or [], minus or [], weight, where, everything)
    if results.truncated_words:
        errors.print(
            f"the last {results.truncated_words} words were not used: the text is longer than the matcher reads"
        )
    if results.unknown_words and results.hits:
        errors.print(f"the matcher does not know: {', '.join(results.unknown_words)}")
    if as_json:
        typer.echo(json.dumps(_content(results, searcher, captions), ensure_ascii=False))
    elif paths or null:
        _print_paths(results, searcher, "\0" if null else "\n")
    else:
        _print_table(results, searcher, captions)


def _found_library(library: Path | None, query: str | None) -> Path:
    """The given library, or the one in the data folder, which is then named."""
    if library is not None:
        return library
    from calligram.search.library.defaults import find_library

    try:
        found = find_library()
    except UserError as error:
        raise UserError(f"{query} is not a library; {error}" if query else str(error)) from error
    errors.print(f"library: {found}", style="dim", soft_wrap=True)
    return found


def _with_date(where: str | None, when: str | None) -> str | None:
    """A condition that also asks for the date of a picture."""
    if when is None:
        return where
    from calligram.search.filters.dates import parse_period

    parse_period(when)
    taken = f"taken = '{when.replace(chr(39), 2 * chr(39))}'"
    return taken if where is None or not where.strip() else f"({where}) and {taken}"


def _check(library: Path, where: str | None, *, staged: bool) -> None:
    """Refuse options that contradict the manifest of the library, before matchers are loaded."""
    from calligram.search.filters.parser import parse
    from calligram.search.library.manifest import read_manifest

    manifest = read_manifest(library)
    if staged and manifest.reranker is None:
        raise UserError(
            f"{library} has no second stage: hits are ordered by vectors; leave out --depth and --budget-ms, or "
            "index it with --reranker RUN"
        )
    if where is not None and where.strip():
        parse(where, manifest.kinds)


def _query(query: str | None, image: Path | None, plus: list[str], minus: list[str], weight: float | None) -> Query:
    """The weighted terms of a query, in the order of the options."""
    from calligram.search.query.query import Query, QueryTerm, parse_content, parse_term, read_picture

    terms = []
    if query is not None:
        # With --weight, "2:dog" is a text and not a weighted term.
        terms.append(parse_term(query) if weight is None else QueryTerm(parse_content(query), weight))
    elif weight is not None:
        raise UserError("--weight needs a query; give other terms a weight as in '2:dog'")
    terms += [QueryTerm(read_picture(image))] if image is not None else []
    terms += [parse_term(text) for text in plus]
    if not terms:
        raise UserError("the query is empty; give a text, --image or --plus")
    subtracted = [parse_term(text) for text in minus]
    return Query((*terms, *(QueryTerm(term.content, -term.weight) for term in subtracted)))


def _saved_query(library: Path, name: str) -> SavedSearch:
    """The saved search of this name, which must have something to search for."""
    from calligram.search.query.selection import find_search

    found = find_search(library, name)
    if not found.has_query:
        raise UserError(f"'{name}' is a condition without a query; add a query with --where {shlex.quote(found.where)}")
    return found


def _album(library: Path, name: str) -> tuple[str, ...]:
    """The ids of an album."""
    from calligram.search.query.albums import find_album

    return find_album(library, name).pictures


def _save(
    library: Path,
    name: str,
    query: str | None,
    image: Path | None,
    plus: list[str],
    minus: list[str],
    weight: float | None,
    where: str | None,
    everything: bool,
) -> None:
    """Save a search of texts. A text with a weight is stored among the texts to add."""
    from calligram.search.query.query import WEIGHTED_TERM, parse_term
    from calligram.search.query.selection import SavedSearch, save_search

    texts = [*([query] if query is not None else []), *plus, *minus]
    if image is not None or any(not isinstance(parse_term(text).content, str) for text in texts):
        raise UserError("a saved search has texts and a condition, and no pictures; leave out --save or the pictures")
    if query is not None and (weight is not None or WEIGHTED_TERM.fullmatch(query.strip())):
        plus = [query if weight is None else f"{weight:g}:{query}", *plus]
        query = None
    search = SavedSearch(name, query or "", tuple(plus), tuple(minus), where=where or "", all=everything)
    if save_search(library, search):
        errors.print(f"replaced the saved search '{name}'")


def _content(results: Results, searcher: Searcher, captions: bool) -> dict[str, object]:
    """The results for --json."""
    hits = [{"id": hit.id, "score": hit.score, "rank": hit.rank, "path": hit.path} for hit in results.hits]
    if captions:
        hits = [{**content, "text": hit.text} for content, hit in zip(hits, results.hits, strict=True)]
    elif written := _written(results, searcher):
        hits = [{**content, "text_in_picture": written.get(str(content["id"]), "")} for content in hits]
    return {
        "hits": hits,
        "below": results.below_cutoff,
        "depth": results.depth,
        "took": round(1000 * results.seconds, 3),
        "recall": results.recall,
    }


def _written(results: Results, searcher: Searcher) -> dict[str, str]:
    """Text inside the pictures of the hits, by id; empty where the library has not read any."""
    from calligram.search.filters.columns import TEXT_COLUMN

    if TEXT_COLUMN not in searcher.library.kinds:
        return {}
    ids = [hit.id for hit in results.hits]
    found = zip(ids, searcher.library.captions_and_metadata(ids)[1], strict=True)
    return {id: str(metadata[TEXT_COLUMN]) for id, metadata in found if metadata.get(TEXT_COLUMN)}


def _print_paths(results: Results, searcher: Searcher, end: str) -> None:
    """Print paths only to stdout, so that they can be piped. Notes go to stderr."""
    for hit in results.hits:
        if hit.path is not None:
            typer.echo(os.fsencode(hit.path) + end.encode(), nl=False)  # also paths that are not UTF-8
    torn = sum("\n" in hit.path for hit in results.hits if hit.path is not None)
    if torn and end == "\n":
        errors.print(f"{torn} of the paths contain a line break; use --null to separate them")
    if inside := sum(hit.path is None for hit in results.hits):
        errors.print(f"{inside} of the hits have no path: they are stored in the shards of a collection")
    if not results.hits:
        errors.print(_nothing(results, searcher, captions=False))
    elif results.below_cutoff:
        errors.print(_more(results))


def _print_table(results: Results, searcher: Searcher, captions: bool) -> None:
    from calligram.search.library.video import is_video

    if not results.hits:
        console.print(_nothing(results, searcher, captions))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    table.add_column("caption" if captions else "image", overflow="fold")
    # Images in the shards of a collection have no path, so their name is shown; and that of a frame after its video.
    unnamed = [hit.id for hit in results.hits if not captions and (hit.path is None or is_video(hit.path))]
    names = searcher.library.names(unnamed)
    written = {} if captions else _written(results, searcher)
    if written:
        table.add_column("text in the picture", overflow="fold")
    for hit in results.hits:
        shown = [hit.text or hit.path, names.get(hit.id)]
        text = [" ".join(written.get(hit.id, "").split())[:SHOWN_TEXT_CHARACTERS]] if written else []
        table.add_row(str(hit.rank), f"{hit.score:.3f}", " ".join(filter(None, shown)), *text)
    console.print(table, width=None if console.is_terminal else PIPE_WIDTH)
    if not captions and any(hit.path is None for hit in results.hits):
        export = shlex.join(["calligram", "export", str(searcher.library.folder), "--query", "TEXT", "--out", "FOLDER"])
        note = f'hits without a path are inside other files; "{export}" writes them as files'
        console.print(note, style="dim", soft_wrap=True)
    if results.below_cutoff:
        console.print(_more(results))
    if results.depth:
        of = len(searcher.library.captions if captions else searcher.library.images)
        console.print(f"{results.depth:,} of {of:,} reranked, {1000 * results.seconds:.0f} ms", style="dim")
    if results.recall is not None:
        share = f"{100 * results.recall:.1f}% of the ten nearest"
        console.print(f"approximate search, which finds {share}; --exact compares all", style="dim")


def _more(results: Results) -> str:
    """How many of the items that were looked at are hidden: of a whole library, nobody counts them."""
    nearest = len(results.hits) + results.below_cutoff
    return f"{results.below_cutoff} of the nearest {nearest} are not a good match; --all shows them"


def _nothing(results: Results, searcher: Searcher, captions: bool) -> str:
    if results.below_cutoff:
        unknown = f" (unknown words: {', '.join(results.unknown_words)})" if results.unknown_words else ""
        return f"no good match{unknown}; --all shows the nearest {results.below_cutoff}"
    if not len(searcher.library.captions if captions else searcher.library.images):
        return f"nothing found: the library has no {'captions' if captions else 'images'}"
    return "nothing found: no item of the library satisfies the condition"
