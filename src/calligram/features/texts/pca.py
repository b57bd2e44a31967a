"""PCA by a randomised method, and covariances, of data that arrives in batches and does not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]

OVERSAMPLING_RATIO = 0.25
"""additional random directions, relative to the output dimension; they improve the last components"""
MIN_VARIANCE_RATIO = 1e-7
"""minimum variance of a component relative to the first one; smaller variances are rounding errors"""


@dataclass(frozen=True)
class PCA:
    """Subtracts the mean and projects to the directions of largest variance."""

    mean: Floats = field(repr=False)
    """(D,)"""
    components: Floats = field(repr=False)
    """(components, D), rounded to half precision, as they are saved"""
    explained: float
    """explained share of the variance of the training data"""

    @classmethod
    def fit(cls, blocks: Callable[[], Iterable[Floats]], dim: int, seed: int = 0) -> PCA:
        """Fit by two passes over blocks of rows (Halko et al., 2011).

        The first pass multiplies random directions by the covariance. The second pass finds the best directions in the
        span of the result. Memory grows with D times ``dim``, not with the number of rows. ``explained`` is exact.
        """
        moments = _Moments.of(blocks(), lambda width: _random_directions(width, dim, seed))
        basis = np.linalg.qr(moments.times_covariance())[0]
        inner = _Moments.of(blocks(), lambda _: basis, inner=True)
        variances, rotation = np.linalg.eigh(inner.covariance().astype(np.float64))
        kept = np.flatnonzero(variances > MIN_VARIANCE_RATIO * max(variances[-1], 0))[::-1][:dim]
        components = (basis @ rotation[:, kept].astype(np.float32)).T
        share = float(variances[kept].sum() / max(moments.variance, 1e-30))
        return cls(moments.mean, components.astype(np.float16).astype(np.float32), share)

    def __call__(self, rows: Floats) -> Floats:
        """Project rows (N, D) to (N, components)."""
        return np.asarray((rows - self.mean) @ self.components.T, dtype=np.float32)


class _Moments:
    """Sums over rows, projected to some directions."""

    def __init__(self, directions: Floats, *, inner: bool) -> None:
        self.directions, self.inner = directions, inner
        self.count, self.squares = 0, 0.0
        width, count = directions.shape
        self.total = np.zeros(width)
        self.product = np.zeros((count if inner else width, count), dtype=np.float32)

    @classmethod
    def of(cls, blocks: Iterable[Floats], directions: Callable[[int], Floats], *, inner: bool = False) -> _Moments:
        """Sum over all blocks: the covariance times the directions, or with ``inner`` between the directions."""
        moments: _Moments | None = None
        for rows in blocks:
            moments = moments or cls(directions(rows.shape[1]), inner=inner)
            moments.add(rows)
        assert moments is not None, "there is at least one row"
        return moments

    def add(self, rows: Floats) -> None:
        projected = rows @ self.directions
        self.product += (projected if self.inner else rows).T @ projected
        self.total += rows.sum(0, dtype=np.float64)
        self.squares += float(np.einsum("nd,nd->", rows, rows))
        self.count += len(rows)

    @property
    def mean(self) -> Floats:
        return (self.total / self.count).astype(np.float32)

    @property
    def variance(self) -> float:
        return self.squares / self.count - float(((self.total / self.count) ** 2).sum())

    def times_covariance(self) -> Floats:
        """Return the covariance times the directions."""
        product = self.product / np.float32(self.count)
        product -= np.outer(self.mean, self.mean @ self.directions)
        return np.asarray(product, dtype=np.float32)

    def covariance(self) -> Floats:
        """Return the covariance between the directions."""
        centre = self.mean @ self.directions
        return np.asarray(self.product / self.count - np.outer(centre, centre), dtype=np.float32)


def _random_directions(width: int, dim: int, seed: int) -> Floats:
    directions = min(width, dim + max(16, int(OVERSAMPLING_RATIO * dim)))
    return np.random.default_rng(seed).standard_normal((width, directions), dtype=np.float32)


class Covariance:
    """Joint mean and covariance of two aligned lists of vectors, in double precision.

    Memory depends on the dimensions of the vectors, not on their number. Batches are joined by the update of Chan,
    Golub and LeVeque: each batch is centred by its own mean first, so that a large mean costs no precision.
    """

    def __init__(self) -> None:
        self.count = 0
        self._first = 0
        self._mean: Tensor | None = None
        self._products: Tensor | None = None

    def add(self, one: Tensor, two: Tensor) -> None:
        """Add a batch (N, D1) and (N, D2)."""
        if len(one) != len(two):
            raise ValueError(f"vectors must be aligned, got {len(one)} and {len(two)}")
        if not len(one):
            return
        joint = torch.cat([one, two.to(one.device)], dim=1).double()
        batch_mean = joint.mean(0)
        joint -= batch_mean
        if self._mean is None or self._products is None:
            self._first, self._mean = one.shape[1], batch_mean
            self._products = joint.T @ joint
        else:
            shift = batch_mean - self._mean
            total = self.count + len(joint)
            self._products.addmm_(joint.T, joint)
            self._products.addr_(shift, shift, alpha=self.count * len(joint) / total)
            self._mean += shift * (len(joint) / total)
        self.count += len(joint)

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """Means of both lists."""
        mean, _ = self._statistics()
        return mean[: self._first], mean[self._first :]

    @property
    def blocks(self) -> tuple[Tensor, Tensor, Tensor]:
        """Covariance of the first list, cross-covariance (D1, D2), and covariance of the second list."""
        _, products = self._statistics()
        joint, first = products / max(1, self.count - 1), self._first
        return joint[:first, :first], joint[:first, first:], joint[first:, first:]

    def _statistics(self) -> tuple[Tensor, Tensor]:
        if self._mean is None or self._products is None:
            raise ValueError("no vectors were added; add a batch before reading the covariance")
        return self._mean, self._products
