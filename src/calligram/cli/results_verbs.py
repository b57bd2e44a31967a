"""``calligram reproduce`` and ``calligram report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calligram.cli.screen import bars, console


def reproduce(
    paper: Annotated[str, typer.Argument(help='A paper; "calligram list" shows them.')],
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    budget_minutes: Annotated[float | None, typer.Option(help="Start no new row after this long.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds where a verdict depends on it.")] = 3,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting for every row, as key=value, beneath the row's own.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only rows of this name, or pattern such as 'phrases*'.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Run the rows a paper's claims need, skip those already in results, and judge the claims."""
    from calligram.data.collection import Collection
    from calligram.recipes import reproduce as work
    from calligram.recipes.plan import Surroundings, device_named
    from calligram.recipes.studies import study_named

    verdicts = work.reproduce(
        study_named(paper),
        Collection.open(collection),
        results=results,
        runs=runs,
        seeds=seeds,
        budget_minutes=budget_minutes,
        changes=tuple(set_ or ()),
        only=tuple(only or ()),
        around=Surroundings(device_named(device), track=bars),
        say=console.print,
    )
    for verdict in verdicts:
        console.print(f"[bold]{verdict.verdict:8}[/] {verdict.claim}")
    console.print(f'verdicts are in {results / "claims.jsonl"}; "calligram report" makes the document')


def report(
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="Folder for results.md and its pictures.")] = Path("docs"),
) -> None:
    """Make docs/results.md and its pictures from the lines of results."""
    from calligram.errors import UserError
    from calligram.recipes.report import write_report

    if not results.is_dir():
        raise UserError(f"{results} is not a folder of results; run calligram where results/ is, or give --results")
    console.print(f"written: {write_report(results, docs)}")
