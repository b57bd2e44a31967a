"""``calligram export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calligram.cli.screen import console, waiting


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    onnx: Annotated[Path, typer.Option(help="Folder for image.onnx, text.onnx, inputs/ and README.json.")],
) -> None:
    """Write a run's matcher as ONNX, compared with it through onnxruntime before the files are left behind."""
    with waiting("loading") as waits:
        from calligram.models.export import export_onnx
        from calligram.training.runs import Run

        matcher, inputs = Run.open(run).load()
        waits.say("writing ONNX, and comparing it with the run")
        about = export_onnx(matcher, inputs, onnx)
    for side in ("image", "text"):
        found = about[side]
        taken = ", ".join(f"{name} {given['type']} {_shape(given['shape'])}" for name, given in found["inputs"].items())
        given = _shape(found["output"]["vectors"]["shape"])
        console.print(
            f"{onnx / found['file']}: {taken} to vectors {given}; differs by at most {found['largest_difference']:.0e}",
            markup=False,
            soft_wrap=True,
        )


def _shape(axes: list[object]) -> str:
    return f"({', '.join(map(str, axes))})"
