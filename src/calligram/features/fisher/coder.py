"""Texts as Fisher vectors of their words."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calligram.features.fisher.fitting import fit_mixture
from calligram.features.fisher.gradients import fisher_vectors, power_normalised
from calligram.features.fisher.mixture import Floats, Mixture
from calligram.features.fisher.pca import PCA
from calligram.features.fisher.word_space import WordSpace
from calligram.features.known_words import KnownWords, WordVectors
from calligram.progress import Track, silent

log = logging.getLogger(__name__)

WORDS = 300_000
"""words that mixtures are fitted on, at most"""
TEXTS = 10_000
"""texts that principal components are fitted on, at most, where they are not more than a quarter as many"""
BLOCK = 1024


@dataclass(frozen=True)
class FisherCoder:
    """Fisher vectors of one mixture, or of several side by side, reduced by PCA."""

    words: WordVectors
    space: WordSpace
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
    ) -> FisherCoder:
        """Fit the mixtures on the words of training texts, each once, and the principal components on the texts.

        Args:
            hybrid: for each mixture, whether it is of Gaussians and Laplacians.
            pca: numbers kept; 0 for all.
        """
        random = np.random.default_rng(seed)
        seen = np.unique(words.known.counts(strings).indices)
        vectors = words.vectors[np.sort(random.permutation(seen)[:WORDS])]
        space = WordSpace.fit(vectors, seed)
        points = space(vectors)
        mixtures = tuple(fit_mixture(points, centres, hybrid=h, seed=seed, track=track) for h in hybrid)
        coder = cls(words, space, mixtures)
        if not 0 < pca < coder.dim:
            return coder
        distinct = sorted(set(strings))
        chosen = [distinct[number] for number in random.permutation(len(distinct))[: max(TEXTS, 4 * pca)].tolist()]
        reduced = PCA.fit(lambda: coder._blocks(chosen, track), pca, seed)
        log.info(
            "%d principal components keep %.1f%% of the variance", len(reduced.components), 100 * reduced.explained
        )
        return cls(words, space, mixtures, reduced)

    def _blocks(self, strings: Sequence[str], track: Track) -> Iterator[Floats]:
        for start in track(range(0, len(strings), BLOCK), "principal components"):
            yield self.encode(strings[start : start + BLOCK])

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
                power_normalised(fisher_vectors(counts, self._points, posteriors, mixture))
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
    def restore(cls, known: KnownWords, arrays: Mapping[str, NDArray[Any]]) -> FisherCoder:
        """The inverse of ``arrays``."""
        count = sum(name.endswith(".priors") for name in arrays)
        names = ("priors", "centres", "scales", "laplace")
        mixtures = tuple(Mixture(*(arrays[f"mixture.{number}.{name}"] for name in names)) for number in range(count))
        pca = None
        if "pca.mean" in arrays:
            components = arrays["pca.components"].astype(np.float32)
            pca = PCA(arrays["pca.mean"], components, float(arrays["pca.explained"][0]))
        return cls(WordVectors(known, arrays["vectors"]), WordSpace(arrays["unmixing"]), mixtures, pca)
