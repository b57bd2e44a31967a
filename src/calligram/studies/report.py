"""Writes the pages of ``docs/results/`` from the lines of results."""

from __future__ import annotations

import html
import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean
from typing import Any

from calligram.studies.catalog import STUDIES
from calligram.studies.claims import SEEN_MARK, Study, Verdict, has_seen_captions
from calligram.studies.results import COMPARED_FIGURE, LEVELS_FIGURE, Result, file_name, read_results, row_key
from calligram.studies.tables import (
    difference_of,
    fold_lines,
    markdown_line,
    mean_cell,
    median_ranks,
    metric_title,
    recalls_cell,
    row_verdict,
    table_reports,
    values_of,
)

LEADERBOARD_ROWS, OTHER_ROWS = 10, 1
"""number of rows on the leaderboard of the collection with most rows, and of each other collection"""
ADVICE_ROWS = 13
"""number of pieces of advice in a table; the others follow in a sentence"""
NAME_LENGTH = 60
"""longest name of a row on the leaderboard, in characters"""


@dataclass(frozen=True)
class Page:
    """A page about the studies of a paper."""

    title: str
    intro: str
    studies: tuple[str, ...]


PAGES = {
    "two-branch": Page(
        "Two-branch networks",
        "Wang, Li, Huang, Lazebnik: Learning Two-Branch Neural Networks for Image-Text Matching Tasks.",
        ("two-branch",),
    ),
    "dual-path": Page(
        "Dual-path",
        "Zheng et al.: Dual-Path Convolutional Image-Text Embeddings with Instance Loss.",
        ("dual-path", "dual-path-persons"),
    ),
    "aoq": Page(
        "AOQ",
        "Chen, Deng, Luo: Adaptive Offline Quintuplet Loss for Image-Text Matching.",
        ("aoq",),
    ),
    "a3vse": Page(
        "A3VSE",
        "Huang, Kang, Liu, Chang, Hauptmann: Annotation Efficient Cross-Modal Retrieval with Adversarial Attentive "
        "Alignment.",
        ("a3vse",),
    ),
    "mmca": Page(
        "MMCA",
        "Wei et al.: Multi-Modality Cross Attention Network for Image and Sentence Matching.",
        ("mmca",),
    ),
    "others": Page(
        "Other studies",
        "Losses, networks, and the choice of images to caption.",
        ("vse++", "photographs", "suggest", "printed"),
    ),
}

HEAD = """# Results

`calligram report` writes these pages from `results/*.jsonl`. Each line there has the settings, seed, hardware, commit \
and command of a run. Numbers of the papers are in `results/published.json`, and times in `results/bench*.json`.

- [What helps](what-helps.md): the verdicts in short, for choosing a method.
- [Leaderboard](leaderboard.md): the best rows on each collection.
"""
NOTES = """
**Tables.** Recalls are percentages on the test split; checkpoints were selected on dev. R@1 and median rank (med r) \
are image to text / text to image, and rsum is the sum of the six recalls. Ours is mean ± standard deviation over seeds.

**Text encoders.** Rows with † have MiniLM or MPNet as a text encoder. Their authors trained on pairs with captions \
of Flickr30K, which contain the captions of Flickr8k, also of dev and test. Other rows have not seen these captions: \
their word vectors come from the training captions, or from captions without those of dev and test.

**Verdicts.** A difference is the mean over pairs of runs with the same seed and hardware, ± its standard error. A row \
is *better* or *worse* than the first row of its group if the difference is above two standard errors with at least \
three pairs. If it is not, the row is *equivalent* where the difference ± two standard errors is within 2 points of \
rsum (1 point of a recall), and *noise* elsewhere. With fewer pairs it is *not decided*.

**Bias.** The defaults of `vse` and the difficulty of scenes were chosen with test results of scenes, among them \
scenes-8400-s0. InfoNCE was tuned over dozens of settings, the hinge loss over two learning rates, so comparisons \
favour InfoNCE.
"""


def write_report(results: Path, docs: Path) -> list[Path]:
    """Write the pages ``docs/results/*.md``, and return their paths."""
    found = read_results(results)
    verdicts = read_verdicts(results / "claims.jsonl")
    folder = docs / "results"
    folder.mkdir(parents=True, exist_ok=True)
    links = "".join(f"- [{page.title}]({name}.md): {page.intro}\n" for name, page in PAGES.items())
    texts = {"README": HEAD + links + NOTES, "what-helps": what_helps(results / "advice.json", verdicts)}
    texts["leaderboard"] = leaderboard(found)
    for name, page in PAGES.items():
        texts[name] = _paper_page(page, found, verdicts, results, folder)
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return [folder / f"{name}.md" for name in texts]


def read_verdicts(file: Path) -> list[Verdict]:
    """Read the verdicts on claims; fields of other versions are left out."""
    known = {field.name for field in fields(Verdict)}
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [Verdict(**{k: v for k, v in json.loads(line).items() if k in known}) for line in lines]


def _paper_page(page: Page, found: Sequence[Result], verdicts: Sequence[Verdict], results: Path, folder: Path) -> str:
    """Return the page of a paper: its tables, its figures, and folds with single figures and all claims."""
    parts = [f"# {page.title}\n\n{page.intro} [How to read the tables](README.md).\n\n"]
    folds: list[str] = []
    for study in (STUDIES[name] for name in page.studies):
        lines = [result for result in found if result.study.startswith(f"{study.paper}: ")]
        collections = [name for name, _ in Counter(result.collection for result in lines).most_common()]
        for place, collection in enumerate(collections or [""]):
            for title, report in table_reports(study, collection, results).items():
                if place == 0:
                    parts.append(report.section(title))
                elif any(report.found[name] for name in report.table.names):
                    folds.append(report.folded(title))
        figures = _joint_figures(study, results, folder)
        parts += [f"{figures}\n\n"] if figures else []
        folds += [_rows_without_table(study, lines), _claims(study, verdicts)]
        if study.paper == "two-branch" and (results / "proposals.json").is_file():
            folds.append(_proposals(results / "proposals.json"))
    papers = tuple(f"{name}: " for name in page.studies)
    folds.append(_single_figures([result for result in found if result.study.startswith(papers)], folder))
    return "".join(parts) + "\n".join(filter(None, folds))


def _rows_without_table(study: Study, lines: Sequence[Result]) -> str:
    """Return a fold with the results of rows that are in no table."""
    known = {row_key(study, study.row(name)) for table in study.tables.values() for name in table.names}
    chosen = [result for result in lines if result.study not in known]
    values = [f"{r.localization['r1']:.1f} R@1" if r.localization else f"{r.rsum:.1f} rsum" for r in chosen]
    texts = [f"{r.study} on {r.collection}, seed {r.seed}: {v}" for r, v in zip(chosen, values, strict=True)]
    return fold_lines(f"Other rows of the study {study.paper}", texts)


def _claims(study: Study, verdicts: Sequence[Verdict]) -> str:
    """Return a fold with the claims of a study and the verdicts on them."""
    chosen = [verdict for verdict in verdicts if verdict.paper == study.paper]
    several = len({verdict.collection for verdict in chosen}) > 1
    lines = []
    for verdict in chosen:
        where = f"{verdict.collection}: " if several else ""
        shortened = f" ({', '.join(verdict.settings)})" if verdict.settings else ""
        points = difference_of(verdict)
        measured = f"{points} {metric_title(str(verdict.numbers['metric']))}" if points else ""
        why = str(verdict.numbers.get("needs", "")) or measured
        lines.append(f"{verdict.verdict}: {where}{verdict.claim}{shortened}{f' ({why})' if why else ''}")
    counts = ", ".join(f"{n} {word}" for word, n in Counter(v.verdict for v in chosen).most_common())
    return fold_lines(f"Claims of the study {study.paper}: {counts}", lines)


def _joint_figures(study: Study, results: Path, folder: Path) -> str:
    """Return the figures of several rows."""
    drawn = results / "pictures"
    files = [p for kind in (COMPARED_FIGURE, LEVELS_FIGURE) for p in drawn.glob(f"{study.paper}-*{kind}-*.png")]
    return " ".join(f"![{p.stem}]({_relative(p, folder)})" for p in sorted(files))


def _single_figures(lines: Sequence[Result], folder: Path) -> str:
    """Return a fold with links to the figures of single runs, of all studies of a page."""
    files = dict.fromkeys(Path(p) for result in lines for p in result.pictures if Path(p).is_file())
    links = ", ".join(f'<a href="{_relative(p, folder)}">{html.escape(p.stem)}</a>' for p in files)
    return f"<details><summary>Figures of single runs</summary>{links}</details>" if links else ""


def _relative(file: Path, folder: Path) -> str:
    return Path(os.path.relpath(file, folder)).as_posix()


def _proposals(file: Path) -> str:
    """Return a fold with the recall of region proposals, of phrases and of single boxes."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    first = content["reports"][0]
    title = f"Recall of region proposals, {first['collection']} {first['split']}, IoU {first['threshold']}"
    lines = []
    for report in content["reports"]:
        lines.append(f"{report['count']} {report['targets']}, by the first {', '.join(report['rows'][0]['recall'])}:")
        for row in report["rows"]:
            recalls = " / ".join("-" if v is None else f"{v:.1f}" for v in row["recall"].values())
            took = f" ({1000 * row['seconds']:.0f} ms per image)" if row["seconds"] else ""
            lines.append(f"{row['source']}: {recalls}{took}")
    return fold_lines(title, lines)


HELPS, HURTS, EQUAL, OPEN, MISSING = "Helps", "Does not help", "No clear difference", "Not decided", "Not run"
ADVICE_SECTIONS = {
    HELPS: "At least three pairs of runs, and a difference above two standard errors.",
    HURTS: "The same, but the difference is negative.",
    EQUAL: "At least three pairs of runs, and a difference within two standard errors or within the band of equality.",
    OPEN: "Fewer than three pairs of runs, or a row that collapsed. Do not rely on these points.",
    MISSING: "At least one of the two rows has no result.",
}
"""sections of the page for practitioners, with what they contain"""


def what_helps(file: Path, verdicts: Sequence[Verdict]) -> str:
    """Return the page for practitioners: pieces of advice, sorted by the verdicts on their claims."""
    advice: list[dict[str, str]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    judged = {(v.paper, v.collection, v.claim): v for v in verdicts if not v.settings}
    sections: dict[str, list[tuple[dict[str, str], Verdict | None]]] = defaultdict(list)
    for each in advice:
        verdict = judged.get((each["study"], each["collection"], each["claim"]))
        sections[advice_section(verdict)].append((each, verdict))
    text = (
        "# What helps\n\nEach piece of advice is a comparison of two rows, mostly on Flickr8k and with small networks. "
        "Points are differences of rsum (the sum of six recalls, at most 600) unless another metric is named. "
        "[How verdicts are made](README.md).\n\n"
    )
    for title, about in ADVICE_SECTIONS.items():
        chosen = sorted(sections[title], key=lambda item: -abs(_points(item[1])))
        shown, rest = (chosen[:ADVICE_ROWS], chosen[ADVICE_ROWS:]) if title in (HELPS, HURTS) else ([], chosen)
        listed = "".join(f"<br>{each['advice']}{_in_brackets(verdict)}" for each, verdict in rest)
        text += f"## {title}\n{about}{'' if chosen else ' Nothing so far.'}"
        if shown:
            text += f"\n\n{markdown_line(['what', 'points', 'study'])}|---|---|---|\n"
            text += "".join(markdown_line(_advice_cells(each, verdict)) for each, verdict in shown)
            text += "\nSmaller differences:" if rest else ""
        text += "\n" if shown and not rest else f"{listed}\n\n"
    totals = Counter(v.verdict for v in verdicts)
    papers = {v.paper for v in verdicts}
    totals["not run"] += sum(len(study.claims) for name, study in STUDIES.items() if name not in papers)
    counts = ", ".join(f"{n} {word}" for word, n in totals.most_common())
    about = "a claim counts once for each collection with results of its study"
    return text + (f"All {totals.total()} claims of the studies ({about}): {counts}.\n" if verdicts else "")


def _points(verdict: Verdict | None) -> float:
    points = verdict.numbers.get("difference") if verdict else None
    return float(points) if isinstance(points, float | int) else 0.0


def _in_brackets(verdict: Verdict | None) -> str:
    """Return the points in brackets, with the metric if it is not rsum; empty where there are none."""
    points = difference_of(verdict) if verdict else ""
    metric = str(verdict.numbers["metric"]) if verdict and points else ""
    return f" ({points}{f' {metric_title(metric)}' if metric != 'rsum' else ''})" if points else ""


def _advice_cells(advice: Mapping[str, str], verdict: Verdict | None) -> list[str]:
    page = next(name for name, page in PAGES.items() if advice["study"] in page.studies)
    return [advice["advice"], _in_brackets(verdict).strip(" ()"), f"[{advice['study']}]({page}.md)"]


def advice_section(verdict: Verdict | None) -> str:
    """Return the section that a piece of advice belongs to."""
    if verdict is None or verdict.verdict == "not run":
        return MISSING
    word = row_verdict(verdict)
    if "band" in verdict.numbers and word in ("better", "worse"):  # a claim of equality
        return EQUAL if word == "better" else HELPS if float(str(verdict.numbers["difference"])) > 0 else HURTS
    return {"better": HELPS, "worse": HURTS, "noise": EQUAL, "equivalent": EQUAL}.get(word, OPEN)


def _uses_seen_encoder(result: Result) -> bool:
    """Whether the text encoder of a run, or of a member of an ensemble of rows, has seen captions of test images."""
    if has_seen_captions(str(result.settings.get("text.encoder", ""))):
        return True
    members = [Path(run).name for run in result.settings.get("runs", ())]
    rows = [(study, row.name) for study in STUDIES.values() for row in study.rows]
    return any(
        member.startswith(f"{file_name(study.paper, name, result.collection)}-") and study.marked(name) != name
        for member in members
        for study, name in rows
    )


def leaderboard(found: Sequence[Result]) -> str:
    """Return the best rows of each collection, by rsum; and the best ones of phrase localization, by R@1."""
    head = ["collection", "row", "i2t R@1/5/10", "t2i R@1/5/10", "med r", "rsum", "seeds", "training"]
    text = (
        "# Leaderboard\n\nThe best rows on each collection, by rsum on the test split: image to text (i2t), text to "
        "image (t2i), median ranks (med r) of both. Rows are named by study and row of `calligram "
        f"reproduce`; for {SEEN_MARK} see [text encoders](README.md).\n\n{markdown_line(head)}{'|---' * len(head)}|\n"
    )
    groups = list(_grouped(found).values())
    for rows in _best([rows for rows in groups if not rows[0].localization], "rsum"):
        sides = [[getattr(result, side) for result in rows] for side in ("i2t", "t2i")]
        cells = [
            *map(recalls_cell, sides),
            median_ranks(rows, "i2t", "t2i"),
            mean_cell([r.rsum for r in rows]),
            str(len(rows)),
        ]
        cells.append(f"{mean(r.seconds for r in rows):.0f} s, {_short_hardware(rows[0].hardware)}")
        seen = f" {SEEN_MARK}" if _uses_seen_encoder(rows[0]) else ""
        text += markdown_line([rows[0].collection, f"{rows[0].study or _name(rows[0])}{seen}", *cells])
    boxes = []
    for rows in _best([rows for rows in groups if rows[0].localization], "localization.r1", 1):
        first, bound = (mean_cell(values_of(rows, f"localization.{name}")) for name in ("r1", "oracle"))
        boxes.append(f"{rows[0].collection}: {rows[0].study or _name(rows[0])}, R@1 {first} (at most {bound})")
    return text + (f"\nPhrase localization: {'; '.join(boxes)}.\n" if boxes else "")


def _best(groups: Sequence[Sequence[Result]], metric: str, count: int = LEADERBOARD_ROWS) -> list[Sequence[Result]]:
    """Return the best rows, ``count`` of the collection with most rows, and fewer of the others."""
    by_collection: dict[str, list[Sequence[Result]]] = defaultdict(list)
    for rows in groups:
        by_collection[rows[0].collection].append(rows)
    found: list[Sequence[Result]] = []
    for place, rows_of in enumerate(sorted(by_collection.values(), key=len, reverse=True)):
        best = sorted(rows_of, key=lambda rows: -mean(values_of(rows, metric)))
        found += best[: OTHER_ROWS if place else count]
    return found


def _grouped(found: Sequence[Result]) -> dict[tuple[str, ...], list[Result]]:
    """Group results that differ only in the seed; of several lines with one seed the last one is kept."""
    groups: dict[tuple[str, ...], dict[int, Result]] = defaultdict(dict)
    for result in found:
        settings = json.dumps(result.settings, sort_keys=True)
        key = (result.collection, result.split, result.study, _name(result), settings, result.hardware)
        groups[key][result.seed] = result
    return {key: list(by_seed.values()) for key, by_seed in groups.items()}


def _name(result: Result) -> str:
    """Return preset, way of measuring, and as many settings as the leaderboard has room for."""
    how = [f"ensemble of {result.members}"] if result.members > 1 else []
    how += [result.split] if result.split != "test" else []
    how += [f"{result.folds} folds"] if result.folds > 1 else []
    how += [f"by {result.by}"] if result.by else []
    how += [f"scores in {result.precision}"] if result.precision != "fp32" else []
    how += [_reranked(result.stages)] if result.stages else []
    settings = ", ".join(f"{k}={_short(v)}" for k, v in result.settings.items())
    settings = settings if len(settings) <= NAME_LENGTH else f"{settings[:NAME_LENGTH]}..."
    details = f" ({', '.join(how)})" if how else ""
    return f"{result.recipe}{details}" + (f": {settings}" if settings else "")


def _short_hardware(name: str) -> str:
    return name.removeprefix("NVIDIA ").removesuffix(" (x86_64)").replace("1 CPU threads", "1 CPU thread")


def _reranked(stages: Mapping[str, Any]) -> str:
    behind = f" of {stages['first']}" if stages.get("first") else ""
    return f"reranking {stages['depth'] or 'all'} candidates{behind}"


def _short(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
