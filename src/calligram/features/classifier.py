"""The labels that a backbone was trained for: its last layer, over vectors that are stored already."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.architectures import load_model
from calligram.features.backbones import Backbone


@dataclass(frozen=True)
class Classifier:
    """A linear layer from a backbone's vectors to labels."""

    labels: tuple[str, ...]
    weight: Tensor = field(repr=False)
    """(labels, dim)"""
    bias: Tensor = field(repr=False)

    @classmethod
    def load(cls, name: str, backbone: Backbone) -> Classifier:
        """The classifier that came with a backbone, from the same folder or hub name.

        Raises:
            UserError: when it came without one, or its labels are not a linear function of the backbone's vector.
        """
        from transformers import AutoModelForImageClassification

        model = load_model(AutoModelForImageClassification, name, what="classifier").eval()
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        known: dict[int, str] = model.config.id2label
        found = next((layer for layer in reversed(layers) if layer.out_features == len(known)), None)
        if found is None or not _agrees(model, found, backbone):
            raise UserError(
                f"the labels of '{name}' are not one layer over the backbone's vector; take a convolutional network "
                "trained as a classifier, such as a MobileNet or ResNet"
            )
        bias = torch.zeros(found.out_features) if found.bias is None else found.bias.detach()
        return cls(tuple(known[number] for number in range(len(known))), found.weight.detach(), bias)

    def probabilities(self, vectors: Tensor) -> Tensor:
        """(N, labels) for vectors (N, dim)."""
        return torch.softmax(vectors.float() @ self.weight.T + self.bias, dim=1)


@torch.no_grad()
def _agrees(model: nn.Module, layer: nn.Linear, backbone: Backbone) -> bool:
    """Whether the layer gives the model's labels from the backbone's vectors, on noise.

    On the host: an accelerator's convolutions round more than labels should differ.
    """
    size = int(getattr(model.config, "image_size", None) or 224)
    noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    vectors = copy.deepcopy(backbone).cpu().eval()(noise).vectors.float()
    if vectors.shape[1] != layer.in_features:
        return False
    return torch.allclose(layer(vectors), model(noise).logits, rtol=1e-3, atol=1e-3)
