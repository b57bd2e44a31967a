"""Object detectors that ``transformers`` loads: DETR and its descendants, YOLOS, RT-DETR."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from calligram.errors import UserError
from calligram.extras import onnxruntime
from calligram.features.regions.proposers import Floats, Proposals, Setting, non_maximum_suppression
from calligram.features.transformers_models import load_model, loading_error, quiet_transformers


@dataclass(frozen=True)
class Detector:
    """A detector with the processor that came with it."""

    model: Any = field(repr=False)
    processor: Any = field(repr=False)
    digest: str
    """of its weights"""
    most: int = 200

    @classmethod
    def load(cls, name: str, most: int = 200, device: torch.device | str = "cpu") -> Detector:
        """From a folder or a hub name.

        Raises:
            UserError: when it is not a detector in transformers format, or its processor is missing.
        """
        from transformers import AutoImageProcessor, AutoModelForObjectDetection

        model = load_model(AutoModelForObjectDetection, name, what="detector")
        try:
            with quiet_transformers():
                processor = AutoImageProcessor.from_pretrained(name)  # type: ignore[no-untyped-call]
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise loading_error("the image processor of the detector", name, error) from error
        if not hasattr(processor, "post_process_object_detection"):
            raise UserError(f"the processor of '{name}' ({type(processor).__name__}) does not decode detections")
        return cls(model.eval().to(device), processor, weights_digest(model), most)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The weights, and how many boxes."""
        return {"method": "transformers", "network": self.digest, "most": self.most}

    @torch.inference_mode()
    def __call__(self, image: Image.Image) -> Proposals:
        """Boxes with score and class, however low the score."""
        batch = self.processor(images=image, return_tensors="pt").to(self.model.device)
        output = self.model(**batch)
        found = self.processor.post_process_object_detection(
            output, threshold=0.0, target_sizes=[(image.height, image.width)]
        )[0]
        scores = found["scores"].float().cpu().numpy()
        order = np.argsort(-scores, kind="stable")[: self.most]
        names: Mapping[int, str] = self.model.config.id2label
        labels = found["labels"].cpu().numpy()[order]
        boxes = found["boxes"].float().cpu().numpy()[order]
        return Proposals(boxes, scores[order], tuple(str(names.get(int(i), f"class {i}")) for i in labels))


def weights_digest(model: nn.Module) -> str:
    """Digest of all weights and their names: what tells one network from another, wherever it lies."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# The eighty classes of COCO, in the order in which detectors number them.

COCO_CLASSES = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
    *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow"),
    *("elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee"),
    *("skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard"),
    *("tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple"),
    *("sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch"),
    *("potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone"),
    *("microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear"),
    *("hair drier", "toothbrush"),
)


# Detectors in the manner of YOLOX, from an ONNX file: one prediction per cell of three maps, decoded here.

STRIDE_SETS = ((8, 16, 32), (8, 16, 32, 64))
"""pixels a cell of each map stands for; the second for the P6 models"""
PADDING_GREY = 114
MAX_NMS_CANDIDATES = 1000
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

    def __call__(self, image: Image.Image) -> Proposals:
        """Boxes with score and class."""
        pixels, scale = letterbox(image, self.size)
        raw = self.session.run(None, {self.session.get_inputs()[0].name: pixels})[0][0]
        boxes, confidence = decode_predictions(raw, self.size)
        classes, scores = confidence.argmax(axis=1), confidence.max(axis=1)
        first = np.argsort(-scores, kind="stable")[:MAX_NMS_CANDIDATES]
        first = first[scores[first] >= self.least]
        kept = first[non_maximum_suppression(boxes[first], scores[first], self.overlap, classes[first])][: self.most]
        names = class_names(confidence.shape[1])
        return Proposals(boxes[kept] / scale, scores[kept], tuple(names[c] for c in classes[kept]))


def letterbox(image: Image.Image, size: tuple[int, int]) -> tuple[Floats, float]:
    """The picture in the upper left of a grey (1, 3, H, W), channels blue, green, red, and its scale."""
    height, width = size
    scale = min(height / image.height, width / image.width)
    inner = (max(1, int(image.width * scale)), max(1, int(image.height * scale)))
    canvas = np.full((height, width, 3), PADDING_GREY, dtype=np.float32)
    canvas[: inner[1], : inner[0]] = np.asarray(image.resize(inner, Image.Resampling.BILINEAR))
    return np.ascontiguousarray(canvas.transpose(2, 0, 1)[None, ::-1]), scale


def decode_predictions(raw: NDArray[np.float32], size: tuple[int, int]) -> tuple[Floats, Floats]:
    """Boxes (A, 4) in pixels of the input and scores (A, C) from the network's output (A, 5 + C).

    Centres are offsets from the cell in strides, sides are logarithms of strides, and a score is the product of the
    objectness and the class probability (Ge et al., 2021).
    """
    cells = _prediction_cells(size, len(raw))
    stride = cells[:, 2:]
    centre = (raw[:, :2] + cells[:, :2]) * stride
    half = np.exp(raw[:, 2:4]) * stride / 2
    return np.concatenate([centre - half, centre + half], axis=1), raw[:, 4:5] * raw[:, 5:]


def _prediction_cells(size: tuple[int, int], count: int) -> Floats:
    """Column, row and stride of every cell (A, 3), map by map and row by row."""
    for strides in STRIDE_SETS:
        maps = [(size[0] // s, size[1] // s) for s in strides]
        if sum(h * w for h, w in maps) == count:
            return np.concatenate([_map_cells(h, w, s) for (h, w), s in zip(maps, strides, strict=True)])
    raise UserError(
        f"the detector gives {count} predictions for {size[0]} x {size[1]} pixels, which is no YOLOX with strides "
        f"{' or '.join(map(str, STRIDE_SETS))}"
    )


def _map_cells(height: int, width: int, stride: int) -> Floats:
    row, column = np.mgrid[:height, :width]
    return np.stack([column.ravel(), row.ravel(), np.full(height * width, stride)], axis=1).astype(np.float32)


def class_names(count: int) -> Sequence[str]:
    """COCO's names for a network of eighty classes, numbers for others."""
    return COCO_CLASSES if count == len(COCO_CLASSES) else [f"class {i}" for i in range(count)]
