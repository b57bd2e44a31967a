"""ROI-align against a plain implementation that samples one point at a time."""

from __future__ import annotations

import math

import pytest
import torch

from calligram.features.regions.region_features import axis_weights, roi_align, roi_pool


def interpolated(plane, y, x):
    """Bilinear interpolation between the centres of cells, constant beyond the outermost."""
    height, width = plane.shape
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    y0, x0 = min(math.floor(y), height - 1), min(math.floor(x), width - 1)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    above = float(plane[y0, x0]) * (1 - (x - x0)) + float(plane[y0, x1]) * (x - x0)
    below = float(plane[y1, x0]) * (1 - (x - x0)) + float(plane[y1, x1]) * (x - x0)
    return above * (1 - (y - y0)) + below * (y - y0)


def literal(plane, box, bins, samples):
    """Pool one box on one plane by the definition: the mean over evenly spaced points of each bin."""
    height, width = plane.shape
    x0, y0, x1, y1 = (float(v) for v in box)
    out = torch.zeros(bins, bins, dtype=torch.float64)
    for p in range(bins):
        for q in range(bins):
            total = 0.0
            for i in range(samples):
                for j in range(samples):
                    y = y0 + (y1 - y0) * (p + (i + 0.5) / samples) / bins
                    x = x0 + (x1 - x0) * (q + (j + 0.5) / samples) / bins
                    total += interpolated(plane, y * height - 0.5, x * width - 0.5)
            out[p, q] = total / samples**2
    return out


def random_boxes(*shape):
    corners = torch.rand(*shape, 2, 2, dtype=torch.float64)
    return torch.cat([corners.min(-2).values, corners.max(-2).values], dim=-1)


@pytest.mark.parametrize(("bins", "samples"), [(1, 1), (2, 3), (3, 2)])
def test_roi_align_is_the_mean_of_bilinear_samples(bins, samples):
    torch.manual_seed(0)
    grid, boxes = torch.randn(2, 3, 4, 5, dtype=torch.float64), random_boxes(2, 4)
    boxes[0, 0] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    boxes[1, 1] = torch.tensor([0.3, 0.6, 0.3, 0.6])  # a point
    found = roi_align(grid, boxes, bins, samples)
    assert found.shape == (2, 4, 3, bins, bins)
    for n in range(2):
        for r in range(4):
            for d in range(3):
                torch.testing.assert_close(found[n, r, d], literal(grid[n, d], boxes[n, r], bins, samples))


def test_roi_pool_is_the_mean_of_roi_align():
    torch.manual_seed(1)
    grid, boxes = torch.randn(2, 5, 7, 7, dtype=torch.float64), random_boxes(2, 6)
    torch.testing.assert_close(roi_pool(grid, boxes, 14), roi_align(grid, boxes, 7, 2).mean((3, 4)))


def test_the_mean_of_a_linear_map_over_the_whole_image_is_its_central_value():
    """0, 1, 2, 3 along the width: the mean is 1.5 for any height."""
    grid = torch.arange(4.0).expand(1, 1, 3, 4)
    assert roi_pool(grid, torch.tensor([[[0.0, 0.0, 1.0, 1.0]]])).item() == pytest.approx(1.5)


def test_a_box_of_exactly_one_cell_sampled_at_its_centre_gives_that_cell():
    grid = torch.randn(1, 2, 4, 4)
    box = torch.tensor([[[0.25, 0.5, 0.5, 0.75]]])
    torch.testing.assert_close(roi_pool(grid, box, points=1)[0, 0], grid[0, :, 2, 1])


def test_axis_weights_sum_to_one_even_outside_the_image():
    start, end = torch.tensor([-0.5, 0.0, 0.9]), torch.tensor([0.1, 1.0, 1.7])
    torch.testing.assert_close(axis_weights(start, end, 6, 3, 2).sum(-1), torch.ones(3, 3))


def test_gradients_reach_the_feature_map_and_the_boxes():
    torch.manual_seed(2)
    grid = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    boxes = torch.tensor([[[0.11, 0.23, 0.71, 0.83], [0.3, 0.2, 0.93, 0.57]]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g, b: roi_align(g, b, 2, 2), (grid, boxes))
    assert torch.autograd.gradcheck(lambda g, b: roi_pool(g, b, 5), (grid, boxes))
