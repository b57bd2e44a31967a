"""``calligram compare``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from calligram.cli.screen import console, progress_bar, show_spinner
from calligram.errors import UserError

if TYPE_CHECKING:  # these imports take seconds, and --help must be fast
    from calligram.data.collection import Collection
    from calligram.data.pairing import Pairing
    from calligram.evaluation.compare import ComparedScores, DirectionComparison, PhraseComparison, RunComparison
    from calligram.evaluation.recall import PairedRanks, ScoreMatrix
    from calligram.features.inputs import Inputs
    from calligram.models.matcher import Matcher
    from calligram.progress import Track
    from calligram.training.runs import Run

T = TypeVar("T")

CLEAR_P_VALUE = 0.05
"""a difference with a smaller p-value of the sign test is printed in bold"""


def compare(
    first: Annotated[Path, typer.Argument(help="Folder of a run.")],
    second: Annotated[Path, typer.Argument(help="Folder of another run.")],
    collection: Annotated[Path, typer.Argument(help="Folder of the collection of both runs.")],
    split: Annotated[str, typer.Option(help="train, dev, test or all.")] = "test",
    identities: Annotated[
        bool | None,
        typer.Option(help="Match by identity (person search). The default is yes if the collection has identities."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Draw figures into this folder: queries that only one run finds, hard negatives, ranks, dev curves; "
            "or phrases that only one run localizes."
        ),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(min=1, help="Queries per run on a sheet of --out. The default is 3, or 8 phrases."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Compare two runs query by query: recalls, queries that only one run finds, and a sign test.

    Two runs that localize phrases are compared phrase by phrase.
    """
    if out is not None and out.is_file():
        raise UserError(f"--out {out} is a file; give a folder")
    with show_spinner("loading") as spinner:
        from calligram.data.collection import Collection
        from calligram.evaluation.compare import ComparedScores, compare_scores
        from calligram.training.runs import Run

        runs, source = (Run.open(first), Run.open(second)), Collection.open(collection)
        _check(runs, source)
        loaded = [_load(run, device) for run in runs]
        names = _names(first, second)
        localizing = [inputs.images.region_input is not None for _, inputs in loaded]
        if any(localizing):
            _check_localizing(runs, localizing, identities)
            phrases = _localize(loaded, source, split, names)
            drawn = [] if out is None else _draw_phrases(source, names, phrases, out, queries or 8)
    if any(localizing):
        _print_phrases(phrases, names, source.name, split, drawn, as_json=as_json)
        return
    with show_spinner("loading") as spinner:
        by_identity = source.has_identities(split) if identities is None else identities
        pairing = source.identities(split) if by_identity else source.sentences(split)
        if not len(pairing.matches):
            raise UserError("this split has no captions to compare on; give another split")
        one, two = (_scores(*both, pairing, name) for both, name in zip(loaded, names, strict=True))
        spinner.update("comparing")
        found = compare_scores(one, two, pairing.matches)
        compared = ComparedScores(names, (one, two), pairing)
        drawn = [] if out is None else _draw(compared, found, runs, out, queries or 3)
    if as_json:
        about = {"runs": list(names), "collection": source.name, "split": split}
        about |= {"by": "identities"} if by_identity else {}
        sizes = {"images": len(pairing.visuals), "texts": len(pairing.texts)}
        typer.echo(json.dumps({**about, **sizes, **found.as_dict(), "pictures": [str(file) for file in drawn]}))
        return
    _print(found, names, f"{source.name}, {split}{', by identity' if by_identity else ''}")
    _print_pictures(drawn)


def _check(runs: tuple[Run, Run], collection: Collection) -> None:
    """Refuse the same run twice, and a run of another collection."""
    if runs[0].folder.resolve() == runs[1].folder.resolve():
        raise UserError(f"both runs are {runs[0].folder}; give two different runs")
    for run in runs:
        trained_on = str(run.about.get("collection", collection.name))
        # A run on part of the captions has the name of the collection with the part in brackets.
        if trained_on != collection.name and not trained_on.startswith(f"{collection.name} ("):
            raise UserError(
                f"{run.folder} was trained on the collection {trained_on}, but {collection.folder} is the collection "
                f"{collection.name}; give two runs of the collection. calligram evaluate measures one run on any "
                "collection"
            )


def _names(first: Path, second: Path) -> tuple[str, str]:
    """Short names of two run folders: the last parts of their paths, as many as distinguish them."""
    one, two = first.resolve().parts, second.resolve().parts
    count = next(n for n in range(1, max(len(one), len(two)) + 1) if one[-n:] != two[-n:])
    return os.path.join(*one[-count:]), os.path.join(*two[-count:])


def _load(run: Run, device: str) -> tuple[Matcher, Inputs]:
    """The matcher of a run and its inputs on a device."""
    from calligram.device import device_named

    matcher, inputs = run.load()
    return matcher.to(device_named(device)).eval(), inputs.to(device_named(device))


def _check_localizing(runs: tuple[Run, Run], localizing: list[bool], identities: bool | None) -> None:
    """Refuse runs of two kinds, and an option that phrases do not have."""
    if not all(localizing):
        other = runs[localizing.index(False)].folder
        raise UserError(
            f"{runs[localizing.index(True)].folder} localizes phrases and {other} retrieves images and texts; give two "
            "runs of the same kind"
        )
    if identities:
        raise UserError("--identities is for runs that retrieve images and texts; leave it out")


def _localize(
    loaded: list[tuple[Matcher, Inputs]], collection: Collection, split: str, names: tuple[str, str]
) -> PhraseComparison:
    """Localize the phrases of a split by both runs, each with its own proposals."""
    from calligram.evaluation.compare import PhraseComparison
    from calligram.evaluation.localization import load_phrases, localize_phrases

    phrases, found = [], []
    for (matcher, inputs), name in zip(loaded, names, strict=True):
        track = _named_progress(name)
        phrases.append(load_phrases(inputs, collection, split, track=track))
        found.append(localize_phrases(matcher, inputs, phrases[-1], track))
    return PhraseComparison.of((phrases[0], phrases[1]), (found[0], found[1]))


def _named_progress(name: str) -> Track:
    """Progress bars with the name of a run."""

    def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        yield from progress_bar(items, f"{name}: {label}", total)

    return track


def _scores(matcher: Matcher, inputs: Inputs, pairing: Pairing, name: str) -> ScoreMatrix:
    """The scores of all pairs, with the name of the run in the progress bars."""
    from calligram.evaluation.recall import encode_pairing, load_pairing, score_matrix

    track = _named_progress(name)
    encoded = encode_pairing(matcher, inputs, load_pairing(inputs, pairing, track), track)
    return score_matrix(matcher, encoded, track=track)


def _draw(compared: ComparedScores, found: RunComparison, runs: tuple[Run, Run], out: Path, queries: int) -> list[Path]:
    """Draw all figures; dev curves only of runs that measured recalls on dev."""
    from calligram.evaluation.compare import (
        draw_dev_curves,
        draw_image_comparison,
        draw_negatives,
        draw_text_comparison,
        last_round_metrics,
    )
    from calligram.evaluation.distributions import cross_ranks, draw_cross_ranks

    names, scores, pairing = compared
    curves = {
        name: metrics
        for name, metrics in zip(names, (run.metrics() for run in runs), strict=True)
        if all("i2t_r1" in dev for dev in last_round_metrics(metrics) or [{}])
    }
    works: dict[str, Callable[[Path], object]] = {
        "images.png": lambda file: draw_image_comparison(compared, found.t2i, file, queries=queries),
        "texts.png": lambda file: draw_text_comparison(compared, found.i2t, file, queries=queries),
        "negatives.png": lambda file: draw_negatives(scores[0], pairing, names[0], file),
        "ranks.png": lambda file: draw_cross_ranks(
            {name: cross_ranks(own, pairing.matches) for name, own in zip(names, scores, strict=True)}, file
        ),
        "curves.png": lambda file: draw_dev_curves(curves, file),
    }
    if not curves:
        del works["curves.png"]
    for name, work in progress_bar(list(works.items()), "drawing"):
        work(out / name)
    return [out / name for name in works]


def _draw_phrases(
    collection: Collection, names: tuple[str, str], found: PhraseComparison, out: Path, count: int
) -> list[Path]:
    from calligram.evaluation.compare import draw_phrase_comparison

    draw_phrase_comparison(collection, names, found, out / "phrases.png", phrases=count)
    return [out / "phrases.png"]


def _print_phrases(
    found: PhraseComparison, names: tuple[str, str], collection: str, split: str, drawn: list[Path], *, as_json: bool
) -> None:
    """Print the recalls of both runs with their differences, and the phrases that only one run localizes."""
    if as_json:
        about = {"runs": list(names), "collection": collection, "split": split, "phrases": len(found.queries)}
        typer.echo(json.dumps({**about, **found.as_dict(), "pictures": [str(file) for file in drawn]}))
        return
    table = Table(title=f"{collection}, {split}: {len(found.queries)} phrases", title_justify="left")
    for heading in ("", "R@1", "R@5", "R@10", "upper bound", "better"):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    one, two = found.metrics
    for run, own, count in zip(names, found.metrics, found.better_ranked(), strict=True):
        table.add_row(f"  {run}", *(f"{v:.1f}" for v in (own.r1, own.r5, own.r10, own.oracle)), str(count))
    differences = (two.r1 - one.r1, two.r5 - one.r5, two.r10 - one.r10, two.oracle - one.oracle)
    table.add_row("  difference", *(f"{value:+.1f}" for value in differences))
    _add_counts(table, found, names, [""])
    console.print(table)
    _print_legend(names)
    _print_pictures(drawn)


def _print_pictures(drawn: list[Path]) -> None:
    if drawn:
        listed = ", ".join(file.name for file in drawn)
        console.print(f"pictures: {listed} in {drawn[0].parent}", soft_wrap=True)


def _print_legend(names: tuple[str, str]) -> None:
    console.print(
        f"differences are {names[1]} minus {names[0]}; better counts the queries whose match has a better rank "
        "than in the other run; p is the sign test",
        soft_wrap=True,
    )  # fmt: skip


def _print(found: RunComparison, names: tuple[str, str], title: str) -> None:
    """Print the metrics of both runs with their differences, and the queries that only one run finds."""
    table = Table(title=title, title_justify="left")
    for heading in ("", "R@1", "R@5", "R@10", "median", "mean", "better"):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for name, direction in (("text to image", found.t2i), ("image to text", found.i2t)):
        _add_rows(table, name, direction, names)
    console.print(table)
    one, two = found.rsums
    console.print(f"rsum {one:.1f} and {two:.1f}, difference {two - one:+.1f}")
    _print_legend(names)


def _add_rows(table: Table, name: str, direction: DirectionComparison, names: tuple[str, str]) -> None:
    from calligram.evaluation.recall import RECALL_RANKS

    table.add_section()
    table.add_row(Text.assemble((name, "bold"), f" ({len(direction.queries)})"))
    one, two = direction.metrics
    better = direction.better_ranked()
    for run, own, count in zip(names, direction.metrics, better, strict=True):
        recalls = (f"{getattr(own, f'r{k}'):.1f}" for k in RECALL_RANKS)
        table.add_row(f"  {run}", *recalls, f"{own.medr:.0f}", f"{own.meanr:.1f}", str(count))
    table.add_row(
        "  difference",
        *(f"{getattr(two, f'r{k}') - getattr(one, f'r{k}'):+.1f}" for k in RECALL_RANKS),
        f"{two.medr - one.medr:+.0f}",
        f"{two.meanr - one.meanr:+.1f}",
    )
    _add_counts(table, direction, names, ["", ""])


def _add_counts(table: Table, ranks: PairedRanks, names: tuple[str, str], empty: list[str]) -> None:
    """Add the numbers of queries that only one run finds, and p-values; ``empty`` are columns between recalls and
    ranks.
    """
    from calligram.evaluation.recall import RECALL_RANKS, sign_test

    only = [tuple(map(len, ranks.found_by_one(k))) for k in RECALL_RANKS]
    for number, run in enumerate(names):
        table.add_row(f"  only {run} finds", *(str(count[number]) for count in only))
    p_values = [sign_test(*count) for count in (*only, ranks.better_ranked())]
    cells = [_p_value(p) for p in p_values]
    table.add_row("  p", *cells[:3], *empty, cells[3])


def _p_value(p: float) -> Text:
    return Text("<0.001" if p < 0.001 else f"{p:.3f}", style="bold" if p < CLEAR_P_VALUE else "")
