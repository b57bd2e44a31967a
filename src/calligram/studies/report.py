"""Writes ``docs/results.md`` and its figures from the lines of results."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from calligram.studies.catalog import STUDIES
from calligram.studies.claims import Study
from calligram.studies.results import COMPARED_FIGURE, LEVELS_FIGURE, Result, read_results, results_of_rows

TABLE_HEAD = """
## Tables

Rows of one study on the test split, and the difference of each from the first row. [Claims](#claims) lists which
differences are above noise. The table of the collection has the settings, seconds and hardware of each row.
"""


def study_tables(studies: Mapping[str, Study], collections: Sequence[str], results: Path) -> str:
    """Return all tables with at least two measured rows on a collection."""
    parts = []
    for study in studies.values():
        for collection in collections:
            found = results_of_rows(study, collection, results) if study.tables else {}
            for title, names in study.tables.items():
                rows = {name: list(found[name].values()) for name in names}
                if sum(map(bool, rows.values())) > 1:
                    parts.append(f"\n### {study.paper}, {collection}: {title}\n\n{table(rows)}")
    return TABLE_HEAD + "".join(parts) if parts else ""


def table(rows: Mapping[str, Sequence[Result]]) -> str:
    """Return a table of rows by name, each with the results of its seeds; differences are from the first row."""
    boxes = any(result.localization for found in rows.values() for result in found)
    sides, metric = (["boxes R@1/5/10"], "R@1") if boxes else (["i2t R@1/5/10", "t2i R@1/5/10"], "rsum")
    head = ["row", *sides, metric, "difference", "seeds"]
    lines = [f"| {' | '.join(head)} |\n", "|---" * len(head) + "|\n"]
    base = [_figure(result) for result in next(iter(rows.values()))]
    for place, (name, found) in enumerate(rows.items()):
        if not found:
            continue
        figures = [_figure(result) for result in found]
        spread = f" ± {stdev(figures):.1f}" if len(figures) > 1 else ""
        # Adding 0.0 turns -0.0 into 0.0.
        difference = f"{round(mean(figures) - mean(base), 1) + 0.0:+.1f}" if base and place else ""
        recalls = (
            [_row_recalls(found, "localization")] if boxes else [_row_recalls(found, side) for side in ("i2t", "t2i")]
        )
        cells = [name, *recalls, f"{mean(figures):.1f}{spread}", difference, str(len(figures))]
        lines.append(f"| {' | '.join(cells)} |\n")
    missing = [name for name, found in rows.items() if not found]
    return "".join(lines) + (f"\nNot run: {'; '.join(missing)}.\n" if missing else "")


def _figure(result: Result) -> float:
    return float(result.localization["r1"]) if result.localization else result.rsum


def _row_recalls(found: Sequence[Result], side: str) -> str:
    return " / ".join(f"{mean(getattr(result, side)[k] for result in found):.1f}" for k in ("r1", "r5", "r10"))


HEAD = """# Results

`calligram report` writes this page from `results/*.jsonl`; nothing is typed by hand. Each line there holds the command,
seed, data, hardware and commit. Recalls are percentages, on the test split unless another split is named. Checkpoints
were selected on dev. Rows with several seeds show mean and standard deviation.

The defaults of `vse` and the difficulty of scenes were chosen with test results of scenes, among them scenes-8400-s0;
only rows on other seeds of scenes are unbiased. InfoNCE was tuned over dozens of settings, the hinge loss over two
learning rates, so a comparison between them favours InfoNCE.
"""


def write_report(results: Path, docs: Path) -> Path:
    """Write ``docs/results.md`` and ``docs/results-rsum.png``."""
    found = read_results(results)
    every = _grouped(found)
    groups = {key: rows for key, rows in every.items() if not rows[0].localization}
    collections = list(dict.fromkeys(r.collection for r in found))
    parts = [HEAD, study_tables(STUDIES, collections, results)]
    for collection in collections:
        chosen = {key: rows for key, rows in every.items() if rows[0].collection == collection}
        retrieved = {key: rows for key, rows in chosen.items() if key in groups}
        parts.append(f"\n## {collection}\n\n" + (_table(retrieved) if retrieved else ""))
        parts.append(_published(results / "published.json", collection))
        parts.append(_localization([rows for key, rows in chosen.items() if key not in groups]))
    if groups:
        _draw(groups, docs / "results-rsum.png")
        parts.append("\n![Sum of recalls by row](results-rsum.png)\n")
    parts += _pictures(found, results, docs)
    sections = {"claims.jsonl": _claims, "proposals.json": _proposals}
    sections |= {file.name: _bench for file in sorted(results.glob("bench*.json"))}
    for file, section in ((results / name, section) for name, section in sections.items()):
        if file.is_file():
            parts.append(section(file))
    docs.mkdir(parents=True, exist_ok=True)
    target = docs / "results.md"
    target.write_text("".join(parts), encoding="utf-8")
    return target


def _name(result: Result) -> str:
    settings = ", ".join(f"{k}={_short(v)}" for k, v in result.settings.items())
    members = f" (ensemble of {result.members})" if result.members > 1 else ""
    how = [result.split] if result.split != "test" else []
    how += [f"{result.folds} folds"] if result.folds > 1 else []
    how += [f"by {result.by}"] if result.by else []
    how += [f"scores in {result.precision}"] if result.precision != "fp32" else []
    how += [_reranked(result.stages)] if result.stages else []
    details = f" ({', '.join(how)})" if how else ""
    return f"{result.recipe}{members}{details}" + (f": {settings}" if settings else "")


def _member_rsums(result: Result) -> str:
    """Return the rsum of each ensemble member."""
    return f" (alone {', '.join(f'{rsum:.1f}' for rsum in result.alone)})" if result.alone else ""


def _reranked(stages: Mapping[str, Any]) -> str:
    behind = f" of {stages['first']}" if stages.get("first") else ""
    return f"reranking {stages['depth'] or 'all'} candidates{behind}"


def _title_cell(result: Result) -> str:
    """Return the cell that names a result: row of a study with folded settings, or its settings."""
    return f"<details><summary>{result.study}</summary>{_name(result)}</details>" if result.study else _name(result)


def _short(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _grouped(found: Sequence[Result]) -> dict[tuple[str, ...], list[Result]]:
    """Group results that differ only in the seed; of several lines with one seed the last one is kept."""
    groups: dict[tuple[str, ...], dict[int, Result]] = defaultdict(dict)
    for result in found:
        groups[(result.collection, result.split, _name(result), result.hardware)][result.seed] = result
    return {key: list(by_seed.values()) for key, by_seed in groups.items()}


def _table(groups: dict[tuple[str, ...], list[Result]]) -> str:
    within = any(rows[0].t2t for rows in groups.values())
    people = any(rows[0].by for rows in groups.values())
    apart = any(rows[0].overlap is not None for rows in groups.values())
    head = ["recipe and settings", "i2t R@1/5/10", "t2i R@1/5/10", *(["t2t R@1/5/10"] if within else []), "rsum"]
    head += [*(["t2i mAP"] if people else []), *(["S"] if apart else [])]
    head += ["oracle t2i R@1", "seeds", "seconds", "hardware"]
    lines = [f"| {' | '.join(head)} |\n", "|---" * len(head) + "|\n"]
    for rows in sorted(groups.values(), key=lambda g: -mean(r.rsum for r in g)):
        first = rows[0]
        sums = [r.rsum for r in rows]
        spread = f" ± {stdev(sums):.1f}" if len(sums) > 1 else ""
        sides = ("i2t", "t2i", "t2t") if within else ("i2t", "t2i")
        recalls = [_recalls([found for r in rows if (found := getattr(r, side))]) for side in sides]
        oracle = f"{first.oracle['r1']:.1f}" if first.oracle else ""
        cells = [_title_cell(first), *recalls, f"{mean(sums):.1f}{spread}{_member_rsums(first)}"]
        cells += [f"{mean(r.t2i['map'] for r in rows):.1f}" if first.by else ""] if people else []
        cells += [_mean_of([r.overlap for r in rows if r.overlap is not None], 4)] if apart else []
        cells += [oracle, str(len(rows)), f"{mean(r.seconds for r in rows):.0f}", first.hardware]
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


def _mean_of(values: Sequence[float], digits: int) -> str:
    return f"{mean(values):.{digits}f}" if values else ""


def _localization(groups: Sequence[Sequence[Result]]) -> str:
    """Return the table of phrase localization: recalls, size of a training batch, and bounds without a matcher."""
    if not groups:
        return ""
    first = groups[0][0].localization or {}
    lines = [
        f"\nPhrase localization: {first['phrases']} phrases, {first['proposals']:.0f} proposals per image, IoU 0.5. "
        f"Upper bound by the proposals: {first['oracle']:.1f}%. Baselines: the whole image {first['whole']:.1f}%, its "
        f"middle (80% of the area) {first['central']:.1f}%.\n\n",
        "| recipe and settings | R@1/5/10 | triplets or pairs per batch | seeds | seconds | hardware |\n",
        "|---|---|---|---|---|---|\n",
    ]
    for rows in sorted(groups, key=lambda g: -mean((r.localization or {})["r1"] for r in g)):
        measured = [r.localization for r in rows if r.localization]
        spread = f" (R@1 ± {stdev(m['r1'] for m in measured):.1f})" if len(measured) > 1 else ""
        size = measured[0].get("triplets") or measured[0].get("pairs", "")
        cells = [_title_cell(rows[0]), _recalls(measured) + spread, str(size), str(len(rows))]
        cells += [f"{mean(r.seconds for r in rows):.0f}", rows[0].hardware]
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


def _recalls(directions: Sequence[Mapping[str, float]]) -> str:
    """Return means of R@1, R@5 and R@10; empty where they were not measured."""
    return " / ".join(f"{mean(d[k] for d in directions):.1f}" for k in ("r1", "r5", "r10")) if directions else ""


def _published(file: Path, collection: str) -> str:
    """Return the table of published results on the same test split."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if content.get("collection") != collection:
        return ""
    lines = [f"\nPublished results ({content['source']}):\n\n", "| method | i2t R@1/5/10 | t2i R@1/5/10 |\n"]
    lines.append("|---|---|---|\n")
    for row in content["rows"]:
        recalls = (" / ".join("-" if v is None else f"{v:.1f}" for v in row[side]) for side in ("i2t", "t2i"))
        lines.append(f"| {row['name']} | {' | '.join(recalls)} |\n")
    return "".join(lines)


def _claims(file: Path) -> str:
    lines = ["\n## Claims\n\n", "| paper | collection | claim | verdict | numbers |\n", "|---|---|---|---|---|\n"]
    for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        numbers = "; ".join(f"{k}: {_short(v)}" for k, v in row["numbers"].items())
        shortened = f" ({', '.join(row['settings'])})" if row.get("settings") else ""
        cells = (row["paper"], row.get("collection", "") + shortened, row["claim"], f"**{row['verdict']}**", numbers)
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


def _pictures(found: Sequence[Result], results: Path, docs: Path) -> list[str]:
    """Return the figures of several rows, then the figures of single runs, folded."""
    drawn = results / "pictures"
    joint = sorted([*drawn.glob(f"*-{COMPARED_FIGURE}-*.png"), *drawn.glob(f"*-{LEVELS_FIGURE}-*.png")])
    parts = [_shown(p, docs) for p in joint]
    for result in found:
        there = [Path(p) for p in result.pictures if Path(p).is_file()]
        if there:
            title = f"{result.study or _name(result)} on {result.collection}, seed {result.seed}"
            parts.append(f"\n<details><summary>{title}</summary>\n\n")
            parts += [_shown(p, docs) for p in there]
            parts.append("\n</details>\n")
    return ["\n## Pictures\n", *parts] if parts else []


def _shown(picture: Path, docs: Path) -> str:
    return f"![{picture.stem}]({Path(os.path.relpath(picture, docs)).as_posix()})\n"


def _proposals(file: Path) -> str:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    lines = [f"\n## Recall of proposals\n\n`{content['command']}` on {content['hardware']}.\n"]
    for report in content["reports"]:
        ks = list(report["rows"][0]["recall"])
        what = "phrases (union box of all boxes of a phrase)" if report["targets"] == "phrases" else "single boxes"
        where = f"{report['collection']} {report['split']}, IoU {report['threshold']}"
        lines.append(f"\n{report['count']} {what} of {where}:\n\n")
        lines += [f"| method | {' | '.join(ks)} | ms per image |\n", "|---" * (len(ks) + 2) + "|\n"]
        for row in report["rows"]:
            recalls = " | ".join("-" if v is None else f"{v:.1f}" for v in row["recall"].values())
            took = f"{1000 * row['seconds']:.0f}" if row["seconds"] else ""
            lines.append(f"| {row['source']} | {recalls} | {took} |\n")
    return "".join(lines)


def _bench(file: Path) -> str:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    where, _, of = file.stem.removeprefix("bench").removeprefix("-").partition("-")
    where = ("an accelerator" if where == "gpu" else "the processor") + (f": {of}" if of else "")
    about = f"`{content['command']}` on {content['hardware']}, commit {content['commit']}"
    lines = [f"\n## Speed on {where}\n\n{about}.\n\n"]
    lines += ["| what | value | unit |\n", "|---|---|---|\n"]
    lines += [f"| {row['what']} | {row['value']:g} | {row['unit']} |\n" for row in content["rows"]]
    return "".join(lines)


def _draw(groups: dict[tuple[str, ...], list[Result]], file: Path) -> None:
    from matplotlib.figure import Figure

    ordered = sorted(groups.items(), key=lambda g: (g[0][0], mean(r.rsum for r in g[1])))
    figure = Figure(figsize=(9, 1 + 0.32 * len(ordered)), layout="constrained")
    axis = figure.subplots()
    collections = list(dict.fromkeys(key[0] for key, _ in ordered))
    for place, (key, rows) in enumerate(ordered):
        axis.barh(place, mean(r.rsum for r in rows), color=f"C{collections.index(key[0]) % 10}")
        axis.scatter([r.rsum for r in rows], [place] * len(rows), s=8, color="black", zorder=3)
    labels = [f"{rows[0].study or key[2]}  [{key[0]}]" for key, rows in ordered]
    axis.set_yticks(
        range(len(ordered)), [label if len(label) < 70 else label[:67] + "..." for label in labels], fontsize=7
    )
    axis.set(xlabel="rsum on test (bars: mean over seeds, dots: seeds)", xlim=(0, 600), ylim=(-0.6, len(ordered) - 0.4))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
