"""BERT-like text encoders of ``transformers``: one state for each token of a text.

``EncoderInput`` uses a frozen encoder as a text input: states of a collection are computed once and stored, states of a
query are computed on the fly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from calligram.device import device_of, without_cudnn_attention
from calligram.errors import UserError
from calligram.features.inputs import TextInput
from calligram.features.store import FeatureStore, MemoryFeatureStore, content_key
from calligram.features.texts.vocabulary import length_groups
from calligram.features.texts.wordpieces import WordPieces
from calligram.features.transformers_models import (
    build_model,
    describe_architecture,
    load_model,
    loading_error,
    network_precision,
    quiet_transformers,
    run_with_compiled_layers,
    transformer_layers,
)
from calligram.files import parts_hash
from calligram.hub import look_for_hub
from calligram.progress import Track, silent
from calligram.vectors import tensor_parts

Ints = NDArray[np.int64]
Halves = NDArray[np.float16]

ENCODE_BATCH_TEXTS = 256
GROUPED_GPU_PRODUCTS = 250_000_000_000
"""products of tokens and weights of the layers from which texts are encoded in groups on a GPU"""
FULL_MASK_MODELS = ("bert", "mpnet")
"""types of models whose layers use a mask (N, 1, W, W) as it is given"""


class TextEncoder(nn.Module):
    """A transformer encoder without the pooler, which belongs to a pretraining task."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        # The pooler would be saved, but never trained.
        if getattr(model, "pooler", None) is not None:
            model.pooler = None
        self.model = model

    @classmethod
    def load(cls, name: str) -> TextEncoder:
        """Load trained weights from a folder or by a hub name, in float32."""
        from transformers import AutoConfig, AutoModel

        look_for_hub(name)
        try:
            config = AutoConfig.from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            raise loading_error("text encoder", name, error) from error
        _check_architecture(config, name)
        return cls(load_model(AutoModel, name, what="text encoder", optional=("pooler.",)))

    @classmethod
    def from_description(cls, description: str) -> TextEncoder:
        """Build the architecture of a ``description`` with random weights."""
        return cls(build_model(description))

    @property
    def description(self) -> str:
        """The architecture as JSON."""
        return describe_architecture(self.model.config)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of architecture and weights."""
        return parts_hash(chain([self.description.encode()], tensor_parts(self.state_dict())), 12)

    @property
    def dim(self) -> int:
        """Dimension of a state."""
        return int(self.model.config.hidden_size)

    def save(self, folder: Path) -> None:
        """Write the model in the format that ``load`` reads."""
        with quiet_transformers():
            self.model.save_pretrained(folder)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Encode token ids (N, W) with their mask into states (N, W, dim); texts of similar length together, if lengths
        are known.
        """
        groups = length_groups(*words.shape) if self._pays_to_group(words) else []
        if not groups:
            states = self._states(words, mask)
        elif words.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("the lengths of texts differ from batch to batch")  # steps then run without CUDA graphs
        else:
            pieces, place = [], np.argsort(np.concatenate([rows for rows, _ in groups]))
            for rows, length in groups:
                chosen = _index(rows, words.device)
                found = self._states(words[chosen, :length], mask[chosen, :length])
                pieces.append(F.pad(found, (0, 0, 0, words.shape[1] - length)))
            states = torch.cat(pieces).index_select(0, _index(place, words.device))
        return states if torch.is_grad_enabled() else states.float()

    def _pays_to_group(self, words: Tensor) -> bool:
        """On a GPU only for much work: several groups take several times as many kernels, and no CUDA graph."""
        return not words.is_cuda or words.numel() * self._layer_weights >= GROUPED_GPU_PRODUCTS

    @cached_property
    def _layer_weights(self) -> int:
        return sum(weights.numel() for layer in transformer_layers(self.model) for weights in layer.parameters())

    def _states(self, words: Tensor, mask: Tensor) -> Tensor:
        def run() -> Tensor:
            given = full_mask(self.model, mask) if words.is_cuda else mask.long()
            found: Tensor = self.model(input_ids=words, attention_mask=given).last_hidden_state
            return found

        with without_cudnn_attention(words), network_precision(self.model, words):
            states: Tensor = run_with_compiled_layers(self.model, run)
        return states


def _index(rows: Ints, device: torch.device) -> Tensor:
    found = torch.from_numpy(rows)
    return (found.pin_memory() if device.type == "cuda" else found).to(device, non_blocking=True)


def full_mask(model: Any, mask: Tensor) -> Tensor:
    """Return the mask (N, W) as the attention of a model takes it, (N, 1, W, W), where the model accepts such a mask.

    From a mask (N, W) the model would make it itself. It would first ask whether all words are real, which waits for a
    GPU in every step and cannot be captured in a CUDA graph.
    """
    from transformers import masking_utils

    kind = getattr(model.config, "_attn_implementation", "")
    known = model.config.model_type in FULL_MASK_MODELS and hasattr(masking_utils, "create_bidirectional_mask")
    if not known or kind not in ("eager", "sdpa"):
        return mask.long()
    real = mask.bool()[:, None, None, :].expand(-1, 1, mask.shape[1], -1)
    if kind == "sdpa":
        return real
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(real.shape, device=mask.device).masked_fill(~real, lowest)


def _check_architecture(config: Any, name: str) -> None:
    if getattr(config, "is_encoder_decoder", False) or not hasattr(config, "hidden_size"):
        raise UserError(
            f"'{name}' is a {config.model_type} model and no BERT-like text encoder; "
            "known to work: bert, roberta, distilbert, mpnet, electra, xlm-roberta, modernbert"
        )


@dataclass(frozen=True)
class EncoderInput(TextInput):
    """Text input from a frozen encoder: the states (W, D) of a text's tokens."""

    kind: ClassVar[str] = "encoder"

    encoder: TextEncoder = field(repr=False, compare=False)
    pieces: WordPieces
    source: str
    """folder or hub name of the encoder, for information"""

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the encoder's weights into ``folder``, so that a run needs no other file."""
        self.encoder.save(folder / "text-encoder")
        return {"pieces": self.pieces.save(folder), "source": self.source}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> EncoderInput:
        """Read what ``save`` wrote."""
        encoder = TextEncoder.load(str(folder / "text-encoder")).eval()
        return cls(encoder, WordPieces.read(folder, content["pieces"]), content["source"])

    def __len__(self) -> int:
        return len(self.pieces)

    def is_known(self, word: str) -> bool:
        """Return True: every word is split into known pieces."""
        return True

    @property
    def mask_token(self) -> int:
        """Refuse: stored states have no tokens to replace."""
        raise UserError(
            "word dropout cannot be applied to stored encodings; use text.word_dropout=0 or text.train=true"
        )

    @property
    def token_input(self) -> WordPieces:
        """The tokenizer of the encoder."""
        return self.pieces

    @property
    def network(self) -> TextEncoder:
        """The encoder."""
        return self.encoder

    def run_network(self, tokens: Tensor, mask: Tensor, network: nn.Module | None = None) -> Tensor:
        """Encode token ids (N, W) into states (N, W, D), with gradients."""
        states: Tensor = (self.encoder if network is None else network)(tokens, mask)
        return states

    def token_spans(self, text: str) -> list[tuple[int, int] | None] | None:
        """Return the span of each word piece in the text."""
        return self.pieces.token_spans(text)

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode a few texts: states (N, W, D) and the mask of real tokens."""
        return self.load(strings).take(np.arange(len(strings)))

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> StateRows:
        """Encode many texts; states are read from the store in ``cache`` if they are there. Without it, in memory.

        Each text length has its own store and its own batches, so that nothing is padded and a text's states do not
        depend on the other texts.
        """
        encoded = self.pieces.encode(strings)
        lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
        keys = [content_key(np.array(ids, dtype=np.int64).tobytes()) for ids in encoded]
        stores: dict[int, FeatureStore | MemoryFeatureStore] = {
            n: MemoryFeatureStore() if cache is None else FeatureStore(cache, self._store_description(n))
            for n in np.unique(lengths).tolist()
        }
        known = dict(zip(keys, encoded, strict=True))
        incomplete = sorted({len(ids) for key, ids in known.items() if key not in stores[len(ids)]})
        with contextlib.ExitStack() as filled:
            for length in incomplete:  # always from short to long, so that two processes do not wait for each other
                filled.enter_context(stores[length].fill())
            missing = {key: ids for key, ids in known.items() if key not in stores[len(ids)]}
            for batch in track(list(_batches_by_length(missing)), "encoding texts"):
                states = self._run(torch.tensor([missing[key] for key in batch]))
                stores[states.shape[1]].append(batch, states)
        return StateRows(stores, keys, lengths)

    def _store_description(self, pieces: int) -> dict[str, object]:
        return {"text encoder": self.encoder.fingerprint, "pieces": pieces}

    @torch.no_grad()
    def _run(self, words: Tensor) -> Halves:
        words = words.to(device_of(self.encoder))
        states = self.run_network(words, torch.ones_like(words, dtype=torch.bool), self.encoder.eval())
        return states.half().cpu().numpy()


class StateRows:
    """Stored states of a list of texts."""

    def __init__(self, stores: Mapping[int, FeatureStore | MemoryFeatureStore], keys: list[str], lengths: Ints) -> None:
        self._stores, self._keys, self.lengths = stores, keys, lengths

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Return states (N, W, D) in single precision and their mask; padding is zero."""
        lengths = self.lengths[rows]
        mask = np.arange(int(lengths.max(initial=1))) < lengths[:, None]
        states: NDArray[np.float32] | None = None
        for length in np.unique(lengths).tolist():
            same_length = np.flatnonzero(lengths == length)
            found = self._stores[length].take([self._keys[row] for row in rows[same_length].tolist()])
            if states is None:
                states = np.zeros((*mask.shape, found.shape[-1]), dtype=np.float32)
            states[same_length, :length] = found
        assert states is not None, "a batch holds at least one text"
        return torch.from_numpy(states), torch.from_numpy(mask)


def _batches_by_length(texts: Mapping[str, Sequence[int]]) -> Iterator[list[str]]:
    """Yield keys in batches of texts with equal length."""
    grouped: dict[int, list[str]] = {}
    for key, ids in texts.items():
        grouped.setdefault(len(ids), []).append(key)
    for keys in grouped.values():
        yield from (keys[start : start + ENCODE_BATCH_TEXTS] for start in range(0, len(keys), ENCODE_BATCH_TEXTS))
