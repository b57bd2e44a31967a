from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn import cross_decomposition

from calligram.features.texts.pca import Covariance
from calligram.models.cca import CCA, canonical_directions


def correlated(count: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of size five and seven, both from three latent variables and noise, with a mean far from zero."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(count, 3)) * [1.0, 0.6, 0.3]
    x = hidden @ rng.normal(size=(3, 5)) + 0.3 * rng.normal(size=(count, 5)) + 20
    y = hidden @ rng.normal(size=(3, 7)) + 0.3 * rng.normal(size=(count, 7)) - 7
    return x, y


def batches(x: np.ndarray, y: np.ndarray, size: int):
    for start in range(0, len(x), size):
        yield torch.from_numpy(x[start : start + size]), torch.from_numpy(y[start : start + size])


def literal(x: np.ndarray, y: np.ndarray, eta: float, text_eta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Dense CCA as one generalised eigenproblem over images and texts, with all data in memory."""
    x, y = x - x.mean(0), y - y.mean(0)
    n, p, q = len(x), x.shape[1], y.shape[1]
    cxx, cyy, cxy = x.T @ x / (n - 1), y.T @ y / (n - 1), x.T @ y / (n - 1)
    cxx += (1e-8 + eta * np.linalg.eigvalsh(cxx).max()) * np.eye(p)
    cyy += (1e-8 + text_eta * np.linalg.eigvalsh(cyy).max()) * np.eye(q)
    zeros = np.zeros
    values, vectors = scipy.linalg.eigh(
        np.block([[zeros((p, p)), cxy], [cxy.T, zeros((q, q))]]), np.block([[cxx, zeros((p, q))], [zeros((q, p)), cyy]])
    )
    best = np.argsort(-values)[: min(p, q)]
    # Each half of an eigenvector has half of its squared length.
    return values[best], np.sqrt(2) * vectors[:p, best], np.sqrt(2) * vectors[p:, best]


@pytest.mark.parametrize(("eta", "text_eta"), [(0.0, 0.0), (1e-4, 1e-4), (0.1, 1e-3)])
@pytest.mark.parametrize("size", [400, 7])
def test_streamed_cca_equals_dense_cca(eta, text_eta, size):
    x, y = correlated()
    r, wx, wy = literal(x, y, eta, text_eta)
    matcher = CCA.fit(batches(x, y, size), eta=eta, text_eta=text_eta)
    np.testing.assert_allclose(matcher.correlations.numpy(), r, atol=1e-6)
    for encoded, data, directions in (
        (matcher.encode_images(torch.from_numpy(x).float()), x, wx),
        (matcher.encode_texts(torch.from_numpy(y).float()), y, wy),
    ):
        expected = (data - data.mean(0)) @ directions * r
        found = encoded.vectors.detach().numpy()
        signs = np.sign((found * expected).sum(0))
        np.testing.assert_allclose(found * signs, expected, atol=2e-3)


def test_image_and_text_projections_have_the_same_signs():
    x, y = correlated()
    matcher = CCA.fit(batches(x, y, 50), eta=1e-4)
    images = matcher.encode_images(torch.from_numpy(x).float()).vectors
    texts = matcher.encode_texts(torch.from_numpy(y).float()).vectors
    assert ((images * texts).mean(0)[:3] > 0).all()


def test_correlations_and_subspaces_equal_those_of_scikit_learn():
    x, y = correlated()
    theirs = cross_decomposition.CCA(n_components=3, scale=False, max_iter=5000, tol=1e-12).fit(x, y)
    x_scores, y_scores = theirs.transform(x, y)
    matcher = CCA.fit(batches(x, y, 64), dim=3, eta=0.0)
    correlations = [np.corrcoef(x_scores[:, k], y_scores[:, k])[0, 1] for k in range(3)]
    np.testing.assert_allclose(matcher.correlations.numpy(), correlations, atol=1e-4)
    for scores, found in (
        (x_scores, matcher.encode_images(torch.from_numpy(x).float()).vectors),
        (y_scores, matcher.encode_texts(torch.from_numpy(y).float()).vectors),
    ):
        angles = scipy.linalg.subspace_angles(scores - scores.mean(0), found.detach().numpy())
        assert angles.max() < 0.01


def test_covariance_by_hand():
    """x = 1, 3 and y = 2, 6: means 2 and 4, variances 2 and 8, covariance 4."""
    covariance = Covariance()
    for x, y in ((1.0, 2.0), (3.0, 6.0)):
        covariance.add(torch.tensor([[x]]), torch.tensor([[y]]))
    assert [m.item() for m in covariance.means] == [2, 4]
    assert [b.item() for b in covariance.blocks] == [2, 4, 8]


def test_a_mean_far_from_zero_keeps_precision():
    x, y = correlated()
    far, near = Covariance(), Covariance()
    for one, two in batches(x, y, 11):
        near.add(one, two)
        far.add(one + 1e6, two)
    for one, two in zip(far.blocks, near.blocks, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)


def test_memory_does_not_grow_with_the_number_of_pairs():
    covariance, rng = Covariance(), torch.Generator().manual_seed(0)
    sizes = set()
    for _ in range(5):
        covariance.add(torch.randn(100, 4, generator=rng), torch.randn(100, 3, generator=rng))
        sizes.add(sum(v.numel() for v in vars(covariance).values() if isinstance(v, torch.Tensor)))
    assert sizes == {7 + 49}


def test_directions_satisfy_their_constraint_even_with_fewer_pairs_than_dimensions():
    rng = torch.Generator().manual_seed(0)
    covariance = Covariance()
    covariance.add(torch.randn(6, 20, generator=rng), torch.randn(6, 10, generator=rng))
    cxx, cxy, cyy = covariance.blocks
    found = canonical_directions(cxx, cxy, cyy, eta=1e-2, text_eta=1e-2)
    added = 1e-8 + 1e-2 * torch.linalg.eigvalsh(cxx)[-1]
    torch.testing.assert_close(
        found.image.T @ (cxx + added * torch.eye(20, dtype=cxx.dtype)) @ found.image, torch.eye(10, dtype=cxx.dtype)
    )
    assert (found.correlations.diff() <= 0).all()
    assert found.correlations.max() < 1


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="eta must not be negative, got -1"):
        canonical_directions(*(torch.eye(2),) * 3, eta=0, text_eta=-1)
    with pytest.raises(ValueError, match="no vectors were added"):
        CCA.fit([])
    with pytest.raises(ValueError, match="vectors must be aligned, got 2 and 3"):
        Covariance().add(torch.ones(2, 1), torch.ones(3, 1))
