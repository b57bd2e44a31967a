"""Vectors at unit length (L2-normalised), for tensors and for rows of numpy arrays, and tensors as bytes for hashes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from calligram.errors import UserError

MIN_TENSOR_LENGTH = 1e-8
"""shorter vectors are divided by this length, which keeps gradients finite; zero stays zero"""

Number = TypeVar("Number", np.float32, np.float64)


def unit_length(vectors: Tensor, min_length: float = MIN_TENSOR_LENGTH) -> Tensor:
    """Normalise vectors (..., D) to length one, in float32."""
    return F.normalize(vectors.float(), dim=-1, eps=min_length)


def unit_rows(rows: NDArray[Number], min_length: float = 0.0) -> NDArray[Number]:
    """Normalise the rows of an array (N, D) to length one, in the type of the array.

    Args:
        rows: zero rows stay zero.
        min_length: rows that are shorter are divided by this length.
    """
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), min_length)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(rows.dtype, copy=False)


def checked_unit_rows(vectors: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """Normalise vectors (N, D) for an index of ``dim`` dimensions.

    Raises:
        UserError: for another dimension, and for vectors that are zero or not finite.
    """
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise UserError(f"the index holds vectors of {dim} dimensions; got an array of shape {vectors.shape}")
    lengths = np.linalg.norm(vectors, axis=1)
    bad = np.flatnonzero(~np.isfinite(lengths) | (lengths < 1e-12))
    if len(bad):
        raise UserError(f"vector {bad[0]} has length {lengths[bad[0]]}; vectors must be finite and not zero")
    return unit_rows(vectors)


def tensor_parts(tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    """The name and the values of each tensor, ordered by name, for ``parts_hash``."""
    for name, tensor in sorted(tensors.items()):  # bytes, because numpy has no bfloat16
        yield name.encode() + tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()
