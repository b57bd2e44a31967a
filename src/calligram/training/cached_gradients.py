"""Batches that are larger than the memory: encode them in pieces, with the gradients of the whole batch.

A batch is encoded in pieces without keeping activations. The loss of the whole batch gives the gradient of every
encoding. Then each piece is encoded again, with activations, and passes its gradients on (GradCache; Gao et al., 2021).
The memory is that of one piece and of the scores, and every item is encoded twice. Dropout draws the same numbers both
times. Batch normalisation is the exception: it uses each piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.texts.vocabulary import known_lengths
from calligram.models.matcher import Encoded, Matcher, stack
from calligram.training.batches.batch import Batch
from calligram.training.distributed import gather, is_single_process
from calligram.training.loop import Stage
from calligram.training.objectives.objective import Objective

PIECE_ITEMS = 32
"""number of images, or of texts, whose activations are in memory at the same time"""


def with_cached_gradients(stages: Sequence[Stage], items: int = PIECE_ITEMS) -> tuple[Stage, ...]:
    """Return the same stages, whose batches are encoded in pieces.

    Raises:
        UserError: when an objective encodes a batch in its own way.
    """
    return tuple(replace(stage, objective=CachedObjective(stage.objective, items)) for stage in stages)


class CachedObjective(Objective):
    """An objective with the same terms and gradients, whose batches are encoded in pieces."""

    def __init__(self, objective: Objective, items: int = PIECE_ITEMS) -> None:
        """Args:
        items: number of images, or of texts, in a piece.
        """
        super().__init__()
        kind = type(objective)
        own = (kind.forward, kind.encode, kind.passes)
        if own != (Objective.forward, Objective.encode, Objective.passes):
            raise UserError(
                f"speed=cached encodes a batch in pieces, and {kind.__name__} encodes it in its own way; take "
                "speed=auto for ensembles and pseudo pairs"
            )
        self.objective, self.items = objective, items

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return the terms of the objective."""
        found = self.objective.terms(matcher, batch, images, texts)
        self.measures = self.objective.measures
        return found

    def passes(self, matcher: Matcher, batch: Batch) -> Iterator[dict[str, Tensor]]:
        """Yield the terms of the whole batch; after their backward pass, pass the gradients on piece by piece."""

        def encode_images(rows: slice) -> Encoded:
            return matcher.encode_images(batch.images[rows])

        def encode_texts(rows: slice) -> Encoded:
            with known_lengths(batch.text_lengths[rows]):
                return matcher.encode_texts(
                    batch.texts[rows], None if batch.text_mask is None else batch.text_mask[rows]
                )

        device = batch.images.device
        sides = (
            _encode_pieces(
                lambda rows: matcher.encode_images(batch.images[rows]), len(batch.images), self.items, device
            ),
            _encode_pieces(encode_texts, len(batch.texts), self.items, device),
        )
        images, texts = (side.leaves for side in sides)
        if not is_single_process():
            images, texts = gather(images), gather(texts)
        self._encoded = Encoded(images.vectors.detach()), Encoded(texts.vectors.detach())
        yield self.terms(matcher, batch, images, texts)
        with _fixed_statistics(matcher):
            for side in sides:
                side.backward()


@contextmanager
def _fixed_statistics(matcher: Matcher) -> Iterator[None]:
    """Normalise batches as in training, without counting them again in the running statistics."""
    norms = [module for module in matcher.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    tracked = [norm.track_running_stats for norm in norms]
    for norm in norms:
        norm.track_running_stats = norm.track_running_stats and not norm.training
    try:
        yield
    finally:
        for norm, before in zip(norms, tracked, strict=True):
            norm.track_running_stats = before


class _EncodedPieces(NamedTuple):
    """Encodings of one side of a batch, as leaves of the graph of its loss, and how to encode each piece again."""

    encode: Callable[[slice], Encoded]
    leaves: Encoded
    pieces: list[tuple[slice, list[Tensor]]]
    """rows of each piece, and the states of the random numbers before it was encoded"""

    def backward(self) -> None:
        """Encode each piece again, and pass the gradients of its encodings on to the weights."""
        for rows, states in self.pieces:
            _set_random_states(states, self.leaves.vectors.device)
            with torch.enable_grad():
                again = self.encode(rows)
            outputs, gradients = [], []
            for found, leaf in zip(again[:2], self.leaves[:2], strict=True):
                if found is not None and leaf is not None and leaf.grad is not None and found.requires_grad:
                    own = leaf.grad[rows]
                    outputs.append(found)
                    gradients.append(own if own.ndim == 2 else own[:, : found.shape[1]])  # without padding
            if outputs:
                torch.autograd.backward(outputs, gradients)


def _encode_pieces(encode: Callable[[slice], Encoded], count: int, items: int, device: torch.device) -> _EncodedPieces:
    pieces, found = [], []
    with torch.no_grad():
        for start in range(0, count, items):
            rows = slice(start, min(start + items, count))
            found.append((rows, _random_states(device)))
            pieces.append(encode(rows))
    whole = stack(pieces) if len(pieces) > 1 else pieces[0]
    parts = None if whole.parts is None else whole.parts.detach().requires_grad_()
    return _EncodedPieces(encode, Encoded(whole.vectors.detach().requires_grad_(), parts, whole.mask), found)


def _random_states(device: torch.device) -> list[Tensor]:
    """States of the random numbers of the host, and of the GPU that encodes."""
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


def _set_random_states(states: Sequence[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
