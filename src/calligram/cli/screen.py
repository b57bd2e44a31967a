"""What the command line draws: a spinner and bars for long work, tables of metrics."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, TypeVar

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # importing them takes seconds, and help should not
    from calligram.evaluation.localization import Localization
    from calligram.evaluation.ranking import Direction
    from calligram.evaluation.rerank import RerankReport
    from calligram.evaluation.retrieval import Retrieval, RetrievalReport
    from calligram.evaluation.word_matching import UnknownFailures

T = TypeVar("T")

console = Console(highlight=False)
errors = Console(stderr=True)


class Waiting:
    """A spinner with a word of what goes on, where errors go, so that what is piped stays clean.

    Only a terminal shows it. It stands aside while a bar is drawn, and comes back between bars.
    """

    _now: ClassVar[Waiting | None] = None

    def __init__(self, word: str) -> None:
        self._word = word
        self._live: Live | None = None

    def say(self, word: str) -> None:
        """What goes on from here."""
        self._word = word
        if self._live is not None:
            self._live.update(self._spinner())

    def _spinner(self) -> Spinner:
        return Spinner(_turning(), Text(self._word))

    def _show(self) -> None:
        # FORCE_COLOR makes rich take any file for a terminal; colours may be wanted in a file, a spinner never is.
        if errors.is_interactive and errors.is_terminal and errors.file.isatty():
            # Redirected, what is printed for a pipe would be drawn above the spinner.
            self._live = Live(
                self._spinner(),
                console=errors,
                refresh_per_second=10,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)

    def _hide(self) -> bool:
        """Whether there was something to hide."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        return live is not None

    @classmethod
    @contextmanager
    def shown(cls, word: str) -> Iterator[Waiting]:
        """Show one, and take it away before anything else is printed."""
        cls._now = waits = cls(word)
        waits._show()
        try:
            yield waits
        finally:
            cls._now = None
            waits._hide()

    @classmethod
    @contextmanager
    def aside(cls) -> Iterator[None]:
        """Nothing is shown inside, since two things cannot be drawn at once."""
        waits = cls._now
        hidden = waits is not None and waits._hide()
        try:
            yield
        finally:
            # A bar may be left before its end, and closed when the waiting is over.
            if hidden and waits is not None and waits is cls._now:
                waits._show()


waiting = Waiting.shown


def _turning() -> str:
    """The name of a spinner that a terminal can show."""
    return "dots" if errors.encoding.startswith("utf") else "line"


def bars(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """A progress bar on a terminal, a line every ten seconds elsewhere; nothing where there is nothing to do."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    if total == 0:
        yield from items
        return
    if errors.is_terminal:
        columns = (
            SpinnerColumn(_turning(), style="none"),  # a bar may stand still for as long as a step takes
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        with Waiting.aside(), Progress(*columns, console=errors, transient=True) as progress:
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


def print_report(report: RetrievalReport, title: str) -> None:
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


def _print_stages(stages: RerankReport) -> None:
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
