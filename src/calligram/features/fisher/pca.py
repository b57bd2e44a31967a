"""Principal components of vectors too many and too long to hold, by a randomised method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

OVERSAMPLING = 0.25
"""more directions than wanted, as a share: the last wanted ones come out better"""
LEAST = 1e-7
"""directions with less than this share of the first one's variance are noise of the arithmetic"""


@dataclass(frozen=True)
class PCA:
    """Subtract the mean, then keep the directions of largest variance."""

    mean: Floats = field(repr=False)
    """(D,)"""
    components: Floats = field(repr=False)
    """(kept, D), rounded to half precision, as they are saved"""
    explained: float
    """share of the variance of what it was fitted on"""

    @classmethod
    def fit(cls, blocks: Callable[[], Iterable[Floats]], dim: int, seed: int = 0) -> PCA:
        """From two passes over blocks of rows (Halko et al., 2011).

        The first multiplies random directions by the covariance, the second finds the best directions within what that
        spans. Memory grows with D times ``dim``, not with the number of rows. ``explained`` is exact for what is kept.
        """
        moments = _Moments.of(blocks(), lambda width: _random(width, dim, seed))
        basis = np.linalg.qr(moments.times_covariance())[0]
        inner = _Moments.of(blocks(), lambda _: basis, inner=True)
        variances, rotation = np.linalg.eigh(inner.covariance().astype(np.float64))
        kept = np.flatnonzero(variances > LEAST * max(variances[-1], 0))[::-1][:dim]
        components = (basis @ rotation[:, kept].astype(np.float32)).T
        share = float(variances[kept].sum() / max(moments.variance, 1e-30))
        return cls(moments.mean, components.astype(np.float16).astype(np.float32), share)

    def __call__(self, rows: Floats) -> Floats:
        """(N, D) -> (N, kept)."""
        return np.asarray((rows - self.mean) @ self.components.T, dtype=np.float32)


class _Moments:
    """Sums over rows, as far as some directions show them."""

    def __init__(self, directions: Floats, *, inner: bool) -> None:
        self.directions, self.inner = directions, inner
        self.count, self.squares = 0, 0.0
        width, seen = directions.shape
        self.total = np.zeros(width)
        self.product = np.zeros((seen if inner else width, seen), dtype=np.float32)

    @classmethod
    def of(cls, blocks: Iterable[Floats], directions: Callable[[int], Floats], *, inner: bool = False) -> _Moments:
        """Of all blocks; ``inner``: only how the directions vary together, instead of the covariance times them."""
        moments: _Moments | None = None
        for rows in blocks:
            moments = moments or cls(directions(rows.shape[1]), inner=inner)
            moments.add(rows)
        assert moments is not None, "there is at least one row"
        return moments

    def add(self, rows: Floats) -> None:
        seen = rows @ self.directions
        self.product += (seen if self.inner else rows).T @ seen
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
        """The covariance times the directions."""
        product = self.product / np.float32(self.count)
        product -= np.outer(self.mean, self.mean @ self.directions)
        return np.asarray(product, dtype=np.float32)

    def covariance(self) -> Floats:
        """Of the directions among each other."""
        centre = self.mean @ self.directions
        return np.asarray(self.product / self.count - np.outer(centre, centre), dtype=np.float32)


def _random(width: int, dim: int, seed: int) -> Floats:
    directions = min(width, dim + max(16, int(OVERSAMPLING * dim)))
    return np.random.default_rng(seed).standard_normal((width, directions), dtype=np.float32)
