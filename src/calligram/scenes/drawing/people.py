"""Drawings of people: a body in a pose, with the clothing of an appearance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from calligram.scenes.drawing.figure import HAIR_COLOURS, PALETTE, RGB, SKIN_COLOURS, Figure, Point, darker, lighter
from calligram.scenes.people import Appearance

Joints = tuple[Point, Point, Point]
HIP_HEIGHT, SHOULDER_HEIGHT = 0.46, 0.76
"""heights of the hip and the shoulder of a standing adult, in units of the body height"""
JUMP_HEIGHT = 0.16
"""height of a jump, in units of the body height"""

SLEEVE_WIDTH, ARM_WIDTH, LEG_WIDTH = 0.085, 0.062, 0.098
"""in units of the body height"""


@dataclass(frozen=True)
class Pose:
    """The joints of a body: shoulder, elbow and hand of each arm; hip, knee and foot of each leg."""

    far_arm: Joints
    near_arm: Joints
    far_leg: Joints
    near_leg: Joints
    sink: float = 0.0
    """distance of the upper body below that of a standing person"""
    lean: float = 0.0
    """distance of the shoulders in front of the hips"""


_FAR_ARM: Joints = ((-0.12, 0.735), (-0.17, 0.6), (-0.165, 0.46))
_NEAR_ARM: Joints = ((0.12, 0.735), (0.17, 0.6), (0.165, 0.46))
_STANDING = Pose(
    _FAR_ARM,
    _NEAR_ARM,
    ((-0.05, HIP_HEIGHT), (-0.06, 0.25), (-0.065, 0.035)),
    ((0.05, HIP_HEIGHT), (0.06, 0.25), (0.065, 0.035)),
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
        ((-0.03, HIP_HEIGHT), (-0.07, 0.25), (-0.17, 0.06)),
        ((0.03, HIP_HEIGHT), (0.12, 0.27), (0.13, 0.035)),
    ),
    "running": Pose(
        ((-0.1, 0.735), (-0.25, 0.66), (-0.22, 0.5)),
        ((0.1, 0.735), (0.2, 0.6), (0.33, 0.68)),
        ((-0.03, HIP_HEIGHT), (-0.12, 0.29), (-0.33, 0.27)),
        ((0.03, HIP_HEIGHT), (0.2, 0.34), (0.16, 0.035)),
        lean=0.07,
    ),
    "jumping": Pose(
        ((-0.12, 0.74), (-0.24, 0.83), (-0.28, 0.99)),
        ((0.12, 0.74), (0.24, 0.83), (0.28, 0.99)),
        ((-0.05, HIP_HEIGHT), (-0.18, 0.33), (-0.15, 0.14)),
        ((0.05, HIP_HEIGHT), (0.18, 0.33), (0.15, 0.14)),
    ),
    "sitting": Pose(
        *_SEATED_ARMS,
        ((-0.02, 0.1), (0.17, 0.22), (0.31, 0.05)),
        ((0.02, 0.08), (0.24, 0.15), (0.4, 0.04)),
        HIP_HEIGHT - 0.09,
    ),
    "seated": Pose(
        *_SEATED_ARMS,
        ((-0.03, 0.3), (0.17, 0.3), (0.18, 0.04)),
        ((0.02, 0.29), (0.21, 0.29), (0.23, 0.035)),
        HIP_HEIGHT - 0.29,
    ),
    "riding": Pose(
        ((-0.08, 0.735), (0.08, 0.64), (0.24, 0.56)),
        ((0.08, 0.735), (0.16, 0.62), (0.28, 0.56)),
        ((0.0, 0.04), (0.13, -0.05), (0.06, -0.2)),
        ((0.0, 0.03), (0.16, -0.08), (0.08, -0.26)),
        HIP_HEIGHT - 0.03,
        lean=0.03,
    ),
}
"""``seated`` is sitting on furniture, with the origin at the foot; ``riding`` has the origin at the seat"""
RAISED_ARM: Joints = ((0.12, 0.735), (0.21, 0.64), (0.25, 0.78))
"""the near arm of a person who holds a string or a handle"""
HUGGING_ARM: tuple[Joints, Joints] = (
    ((-0.12, 0.735), (-0.19, 0.6), (-0.07, 0.53)),
    ((0.12, 0.735), (0.19, 0.6), (0.07, 0.53)),
)
"""both arms of a person who holds a ball in front of the body"""


def draw_person(appearance: Appearance, pose: str, held: str = "") -> Figure:
    """Draw a person; the anchor ``hand`` is the point where a held object is attached."""
    child = appearance.kind in ("boy", "girl")
    # Children have larger heads, so their shoulders are lower.
    head = 0.135 if child else 0.105
    scale = (1 - 2 * head + 0.01) / (1 - 2 * 0.105 + 0.01)
    joints = _fit(_pose_with_held_object(POSES[pose], held), scale)
    figure = Figure()
    lift = JUMP_HEIGHT if pose == "jumping" else 0.0
    shoulders = (joints.lean, (SHOULDER_HEIGHT - joints.sink) * scale)
    if appearance.bag == "backpack":
        draw_bag(figure, appearance, shoulders)
    draw_top(figure, appearance, joints, shoulders, layer="far")
    draw_bottom(figure, appearance, joints)
    draw_shoes(figure, appearance, joints)
    draw_top(figure, appearance, joints, shoulders, layer="body")
    draw_head(figure, appearance, (joints.lean * 1.25, shoulders[1] + head * 1.22), head)
    draw_top(figure, appearance, joints, shoulders, layer="near")
    if appearance.bag == "handbag":
        draw_bag(figure, appearance, shoulders)
    hand = joints.near_arm[2] if held != "ball" else (joints.lean, joints.near_arm[2][1] + 0.02)
    figure.anchors["hand"] = hand
    return figure.moved(0.0, lift) if lift else figure


def _pose_with_held_object(pose: Pose, held: str) -> Pose:
    if held == "ball":
        return replace(pose, far_arm=_lowered(HUGGING_ARM[0], pose), near_arm=_lowered(HUGGING_ARM[1], pose))
    if held:
        return replace(pose, far_arm=_lowered(pose.far_arm, pose), near_arm=_lowered(RAISED_ARM, pose))
    return replace(pose, far_arm=_lowered(pose.far_arm, pose), near_arm=_lowered(pose.near_arm, pose))


def _lowered(arm: Joints, pose: Pose) -> Joints:
    """Move an arm with the shoulders; arms are defined for a standing body."""
    a, b, c = ((x + pose.lean, y - pose.sink) for x, y in arm)
    return a, b, c


def _fit(pose: Pose, scale: float) -> Pose:
    def low(limb: Joints) -> Joints:
        a, b, c = ((x, y * scale) for x, y in limb)
        return a, b, c

    return replace(
        pose,
        far_arm=low(pose.far_arm),
        near_arm=low(pose.near_arm),
        far_leg=low(pose.far_leg),
        near_leg=low(pose.near_leg),
    )


def draw_bottom(figure: Figure, appearance: Appearance, joints: Pose) -> None:
    """Draw legs with trousers, shorts, a skirt or the lower half of a dress."""
    skin = SKIN_COLOURS[appearance.skin]
    for leg, far in ((joints.far_leg, True), (joints.near_leg, False)):
        if appearance.bottom in ("trousers", "shorts"):
            cloth = PALETTE[appearance.bottom_colour]
            _trouser(figure, leg, darker(cloth, 0.18) if far else cloth, skin, appearance.bottom == "shorts")
        else:
            figure.limb(leg, 0.06, darker(skin, 0.12) if far else skin)
    if appearance.bottom in ("skirt", ""):
        colour = PALETTE[appearance.bottom_colour or appearance.top_colour]
        _skirt(figure, joints, colour, 0.78 if appearance.top == "dress" else 0.6)


def _trouser(figure: Figure, leg: Joints, cloth: RGB, skin: RGB, short: bool) -> None:
    hip, knee, foot = leg
    if short:
        figure.limb((knee, foot), 0.06, skin)
        figure.limb((hip, _between(hip, knee, 0.9)), LEG_WIDTH + 0.015, cloth)
    else:
        figure.limb((hip, knee, _between(knee, foot, 0.82)), LEG_WIDTH, cloth)


def _skirt(figure: Figure, joints: Pose, colour: RGB, length: float) -> None:
    (x0, y0), (x1, y1) = joints.far_leg[0], joints.near_leg[0]
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    knees = [_between(leg[0], leg[1], length / 0.6) for leg in (joints.far_leg, joints.near_leg)]
    left, right = min(knees), max(knees)
    if left[1] > y - 0.08:  # seated: the skirt follows the thighs
        figure.limb(((x, y), knees[1]), 0.14, colour)
        return
    hem = min(left[1], right[1])
    spread = 0.1 if length < 0.7 else 0.12
    figure.polygon(
        ((x - 0.095, y + 0.06), (x + 0.095, y + 0.06), (right[0] + spread, hem), (left[0] - spread, hem)), colour
    )
    figure.polygon(
        ((x + 0.02, y + 0.02), (x + 0.05, y + 0.02), (right[0] + 0.045, hem), (right[0] + 0.01, hem)),
        darker(colour, 0.15),
    )


def draw_shoes(figure: Figure, appearance: Appearance, joints: Pose) -> None:
    """Draw a shoe at the end of each leg, pointing forward."""
    colour = PALETTE[appearance.shoes]
    for leg in (joints.far_leg, joints.near_leg):
        x, y = leg[2]
        figure.ellipse(x + 0.022, y - 0.005, 0.055, 0.03, colour)


def draw_top(
    figure: Figure, appearance: Appearance, joints: Pose, shoulders: Point, layer: Literal["far", "body", "near"]
) -> None:
    """Draw one layer of torso and arms. The head is drawn between the layers ``body`` and ``near``."""
    cloth, skin = PALETTE[appearance.top_colour], SKIN_COLOURS[appearance.skin]
    if layer != "body":
        arm = joints.far_arm if layer == "far" else joints.near_arm
        shade = 0.2 if layer == "far" else 0.08
        _sleeve(figure, arm, darker(cloth, shade), darker(skin, shade / 2), appearance.top == "jacket")
        return
    (x0, y0), (x1, y1) = joints.far_leg[0], joints.near_leg[0]
    hips, (sx, sy) = ((x0 + x1) / 2, (y0 + y1) / 2), shoulders
    narrow = 0.09 if appearance.kind in ("woman", "girl") else 0.108
    corners = (
        (hips[0] - narrow, hips[1] - 0.015),
        (hips[0] + narrow, hips[1] - 0.015),
        (sx + 0.135, sy),
        (sx - 0.135, sy),
    )
    figure.limb(((sx, sy), (sx, sy + 0.09)), 0.07, darker(skin, 0.1))
    figure.polygon(corners, cloth)
    figure.limb(((sx - 0.095, sy), (sx + 0.095, sy)), 0.08, cloth)
    if appearance.pattern == "striped":
        _stripes(
            figure,
            hips,
            shoulders,
            narrow,
            lighter(cloth, 0.75) if appearance.top_colour != "white" else PALETTE["grey"],
        )
    if appearance.top == "jacket":
        _lapels(figure, hips, shoulders, cloth)


def _lapels(figure: Figure, hips: Point, shoulders: Point, cloth: RGB) -> None:
    (hx, hy), (sx, sy) = hips, shoulders
    inner = (245, 245, 240) if sum(cloth) < 650 else (60, 60, 70)
    figure.polygon(((sx - 0.05, sy + 0.035), (sx + 0.05, sy + 0.035), (hx, (hy + sy) / 2 - 0.02)), inner)
    figure.limb(((hx, (hy + sy) / 2), (hx, hy)), 0.016, darker(cloth, 0.45))


def _stripes(figure: Figure, hips: Point, shoulders: Point, narrow: float, colour: RGB) -> None:
    for share in (0.1, 0.37, 0.64, 0.91):
        x, y = _between(hips, shoulders, share)
        half = narrow + (0.135 - narrow) * share
        figure.rectangle(x - half, y - 0.017, x + half, y + 0.017, colour)


def _sleeve(figure: Figure, arm: Joints, cloth: RGB, skin: RGB, long: bool) -> None:
    shoulder, elbow, hand = arm
    figure.limb((elbow, hand), ARM_WIDTH, skin)
    figure.disc(hand[0], hand[1], 0.036, skin)
    if long:
        figure.limb((shoulder, elbow, _between(elbow, hand, 0.75)), SLEEVE_WIDTH, cloth)
    else:
        figure.limb((shoulder, elbow), ARM_WIDTH, skin)
        figure.limb((shoulder, _between(shoulder, elbow, 0.7)), SLEEVE_WIDTH, cloth)


def draw_bag(figure: Figure, appearance: Appearance, shoulders: Point) -> None:
    """Draw a backpack behind the shoulders or a handbag at the hip."""
    colour, (x, y) = PALETTE[appearance.bag_colour], shoulders
    if appearance.bag == "backpack":
        figure.ellipse(x - 0.13, y - 0.14, 0.1, 0.15, darker(colour, 0.1))
        figure.ellipse(x - 0.16, y - 0.2, 0.06, 0.07, colour)
    else:
        figure.limb(((x - 0.1, y + 0.02), (x + 0.15, y - 0.3)), 0.018, darker(colour, 0.3))
        figure.rectangle(x + 0.07, y - 0.42, x + 0.24, y - 0.28, colour)
        figure.rectangle(x + 0.07, y - 0.33, x + 0.24, y - 0.28, darker(colour, 0.25))


def draw_head(figure: Figure, appearance: Appearance, centre: Point, r: float) -> None:
    """Draw face, hair, glasses, beard and hat."""
    (x, y), skin, hair = centre, SKIN_COLOURS[appearance.skin], HAIR_COLOURS[appearance.hair]
    if appearance.hair_style == "long":
        figure.ellipse(x - 0.02, y - 0.25 * r, 1.18 * r, 1.2 * r, darker(hair, 0.12))
        figure.polygon(
            ((x - 1.2 * r, y), (x + 0.95 * r, y), (x + 0.85 * r, y - 1.75 * r), (x - 1.35 * r, y - 1.75 * r)),
            darker(hair, 0.12),
        )
    elif appearance.hair_style == "tied":
        figure.disc(x - 0.75 * r, y + 0.95 * r, 0.48 * r, darker(hair, 0.12))
    figure.ellipse(x, y, 0.92 * r, r, skin)
    if appearance.beard:
        figure.dome(x + 0.04 * r, y - 0.12 * r, 0.9 * r, -0.92 * r, hair)
        figure.ellipse(x + 0.2 * r, y - 0.15 * r, 0.55 * r, 0.3 * r, skin)
    figure.dome(x, y + 0.2 * r, 0.98 * r, 0.86 * r, hair)
    figure.ellipse(x - 0.72 * r, y + 0.12 * r, 0.3 * r, 0.42 * r, hair)
    _face(figure, appearance, centre, r)
    _hat(figure, appearance, centre, r)


def _face(figure: Figure, appearance: Appearance, centre: Point, r: float) -> None:
    x, y = centre
    for side in (-0.14, 0.5):
        figure.ellipse(x + side * r, y - 0.02 * r, 0.1 * r, 0.14 * r, (40, 30, 30))
    if appearance.glasses:
        for side in (-0.14, 0.5):
            figure.disc(x + side * r, y, 0.28 * r, (20, 20, 26))
            figure.disc(x + side * r, y, 0.18 * r, (205, 228, 240))
        figure.rectangle(x - 0.9 * r, y - 0.05 * r, x - 0.3 * r, y + 0.05 * r, (20, 20, 26))
    figure.dome(x + 0.2 * r, y - 0.42 * r, 0.24 * r, -0.16 * r, (170, 60, 60))


def _hat(figure: Figure, appearance: Appearance, centre: Point, r: float) -> None:
    if not appearance.hat:
        return
    (x, y), colour = centre, PALETTE[appearance.hat_colour]
    if appearance.hat == "cap":
        figure.dome(x - 0.02 * r, y + 0.3 * r, 1.05 * r, 0.95 * r, colour)
        figure.ellipse(x + 0.85 * r, y + 0.36 * r, 0.65 * r, 0.15 * r, darker(colour, 0.2))
    else:
        figure.polygon(
            (
                (x - 0.78 * r, y + 0.5 * r),
                (x + 0.78 * r, y + 0.5 * r),
                (x + 0.62 * r, y + 1.5 * r),
                (x - 0.62 * r, y + 1.5 * r),
            ),
            colour,
        )
        figure.ellipse(x, y + 0.5 * r, 1.6 * r, 0.22 * r, colour)
        figure.rectangle(x - 0.75 * r, y + 0.6 * r, x + 0.75 * r, y + 0.82 * r, darker(colour, 0.4))


def _between(a: Point, b: Point, share: float) -> Point:
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share
