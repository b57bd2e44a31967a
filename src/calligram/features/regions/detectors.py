"""Object detectors that ``transformers`` loads: DETR and its descendants, YOLOS, RT-DETR."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from calligram.errors import UserError
from calligram.features.architectures import load_model, not_loaded, quiet
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

        model = load_model(AutoModelForObjectDetection, name, what="detector")
        try:
            with quiet():
                processor = AutoImageProcessor.from_pretrained(name)  # type: ignore[no-untyped-call]
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise not_loaded("the image processor of the detector", name, error) from error
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


def fingerprint(model: nn.Module) -> str:
    """Digest of all weights and their names: what tells one network from another, wherever it lies."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
