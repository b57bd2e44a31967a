"""BERT-like encoders of ``transformers`` as the text branch of a matcher."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.architectures import build_model, describe_architecture, load_model, not_loaded
from calligram.models.matcher import Encoded

POOLINGS = ("mean", "cls", "max")


class BertText(nn.Module):
    """A transformer over pieces of words and a linear map; a text's vector is the mean over its pieces by default.

    Built without trained weights: ``text.model.load_state_dict`` takes those that ``load_text_encoder`` finds.
    """

    def __init__(self, description: str, dim: int, pooling: str = "mean", dropout: float = 0.0) -> None:
        """Args:
        description: the architecture, from ``load_text_encoder`` or ``describe_architecture``.
        dropout: share of the pooled vector's entries set to zero in training; the encoder keeps its own dropout.
        """
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be mean, cls or max, got {pooling!r}")
        self.model = _without_pooler(build_model(description))
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(int(self.model.config.hidden_size), dim)
        self.pooling = pooling

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Numbers of pieces (N, W) and their mask -> (N, dim)."""
        return self._vectors(self._states(words, mask), mask)

    def encode(self, words: Tensor, mask: Tensor) -> Encoded:
        """The same with the pieces as parts (N, W, dim), in the space of the vectors."""
        states = self._states(words, mask)
        return Encoded(self._vectors(states, mask), self.project(self.dropout(states)), mask)

    def _states(self, words: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.model(input_ids=words, attention_mask=mask.long()).last_hidden_state
        return states

    def _vectors(self, states: Tensor, mask: Tensor) -> Tensor:
        return self.project(self.dropout(pooled(states, mask, self.pooling)))  # type: ignore[no-any-return]


def pooled(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """One vector (N, D) of states (N, W, D): the first, or the mean or maximum over real ones."""
    if pooling == "cls":
        return states[:, 0]
    real = mask.unsqueeze(-1)
    if pooling == "max":
        return states.masked_fill(~real, -torch.inf).amax(1)
    return (states * real).sum(1) / real.sum(1).clamp(min=1)


def load_text_encoder(name: str) -> tuple[str, dict[str, Tensor]]:
    """Architecture and trained weights in float32 of a folder's or a hub name's encoder, for ``BertText``."""
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise not_loaded("text encoder", name, error) from error
    _check(config, name)
    model = load_model(AutoModel, name, what="text encoder", may_miss=("pooler.",))
    return describe_architecture(config), dict(_without_pooler(model).state_dict())


def _check(config: Any, name: str) -> None:
    if getattr(config, "is_encoder_decoder", False) or not hasattr(config, "hidden_size"):
        raise UserError(
            f"'{name}' is a {config.model_type} model and no BERT-like text encoder; "
            "known to work: bert, roberta, distilbert, mpnet, electra, xlm-roberta, modernbert"
        )


def _without_pooler(model: Any) -> Any:
    # BERT's own pooler belongs to a task of its training; unused weights would be saved and never learn.
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
