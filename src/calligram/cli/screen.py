"""What the command line draws: bars for long work, tables of metrics."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:  # importing them takes seconds, and help should not
    from calligram.evaluation.localization import Localization
    from calligram.evaluation.ranking import Direction
    from calligram.evaluation.reranking import Stages
    from calligram.evaluation.retrieval import Report, Retrieval
    from calligram.evaluation.unknown_failures import UnknownFailures

T = TypeVar("T")

console = Console(highlight=False)
errors = Console(stderr=True)


def bars(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """A progress bar on a terminal; a line every ten seconds elsewhere."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    if errors.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=errors, transient=True) as progress:
            task = progress.add_task(label, total=total, rate="")
            began = time.monotonic()
            for done, item in enumerate(items, 1):
                yield item
                spent = time.monotonic() - began
                progress.update(task, completed=done, rate=f"{done / spent:.0f}/s" if spent > 1 else "")
        return
    began = said = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - said > 10:
            said = now
            of = f" of {total}" if total else ""
            print(f"{label}: {done}{of}, {done / (now - began):.1f}/s", file=sys.stderr, flush=True)


def print_report(report: Report, title: str) -> None:
    """Metrics as a table, with the oracle's beside where it is known."""
    table = Table(title=title, title_justify="left")
    for heading in ("", "R@1", "R@5", "R@10", "median", "mean rank", "mAP", "mAP@R"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=not heading)
    rows: list[tuple[str, Retrieval | None]] = [
        ("", report.retrieval),
        ("  every true pair", report.true),
        ("  oracle", report.oracle),
        ("  chance", report.chance),
    ]
    for name, key in (("text to image", "t2i"), ("image to text", "i2t")):
        for beside, part in rows:
            if part is not None:
                table.add_row(*_row(beside or name, getattr(part, key)), style="dim" if beside else None)
    for key, name in (("i2i", "image to image"), ("t2t", "text to text")):
        if key in report.within:
            table.add_row(*_row(name, report.within[key]))
    console.print(table)
    folds = f", mean of {report.folds} folds" if report.folds > 1 else ""
    console.print(f"rsum {report.retrieval.rsum:.1f}  ({report.images} images, {report.texts} texts{folds})")
    if report.alone:
        sums = ", ".join(f"{member.rsum:.1f}" for member in report.alone)
        console.print(f"an ensemble; rsum of each of its {len(report.alone)} members alone: {sums}")
    if report.precision != "fp32":
        console.print(f"scores were computed in {report.precision}")
    if report.stages is not None:
        _print_stages(report.stages)
    if report.overlap is not None:
        means = f"means {report.overlap.positive_mean:.3f} and {report.overlap.negative_mean:.3f}"
        console.print(f"scores of matching and of other pairs overlap by S = {report.overlap.s:.4f} ({means})")
    if report.oracle is not None:
        share = 100 * report.retrieval.t2i.r1 / report.oracle.t2i.r1
        console.print(f"text-to-image R@1 is {share:.0f}% of what an oracle that knows every fact would get")


def _print_stages(stages: Stages) -> None:
    """What the first stage found, which no reranking can exceed, and what the second cost."""
    depth, behind = stages.depth or "all", f" of {stages.first}" if stages.first else ""
    what = "candidate" if depth == 1 else "candidates"
    console.print(
        f"reranked {depth} {what}{behind}; a match is among them for {stages.t2i:.1f}% of texts and "
        f"{stages.i2t:.1f}% of images (the first stage's recall@{depth}); {100 * stages.scored:.1f}% of all pairs were "
        "scored"
    )


def print_unknown(count: UnknownFailures) -> None:
    """How many texts that were not found have words that are not known."""
    having = count.failures_unknown + count.found_unknown
    others = count.failures + count.found - having
    with_one, without = (
        f"{rate:.0f}% of {texts} fail" if texts else "there are none"
        for texts, rate in zip((having, others), count.failure_rate, strict=True)
    )
    console.print(
        f"{count.failures} texts do not find an image among the first {count.within}; {count.failures_unknown} of them "
        f"have a word that the matcher has never seen. Of texts with such a word {with_one}, of others {without}"
    )
    if count.words:
        console.print(f"unknown most often: {', '.join(f'{w} ({n})' for w, n in count.words[:10])}", markup=False)


def print_localization(found: Localization, title: str) -> None:
    """Recalls of phrases' boxes, and what needs no matcher beside them."""
    table = Table(title=title, title_justify="left")
    for heading in ("phrase to box", "R@1", "R@5", "R@10"):
        table.add_column(heading, justify="left" if heading == "phrase to box" else "right")
    table.add_row("this matcher", *(f"{value:.1f}" for value in (found.r1, found.r5, found.r10)))
    for kind, value in found.kinds.items():
        table.add_row(f"  {kind}", f"{value:.1f}", "", "")
    for name, value in (("the whole picture", found.whole), ("its middle, 80% of the area", found.central)):
        table.add_row(name, f"{value:.1f}", "", "", style="dim")
    table.add_row("oracle: any of the proposals", *[f"{found.oracle:.1f}"] * 3, style="dim")
    console.print(table)
    console.print(
        f"{found.phrases} phrases in {found.images} images with {found.proposals:.0f} proposals each, IoU 0.5"
    )
    console.print(f"R@1 is {100 * found.r1 / max(found.oracle, 1e-9):.0f}% of what the proposals allow")


def _row(name: str, d: Direction) -> tuple[str, ...]:
    recalls = (f"{value:.1f}" for value in (d.r1, d.r5, d.r10))
    return (name, *recalls, f"{d.medr:.0f}", f"{d.meanr:.1f}", f"{d.map:.1f}", f"{d.map_r:.1f}")
