"""A run's metrics as a picture."""

from __future__ import annotations

from pathlib import Path

from calligram.training.runs import Run


def draw_curves(folder: Path, target: Path | None = None) -> Path:
    """Draw the training loss and the dev recalls over the steps, into ``curves.png`` of the run if not elsewhere."""
    from matplotlib.figure import Figure

    rows = Run(folder).metrics()
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    dev = [(row["step"], row["dev"]) for row in rows if "dev" in row]
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(*zip(*losses, strict=True), linewidth=0.8) if losses else None
    left.set(title="training loss", xlabel="step")
    for key in ("i2t_r1", "t2i_r1", "i2t_r10", "t2i_r10", "r1", "r5", "r10"):
        if dev and key in dev[0][1]:
            style = "--" if key.startswith("t2i") else "-"
            name = key.replace("_r", " R@") if "_" in key else key.replace("r", "localization R@")
            right.plot([s for s, _ in dev], [m[key] for _, m in dev], style, label=name)
    right.set(title="dev recall, %", xlabel="step", ylim=(0, 100))
    if dev:
        right.legend(frameon=False, fontsize=8)
    target = target or folder / "curves.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)
    return target
