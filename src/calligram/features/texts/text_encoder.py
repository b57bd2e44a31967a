"""BERT-like encoders of ``transformers``: a state for each piece of a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calligram.device import without_cudnn_attention
from calligram.errors import UserError
from calligram.features.store import FeatureStore, MemoryFeatureStore, content_key
from calligram.features.texts.wordpieces import WordPieces
from calligram.features.transformers_models import (
    build_model,
    describe_architecture,
    load_model,
    loading_error,
    quiet_transformers,
)
from calligram.files import parts_hash, tensor_parts
from calligram.progress import Track, silent


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
            raise loading_error("text encoder", name, error) from error
        _check_architecture(config, name)
        return cls(load_model(AutoModel, name, what="text encoder", optional=("pooler.",)))

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
        return parts_hash(chain([self.description.encode()], tensor_parts(self.state_dict())), 12)

    @property
    def dim(self) -> int:
        """Size of a state."""
        return int(self.model.config.hidden_size)

    def save(self, folder: Path) -> None:
        """Write it in the format that ``load`` reads."""
        with quiet_transformers():
            self.model.save_pretrained(folder)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Numbers of pieces (N, W) and their mask -> states (N, W, dim)."""
        with without_cudnn_attention(words):
            states: Tensor = self.model(input_ids=words, attention_mask=mask.long()).last_hidden_state
        return states


def _check_architecture(config: Any, name: str) -> None:
    if getattr(config, "is_encoder_decoder", False) or not hasattr(config, "hidden_size"):
        raise UserError(
            f"'{name}' is a {config.model_type} model and no BERT-like text encoder; "
            "known to work: bert, roberta, distilbert, mpnet, electra, xlm-roberta, modernbert"
        )


# A frozen text encoder's states as model input, computed once for a collection and on the fly for a query.

Ints = NDArray[np.int64]
Halves = NDArray[np.float16]

ENCODE_BATCH_TEXTS = 256


@dataclass(frozen=True)
class EncoderInput:
    """States (W, D) of a text's pieces by an encoder that is not trained."""

    kind: ClassVar[str] = "encoder"

    encoder: TextEncoder = field(repr=False, compare=False)
    pieces: WordPieces
    source: str
    """where the encoder came from, for the record"""

    def save(self, folder: Path) -> dict[str, Any]:
        """The encoder's weights go beside the JSON, so that a run needs nothing else."""
        self.encoder.save(folder / "text-encoder")
        return {"pieces": self.pieces.save(folder), "source": self.source}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> EncoderInput:
        """From what ``save`` wrote."""
        encoder = TextEncoder.load(str(folder / "text-encoder")).eval()
        return cls(encoder, WordPieces.read(folder, content["pieces"]), content["source"])

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def mask_token(self) -> int:
        """There is no word left to hide."""
        raise UserError(
            "the words of stored encodings cannot be hidden in training; use text.word_dropout=0 or text.train=true"
        )

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """States (N, W, D) of a few texts and the mask of real pieces."""
        return self.load(strings).take(np.arange(len(strings)))

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> StateRows:
        """States of many texts, from the store in ``cache`` as far as they are there; without one, in memory.

        Texts of one length have one store, so nothing is padded: a text's states are the same whatever it came with.
        """
        encoded = self.pieces.encode(strings)
        lengths = np.array([len(numbers) for numbers in encoded], dtype=np.int64)
        keys = [content_key(np.array(numbers, dtype=np.int64).tobytes()) for numbers in encoded]
        stores: dict[int, FeatureStore | MemoryFeatureStore] = {
            n: MemoryFeatureStore() if cache is None else FeatureStore(cache, self._about(n))
            for n in np.unique(lengths).tolist()
        }
        wanted = {k: numbers for k, numbers in zip(keys, encoded, strict=True) if k not in stores[len(numbers)]}
        for batch in track(list(_by_length(wanted)), "encoding texts"):
            states = self._run(torch.tensor([wanted[key] for key in batch]))
            stores[states.shape[1]].append(batch, states)
        return StateRows(stores, keys, lengths)

    def _about(self, pieces: int) -> dict[str, object]:
        return {"text encoder": self.encoder.fingerprint, "pieces": pieces}

    @torch.no_grad()
    def _run(self, words: Tensor) -> Halves:
        device = next(self.encoder.parameters()).device
        words = words.to(device)
        states = self.encoder.eval()(words, torch.ones_like(words, dtype=torch.bool))
        return states.half().cpu().numpy()  # type: ignore[no-any-return]


class StateRows:
    """Stored states of a list of texts."""

    def __init__(self, stores: Mapping[int, FeatureStore | MemoryFeatureStore], keys: list[str], lengths: Ints) -> None:
        self._stores, self._keys, self.lengths = stores, keys, lengths

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """States (N, W, D) in single precision, zero where the mask says that there is no piece."""
        lengths = self.lengths[rows]
        mask = np.arange(int(lengths.max(initial=1))) < lengths[:, None]
        states: NDArray[np.float32] | None = None
        for length in np.unique(lengths).tolist():
            places = np.flatnonzero(lengths == length)
            found = self._stores[length].take([self._keys[row] for row in rows[places].tolist()])
            if states is None:
                states = np.zeros((*mask.shape, found.shape[-1]), dtype=np.float32)
            states[places, :length] = found
        assert states is not None, "a batch holds at least one text"
        return torch.from_numpy(states), torch.from_numpy(mask)


def _by_length(wanted: Mapping[str, Sequence[int]]) -> Iterator[list[str]]:
    """Keys in batches of equal length."""
    grouped: dict[int, list[str]] = {}
    for key, numbers in wanted.items():
        grouped.setdefault(len(numbers), []).append(key)
    for keys in grouped.values():
        yield from (keys[start : start + ENCODE_BATCH_TEXTS] for start in range(0, len(keys), ENCODE_BATCH_TEXTS))
