"""People: a body in a pose, dressed as its look says."""

from __future__ import annotations

from dataclasses import replace

from calligram.data.scenes.clothes import draw_bag, draw_bottom, draw_head, draw_shoes, draw_top
from calligram.data.scenes.figure import Figure
from calligram.data.scenes.look import Look
from calligram.data.scenes.poses import HUGGING, POSES, RAISED, SHOULDER, Joints, Pose

JUMP = 0.16
"""height of a jump, in units of the body's height"""


def draw_person(look: Look, pose: str, held: str = "") -> Figure:
    """Draw a person; the anchor ``hand`` is where something held attaches."""
    child = look.kind in ("boy", "girl")
    # Children have larger heads, so their shoulders are lower.
    head = 0.135 if child else 0.105
    squeeze = (1 - 2 * head + 0.01) / (1 - 2 * 0.105 + 0.01)
    joints = _fit(_holding(POSES[pose], held), squeeze)
    figure = Figure()
    lift = JUMP if pose == "jumping" else 0.0
    shoulders = (joints.lean, (SHOULDER - joints.sink) * squeeze)
    if look.bag == "backpack":
        draw_bag(figure, look, shoulders)
    draw_top(figure, look, joints, shoulders, layer="far")
    draw_bottom(figure, look, joints)
    draw_shoes(figure, look, joints)
    draw_top(figure, look, joints, shoulders, layer="body")
    draw_head(figure, look, (joints.lean * 1.25, shoulders[1] + head * 1.22), head)
    draw_top(figure, look, joints, shoulders, layer="near")
    if look.bag == "handbag":
        draw_bag(figure, look, shoulders)
    hand = joints.near_arm[2] if held != "ball" else (joints.lean, joints.near_arm[2][1] + 0.02)
    figure.anchors["hand"] = hand
    return figure.moved(0.0, lift) if lift else figure


def _holding(pose: Pose, held: str) -> Pose:
    if held == "ball":
        return replace(pose, far_arm=_sunk(HUGGING[0], pose), near_arm=_sunk(HUGGING[1], pose))
    if held:
        return replace(pose, far_arm=_sunk(pose.far_arm, pose), near_arm=_sunk(RAISED, pose))
    return replace(pose, far_arm=_sunk(pose.far_arm, pose), near_arm=_sunk(pose.near_arm, pose))


def _sunk(arm: Joints, pose: Pose) -> Joints:
    """Arms are given for a standing body; move them with the shoulders."""
    a, b, c = ((x + pose.lean, y - pose.sink) for x, y in arm)
    return a, b, c


def _fit(pose: Pose, squeeze: float) -> Pose:
    def low(limb: Joints) -> Joints:
        a, b, c = ((x, y * squeeze) for x, y in limb)
        return a, b, c

    return replace(
        pose,
        far_arm=low(pose.far_arm),
        near_arm=low(pose.near_arm),
        far_leg=low(pose.far_leg),
        near_leg=low(pose.near_leg),
    )
