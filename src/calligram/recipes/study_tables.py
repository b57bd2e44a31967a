"""A study's tables: rows beside the one that they are set against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from calligram.recipes.claims import Study
from calligram.recipes.results import Result
from calligram.recipes.study_results import measured

HEAD = """
## Tables

Rows of one study, and how far each is from the first, on the test split. Which differences are more than noise is said
under [claims](#claims); settings, seconds and hardware of each row stand in the list of its collection.
"""


def study_tables(studies: Mapping[str, Study], collections: Sequence[str], results: Path) -> str:
    """All tables of which two rows were measured on a collection; nothing where there is none."""
    parts = []
    for study in studies.values():
        for collection in collections:
            found = measured(study, collection, results) if study.tables else {}
            for title, names in study.tables.items():
                rows = {name: list(found[name].values()) for name in names}
                if sum(map(bool, rows.values())) > 1:
                    parts.append(f"\n### {study.paper}, {collection}: {title}\n\n{table(rows)}")
    return HEAD + "".join(parts) if parts else ""


def table(rows: Mapping[str, Sequence[Result]]) -> str:
    """Of rows by name, each with the results of its seeds; differences are from the first."""
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
        # Adding nothing makes a zero of a minus zero.
        difference = f"{round(mean(figures) - mean(base), 1) + 0.0:+.1f}" if base and place else ""
        recalls = [_recalls(found, "localization")] if boxes else [_recalls(found, side) for side in ("i2t", "t2i")]
        cells = [name, *recalls, f"{mean(figures):.1f}{spread}", difference, str(len(figures))]
        lines.append(f"| {' | '.join(cells)} |\n")
    missing = [name for name, found in rows.items() if not found]
    return "".join(lines) + (f"\nNot run: {'; '.join(missing)}.\n" if missing else "")


def _figure(result: Result) -> float:
    return float(result.localization["r1"]) if result.localization else result.rsum


def _recalls(found: Sequence[Result], side: str) -> str:
    return " / ".join(f"{mean(getattr(result, side)[k] for result in found):.1f}" for k in ("r1", "r5", "r10"))
