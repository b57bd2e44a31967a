"""``calligram regions``."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from calligram.cli.screen import console, progress_bar
from calligram.errors import UserError
from calligram.files import replace_text

if TYPE_CHECKING:  # these imports take seconds, and --help must be fast
    from calligram.data.collection import Collection
    from calligram.evaluation.proposals import RecallReport
    from calligram.features.regions.stored_boxes import StoredBoxes


def regions(
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    proposals: Annotated[
        str | None,
        typer.Option(
            help="edgeboxes, edgeboxes-dense (to train phrases), selective, grid, a YOLOX .onnx file, or the folder or "
            "hub name of a detector. Join several with + to interleave their boxes. A .parquet file of --save-boxes "
            "gives the boxes in it. Without a method, the stored boxes --name get features."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Regions to keep per image.")] = 36,
    backbone: Annotated[
        str | None, typer.Option(help="Folder or hub name of a vision model; its features of the regions are stored.")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Side of the backbone's input in pixels. The default is that of the backbone."),
    ] = None,
    detector: Annotated[
        str, typer.Option(help="A YOLOX .onnx file; the classes that it finds in a region are added to the features.")
    ] = "",
    split: Annotated[str, typer.Option(help="Use only the images of this split.")] = "all",
    name: Annotated[
        str | None, typer.Option(help="Name of the regions in the collection. The default is the name of the method.")
    ] = None,
    save_boxes: Annotated[
        Path | None, typer.Option(help="Write the boxes --name into this .parquet file, for another machine.")
    ] = None,
    recall: Annotated[bool, typer.Option(help="Show which share of the annotated boxes each method reaches.")] = False,
    record: Annotated[Path | None, typer.Option(help="Write the recall as JSON into this file.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Find regions in every image and store boxes, scores, classes, attributes and features.

    It can be stopped at any time: the next run continues.
    """
    from calligram.data.collection import Collection

    opened = Collection.open(collection)
    if proposals is None and not (name and (backbone or save_boxes)) and not recall:
        raise UserError(
            "give --proposals METHOD to find regions, --name NAME --backbone NETWORK to add features to stored boxes, "
            "--name NAME --save-boxes FILE to write them into a file, or --recall to measure the stored regions"
        )
    if proposals is not None or (name and backbone):
        opened = _find(opened, proposals, name, top, backbone, size, detector, split, device)
    if save_boxes is not None:
        _save_boxes(opened, proposals, name, save_boxes)
    if recall or record is not None:
        _show_recall(opened, split, record)


def _find(
    collection: Collection,
    proposals: str | None,
    name: str | None,
    top: int,
    backbone: str | None,
    size: int | None,
    detector: str,
    split: str,
    device: str,
) -> Collection:
    """Find the regions and print their number."""
    from calligram.device import device_named
    from calligram.features.regions.extract import ExtractionTask, add_regions
    from calligram.features.regions.proposers import load_proposer, source_name
    from calligram.features.regions.region_features import RegionPooling

    if detector and not backbone:
        raise UserError("--detector adds classes to the features of a network; give --backbone as well")
    where = device_named(device)
    pooling = RegionPooling.load(backbone, size, where, detector) if backbone else None
    if proposals is None or proposals.endswith(".parquet"):
        stored = _stored_boxes(collection, proposals, name, split)
        task = ExtractionTask(stored, name or stored.source, stored.top, pooling)
    else:
        task = ExtractionTask(load_proposer(proposals, top, where), name or source_name(proposals), top, pooling)
    added = add_regions(collection, task, split, progress_bar)
    console.print(f"{added.regions:,} regions '{task.source}' in {added.images:,} images" + _rate(added.seconds_each))
    if added.earlier:
        console.print(f"{added.earlier:,} images had regions already")
    if added.bad:
        console.print(f"{len(added.bad):,} images could not be read: {'; '.join(added.bad[:3])}", style="yellow")
    return added.collection


def _stored_boxes(collection: Collection, file: str | None, name: str | None, split: str) -> StoredBoxes:
    """Return the boxes of a file, or those of the collection with this name."""
    from calligram.features.regions.stored_boxes import StoredBoxes

    if file is not None:
        return StoredBoxes.read(Path(file), collection)
    if split != "all":
        raise UserError(f"features are added to all stored boxes; leave out --split {split}")
    assert name is not None
    return StoredBoxes.of_collection(collection, name)


def _save_boxes(collection: Collection, proposals: str | None, name: str | None, file: Path) -> None:
    """Write stored boxes into a file."""
    from calligram.features.regions.proposers import source_name
    from calligram.features.regions.stored_boxes import StoredBoxes

    source = name or source_name(str(proposals))
    boxes = StoredBoxes.of_collection(collection, source)
    boxes.write(file, collection)
    size = file.stat().st_size / 1e6
    console.print(f"written: {file}, {len(boxes.boxes):,} boxes of {len(boxes.rows):,} images, {size:.1f} MB")


def _rate(seconds_each: float) -> str:
    return f", {1 / seconds_each:.1f} images/s" if seconds_each else ""


def _show_recall(collection: Collection, split: str, record: Path | None) -> None:
    """Print the recall at each number of regions, and record it."""
    from calligram.evaluation.proposals import TARGET_KINDS, proposal_recall

    reports = [proposal_recall(collection, split, targets) for targets in TARGET_KINDS]
    for report in reports:
        _print_recall(report)
    if record is not None:
        _write(collection, reports, record)


def _print_recall(report: RecallReport) -> None:
    counts = list(report.rows[0].recall)
    what = "the box around a phrase's regions" if report.targets == "phrases" else "single annotated boxes"
    table = Table(title=f"recall of {what} at IoU {report.threshold:g}, {report.collection}, {report.split}")
    table.title_justify = "left"
    for heading in ("proposals", *(f"R@{k}" for k in counts), "boxes per image", "ms per image"):
        table.add_column(heading, justify="left" if heading == "proposals" else "right")
    for row in report.rows:
        shown = ["-" if row.recall[k] is None else f"{row.recall[k]:.1f}" for k in counts]
        spent = "" if row.seconds is None else f"{1000 * row.seconds:.0f}"
        table.add_row(row.source, *shown, f"{row.boxes:.0f}", spent)
    console.print(table)
    console.print(
        f"{report.count:,} {report.targets} in {report.images:,} images; the union at k has k regions of each method"
    )


def _write(collection: Collection, reports: list[RecallReport], file: Path) -> None:
    """Write the reports as JSON, with the settings of the methods, the command, the commit and the hardware."""
    from calligram.device import commit
    from calligram.studies.results import recorded_command

    content = {
        "command": recorded_command(),
        "commit": commit(),
        "hardware": f"{os.cpu_count()} CPU cores ({platform.machine()})",
        "proposals": collection.manifest.get("proposals", {}),
        "reports": [asdict(report) for report in reports],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(content, indent=1) + "\n")
    console.print(f"written: {file}")
