"""Texts as Fisher vectors of their words."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from calligram.features.texts.mixture import Floats, Mixture, fit_mixture
from calligram.features.texts.pca import PCA
from calligram.features.texts.word_counts import KnownWords, WordVectors, unit_rows
from calligram.progress import Track, silent

# Fisher vectors: how a text's words would move the mixture.

MIN_POSTERIOR = 1e-12
"""posteriors up to this do not count: what they add is below 1e-6 after the square root"""


def encode_fisher(counts: sp.csr_array, points: Floats, posteriors: Floats, mixture: Mixture) -> Floats:
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
        near = np.flatnonzero(posteriors[used, k] > MIN_POSTERIOR)
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


def power_normalise(vectors: Floats) -> Floats:
    """Square roots with the sign kept, then length one; zeros stay."""
    return unit_rows(np.copysign(np.sqrt(np.abs(vectors)), vectors))


# Word vectors as the mixtures see them.

WordFloats = NDArray[np.float32]

POINT_LENGTH = 10.0
MAX_ICA_VECTORS = 50_000
"""vectors that independent components are looked for in; more of them move the result little and cost in proportion"""
MAX_ICA_ITERATIONS = 100


@dataclass(frozen=True)
class IcaProjection:
    """At length one, through independent component analysis, at length one again, times ten (Klein et al., 2015).

    The components are applied without centring, as in the released code.
    """

    unmixing: WordFloats = field(repr=False)
    """(components, dim)"""

    @classmethod
    def fit(cls, vectors: WordFloats, seed: int = 0) -> IcaProjection:
        """As many components as there are dimensions, fewer where the vectors do not span them."""
        from sklearn.decomposition import FastICA
        from sklearn.exceptions import ConvergenceWarning

        random = np.random.default_rng(seed)
        chosen = random.permutation(len(vectors))[:MAX_ICA_VECTORS]
        sample = unit_rows(vectors[chosen])
        components = FastICA(
            max(1, _rank(sample)), whiten="unit-variance", max_iter=MAX_ICA_ITERATIONS, tol=1e-3, random_state=seed
        )
        with warnings.catch_warnings():
            # Directions among Gaussian noise never settle; they serve as well as any other.
            warnings.simplefilter("ignore", ConvergenceWarning)
            components.fit(sample)
        return cls(components.components_.astype(np.float32))

    def __call__(self, vectors: WordFloats) -> WordFloats:
        """(N, dim) -> (N, components), each of length ten."""
        scaled: WordFloats = POINT_LENGTH * unit_rows(unit_rows(vectors) @ self.unmixing.T)
        return scaled


def _rank(sample: WordFloats) -> int:
    """Directions in which vectors differ: whitening divides by their spread."""
    centred = sample - sample.mean(0)
    spread = np.linalg.eigvalsh(centred.T.astype(np.float64) @ centred)
    return int((spread > 1e-6 * spread[-1]).sum())


log = logging.getLogger(__name__)

MAX_MIXTURE_WORDS = 300_000
"""words that mixtures are fitted on, at most"""
MAX_PCA_TEXTS = 10_000
"""texts that principal components are fitted on, at most, where they are not more than a quarter as many"""
PCA_BLOCK_TEXTS = 1024


@dataclass(frozen=True)
class FisherVectorizer:
    """Fisher vectors of one mixture, or of several side by side, reduced by PCA."""

    words: WordVectors
    space: IcaProjection
    mixtures: tuple[Mixture, ...]
    pca: PCA | None = None

    @classmethod
    def fit(
        cls,
        strings: Sequence[str],
        words: WordVectors,
        *,
        hybrid: Sequence[bool],
        centres: int,
        pca: int,
        seed: int = 0,
        track: Track = silent,
    ) -> FisherVectorizer:
        """Fit the mixtures on the words of training texts, each once, and the principal components on the texts.

        Args:
            hybrid: for each mixture, whether it is of Gaussians and Laplacians.
            pca: numbers kept; 0 for all.
        """
        random = np.random.default_rng(seed)
        seen = np.unique(words.known.counts(strings).indices)
        vectors = words.vectors[np.sort(random.permutation(seen)[:MAX_MIXTURE_WORDS])]
        space = IcaProjection.fit(vectors, seed)
        points = space(vectors)
        mixtures = tuple(fit_mixture(points, centres, hybrid=h, seed=seed, track=track) for h in hybrid)
        coder = cls(words, space, mixtures)
        if not 0 < pca < coder.dim:
            return coder
        distinct = sorted(set(strings))
        chosen = [
            distinct[number] for number in random.permutation(len(distinct))[: max(MAX_PCA_TEXTS, 4 * pca)].tolist()
        ]
        reduced = PCA.fit(lambda: coder._blocks(chosen, track), pca, seed)
        log.info(
            "%d principal components keep %.1f%% of the variance", len(reduced.components), 100 * reduced.explained
        )
        return cls(words, space, mixtures, reduced)

    def _blocks(self, strings: Sequence[str], track: Track) -> Iterator[Floats]:
        for start in track(range(0, len(strings), PCA_BLOCK_TEXTS), "principal components"):
            yield self.encode(strings[start : start + PCA_BLOCK_TEXTS])

    @property
    def known(self) -> KnownWords:
        """Words it counts."""
        return self.words.known

    @property
    def dim(self) -> int:
        """Size of a text's vector."""
        whole = sum(2 * mixture.centres.size for mixture in self.mixtures)
        return whole if self.pca is None else len(self.pca.components)

    @cached_property
    def _points(self) -> Floats:
        return self.space(self.words.vectors)

    @cached_property
    def _posteriors(self) -> tuple[Floats, ...]:
        return tuple(mixture.posteriors(self._points) for mixture in self.mixtures)

    def encode(self, strings: Sequence[str]) -> Floats:
        """(N, dim); zeros for a text without a known word."""
        counts = self.known.counts(strings)
        vectors = np.concatenate(
            [
                power_normalise(encode_fisher(counts, self._points, posteriors, mixture))
                for mixture, posteriors in zip(self.mixtures, self._posteriors, strict=True)
            ],
            axis=1,
        )
        if self.pca is None:
            return vectors
        reduced = self.pca(vectors)
        reduced[np.asarray(counts.sum(axis=1)) == 0] = 0
        return reduced

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What ``restore`` needs besides the words."""
        arrays: dict[str, NDArray[Any]] = {"vectors": self.words.vectors, "unmixing": self.space.unmixing}
        for number, mixture in enumerate(self.mixtures):
            arrays |= {f"mixture.{number}.{name}": value for name, value in vars(mixture).items()}
        if self.pca is not None:
            arrays["pca.mean"] = self.pca.mean
            arrays["pca.components"] = self.pca.components.astype(np.float16)
            arrays["pca.explained"] = np.array([self.pca.explained])
        return arrays

    @classmethod
    def restore(cls, known: KnownWords, arrays: Mapping[str, NDArray[Any]]) -> FisherVectorizer:
        """The inverse of ``arrays``."""
        count = sum(name.endswith(".priors") for name in arrays)
        names = ("priors", "centres", "scales", "laplace")
        mixtures = tuple(Mixture(*(arrays[f"mixture.{number}.{name}"] for name in names)) for number in range(count))
        pca = None
        if "pca.mean" in arrays:
            components = arrays["pca.components"].astype(np.float32)
            pca = PCA(arrays["pca.mean"], components, float(arrays["pca.explained"][0]))
        return cls(WordVectors(known, arrays["vectors"]), IcaProjection(arrays["unmixing"]), mixtures, pca)
