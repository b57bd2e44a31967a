"""People seen large, one to an image, for person search: the same look in several poses and places."""

from __future__ import annotations

import random

from calligram.data.scenes.composing import Member, pick
from calligram.data.scenes.described import describe_person
from calligram.data.scenes.draw_people import draw_person
from calligram.data.scenes.kinds import PERSON_HEIGHT, SETTINGS, TIMES
from calligram.data.scenes.sentence import Caption, Span, write_different
from calligram.data.scenes.stage import Part, Spot, Stage, Unit
from calligram.data.scenes.truth import View
from calligram.data.scenes.world import Scene

WIDTH = 0.625
"""of a portrait, in units of its height"""
POSES = ("standing", "standing", "walking", "walking", "running", "waving")


def compose_portrait(seed: int, index: int, member: Member) -> Scene:
    """Portrait ``index`` of a seed: ``member`` in some pose before some background."""
    rng = random.Random(f"{seed}/portrait/{index}")
    setting, time = rng.choice(tuple(SETTINGS)), pick(rng, {**TIMES, "day": 1.0})
    identity, look = member
    pose = rng.choice(POSES)
    figure = draw_person(look, pose)
    left, low, right, high = figure.box()
    tall = rng.uniform(0.8, 0.92) / max(1.0, high - low)
    # Children stay a little smaller, as their heads would otherwise fill the frame.
    tall *= 0.94 if PERSON_HEIGHT[look.kind] < 0.45 else 1.0
    tall = min(tall, (WIDTH - 0.02) / (right - left))
    stage, flip = Stage(WIDTH), rng.random() < 0.5
    middle = (left + right) / 2 * tall * (-1 if flip else 1)
    slack = max(0.0, (WIDTH - (right - left) * tall) / 2 - 0.01)
    x = WIDTH / 2 - middle + rng.uniform(-slack, slack) * 0.6
    part = Part({**look.facts(), "pose": pose}, figure, 1.0, identity=identity)
    placed = stage.add(Unit((part,)), Spot(x, rng.uniform(0.955, 0.985), tall, flip))
    assert placed, "a portrait always fits"
    return stage.scene(setting, time, f"{seed}/portrait-backdrop/{index}")


def write_portrait_captions(rng: random.Random, view: View, count: int) -> list[Caption]:
    """Describe the look in ``count`` different wordings. Pose and place are left out: they are not the person's."""

    def write() -> Caption:
        text, end, query = describe_person(rng, view.facts[0])
        return Caption(text, (Span(0, end, (0,)),), query)

    return write_different(write, count)
