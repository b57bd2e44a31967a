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


@dataclass
class PCA:
    """Subtracts the mean and projects to the directions of largest variance, on a device."""

    mean: Floats = field(repr=False)
    """(D,)"""
    components: Floats = field(repr=False)
    """(components, D), rounded to half precision, as they are saved"""
    explained: float
    """explained share of the variance of the training data"""
    device: torch.device = field(default=torch.device("cpu"), compare=False)
    """where rows are projected; it changes results only by rounding"""
    _tensors: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False, compare=False)
    """mean and components on the device, from the first use"""

    @classmethod
    def fit(
        cls, blocks: Callable[[], Iterable[Floats]], dim: int, seed: int = 0, device: torch.device | str = "cpu"
    ) -> PCA:
        """Fit by two passes over blocks of rows (Halko et al., 2011).

        The first pass multiplies random directions by the covariance. The second pass finds the best directions in the
        span of the result. Memory grows with D times ``dim``, not with the number of rows. ``explained`` is exact.
        """
        moments = _Moments.of(blocks(), lambda width: _random_directions(width, dim, seed).to(device))
        basis = torch.linalg.qr(moments.times_covariance())[0]
        inner = _Moments.of(blocks(), lambda _: basis, inner=True)
        variances, rotation = torch.linalg.eigh(inner.covariance().double())
        kept = (variances > MIN_VARIANCE_RATIO * variances[-1].clamp(min=0)).nonzero()[:, 0].flip(0)[:dim]
        components = (basis @ rotation[:, kept].float()).T.half().float()
        share = float(variances[kept].sum()) / max(moments.variance, 1e-30)
        return cls(moments.mean.cpu().numpy(), components.cpu().numpy(), share, torch.device(device))

    def to(self, device: torch.device | str) -> None:
        """Project on another device from now on."""
        self.device, self._tensors = torch.device(device), None

    def __call__(self, rows: Floats) -> Floats:
        """Project rows (N, D) to (N, components)."""
        if self._tensors is None:
            own = torch.from_numpy(self.mean), torch.from_numpy(self.components)
            self._tensors = own[0].to(self.device), own[1].to(self.device)
        mean, components = self._tensors
        return np.asarray(((torch.from_numpy(rows).to(self.device) - mean) @ components.T).cpu())


class _Moments:
    """Sums over rows, projected to some directions, on the device of the directions."""

    def __init__(self, directions: Tensor, *, inner: bool) -> None:
        self.directions, self.inner = directions, inner
        self.count, self.squares = 0, 0.0
        width, count = directions.shape
        self.total = torch.zeros(width, dtype=torch.float64, device=directions.device)
        self.product = torch.zeros(count if inner else width, count, device=directions.device)

    @classmethod
    def of(cls, blocks: Iterable[Floats], directions: Callable[[int], Tensor], *, inner: bool = False) -> _Moments:
        """Sum over all blocks: the covariance times the directions, or with ``inner`` between the directions."""
        moments: _Moments | None = None
        for rows in blocks:
            moments = moments or cls(directions(rows.shape[1]), inner=inner)
            moments.add(torch.from_numpy(rows).to(moments.directions.device))
        assert moments is not None, "there is at least one row"
        return moments

    def add(self, rows: Tensor) -> None:
        projected = rows @ self.directions
        self.product.addmm_((projected if self.inner else rows).T, projected)
        self.total += rows.sum(0, dtype=torch.float64)
        self.squares += float(rows.square().sum(dtype=torch.float64))
        self.count += len(rows)

    @property
    def mean(self) -> Tensor:
        return (self.total / self.count).float()

    @property
    def variance(self) -> float:
        return self.squares / self.count - float((self.total / self.count).square().sum())

    def times_covariance(self) -> Tensor:
        """Return the covariance times the directions."""
        return (self.product / self.count).addr_(self.mean, self.mean @ self.directions, alpha=-1)

    def covariance(self) -> Tensor:
        """Return the covariance between the directions."""
        centre = self.mean @ self.directions
        return self.product / self.count - torch.outer(centre, centre)


def _random_directions(width: int, dim: int, seed: int) -> Tensor:
    directions = min(width, dim + max(16, int(OVERSAMPLING_RATIO * dim)))
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((width, directions), dtype=np.float32))


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
