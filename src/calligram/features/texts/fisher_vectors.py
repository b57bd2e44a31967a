"""Texts as Fisher vectors of their words (two-branch, Sec. 4.3; Klein et al., 2015)."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.features.texts.mixture import Floats, Mixture, fit_mixture
from calligram.features.texts.pca import PCA
from calligram.features.texts.word_counts import KnownWords, WordVectors
from calligram.progress import Track, silent
from calligram.vectors import unit_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

log = logging.getLogger(__name__)

MAX_MIXTURE_WORDS = 300_000
"""maximum number of words that a mixture is fitted on"""
MAX_PCA_TEXTS = 10_000
"""maximum number of texts that PCA is fitted on; four times the output dimension if that is more"""
PCA_BLOCK_TEXTS = 1024
MAX_ICA_VECTORS = 50_000
"""maximum number of vectors that ICA is fitted on; more vectors change the result little and take more time"""
MAX_ICA_ITERATIONS = 100
POINT_LENGTH = 10.0
"""length of word vectors after ICA"""
MIN_POSTERIOR = 1e-12
"""smaller posteriors are ignored; their contribution is below 1e-6 after the square root"""


@dataclass(frozen=True)
class FisherVectorizer:
    """Fisher vectors of one mixture, or of several mixtures concatenated, reduced by PCA."""

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
        device: torch.device | str = "cpu",
    ) -> FisherVectorizer:
        """Fit the mixtures on the distinct words of training texts, and PCA on the texts.

        Args:
            hybrid: for each mixture, whether it has Gaussians and Laplacians; otherwise Gaussians only.
            pca: output dimension of PCA; 0 for no PCA.
            device: where PCA is computed, which takes most of the time.
        """
        random = np.random.default_rng(seed)
        used = np.unique(words.known.counts(strings).indices)
        vectors = words.vectors[np.sort(random.permutation(used)[:MAX_MIXTURE_WORDS])]
        space = IcaProjection.fit(vectors, seed)
        points = space(vectors)
        mixtures = tuple(fit_mixture(points, centres, hybrid=h, seed=seed, track=track) for h in hybrid)
        vectorizer = cls(words, space, mixtures)
        if not 0 < pca < vectorizer.dim:
            return vectorizer
        distinct = sorted(set(strings))
        chosen = [
            distinct[number] for number in random.permutation(len(distinct))[: max(MAX_PCA_TEXTS, 4 * pca)].tolist()
        ]
        reduced = PCA.fit(lambda: vectorizer._blocks(chosen, track), pca, seed, device)
        log.info(
            "%d principal components keep %.1f%% of the variance", len(reduced.components), 100 * reduced.explained
        )
        return cls(words, space, mixtures, reduced)

    def _blocks(self, strings: Sequence[str], track: Track) -> Iterator[Floats]:
        for start in track(range(0, len(strings), PCA_BLOCK_TEXTS), "principal components"):
            yield self.encode(strings[start : start + PCA_BLOCK_TEXTS])

    @property
    def known(self) -> KnownWords:
        """Words that it counts."""
        return self.words.known

    @property
    def dim(self) -> int:
        """Dimension of a text's vector."""
        full = sum(2 * mixture.centres.size for mixture in self.mixtures)
        return full if self.pca is None else len(self.pca.components)

    @cached_property
    def _points(self) -> Floats:
        return self.space(self.words.vectors)

    @cached_property
    def _posteriors(self) -> tuple[Floats, ...]:
        return tuple(mixture.posteriors(self._points) for mixture in self.mixtures)

    def encode(self, strings: Sequence[str]) -> Floats:
        """Return vectors (N, dim); zeros for a text without a known word."""
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
        """Return the arrays that ``restore`` needs, in addition to the words."""
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
        """Build the vectorizer from the result of ``arrays``."""
        count = sum(name.endswith(".priors") for name in arrays)
        names = ("priors", "centres", "scales", "laplace")
        mixtures = tuple(Mixture(*(arrays[f"mixture.{number}.{name}"] for name in names)) for number in range(count))
        pca = None
        if "pca.mean" in arrays:
            components = arrays["pca.components"].astype(np.float32)
            pca = PCA(arrays["pca.mean"], components, float(arrays["pca.explained"][0]))
        return cls(WordVectors(known, arrays["vectors"]), IcaProjection(arrays["unmixing"]), mixtures, pca)


def encode_fisher(counts: csr_array, points: Floats, posteriors: Floats, mixture: Mixture) -> Floats:
    """Fisher vectors (N, 2KD): gradients by the K x D centres, then by the K x D spreads; two-branch, Sec. 4.3.

    For a text with T words x and posteriors g, and for each centre with prior p and each dimension:
    Laplacian: the sums of g sign(x - m) and of g (|x - m| / s - 1), both divided by sqrt(T p).
    Gaussian: the sum of g (x - mu) / sigma divided by sqrt(T p), and the sum of g ((x - mu)^2 / sigma^2 - 1) divided by
    sqrt(2 T p).
    A text without words has a vector of zeros.

    Args:
        counts: (N, V) counts of V words in N texts.
        points: (V, D) projected vectors of the words.
        posteriors: (V, K) of the words.
    """
    centres, dim = mixture.centres.shape
    out = np.zeros((counts.shape[0], 2, centres, dim), dtype=np.float32)
    used = np.unique(counts.indices)
    columns = counts[:, used].tocsc()
    for k in range(centres):
        near = np.flatnonzero(posteriors[used, k] > MIN_POSTERIOR)
        near_counts = columns[:, near].tocsr()
        weight = (posteriors[used[near], k] / math.sqrt(mixture.priors[k]))[:, None]
        first, second = _gradients(points[used[near]], mixture, k)
        out[:, 0, k], out[:, 1, k] = near_counts @ (weight * first), near_counts @ (weight * second)
    words = np.asarray(counts.sum(axis=1))
    vectors: Floats = out.reshape(len(out), -1)
    vectors /= np.sqrt(np.maximum(words, 1), dtype=np.float32)[:, None]
    return vectors


def _gradients(points: Floats, mixture: Mixture, k: int) -> tuple[Floats, Floats]:
    """Return the gradients of one component by its centre and by its spread, both (V, D)."""
    distance = (points - mixture.centres[k]) / mixture.scales[k]
    laplace = mixture.laplace[k]
    first = np.where(laplace, np.sign(distance), distance)
    second = np.where(laplace, np.abs(distance) - 1, (distance**2 - 1) / np.float32(math.sqrt(2)))
    return first, second


def power_normalise(vectors: Floats) -> Floats:
    """Apply the signed square root, then normalise rows to unit length; zeros stay."""
    return unit_rows(np.copysign(np.sqrt(np.abs(vectors)), vectors))


@dataclass(frozen=True)
class IcaProjection:
    """Projection of word vectors for mixtures: unit length, ICA, unit length again, times ten (Klein et al., 2015).

    ICA is applied without centring, as in the released code.
    """

    unmixing: Floats = field(repr=False)
    """(components, dim)"""

    @classmethod
    def fit(cls, vectors: Floats, seed: int = 0) -> IcaProjection:
        """Fit as many components as dimensions, or fewer if the vectors do not span all dimensions."""
        from sklearn.decomposition import FastICA
        from sklearn.exceptions import ConvergenceWarning

        random = np.random.default_rng(seed)
        chosen = random.permutation(len(vectors))[:MAX_ICA_VECTORS]
        sample = unit_rows(vectors[chosen])
        ica = FastICA(
            max(1, _rank(sample)), whiten="unit-variance", max_iter=MAX_ICA_ITERATIONS, tol=1e-3, random_state=seed
        )
        with warnings.catch_warnings():
            # Directions of Gaussian noise do not converge; any of them is as good as any other.
            warnings.simplefilter("ignore", ConvergenceWarning)
            ica.fit(sample)
        return cls(ica.components_.astype(np.float32))

    def __call__(self, vectors: Floats) -> Floats:
        """Project vectors (N, dim) to (N, components), each of length ten."""
        scaled: Floats = POINT_LENGTH * unit_rows(unit_rows(vectors) @ self.unmixing.T)
        return scaled


def _rank(sample: Floats) -> int:
    """Return the number of directions with variance; whitening divides by the spread of each direction."""
    centred = sample - sample.mean(0)
    spread = np.linalg.eigvalsh(centred.T.astype(np.float64) @ centred)
    return int((spread > 1e-6 * spread[-1]).sum())
