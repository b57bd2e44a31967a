"""Tables of a study as Markdown: the numbers of the paper, our numbers, and the difference between our rows."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from calligram.studies.claims import Claim, Grid, Study, Table, Verdict
from calligram.studies.results import Result, judge_claims, metric_of, results_of_rows

ROW_VERDICTS = {
    "holds": "better",
    "fails": "worse",
    "one seed": "not decided",
    "undecided": "not decided",
    "collapsed baseline": "collapsed",
}
"""verdict on a row of a table, by the verdict on the claim that it is better than the first row of its group"""
SIDES = {"localization": "boxes"}
"""names of measurements in ``published.json`` that differ from those in a result"""
SIDE_TITLES = {"localization": "of boxes", "t2i": "text to image", "i2t": "image to text", "t2t": "text to text",
               "overlap": "S"}  # fmt: skip
"""names of measurements for readers"""
Published = Mapping[str, Mapping[str, Any]]


def read_published(results: Path, study: Study, table: Table | Grid) -> tuple[str, Published]:
    """Return the collections of the paper's tables, and the paper's numbers by the name of our row."""
    file = results / "published.json"
    tables = json.loads(file.read_text(encoding="utf-8")).get(study.paper, {}) if file.is_file() else {}
    chosen = [tables[name] for name in table.sources if name in tables]
    rows = {name: row for each in reversed(chosen) for name, row in each["rows"].items() if name in table.names}
    return "; ".join(dict.fromkeys(each["data"] for each in chosen)), rows


@dataclass(frozen=True)
class TableReport:
    """A table of a study on one collection: our results, the paper's numbers, and the comparisons of rows."""

    study: Study
    collection: str
    table: Table | Grid
    found: Mapping[str, Sequence[Result]]
    """results by row"""
    verdicts: Mapping[tuple[str, str], Verdict]
    """comparisons by row and first row of its group"""
    published: Published
    data: str
    """collections of the paper"""

    def section(self, title: str) -> str:
        """Return the table with its title, what it means, and a fold with further rows."""
        rendered = self._grid(self.table) if isinstance(self.table, Grid) else self._rows(self.table)
        where = (
            f"Paper: {self.data}; ours: {self.collection or 'not run'}. " if self.data else f"On {self.collection}. "
        )
        meaning = f"{where if self.data or self.collection else ''}{self.table.meaning} {self._summary()}".strip()
        fold = self._fold()
        return f"## {title}\n{meaning}\n\n{rendered}\n" + (f"{fold}\n\n" if fold else "")

    def folded(self, title: str) -> str:
        """Return all rows with results in one line, for another collection than that of the table."""
        return fold_lines(f"{title}, on {self.collection}", self._lines((*self.table.groups, *self.table.more)))

    def _rows(self, table: Table) -> str:
        both = table.metric == "rsum"
        sums = both and any(self._paper_cells(name, both)[1] for name in self.published)
        paper = ["paper R@1", *(["paper rsum"] if sums else [])] if both else ["paper R@1/5/10"]
        paper = paper if self.published else []
        boxes = table.metric.startswith("localization")  # median ranks of boxes are not measured
        ours = ["R@1", "med r", "rsum"] if both else ["R@1/5/10", *([] if boxes else ["med r"]), "R@1"]
        shown: set[str] = set()
        lines = [markdown_line(["row", *paper, *ours, "seeds", "difference", "verdict"])]
        lines.append("|---" * (len(paper) + len(ours) + 4) + "|\n")
        for base, *others in table.groups:
            names = [base, *others] if base not in shown else others
            for name in names:
                if self.found[name] or name in self.published:
                    against = f" (against {base})" if base in shown and base not in names else ""
                    paper_cells = self._paper_cells(name, both)[: len(paper)]
                    recalls, ranks, *values = self._cells(self.found[name])
                    cells = [*paper_cells, recalls, *([] if boxes else [ranks]), *values]
                    lines.append(
                        markdown_line([f"{self.study.marked(name)}{against}", *cells, *self._difference(name, base)])
                    )
            shown |= {base, *others}
        return "".join(lines) if len(lines) > 2 else "No row of this table has been run.\n"

    def _grid(self, grid: Grid) -> str:
        first, second = list(grid.models)[:2]
        head = ["level", *(f"paper {model}" for model in grid.models), *grid.models, "med r", f"{first} - {second}"]
        lines = [markdown_line([*head, "verdict"]), "|---" * (len(head) + 1) + "|\n"]
        for level in grid.levels:
            names = [row.format(level) for row in grid.models.values()]
            cells = [*(self._paper_cells(name, True)[1] for name in names)]
            cells += [
                mean_cell(values_of(self.found[name], self.table.metric)) if self.found[name] else "" for name in names
            ]
            cells.append(self._cells(self.found[names[0]])[1])
            lines.append(markdown_line([level, *cells, *self._difference(names[0], names[1])]))
        return "".join(lines)

    def _paper_cells(self, name: str, both: bool) -> list[str]:
        """Return the paper's R@1 in both directions and its rsum, or the three recalls of one measurement."""
        row = self.published.get(name)
        if row is None:
            return ["", ""] if both else [""]
        note = f" ({row['on']})" if "on" in row else ""
        if not both:
            side = self.table.metric.partition(".")[0]
            return [" / ".join(f"{value:g}" for value in row[SIDES.get(side, side)]) + note]
        recalls = [*row["i2t"], *row["t2i"]]
        rsum = row.get("rsum") or (None if None in recalls else sum(recalls))
        return [f"{recalls[0]:.1f} / {recalls[3]:.1f}{note}", f"{rsum:.1f}{note}" if rsum else ""]

    def _cells(self, found: Sequence[Result]) -> list[str]:
        """Return our recalls, median ranks, the compared metric with its standard deviation, and the seeds."""
        if not found:
            return [""] * 4
        if self.table.metric == "rsum":
            recalls = " / ".join(f"{mean(getattr(r, side)['r1'] for r in found):.1f}" for side in ("i2t", "t2i"))
            ranks = median_ranks(found, "i2t", "t2i")
        else:
            side = self.table.metric.partition(".")[0]
            recalls = recalls_cell([measured for r in found if (measured := getattr(r, side))])
            ranks = median_ranks(found, side)
        values = values_of(found, self.table.metric)
        return [recalls, ranks, mean_cell(values), str(len(values))]

    def _difference(self, name: str, base: str) -> list[str]:
        """Return the difference from the first row of the group, and the verdict on it."""
        if name == base:
            return ["", "first row" if self.found[name] else "not run"]
        verdict = self.verdicts[name, base]
        return [difference_of(verdict), self._word(name, base)]

    def _word(self, name: str, base: str) -> str:
        """Return the verdict on a row in a word."""
        word = row_verdict(self.verdicts[name, base])
        return "first row not run" if word == "not run" and self.found[name] else word

    def _comparisons(self) -> Iterator[tuple[str, str, Verdict]]:
        for base, *others in self.table.groups:
            for name in others:
                yield name, base, self.verdicts[name, base]

    def _summary(self) -> str:
        """Return the verdicts on our rows in words."""
        named: dict[str, list[str]] = {}
        for name, base, verdict in self._comparisons():
            points = difference_of(verdict).partition(" ")[0]
            row = f"{name} against {base}" if isinstance(self.table, Table) and len(self.table.groups) > 1 else name
            named.setdefault(self._word(name, base), []).append(f"{row} ({points})" if points else row)
        decided = [f"{word}: {'; '.join(named[word])}" for word in ("better", "worse") if word in named]
        total = sum(map(len, named.values()))
        rest = [f"{word}: {len(rows)} of {total}" for word, rows in named.items() if word not in ("better", "worse")]
        return f"**Ours**: {'. '.join(text[0].upper() + text[1:] for text in (*decided, *rest))}." if total else ""

    def _fold(self) -> str:
        """Return a fold with further rows, and the rows that have neither a result nor a number in the paper."""
        more = self._lines(self.table.more)
        missing = [name for name in sorted(self.table.names) if not self.found[name] and name not in self.published]
        named = [f"Not run: {'; '.join(missing)}."] if missing else []
        title = [f"{len(more)} further comparison{'s' * (len(more) > 1)}"] if more else []
        title += [f"{len(missing)} not run"] if missing else []
        return fold_lines(", ".join(title), [*more, *named])

    def _lines(self, groups: Sequence[Sequence[str]]) -> list[str]:
        """Return one line of text for each row with results."""
        lines = []
        for base, *others in groups:
            for name in others:
                if not self.found[name]:
                    continue
                verdict, seeds = self.verdicts[name, base], len(self.found[name])
                value = mean_cell(values_of(self.found[name], self.table.metric))
                compared = ", ".join(filter(None, [difference_of(verdict), self._word(name, base)]))
                paper = self._paper_cells(name, self.table.metric == "rsum")[-1]
                text = (
                    f"{self.study.marked(name)}: {value}, {seeds} seed{'s' * (seeds > 1)}; against {base}: {compared}"
                )
                lines.append(text + (f"; paper {paper}" if paper else ""))
        return lines


def table_reports(study: Study, collection: str, results: Path) -> dict[str, TableReport]:
    """Return the tables of a study on a collection, by title."""
    by_row = {name: list(seeds.values()) for name, seeds in results_of_rows(study, collection, results).items()}
    pairs = {
        (name, base, table.metric)
        for table in study.tables.values()
        for base, *others in (*table.groups, *table.more)
        for name in others
    }
    claims = tuple(Claim(f"{name} / {base}", name, base, metric) for name, base, metric in sorted(pairs))
    judged = judge_claims(replace(study, claims=claims), collection, results)
    verdicts = {(c.metric, c.better, c.worse): verdict for c, verdict in zip(claims, judged, strict=True)}
    reports = {}
    for title, table in study.tables.items():
        data, published = read_published(results, study, table)
        chosen = {(better, worse): v for (metric, better, worse), v in verdicts.items() if metric == table.metric}
        reports[title] = TableReport(study, collection, table, by_row, chosen, published, data)
    return reports


def values_of(found: Sequence[Result], metric: str) -> list[float]:
    """Return a metric of several results; results without it are left out."""
    return [value for result in found if (value := metric_of(result, metric)) is not None]


def median_ranks(found: Sequence[Result], *sides: str) -> str:
    """Return the mean of the median ranks in each direction; empty where they were not measured."""
    measured = [values_of([r for r in found if "medr" in (getattr(r, side) or {})], f"{side}.medr") for side in sides]
    return " / ".join(f"{round(mean(ranks), 1):g}" for ranks in measured if ranks)


def row_verdict(verdict: Verdict) -> str:
    """Return the verdict on a row in a word; verdicts without another word stay as they are."""
    return ROW_VERDICTS.get(verdict.verdict, verdict.verdict)


def difference_of(verdict: Verdict) -> str:
    """Return the difference with its standard error; empty where no pair of runs can be compared."""
    difference, error = verdict.numbers.get("difference"), verdict.numbers.get("standard_error")
    if not isinstance(difference, float | int):
        return ""
    digits = 4 if verdict.numbers.get("metric") == "overlap" else 1
    # Adding 0.0 turns -0.0 into 0.0.
    text = f"{round(float(difference), digits) + 0.0:+.{digits}f}"
    return f"{text} ± {float(error):.{digits}f}" if isinstance(error, float | int) and error else text


def metric_title(metric: str) -> str:
    """Return the name of a metric for readers."""
    side, _, name = metric.partition(".")
    of = SIDE_TITLES.get(side, side)
    return f"{name.replace('r', 'R@', 1)} {of}" if name else of


def mean_cell(values: Sequence[float]) -> str:
    """Return the mean, with the standard deviation of several values."""
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread}" if values else ""


def recalls_cell(measured: Sequence[Mapping[str, float]]) -> str:
    """Return means of R@1, R@5 and R@10."""
    return " / ".join(f"{mean(m[k] for m in measured):.1f}" for k in ("r1", "r5", "r10")) if measured else ""


def markdown_line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |\n"


def fold_lines(title: str, lines: Sequence[str]) -> str:
    """Return a fold as one line of HTML; empty where there are no lines."""
    if not lines:
        return ""
    text = "<br>".join(html.escape(line, quote=False) for line in lines)
    return f"<details><summary>{html.escape(title, quote=False)}</summary>{text}</details>"
