"""Fisher vectors: how a text's words would move the mixture."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp

from calligram.features.fisher.mixture import Floats, Mixture
from calligram.features.word_averages import unit_rows

NEGLIGIBLE = 1e-12
"""posteriors up to this do not count: what they add is below 1e-6 after the square root"""


def fisher_vectors(counts: sp.csr_array, points: Floats, posteriors: Floats, mixture: Mixture) -> Floats:
    """Gradients by centre (K x D numbers), then by spread (as many): (N, 2KD); two-branch, Sec. 4.3.

    Of T words x with posteriors g, for each centre with prior p and each dimension: where it is Laplacian, the sums of
    g sign(x - m) and g (|x - m| / s - 1), both over sqrt(T p); where it is Gaussian, the sum of g (x - mu) / sigma over
    sqrt(T p) and that of g ((x - mu)^2 / sigma^2 - 1) over sqrt(2 T p). Zeros for a text without words.

    Args:
        counts: how often each of N texts has each of V words.
        points: the words (V, D).
        posteriors: theirs (V, K).
    """
    centres, dim = mixture.centres.shape
    out = np.zeros((counts.shape[0], 2, centres, dim), dtype=np.float32)
    used = np.unique(counts.indices)
    columns = counts[:, used].tocsc()
    for k in range(centres):
        near = np.flatnonzero(posteriors[used, k] > NEGLIGIBLE)
        mine = columns[:, near].tocsr()
        share = (posteriors[used[near], k] / math.sqrt(mixture.priors[k]))[:, None]
        first, second = _gradients(points[used[near]], mixture, k)
        out[:, 0, k], out[:, 1, k] = mine @ (share * first), mine @ (share * second)
    words = np.asarray(counts.sum(axis=1))
    vectors: Floats = out.reshape(len(out), -1)
    vectors /= np.sqrt(np.maximum(words, 1), dtype=np.float32)[:, None]
    return vectors


def _gradients(points: Floats, mixture: Mixture, k: int) -> tuple[Floats, Floats]:
    """Of one centre, by its centre and by its spread, both (V, D)."""
    distance = (points - mixture.centres[k]) / mixture.scales[k]
    laplace = mixture.laplace[k]
    first = np.where(laplace, np.sign(distance), distance)
    second = np.where(laplace, np.abs(distance) - 1, (distance**2 - 1) / np.float32(math.sqrt(2)))
    return first, second


def power_normalised(vectors: Floats) -> Floats:
    """Square roots with the sign kept, then length one; zeros stay."""
    return unit_rows(np.copysign(np.sqrt(np.abs(vectors)), vectors))
