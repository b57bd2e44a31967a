"""Detectors in the manner of YOLOX, from an ONNX file: one prediction per cell of three maps, decoded here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calligram.errors import UserError
from calligram.features.regions.coco_classes import COCO_CLASSES
from calligram.features.regions.extras import onnxruntime
from calligram.features.regions.nms import suppress
from calligram.features.regions.proposer import Floats, Found, Setting

STRIDES = ((8, 16, 32), (8, 16, 32, 64))
"""pixels a cell of each map stands for; the second for the P6 models"""
PADDING = 114
CANDIDATES = 1000
"""predictions that enter the suppression, the best of thousands"""


@dataclass(frozen=True)
class YoloX:
    """A YOLOX network: BGR pixels in 0..255, letterboxed, to boxes with one class each."""

    session: Any = field(repr=False)
    name: str
    digest: str
    """of the file's content"""
    most: int = 200
    least: float = 0.0
    """smallest product of objectness and class probability: none, since proposals are ranked and not thresholded"""
    overlap: float = 0.65

    @classmethod
    def load(cls, file: Path, most: int = 200) -> YoloX:
        """Open the network in ``file``.

        Raises:
            UserError: when there is no such file, or it is not such a network.
        """
        runtime = onnxruntime()
        if not file.is_file():
            raise UserError(f"there is no detector {file}")
        content = file.read_bytes()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1  # pictures go through in several threads
        options.log_severity_level = 3
        try:
            session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has a class of its own for each way a file can be wrong
            raise UserError(f"{file} is not a network that onnxruntime opens ({str(error).splitlines()[0]})") from error
        if len(session.get_inputs()) != 1 or len(session.get_inputs()[0].shape) != 4:
            raise UserError(f"{file} does not take one batch of pictures; a YOLOX export does")
        return cls(session, file.stem, hashlib.blake2b(content, digest_size=8).hexdigest(), most)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The network and how its predictions are chosen."""
        chosen = {"most": self.most, "least": self.least, "overlap": self.overlap}
        return {"method": "yolox", "network": self.digest, **chosen}

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the input; 640 where the export left them open."""
        height, width = self.session.get_inputs()[0].shape[2:]
        return (height if isinstance(height, int) else 640, width if isinstance(width, int) else 640)

    def __call__(self, image: Image.Image) -> Found:
        """Boxes with score and class."""
        pixels, scale = letterbox(image, self.size)
        raw = self.session.run(None, {self.session.get_inputs()[0].name: pixels})[0][0]
        boxes, confidence = decode(raw, self.size)
        classes, scores = confidence.argmax(axis=1), confidence.max(axis=1)
        first = np.argsort(-scores, kind="stable")[:CANDIDATES]
        first = first[scores[first] >= self.least]
        kept = first[suppress(boxes[first], scores[first], self.overlap, classes[first])][: self.most]
        names = class_names(confidence.shape[1])
        return Found(boxes[kept] / scale, scores[kept], tuple(names[c] for c in classes[kept]))


def letterbox(image: Image.Image, size: tuple[int, int]) -> tuple[Floats, float]:
    """The picture in the upper left of a grey (1, 3, H, W), channels blue, green, red, and its scale."""
    height, width = size
    scale = min(height / image.height, width / image.width)
    inner = (max(1, int(image.width * scale)), max(1, int(image.height * scale)))
    canvas = np.full((height, width, 3), PADDING, dtype=np.float32)
    canvas[: inner[1], : inner[0]] = np.asarray(image.resize(inner, Image.Resampling.BILINEAR))
    return np.ascontiguousarray(canvas.transpose(2, 0, 1)[None, ::-1]), scale


def decode(raw: NDArray[np.float32], size: tuple[int, int]) -> tuple[Floats, Floats]:
    """Boxes (A, 4) in pixels of the input and scores (A, C) from the network's output (A, 5 + C).

    Centres are offsets from the cell in strides, sides are logarithms of strides, and a score is the product of the
    objectness and the class probability (Ge et al., 2021).
    """
    cells = _cells(size, len(raw))
    stride = cells[:, 2:]
    centre = (raw[:, :2] + cells[:, :2]) * stride
    half = np.exp(raw[:, 2:4]) * stride / 2
    return np.concatenate([centre - half, centre + half], axis=1), raw[:, 4:5] * raw[:, 5:]


def _cells(size: tuple[int, int], count: int) -> Floats:
    """Column, row and stride of every cell (A, 3), map by map and row by row."""
    for strides in STRIDES:
        maps = [(size[0] // s, size[1] // s) for s in strides]
        if sum(h * w for h, w in maps) == count:
            return np.concatenate([_map(h, w, s) for (h, w), s in zip(maps, strides, strict=True)])
    raise UserError(
        f"the detector gives {count} predictions for {size[0]} x {size[1]} pixels, which is no YOLOX with strides "
        f"{' or '.join(map(str, STRIDES))}"
    )


def _map(height: int, width: int, stride: int) -> Floats:
    row, column = np.mgrid[:height, :width]
    return np.stack([column.ravel(), row.ravel(), np.full(height * width, stride)], axis=1).astype(np.float32)


def class_names(count: int) -> Sequence[str]:
    """COCO's names for a network of eighty classes, numbers for others."""
    return COCO_CLASSES if count == len(COCO_CLASSES) else [f"class {i}" for i in range(count)]
