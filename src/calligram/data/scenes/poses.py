"""Where a body's joints are in each pose."""

from __future__ import annotations

from dataclasses import dataclass, replace

from calligram.data.scenes.figure import Point

Joints = tuple[Point, Point, Point]

HIP, SHOULDER = 0.46, 0.76
"""heights of a standing adult's joints, in units of the body's height"""


@dataclass(frozen=True)
class Pose:
    """Shoulder, elbow, hand of each arm and hip, knee, foot of each leg; the far side first."""

    far_arm: Joints
    near_arm: Joints
    far_leg: Joints
    near_leg: Joints
    sink: float = 0.0
    """how far the upper body lies below a standing one's"""
    lean: float = 0.0
    """how far the shoulders lie before the hips"""


_FAR_ARM: Joints = ((-0.12, 0.735), (-0.17, 0.6), (-0.165, 0.46))
_NEAR_ARM: Joints = ((0.12, 0.735), (0.17, 0.6), (0.165, 0.46))
_STANDING = Pose(
    _FAR_ARM,
    _NEAR_ARM,
    ((-0.05, HIP), (-0.06, 0.25), (-0.065, 0.035)),
    ((0.05, HIP), (0.06, 0.25), (0.065, 0.035)),
)
_SEATED_ARMS: tuple[Joints, Joints] = (
    ((-0.1, 0.735), (-0.15, 0.6), (-0.02, 0.52)),
    ((0.1, 0.735), (0.13, 0.6), (0.24, 0.54)),
)

POSES: dict[str, Pose] = {
    "standing": _STANDING,
    "waving": replace(_STANDING, near_arm=((0.12, 0.74), (0.25, 0.8), (0.27, 0.97))),
    "walking": Pose(
        ((-0.11, 0.735), (-0.18, 0.62), (-0.24, 0.5)),
        ((0.11, 0.735), (0.16, 0.61), (0.25, 0.53)),
        ((-0.03, HIP), (-0.07, 0.25), (-0.17, 0.06)),
        ((0.03, HIP), (0.12, 0.27), (0.13, 0.035)),
    ),
    "running": Pose(
        ((-0.1, 0.735), (-0.25, 0.66), (-0.22, 0.5)),
        ((0.1, 0.735), (0.2, 0.6), (0.33, 0.68)),
        ((-0.03, HIP), (-0.12, 0.29), (-0.33, 0.27)),
        ((0.03, HIP), (0.2, 0.34), (0.16, 0.035)),
        lean=0.07,
    ),
    "jumping": Pose(
        ((-0.12, 0.74), (-0.24, 0.83), (-0.28, 0.99)),
        ((0.12, 0.74), (0.24, 0.83), (0.28, 0.99)),
        ((-0.05, HIP), (-0.18, 0.33), (-0.15, 0.14)),
        ((0.05, HIP), (0.18, 0.33), (0.15, 0.14)),
    ),
    "sitting": Pose(
        *_SEATED_ARMS, ((-0.02, 0.1), (0.17, 0.22), (0.31, 0.05)), ((0.02, 0.08), (0.24, 0.15), (0.4, 0.04)), HIP - 0.09
    ),
    "seated": Pose(
        *_SEATED_ARMS,
        ((-0.03, 0.3), (0.17, 0.3), (0.18, 0.04)),
        ((0.02, 0.29), (0.21, 0.29), (0.23, 0.035)),
        HIP - 0.29,
    ),
    "riding": Pose(
        ((-0.08, 0.735), (0.08, 0.64), (0.24, 0.56)),
        ((0.08, 0.735), (0.16, 0.62), (0.28, 0.56)),
        ((0.0, 0.04), (0.13, -0.05), (0.06, -0.2)),
        ((0.0, 0.03), (0.16, -0.08), (0.08, -0.26)),
        HIP - 0.03,
        lean=0.03,
    ),
}
"""``seated`` is sitting on something, with the origin at its foot; ``riding`` has the origin at the seat."""

RAISED: Joints = ((0.12, 0.735), (0.21, 0.64), (0.25, 0.78))
"""the near arm when it holds a string or a handle"""
HUGGING: tuple[Joints, Joints] = (
    ((-0.12, 0.735), (-0.19, 0.6), (-0.07, 0.53)),
    ((0.12, 0.735), (0.19, 0.6), (0.07, 0.53)),
)
"""both arms when they hold a ball before the body"""
