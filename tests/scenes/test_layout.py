from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from calligram.scenes.drawing.paint import paint_alone, paint_scene
from calligram.scenes.drawing.people import POSES, draw_person
from calligram.scenes.generate import cast_of_image, sample_collection_cast
from calligram.scenes.kinds import THING_KINDS
from calligram.scenes.layout import compose_portrait, sample_facts
from calligram.scenes.world import PlacedFigure, Scene, Thing, find_relations

BLANK = (1, 254, 3)


def drawn_box(image):
    """The box around all pixels that are not blank."""
    painted = (np.asarray(image).astype(int) != BLANK).any(axis=2)
    ys, xs = np.flatnonzero(painted.any(axis=1)), np.flatnonzero(painted.any(axis=0))
    return np.array([xs[0], ys[0], xs[-1] + 1, ys[-1] + 1])


def visible_box(thing, size, width=1.0):
    return np.clip(np.array(thing.box) * size, 0, np.array([round(width * size), size] * 2))


@pytest.mark.parametrize("size", [64, 128, 300])
def test_boxes_equal_the_boxes_of_the_drawn_pixels_within_a_pixel(scenes, size):
    for scene in scenes[:25]:
        for thing, painted in zip(scene.things, scene.figures, strict=True):
            alone = paint_alone([painted], size, BLANK)
            assert np.abs(drawn_box(alone) - visible_box(thing, size)).max() <= 1.0, thing


def test_boxes_of_portraits_are_exact():
    cast = sample_collection_cast("people", 0, 40)
    for i in range(40):
        scene = compose_portrait(0, i, cast_of_image("people", i, cast)[0])
        alone = paint_alone(scene.figures, 128, BLANK, scene.width)
        assert np.abs(drawn_box(alone) - visible_box(scene.things[0], 128, scene.width)).max() <= 1.0


def test_things_are_inside_the_image_and_visible(scenes):
    for scene in scenes:
        for thing, painted in zip(scene.things, scene.figures, strict=True):
            x0, y0, x1, y1 = visible_box(thing, 128)
            full = np.array(thing.box) * 128
            assert (x1 - x0) * (y1 - y0) > 0.8 * (full[2] - full[0]) * (full[3] - full[1])
            assert (x1 - x0) * (y1 - y0) > 60, thing
            before = [p for p in scene.figures if p.depth > painted.depth]
            alone, covered = paint_alone([painted], 128, BLANK), paint_alone([painted, *before], 128, BLANK)
            area = (np.asarray(alone).astype(int) != BLANK).any(axis=2)
            same = (np.asarray(alone) == np.asarray(covered)).all(axis=2)
            assert (same & area).sum() > 0.35 * area.sum(), thing


@pytest.mark.parametrize("kind", THING_KINDS)
def test_every_kind_is_drawn_at_its_foot_in_every_colour_and_pose(kind):
    known = THING_KINDS[kind]
    for colour, pose in itertools.product(known.colours or ("green",), known.poses or ("standing",)):
        facts = {**sample_facts(random.Random(0), kind), "colour": colour, "pose": pose}
        left, low, right, high = known.draw(facts).box()
        assert 0.3 < high - low < 1.4
        assert 0.3 < right - left < 2.4
        assert left < 0.3
        assert right > -0.3


def test_people_can_be_drawn_in_every_pose_with_every_held_object():
    for look in sample_collection_cast("people", 1, 30):
        for pose in POSES:
            for held in ("", "balloon", "ball"):
                figure = draw_person(look, pose, held)
                assert 0.4 < figure.box()[3] - figure.box()[1] < 1.5
                assert "hand" in figure.anchors


@pytest.mark.parametrize("size", [16, 33, 64, 200, 512])
def test_scenes_look_alike_at_every_size(scenes, size):
    image = paint_scene(scenes[3], size)
    assert image.size == (size, size)
    small = np.asarray(image.resize((16, 16), 4)).astype(float)
    reference = np.asarray(paint_scene(scenes[3], 128).resize((16, 16), 4)).astype(float)
    assert np.abs(small - reference).mean() < 14


def thing(x0, y0, x1, y1, kind="dog", standing=True):
    return Thing({"kind": kind}, (x0, y0, x1, y1), y1, y1, standing)


def names(first, second):
    scene = Scene("park", "day", (first, second))
    return {name for i, name, j in find_relations(scene) if (i, j) == (0, 1)}


def test_relations_follow_from_boxes():
    dog, far, near = thing(0.1, 0.7, 0.3, 0.9), thing(0.7, 0.7, 0.9, 0.9), thing(0.35, 0.7, 0.55, 0.9)
    assert names(dog, far) == {"left of"}
    assert names(far, dog) == {"right of"}
    assert names(dog, near) == {"left of", "next to"}
    house = thing(0.05, 0.3, 0.5, 0.7, "house")
    assert names(dog, house) == {"in front of"}
    assert names(house, dog) == {"behind"}
    bird = thing(0.1, 0.1, 0.2, 0.2, "bird", standing=False)
    assert names(bird, house) == set()


def test_a_person_at_the_trunk_is_under_the_tree():
    assert "under" in names(thing(0.4, 0.6, 0.5, 0.9, "man"), thing(0.25, 0.2, 0.65, 0.75, "leafy tree"))


def test_a_held_thing_has_only_the_relation_holding():
    scene = Scene(
        "park", "day", (thing(0.1, 0.4, 0.3, 0.9, "man"), thing(0.3, 0.2, 0.4, 0.6, "balloon")), ((0, "holding", 1),)
    )
    assert find_relations(scene) == [(0, "holding", 1)]


def test_drawn_things_do_not_depend_on_the_drawing_order_of_others():
    figure = THING_KINDS["ball"].draw({"colour": "red"})
    left, right = PlacedFigure(figure, 0.2, 0.9, 0.2, False, 0.9), PlacedFigure(figure, 0.8, 0.9, 0.2, False, 0.9)
    assert paint_alone([left, right], 64, BLANK).tobytes() == paint_alone([right, left], 64, BLANK).tobytes()
