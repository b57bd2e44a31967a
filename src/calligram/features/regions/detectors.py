"""Object detectors that ``transformers`` loads: DETR and its descendants, YOLOS, RT-DETR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.features.regions.fingerprint import fingerprint
from calligram.features.regions.proposer import Found, Setting


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

        try:
            model = AutoModelForObjectDetection.from_pretrained(name, dtype=torch.float32)
            processor = AutoImageProcessor.from_pretrained(name)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise UserError(
                f"detector '{name}' could not be loaded ({str(error).splitlines()[0]}); give a folder or a hub name of "
                "an object-detection model in transformers format with its preprocessor_config.json, or a YOLOX .onnx"
            ) from error
        if not hasattr(processor, "post_process_object_detection"):
            raise UserError(f"the processor of '{name}' ({type(processor).__name__}) does not decode detections")
        return cls(model.eval().to(device), processor, fingerprint(model), most)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The weights, and how many boxes."""
        return {"method": "transformers", "network": self.digest, "most": self.most}

    @torch.inference_mode()
    def __call__(self, image: Image.Image) -> Found:
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
        return Found(boxes, scores[order], tuple(str(names.get(int(i), f"class {i}")) for i in labels))
