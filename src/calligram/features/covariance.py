"""Mean and covariance of data that come in batches."""

from __future__ import annotations

import torch
from torch import Tensor


class Covariance:
    """Joint mean and covariance of two aligned lists of vectors, in double precision.

    Memory depends on the sizes of the vectors and not on their number. Batches are joined by the update of Chan, Golub
    and LeVeque: each is centred by its own mean first, so a mean far from zero costs no precision.
    """

    def __init__(self) -> None:
        self.count = 0
        self._first = 0
        self._mean: Tensor | None = None
        self._products: Tensor | None = None

    def add(self, one: Tensor, two: Tensor) -> None:
        """Take in a batch (N, D1) and (N, D2)."""
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
        """Of both lists."""
        mean, _ = self._known()
        return mean[: self._first], mean[self._first :]

    @property
    def blocks(self) -> tuple[Tensor, Tensor, Tensor]:
        """Covariances of the first list, between both (D1, D2), and of the second."""
        _, products = self._known()
        whole, first = products / max(1, self.count - 1), self._first
        return whole[:first, :first], whole[:first, first:], whole[first:, first:]

    def _known(self) -> tuple[Tensor, Tensor]:
        if self._mean is None or self._products is None:
            raise ValueError("no vectors were added; their covariance is not known")
        return self._mean, self._products
