"""Object detectors as proposers: models of ``transformers`` (DETR, YOLOS, RT-DETR) and YOLOX from ONNX files."""

from __future__ import annotations

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
from calligram.extras import require
from calligram.features.regions.proposers import Floats, Proposals, Setting, non_maximum_suppression
from calligram.features.transformers_models import load_model, loading_error, quiet_transformers
from calligram.files import content_hash, parts_hash
from calligram.vectors import tensor_parts

STRIDE_SETS = ((8, 16, 32), (8, 16, 32, 64))
"""strides of the feature maps of YOLOX in pixels; the second set is that of the P6 models"""
PADDING_GREY = 114
"""grey value around the image in the input of YOLOX"""
MAX_NMS_CANDIDATES = 1000
"""predictions that enter the non-maximum suppression, best first"""
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
"""the 80 classes of COCO, in the order of detectors"""


@dataclass(frozen=True)
class Detector:
    """A detector of ``transformers`` with its image processor."""

    model: Any = field(repr=False)
    processor: Any = field(repr=False)
    digest: str
    """hash of the weights"""
    max_boxes: int = 200

    @classmethod
    def load(cls, name: str, max_boxes: int = 200, device: torch.device | str = "cpu") -> Detector:
        """Load a detector from a folder or by a hub name.

        Raises:
            UserError: when it is not a detector in transformers format, or its image processor is missing.
        """
        from transformers import AutoImageProcessor, AutoModelForObjectDetection

        model = load_model(AutoModelForObjectDetection, name, what="detector")
        try:
            with quiet_transformers():
                processor = AutoImageProcessor.from_pretrained(name)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise loading_error("the image processor of the detector", name, error) from error
        if not hasattr(processor, "post_process_object_detection"):
            raise UserError(
                f"the image processor of '{name}' ({type(processor).__name__}) does not decode detections; "
                "give a detector such as DETR, YOLOS or RT-DETR"
            )
        return cls(model.eval().to(device), processor, weights_digest(model), max_boxes)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The weights and the number of boxes, by the keys that collections store."""
        return {"method": "transformers", "network": self.digest, "most": self.max_boxes}

    @torch.inference_mode()
    def __call__(self, image: Image.Image) -> Proposals:
        """Return boxes with score and class, without a threshold on the score."""
        batch = self.processor(images=image, return_tensors="pt").to(self.model.device)
        output = self.model(**batch)
        found = self.processor.post_process_object_detection(
            output, threshold=0.0, target_sizes=[(image.height, image.width)]
        )[0]
        scores = found["scores"].float().cpu().numpy()
        order = np.argsort(-scores, kind="stable")[: self.max_boxes]
        names: Mapping[int, str] = self.model.config.id2label
        labels = found["labels"].cpu().numpy()[order]
        boxes = found["boxes"].float().cpu().numpy()[order]
        return Proposals(boxes, scores[order], tuple(str(names.get(int(i), f"class {i}")) for i in labels))


def weights_digest(model: nn.Module) -> str:
    """Return a hash of all weights and their names, which identifies the network independently of its path."""
    return parts_hash(tensor_parts(model.state_dict()), 8)


@dataclass(frozen=True)
class YoloX:
    """A YOLOX network (Ge et al., 2021): letterboxed BGR pixels in 0..255 to boxes with one class each."""

    session: Any = field(repr=False)
    name: str
    digest: str
    """hash of the file's content"""
    max_boxes: int = 200
    min_score: float = 0.0
    """minimum product of objectness and class probability; 0, because proposals are ranked and not thresholded"""
    max_iou: float = 0.65
    """IoU threshold of the non-maximum suppression"""
    content: bytes = field(default=b"", repr=False, compare=False)
    """content of the ONNX file"""

    @classmethod
    def load(cls, file: Path, max_boxes: int = 200) -> YoloX:
        """Load the network of an ONNX file.

        Raises:
            UserError: when there is no such file, or it is not a YOLOX network.
        """
        runtime = require("onnxruntime", extra="regions", purpose="a detector in an .onnx file")
        if not file.is_file():
            raise UserError(f"there is no detector {file}; give an existing ONNX file")
        content = file.read_bytes()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1  # the detector is called from several threads
        options.log_severity_level = 3
        try:
            session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a separate exception class for each kind of damage
            raise UserError(f"{file} is not a network that onnxruntime opens ({str(error).splitlines()[0]})") from error
        if len(session.get_inputs()) != 1 or len(session.get_inputs()[0].shape) != 4:
            raise UserError(f"{file} does not take one batch of images as input; give an ONNX export of YOLOX")
        return cls(session, file.stem, content_hash(content, 8), max_boxes, content=content)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The network and the selection of its predictions, by the keys that collections store."""
        chosen = {"most": self.max_boxes, "least": self.min_score, "overlap": self.max_iou}
        return {"method": "yolox", "network": self.digest, **chosen}

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the input; 640 if the export has dynamic sizes."""
        height, width = self.session.get_inputs()[0].shape[2:]
        return (height if isinstance(height, int) else 640, width if isinstance(width, int) else 640)

    @property
    def class_count(self) -> int:
        """Number of classes; that of COCO if the export has a dynamic size."""
        values = self.session.get_outputs()[0].shape[-1]
        return values - 5 if isinstance(values, int) else len(COCO_CLASSES)

    def __call__(self, image: Image.Image) -> Proposals:
        """Return boxes with score and class."""
        pixels, scale = letterbox(image, self.size)
        raw = self.session.run(None, {self.session.get_inputs()[0].name: pixels})[0][0]
        boxes, confidence = decode_predictions(raw, self.size)
        classes, scores = confidence.argmax(axis=1), confidence.max(axis=1)
        best = np.argsort(-scores, kind="stable")[:MAX_NMS_CANDIDATES]
        best = best[scores[best] >= self.min_score]
        kept = best[non_maximum_suppression(boxes[best], scores[best], self.max_iou, classes[best])][: self.max_boxes]
        names = class_names(confidence.shape[1])
        return Proposals(boxes[kept] / scale, scores[kept], tuple(names[c] for c in classes[kept]))


def letterbox(image: Image.Image, size: tuple[int, int]) -> tuple[Floats, float]:
    """Place the image in the upper left of a grey BGR tensor (1, 3, H, W); return the tensor and the scale."""
    height, width = size
    scale = min(height / image.height, width / image.width)
    inner = (max(1, int(image.width * scale)), max(1, int(image.height * scale)))
    canvas = np.full((height, width, 3), PADDING_GREY, dtype=np.float32)
    canvas[: inner[1], : inner[0]] = np.asarray(image.resize(inner, Image.Resampling.BILINEAR))
    return np.ascontiguousarray(canvas.transpose(2, 0, 1)[None, ::-1]), scale


def decode_predictions(raw: NDArray[np.float32], size: tuple[int, int]) -> tuple[Floats, Floats]:
    """Decode the network's output (A, 5 + C) into boxes (A, 4) in input pixels and scores (A, C).

    Centres are offsets from the cell in strides. Sides are logarithms in strides. A score is the product of the
    objectness and the class probability (Ge et al., 2021).
    """
    cells = _prediction_cells(size, len(raw))
    stride = cells[:, 2:]
    centre = (raw[:, :2] + cells[:, :2]) * stride
    half = np.exp(raw[:, 2:4]) * stride / 2
    return np.concatenate([centre - half, centre + half], axis=1), raw[:, 4:5] * raw[:, 5:]


def _prediction_cells(size: tuple[int, int], count: int) -> Floats:
    """Return column, row and stride of every cell (A, 3), map by map and row by row."""
    for strides in STRIDE_SETS:
        maps = [(size[0] // s, size[1] // s) for s in strides]
        if sum(h * w for h, w in maps) == count:
            return np.concatenate([_map_cells(h, w, s) for (h, w), s in zip(maps, strides, strict=True)])
    raise UserError(
        f"the detector gives {count} predictions for {size[0]} x {size[1]} pixels, which is no YOLOX with strides "
        f"{' or '.join(map(str, STRIDE_SETS))}; give an ONNX export of YOLOX"
    )


def _map_cells(height: int, width: int, stride: int) -> Floats:
    row, column = np.mgrid[:height, :width]
    return np.stack([column.ravel(), row.ravel(), np.full(height * width, stride)], axis=1).astype(np.float32)


def class_names(count: int) -> Sequence[str]:
    """Return the class names of COCO for a network with 80 classes, otherwise numbered names."""
    return COCO_CLASSES if count == len(COCO_CLASSES) else [f"class {i}" for i in range(count)]
