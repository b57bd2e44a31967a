"""Mixtures whose every centre has, in every dimension, a Gaussian or a Laplacian (Klein et al., 2015)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

ROWS = 1024
"""vectors worked on at a time, so that they stay in the processor's cache"""


@dataclass(frozen=True)
class Mixture:
    """K centres in D dimensions."""

    priors: Floats
    """(K,)"""
    centres: Floats = field(repr=False)
    """(K, D): means, or medians where it is Laplacian"""
    scales: Floats = field(repr=False)
    """(K, D): standard deviations, or mean distances from the median"""
    laplace: Flags = field(repr=False)
    """(K, D)"""

    def posteriors(self, data: Floats) -> Floats:
        """Share of each centre in each vector, (N, K)."""
        out = torch.empty(len(data), len(self.priors))
        constant = torch.from_numpy(self._constants())
        laplace = torch.from_numpy(self.laplace)
        weights = torch.where(laplace, 1.0, 0.0), torch.where(laplace, 0.0, 0.5)
        inverse = torch.from_numpy(1 / self.scales)
        for rows, part in parts(data):
            for k, centre in enumerate(torch.from_numpy(self.centres)):
                distance = (part - centre).abs_().mul_(inverse[k])
                out[rows, k] = constant[k] - distance @ weights[0][k] - distance.square_() @ weights[1][k]
        return np.asarray(out.softmax(1), dtype=np.float32)

    def _constants(self) -> Floats:
        """What a centre's log density has whatever the vector is."""
        widths = np.where(self.laplace, 2.0, math.sqrt(2 * math.pi)) * self.scales
        return np.asarray(np.log(self.priors) - np.log(widths).sum(1), dtype=np.float32)


def parts(data: Floats) -> Iterator[tuple[slice, Tensor]]:
    """Rows in pieces that fit into a cache."""
    whole = torch.from_numpy(data)
    for start in range(0, len(data), ROWS):
        rows = slice(start, start + ROWS)
        yield rows, whole[rows]
