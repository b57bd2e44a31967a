from __future__ import annotations

import numpy as np
import pytest
import torch

from calligram.vectors import unit_length, unit_rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_unit_length_and_zero_rows_stay(dtype):
    rows = np.array([[3, 4], [0, 0], [1e-15, 0]], dtype=dtype)
    found = unit_rows(rows)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [1, 0]], rtol=1e-6)
    np.testing.assert_allclose(unit_rows(rows, 1e-12), [[0.6, 0.8], [0, 0], [1e-3, 0]], rtol=1e-6)


def test_tensors_have_unit_length_in_float32_and_a_finite_gradient_at_zero():
    vectors = torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]], dtype=torch.float64, requires_grad=True)
    found = unit_length(vectors)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[[0.6, 0.8]], [[0.0, 0.0]]]))
    found.sum().backward()
    assert vectors.grad.isfinite().all()
    assert unit_length(torch.tensor([[1e-9, 0.0]]))[0, 0] == pytest.approx(0.1)
    assert unit_length(torch.tensor([[1e-9, 0.0]]), 1e-12)[0, 0] == pytest.approx(1.0)
