"""BERT-like encoders of ``transformers``: a state for each piece of a text."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.architectures import build_model, describe_architecture, load_model, not_loaded, quiet
from calligram.features.attention_kernels import unplanned


class TextEncoder(nn.Module):
    """A transformer over pieces of words, without the pooler that belongs to a task of its training."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        # Unused weights would be saved and never learn.
        if getattr(model, "pooler", None) is not None:
            model.pooler = None
        self.model = model

    @classmethod
    def load(cls, name: str) -> TextEncoder:
        """From a folder or a hub name, with its trained weights in float32."""
        from transformers import AutoConfig, AutoModel

        try:
            config = AutoConfig.from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            raise not_loaded("text encoder", name, error) from error
        _check(config, name)
        return cls(load_model(AutoModel, name, what="text encoder", may_miss=("pooler.",)))

    @classmethod
    def from_description(cls, description: str) -> TextEncoder:
        """The same architecture with random weights."""
        return cls(build_model(description))

    @property
    def description(self) -> str:
        """The architecture as JSON."""
        return describe_architecture(self.model.config)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of architecture and weights."""
        digest = hashlib.blake2b(self.description.encode(), digest_size=12)
        for name, value in sorted(self.state_dict().items()):
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @property
    def dim(self) -> int:
        """Size of a state."""
        return int(self.model.config.hidden_size)

    def save(self, folder: Path) -> None:
        """Write it in the format that ``load`` reads."""
        with quiet():
            self.model.save_pretrained(folder)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Numbers of pieces (N, W) and their mask -> states (N, W, dim)."""
        with unplanned(words):
            states: Tensor = self.model(input_ids=words, attention_mask=mask.long()).last_hidden_state
        return states


def _check(config: Any, name: str) -> None:
    if getattr(config, "is_encoder_decoder", False) or not hasattr(config, "hidden_size"):
        raise UserError(
            f"'{name}' is a {config.model_type} model and no BERT-like text encoder; "
            "known to work: bert, roberta, distilbert, mpnet, electra, xlm-roberta, modernbert"
        )
