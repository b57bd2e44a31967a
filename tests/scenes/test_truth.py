from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from calligram.scenes.truth import SceneQuery, SceneView, ThingPattern, find_true_pairs, fits_pattern, is_true

MAN = {"kind": "man", "top": "shirt", "top colour": "red", "pose": "running"}
BROWN, BLACK = {"kind": "dog", "colour": "brown"}, {"kind": "dog", "colour": "black"}
A_DOG, A_MAN = ThingPattern((("kind", ("dog",)),)), ThingPattern((("kind", ("man",)),))


def view(*facts, relations=(), setting="park", time="day"):
    return SceneView(setting, time, facts, frozenset(relations))


def literally_true(query, scene):
    """Try every choice of things for the patterns, as the definition says."""
    if (query.settings and scene.setting not in query.settings) or (query.times and scene.time not in query.times):
        return False
    like = [[i for i, f in enumerate(scene.facts) if fits_pattern(f, p)] for p in query.patterns]
    for pattern, things in zip(query.patterns, like, strict=True):
        if pattern.count is not None and len(things) != pattern.count:
            return False
    choices = [
        [(i,) for i in things] if p.count is None else [tuple(things)]
        for p, things in zip(query.patterns, like, strict=True)
    ]
    for chosen in itertools.product(*choices):
        named = [i for group in chosen for i in group]
        linked = [(i, name, j) for a, name, b in query.links for i in chosen[a] for j in chosen[b]]
        if len(set(named)) == len(named) and scene.relations.issuperset(linked):
            return True
    return False


def test_true_pairs_equal_a_test_of_every_caption_on_every_scene(scenes, captions):
    views = [SceneView.of(scene) for scene in scenes]
    queries = [caption.query for _, caption in captions]
    expected = [
        (v, q) for v, scene in enumerate(views) for q, query in enumerate(queries) if literally_true(query, scene)
    ]
    assert find_true_pairs(views, queries).tolist() == [list(pair) for pair in expected]


def test_every_caption_is_true_of_its_own_scene(scenes, captions):
    assert all(is_true(caption.query, SceneView.of(scenes[row])) for row, caption in captions)


def test_no_captions_give_no_true_pairs(scenes):
    assert find_true_pairs([SceneView.of(s) for s in scenes], []).shape == (0, 2)


def test_one_dog_means_at_least_one_and_two_dogs_exactly_two():
    two_dogs = SceneQuery((replace(A_DOG, count=2),))
    assert is_true(SceneQuery((A_DOG,)), view(BROWN, BLACK))
    assert is_true(two_dogs, view(BROWN, BLACK))
    assert not is_true(two_dogs, view(BROWN, BLACK, BROWN))
    assert not is_true(two_dogs, view(BROWN))


def test_two_phrases_need_two_things():
    animal = ThingPattern((("kind", ("dog", "cat")),))
    assert not is_true(SceneQuery((A_DOG, animal)), view(BROWN))
    assert is_true(SceneQuery((A_DOG, animal)), view(BROWN, BLACK))


def test_a_relation_can_hold_for_any_fitting_thing():
    query = SceneQuery((A_MAN, A_DOG), ((0, "next to", 1),))
    assert is_true(query, view(MAN, BROWN, BLACK, relations=[(0, "next to", 2)]))
    assert not is_true(query, view(MAN, BROWN, BLACK, relations=[(2, "next to", 0)]))


def test_a_relation_of_a_group_holds_for_each_thing():
    query = SceneQuery((A_MAN, replace(A_DOG, count=2)), ((0, "next to", 1),))
    assert not is_true(query, view(MAN, BROWN, BLACK, relations=[(0, "next to", 1)]))
    assert is_true(query, view(MAN, BROWN, BLACK, relations=[(0, "next to", 1), (0, "next to", 2)]))


@pytest.mark.parametrize("change", ["setting", "time", "relations"])
def test_a_caption_is_false_after_a_claimed_setting_time_or_relation_changes(scenes, captions, change):
    claimed = {"setting": "settings", "time": "times", "relations": "links"}[change]
    other = {"setting": "elsewhere", "time": "never", "relations": frozenset()}[change]
    claiming = [(row, c) for row, c in captions if getattr(c.query, claimed)]
    assert len(claiming) > 30
    assert not any(is_true(c.query, replace(SceneView.of(scenes[row]), **{change: other})) for row, c in claiming)


def test_a_caption_is_false_after_a_claimed_fact_changes_everywhere(scenes, captions):
    for row, caption in captions:
        scene = SceneView.of(scenes[row])
        for pattern in caption.query.patterns:
            for name, _ in pattern.constraints:
                changed = tuple({**facts, name: "something else"} for facts in scene.facts)
                assert not is_true(caption.query, replace(scene, facts=changed)), (caption.text, name)


def test_a_caption_with_a_number_is_false_after_one_more_thing_is_added(scenes, captions):
    counted = [(row, c, p) for row, c in captions for p in c.query.patterns if p.count]
    assert counted
    for row, caption, pattern in counted:
        scene = SceneView.of(scenes[row])
        more = next(f for f in scene.facts if fits_pattern(f, pattern))
        assert not is_true(caption.query, replace(scene, facts=(*scene.facts, more)))


def test_general_words_make_captions_true_of_other_scenes(scenes, captions):
    pairs = find_true_pairs([SceneView.of(s) for s in scenes], [c.query for _, c in captions])
    of_caption = np.bincount(pairs[:, 1], minlength=len(captions))
    assert of_caption.min() >= 1
    assert 0.6 < (1 / of_caption).mean() < 0.95
