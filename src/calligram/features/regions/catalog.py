"""Every way to propose regions, by the name the command line takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from calligram.errors import UserError, unknown
from calligram.features.regions.detectors import Detector, YoloX
from calligram.features.regions.opencv_proposals import EdgeBoxes, SelectiveSearch
from calligram.features.regions.proposers import Proposer, Windows

PROPOSALS: Mapping[str, Callable[[int], Proposer]] = {
    "edgeboxes": EdgeBoxes,
    "selective": SelectiveSearch,
    "grid": Windows,
}


def proposer_named(name: str, top: int, device: torch.device | str = "cpu") -> Proposer:
    """A method of ``PROPOSALS``, or a detector by its ONNX file, folder or hub name."""
    if top < 1:
        raise UserError(f"top must be at least 1, got {top}")
    if name in PROPOSALS:
        return PROPOSALS[name](top)
    if name.endswith(".onnx"):
        return YoloX.load(Path(name), top)
    if "/" in name or Path(name).is_dir():
        return Detector.load(name, top, device)
    raise unknown("proposals", name, {*PROPOSALS, "FILE.onnx", "folder or hub name of a detector"})


def source_name(name: str) -> str:
    """What regions of these proposals are called in a collection.

    >>> source_name("edgeboxes"), source_name("models/yolox_nano.onnx"), source_name("facebook/detr-resnet-50")
    ('edgeboxes', 'yolox_nano', 'detr-resnet-50')
    """
    plain = re.sub(r"[^\w.-]+", "-", Path(name.removesuffix(".onnx")).name)
    return plain.strip(".-") or "detector"
