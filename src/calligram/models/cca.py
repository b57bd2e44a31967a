"""Canonical correlation analysis: a linear matcher in closed form."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from calligram.features.images.stored_input import feature_vectors
from calligram.features.texts.pca import Covariance
from calligram.models.matcher import EmbeddingMatcher, Encoded

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CCASettings:
    """Sizes and regularisation."""

    image_dim: int
    text_dim: int
    dim: int
    """number of canonical directions that are kept"""
    eta: float = 1e-4
    """regularisation of the image covariance, as a share of its largest eigenvalue"""
    text_eta: float = 1e-4
    """regularisation of the text covariance, as a share of its largest eigenvalue"""


class CanonicalDirections(NamedTuple):
    """Canonical directions, by descending correlation."""

    image: Tensor
    """(image_dim, dim)"""
    text: Tensor
    """(text_dim, dim)"""
    correlations: Tensor
    """(dim,), descending"""


class CCA(EmbeddingMatcher):
    """Cosine of canonical projections, each weighted by its correlation: diag(r) W'(x - mean).

    The baseline of two-branch, Table 2, in the normalised form of that paper: correlations to the power 1, then length
    one. There are no gradient steps; ``fit`` computes it in one pass over matching pairs.
    """

    settings: CCASettings

    def __init__(self, settings: CCASettings) -> None:
        super().__init__()
        self.settings = settings
        self.image_dim, self.text_dim = settings.image_dim, settings.text_dim
        self.image = nn.Linear(settings.image_dim, settings.dim)
        self.text = nn.Linear(settings.text_dim, settings.dim)
        self.register_buffer("correlations", torch.zeros(settings.dim))

    @classmethod
    def fit(
        cls, batches: Iterable[tuple[Tensor, Tensor]], dim: int = 0, eta: float = 1e-4, text_eta: float | None = None
    ) -> CCA:
        """Fit to matching image vectors (N, image_dim) and text vectors (N, text_dim), batch by batch.

        Memory does not grow with the number of pairs, which the paper names as the weakness of CCA (Sec. 2).

        Args:
            dim: number of directions to keep; 0 for all.
            eta: regularisation of the image covariance, as a share of its largest eigenvalue.
            text_eta: the same for the text covariance; ``eta`` when None.
        """
        covariance = Covariance()
        for images, texts in batches:
            covariance.add(images, texts)
        return cls.from_covariance(covariance, dim, eta, text_eta)

    @classmethod
    def from_covariance(
        cls, covariance: Covariance, dim: int = 0, eta: float = 1e-4, text_eta: float | None = None
    ) -> CCA:
        """Compute a matcher from given covariances, so that several values of ``eta`` need one pass over the data."""
        text_eta = eta if text_eta is None else text_eta
        found = canonical_directions(*covariance.blocks, eta=eta, text_eta=text_eta)
        count = min(dim or len(found.correlations), len(found.correlations))
        matcher = cls(CCASettings(len(found.image), len(found.text), count, eta, text_eta))
        matcher.correlations = found.correlations[:count].float()
        sides = ((matcher.image, found.image), (matcher.text, found.text))
        for (layer, directions), mean in zip(sides, covariance.means, strict=True):
            weight = (directions[:, :count] * found.correlations[:count]).T
            layer.weight.data = weight.float().contiguous()
            layer.bias.data = -(weight @ mean).float()
        return matcher.eval()

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode features (N, D), or (N, R, D) whose real parts are averaged."""
        return Encoded(self.image(feature_vectors(images, mask)))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> Encoded:
        """Encode vectors (N, D)."""
        del mask
        return Encoded(self.text(texts))


def canonical_directions(
    images: Tensor, between: Tensor, texts: Tensor, *, eta: float, text_eta: float
) -> CanonicalDirections:
    """Solve CCA from the covariances C_xx, C_xy and C_yy.

    (1e-8 + eta lambda_max) I is added to C_xx and C_yy, each with its own eta. With their Cholesky factors L L', the
    singular values of L_x^-1 C_xy L_y'^-1 are the correlations r. W_x = L_x'^-1 U and W_y = L_y'^-1 V satisfy W'CW = I,
    with equal signs.
    """
    if min(eta, text_eta) < 0:
        raise ValueError(f"eta must not be negative, got {min(eta, text_eta)}")
    lower_x, lower_y = _cholesky(images, eta), _cholesky(texts, text_eta)
    whitened = torch.linalg.solve_triangular(lower_x, between, upper=False)
    whitened = torch.linalg.solve_triangular(lower_y, whitened.T, upper=False).T
    left, correlations, right = torch.linalg.svd(whitened, full_matrices=False)
    return CanonicalDirections(
        torch.linalg.solve_triangular(lower_x.T, left, upper=True),
        torch.linalg.solve_triangular(lower_y.T, right.T, upper=True),
        correlations,
    )


def _cholesky(own: Tensor, eta: float) -> Tensor:
    added = 1e-8 + eta * float(torch.linalg.eigvalsh(own)[-1])
    lower: Tensor = torch.linalg.cholesky(own + added * torch.eye(len(own), dtype=own.dtype, device=own.device))
    return lower


def select_cca(
    covariance: Covariance,
    dim: int,
    etas: tuple[float, ...],
    evaluate: Callable[[CCA], Mapping[str, float]],
    metric: str,
    device: torch.device,
) -> CCA:
    """Fit CCA for every pair of regularizations and return the one with the best dev metric.

    Each modality has its own value: Fisher vectors have far more weak directions than image features.
    """
    candidates = [CCA.from_covariance(covariance, dim, *both) for both in product(etas, repeat=2)]
    if len(candidates) == 1:
        return candidates[0]
    found = [evaluate(matcher.to(device))[metric] for matcher in candidates]
    for matcher, value in zip(candidates, found, strict=True):
        log.info("eta %g and %g: dev %s %.1f", matcher.settings.eta, matcher.settings.text_eta, metric, value)
    return candidates[int(np.argmax(found))]
