"""ROI-align: what a map of a picture says about boxes in it (He et al., 2017), differentiable in map and boxes.

Bilinear interpolation is a product of one weight per axis, so that the mean over a box's sample points is a product of
two small matrices: no point is ever looked up.
"""

from __future__ import annotations

import torch
from torch import Tensor


def roi_align(grid: Tensor, boxes: Tensor, bins: int = 7, samples: int = 2) -> Tensor:
    """Each box as a map of ``bins`` x ``bins``: (N, R, D, bins, bins).

    A bin's value is the mean over ``samples`` x ``samples`` points, evenly spread in it; at each point the map is
    interpolated between the centres of its cells, and beyond the outermost centres it stays constant.

    Args:
        grid: (N, D, h, w), dividing each picture evenly.
        boxes: (N, R, 4) in shares of the picture's width and height.
    """
    across = axis_weights(boxes[..., 0], boxes[..., 2], grid.shape[3], bins, samples)
    down = axis_weights(boxes[..., 1], boxes[..., 3], grid.shape[2], bins, samples)
    images, channels, height, width = grid.shape
    # Rows first, for all channels at once, then columns: left to itself, einsum takes thirty times as long.
    rows = down.to(grid.dtype).flatten(1, 2) @ grid.transpose(1, 2).reshape(images, height, channels * width)
    rows = rows.reshape(images, -1, bins, channels, width).transpose(2, 3)
    return rows @ across.to(grid.dtype).transpose(2, 3).unsqueeze(2)


def roi_pool(grid: Tensor, boxes: Tensor, points: int = 14) -> Tensor:
    """The mean of the map over ``points`` x ``points`` places in each box: (N, R, D).

    Equal to the mean of ``roi_align`` over its bins where ``points`` is bins times samples, for a fraction of the work.
    """
    across = axis_weights(boxes[..., 0], boxes[..., 2], grid.shape[3], 1, points)  # (N, R, 1, w)
    down = axis_weights(boxes[..., 1], boxes[..., 3], grid.shape[2], 1, points)  # (N, R, 1, h)
    weights = (down.transpose(2, 3) * across).flatten(2)  # (N, R, h w)
    return weights.to(grid.dtype) @ grid.flatten(2).transpose(1, 2)


def axis_weights(start: Tensor, end: Tensor, cells: int, bins: int, samples: int) -> Tensor:
    """Weight of each cell in each bin along one axis: (..., bins, cells), rows sum to one.

    Args:
        start: (...) edge of the box as a share of the picture's side.
        end: (...) its far edge.
    """
    share = (torch.arange(bins * samples, device=start.device, dtype=start.dtype) + 0.5) / (bins * samples)
    points = start.unsqueeze(-1) + (end - start).unsqueeze(-1) * share
    place = (points * cells - 0.5).clamp(0, cells - 1)
    centres = torch.arange(cells, device=start.device, dtype=start.dtype)
    tent = (1 - (place.unsqueeze(-1) - centres).abs()).clamp(min=0)
    return tent.reshape(*start.shape, bins, samples, cells).mean(-2)
