"""Output of the command line: a spinner and progress bars, and tables of metrics."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # these imports take seconds, and --help must be fast
    from calligram.evaluation.localization import Localization
    from calligram.evaluation.recall import DirectionMetrics
    from calligram.evaluation.rerank import RerankReport
    from calligram.evaluation.retrieval import Retrieval, RetrievalReport
    from calligram.evaluation.word_matching import UnknownFailures
    from calligram.studies.row_pool import RowState

T = TypeVar("T")

PROGRESS_LINE_SECONDS = 10
INTERRUPTED_STATUS = 130
"""exit status after Ctrl-C, as shells give it"""
ROW_LINE_SECONDS = 30
ROW_STATES = ("failed", "running", "waiting", "done")
"""states of the rows of a study, in the order of the table"""
ROW_TABLE_MARGIN = 5
"""lines of the terminal that the table of rows leaves free"""
SPARKLINE_BLOCKS = "▁▂▃▄▅▆▇█"
SPARKLINE_VALUES = 20
UNSAFE_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""characters that a terminal obeys, that turn the direction of what follows, and halves of characters"""


def visible(text: str) -> str:
    r"""Return a text in which characters that must not reach a terminal are escapes, such as ``\x1b``."""
    return UNSAFE_CHARACTERS.sub(lambda found: ascii(found[0])[1:-1], text)


def styled(text: str, style: str) -> Text:
    """Return a text that is printed in a style."""
    return Text(visible(text), style=style)


class PlainConsole(Console):
    """Prints strings as they are: names and captions may contain ``[/x]``, ``:smile:`` or commands to a terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Turn a string, also of a table, into text."""
        return super().render_str(visible(text), **options)

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print. In a file or a pipe, a line of text stays whole, so that paths in it can be found and copied."""
        whole = not self.is_terminal and all(isinstance(each, str | Text) for each in objects)
        super().print(*objects, soft_wrap=whole if soft_wrap is None else soft_wrap, **options)


console = PlainConsole()
errors = PlainConsole(stderr=True)


class StatusSpinner:
    """A spinner with a message, on stderr, so that piped output stays clean.

    Only a terminal shows it. It is hidden while a progress bar is drawn.
    """

    _current: ClassVar[StatusSpinner | None] = None

    def __init__(self, message: str) -> None:
        self._message = message
        self._live: Live | None = None

    def update(self, message: str) -> None:
        """Change the message."""
        self._message = message
        if self._live is not None:
            self._live.update(self._spinner())

    def _spinner(self) -> Spinner:
        return Spinner(_spinner_name(), Text(visible(self._message)))

    def _show(self) -> None:
        # FORCE_COLOR makes rich treat any file as a terminal. Colours in a file may be wanted, a spinner never is.
        if errors.is_interactive and errors.is_terminal and errors.file.isatty():
            # With redirection, rich would draw the piped output above the spinner.
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
        """Hide the spinner; returns whether it was shown."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        return live is not None

    @classmethod
    @contextmanager
    def shown(cls, message: str) -> Iterator[StatusSpinner]:
        """Show a spinner within the block."""
        cls._current = spinner = cls(message)
        spinner._show()
        try:
            yield spinner
        finally:
            cls._current = None
            spinner._hide()

    @classmethod
    @contextmanager
    def hidden(cls) -> Iterator[None]:
        """Hide the spinner within the block, because only one thing can be drawn at a time."""
        spinner = cls._current
        hidden = spinner is not None and spinner._hide()
        try:
            yield
        finally:
            # A generator of a bar may be closed after the spinner has ended.
            if hidden and spinner is not None and spinner is cls._current:
                spinner._show()


show_spinner = StatusSpinner.shown


def _spinner_name() -> str:
    """Name of a spinner that the terminal can show."""
    return "dots" if errors.encoding.startswith("utf") else "line"


def progress_bar(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Show a progress bar on a terminal, or a line every ten seconds elsewhere. Nothing is shown for no items."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    if total == 0:
        yield from items
        return
    if errors.is_terminal:
        columns = (
            SpinnerColumn(_spinner_name(), style="none"),  # shows activity during a long step
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
        )
        with StatusSpinner.hidden(), Progress(*columns, console=errors, transient=True) as progress:
            task = progress.add_task(label, total=total, rate="")
            began = time.monotonic()
            for done, item in enumerate(items, 1):
                yield item
                spent = time.monotonic() - began
                progress.update(task, completed=done, rate=f"{done / spent:.0f}/s" if spent > 1 else "")
        return
    started = printed = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - printed > PROGRESS_LINE_SECONDS:
            printed = now
            of = f" of {total}" if total else ""
            print(f"{label}: {done}{of}, {done / (now - started):.1f}/s", file=sys.stderr, flush=True)


class RowTable:
    """The rows of a study while they run: a live table on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self.failed: list[RowState] = []
        self._live: Live | None = None
        self._printed: dict[int, tuple[str, float]] = {}

    def __enter__(self) -> RowTable:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def print(self, line: str) -> None:
        """Print a line above the table; in a file if the output goes to a file."""
        above = errors if self._live is not None and console.file.isatty() else console
        above.print(line, soft_wrap=True)

    def show(self, rows: Sequence[RowState]) -> None:
        """Show the state of all rows."""
        self.failed = [row for row in rows if row.state == "failed"]
        if not (errors.is_terminal and errors.file.isatty()):
            self._print_lines(rows)
            return
        if self._live is None:
            self._live = Live(
                console=errors, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(row_table(rows, max(errors.height - ROW_TABLE_MARGIN, 3)), refresh=True)

    def _print_lines(self, rows: Sequence[RowState]) -> None:
        """Print a line when a row starts, and then every half minute; without a running row, of one that waits."""
        running = [number for number, row in enumerate(rows) if row.state == "running"]
        waiting = [number for number, row in enumerate(rows) if row.state == "waiting" and row.doing]
        for number in running or waiting[:1]:
            row, now = rows[number], time.monotonic()
            state, printed = self._printed.get(number, ("", 0.0))
            if state != row.state or now - printed > ROW_LINE_SECONDS:
                dev = f", dev {row.dev[-1]:.1f}" if row.dev else ""
                left = f", {_duration(row.left)} left" if row.left is not None else ""
                print(f"{row.job.title}: {row.doing}{dev}{left}", file=sys.stderr, flush=True)
                self._printed[number] = row.state, now


def row_table(rows: Sequence[RowState], height: int) -> Group:
    """Return a table of rows: failed and running ones, then waiting ones, then the last ones that are done."""
    counts = {state: sum(row.state == state for row in rows) for state in ROW_STATES}
    title = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    left = _time_left(rows)
    table = Table(box=None)
    for heading in ("row", "seed", "state", "dev", "", "time", "left"):
        table.add_column(heading, justify="right" if heading in ("seed", "dev", "time", "left") else "left")
    ordered = sorted(rows, key=lambda row: ROW_STATES.index(row.state))
    for row in ordered[:height]:
        seconds = time.monotonic() - row.began if row.state == "running" else row.seconds
        table.add_row(
            Text(row.job.row.name),
            str(row.job.seed),
            Text(row.doing or row.state, style={"failed": "red", "done": "green"}.get(row.state, "")),
            f"{row.dev[-1]:.1f}" if row.dev else "",
            _sparkline(row.dev),
            _duration(seconds) if seconds else "",
            "" if row.left is None else _duration(row.left),
        )
    if len(ordered) > height:
        table.add_row(f"and {len(ordered) - height} further rows", style="dim")
    return Group(f"{title}; about {_duration(left)} left" if left else title, table)


def _time_left(rows: Sequence[RowState]) -> float:
    """Return the seconds until all rows are done, if a row that waits takes as long as the others; 0 if unknown."""
    now = time.monotonic()
    running = [row for row in rows if row.state == "running"]
    known = [row.seconds for row in rows if row.state == "done"]
    known += [now - row.began + row.left for row in running if row.left is not None]
    if not known or not running:
        return 0.0
    mean = sum(known) / len(known)
    left = [row.left if row.left is not None else max(mean - (now - row.began), 0.0) for row in running]
    waiting = sum(row.state == "waiting" for row in rows)
    return max(max(left), (sum(left) + waiting * mean) / len(running))


def _sparkline(values: Sequence[float]) -> str:
    """Return the last values as a curve of block characters; empty where the terminal cannot show them."""
    shown = values[-SPARKLINE_VALUES:]
    if len(shown) < 2 or not errors.encoding.startswith("utf"):
        return ""
    low, high = min(shown), max(shown)
    return "".join(SPARKLINE_BLOCKS[round((value - low) / ((high - low) or 1) * 7)] for value in shown)


def _duration(seconds: float) -> str:
    """Return a time such as 45 s, 3:20 or 1:02:00."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def print_report(report: RetrievalReport, title: str | Text) -> None:
    """Print metrics as a table, with those of the oracle if they are known."""
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
        for label, part in rows:
            if part is not None:
                table.add_row(*_row(label or name, getattr(part, key)), style="dim" if label else None)
    for key, name in (("i2i", "image to image"), ("t2t", "text to text")):
        if key in report.within:
            table.add_row(*_row(name, report.within[key]))
    console.print(table)
    folds = f", mean of {report.folds} folds" if report.folds > 1 else ""
    console.print(f"rsum {report.retrieval.rsum:.1f}  ({report.images} images, {report.texts} texts{folds})")
    if report.alone:
        sums = ", ".join(f"{member.rsum:.1f}" for member in report.alone)
        console.print(f"rsum of each of the {len(report.alone)} ensemble members: {sums}")
    if report.precision != "fp32":
        console.print(f"scores were computed in {report.precision}")
    if report.stages is not None:
        _print_stages(report.stages)
    if report.overlap is not None:
        means = f"means {report.overlap.positive_mean:.3f} and {report.overlap.negative_mean:.3f}"
        console.print(f"scores of matching and of other pairs overlap by S = {report.overlap.s:.4f} ({means})")
    if report.oracle is not None:
        share = 100 * report.retrieval.t2i.r1 / report.oracle.t2i.r1
        console.print(f"text-to-image R@1 is {share:.0f}% of the R@1 of an oracle that knows every fact")


def _print_stages(stages: RerankReport) -> None:
    """Print the recall of the first stage, which reranking cannot exceed, and the share of pairs that were scored."""
    depth, behind = stages.depth or "all", f" of {stages.first}" if stages.first else ""
    what = "candidate" if depth == 1 else "candidates"
    console.print(
        f"reranked {depth} {what}{behind}; they contain a match for {stages.t2i:.1f}% of texts and "
        f"{stages.i2t:.1f}% of images (the first stage's recall@{depth}); {100 * stages.scored:.1f}% of all pairs were "
        "scored"
    )


def print_unknown(count: UnknownFailures) -> None:
    """Print how many failed texts have unknown words."""
    having = count.failures_unknown + count.found_unknown
    others = count.failures + count.found - having
    with_one, without = (
        f"{rate:.0f}% of {texts} fail" if texts else "there are none"
        for texts, rate in zip((having, others), count.failure_rate, strict=True)
    )
    console.print(
        f"{count.failures} texts have no matching image among the first {count.within}; {count.failures_unknown} of "
        f"them have an unknown word. Of texts with an unknown word {with_one}, of other texts {without}"
    )
    if count.words:
        console.print(f"most frequent unknown words: {', '.join(f'{w} ({n})' for w, n in count.words[:10])}")


def print_localization(found: Localization, title: str) -> None:
    """Print the recall of phrase localization, with baselines that need no matcher."""
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
    console.print(f"R@1 is {100 * found.r1 / max(found.oracle, 1e-9):.0f}% of the upper bound of the proposals")


def _row(name: str, d: DirectionMetrics) -> tuple[str, ...]:
    recalls = (f"{value:.1f}" for value in (d.r1, d.r5, d.r10))
    return (name, *recalls, f"{d.medr:.0f}", f"{d.meanr:.1f}", f"{d.map:.1f}", f"{d.map_r:.1f}")


@contextmanager
def stop_at_once(message: str) -> Iterator[None]:
    """End the process at Ctrl-C, without waiting for its threads; for work that may be killed at any time.

    Args:
        message: printed at once.
    """

    def stop(number: int, frame: object) -> None:
        shown = "\x1b[?25h" if os.isatty(2) else ""  # a spinner hides the cursor
        os.write(2, f"{shown}\n{message}\n".encode())
        os._exit(INTERRUPTED_STATUS)

    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
