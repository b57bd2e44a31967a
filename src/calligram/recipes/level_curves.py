"""How a model does against how much of a collection is captioned, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Level(NamedTuple):
    """What a model reached with so many captions."""

    pairs: int
    """captions that training saw; 0 for what needs none"""
    i2t: float
    """R@1 of texts for images"""
    t2i: float
    """R@1 of images for texts"""


def draw_levels(curves: Mapping[str, Sequence[Level]], target: Path) -> Path:
    """Draw R@1 of both directions against annotated pairs, a curve for each model (a3vse, Fig. 1, right).

    A model that needs no pairs is a line across.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, key, title in zip(axes, ("i2t", "t2i"), ("texts for images", "images for texts"), strict=True):
        for number, (name, levels) in enumerate(curves.items()):
            shown = sorted(level for level in levels if level.pairs)
            if shown:
                axis.plot(
                    [level.pairs for level in shown],
                    [getattr(level, key) for level in shown],
                    ".-",
                    color=f"C{number}",
                    label=name,
                )
            for level in levels:
                if not level.pairs:
                    axis.axhline(getattr(level, key), color=f"C{number}", linestyle="--", linewidth=1, label=name)
        axis.set(title=f"{title}: R@1, %", xlabel="annotated pairs", xscale="log", ylim=(0, None))
        ticks = sorted({level.pairs for levels in curves.values() for level in levels if level.pairs})
        axis.set_xticks(ticks, [f"{pairs:,}" for pairs in ticks])
        axis.set_xticks([], minor=True)
        axis.legend(frameon=False, fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)
    return target
