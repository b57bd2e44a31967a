"""Word vectors as the mixtures see them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calligram.features.word_averages import unit_rows

Floats = NDArray[np.float32]

SCALE = 10.0
SAMPLE = 50_000
"""vectors that independent components are looked for in; more of them move the result little and cost in proportion"""
STEPS = 100


@dataclass(frozen=True)
class WordSpace:
    """At length one, through independent component analysis, at length one again, times ten (Klein et al., 2015).

    The components are applied without centring, as in the released code.
    """

    unmixing: Floats = field(repr=False)
    """(components, dim)"""

    @classmethod
    def fit(cls, vectors: Floats, seed: int = 0) -> WordSpace:
        """As many components as there are dimensions, fewer where the vectors do not span them."""
        from sklearn.decomposition import FastICA
        from sklearn.exceptions import ConvergenceWarning

        random = np.random.default_rng(seed)
        chosen = random.permutation(len(vectors))[:SAMPLE]
        sample = unit_rows(vectors[chosen])
        components = FastICA(max(1, _rank(sample)), whiten="unit-variance", max_iter=STEPS, tol=1e-3, random_state=seed)
        with warnings.catch_warnings():
            # Directions among Gaussian noise never settle; they serve as well as any other.
            warnings.simplefilter("ignore", ConvergenceWarning)
            components.fit(sample)
        return cls(components.components_.astype(np.float32))

    def __call__(self, vectors: Floats) -> Floats:
        """(N, dim) -> (N, components), each of length ten."""
        scaled: Floats = SCALE * unit_rows(unit_rows(vectors) @ self.unmixing.T)
        return scaled


def _rank(sample: Floats) -> int:
    """Directions in which vectors differ: whitening divides by their spread."""
    centred = sample - sample.mean(0)
    spread = np.linalg.eigvalsh(centred.T.astype(np.float64) @ centred)
    return int((spread > 1e-6 * spread[-1]).sum())
