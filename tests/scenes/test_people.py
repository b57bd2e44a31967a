from __future__ import annotations

import re

import numpy as np
import pytest

from calligram.data.collection import Collection
from calligram.scenes.generate import generate_scenes, sample_collection_cast


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> Collection:
    return generate_scenes(tmp_path_factory.mktemp("people") / "people", images=140, seed=0, size=64, kind="people")


def test_each_person_has_three_or_four_images_in_one_split(people):
    identity, splits = people.numbers("images", "identity"), people.column("images", "split")
    assert set(np.bincount(identity).tolist()) == {3, 4}
    assert all(len({splits[i] for i in np.flatnonzero(identity == who)}) == 1 for who in set(identity.tolist()))


def test_images_have_portrait_format_and_one_large_person(people):
    assert people.pictures.open(0).size == (40, 64)
    regions = people.table("regions").to_pylist()
    assert [r["image"] for r in regions] == list(range(140))
    assert np.mean([r["y1"] - r["y0"] for r in regions]) > 0.7 * 64


def test_captions_describe_the_appearance_and_are_true_of_all_images_of_the_person(people):
    assert len(people.table("captions")) == 280
    by_image, by_person = people.sentences("all"), people.identities("all")
    everything = (np.arange(140), np.arange(280))
    true = by_image.also_true.target(*everything) > 0
    assert (true | ~(by_person.matches.target(*everything) > 0)).all()
    assert true.sum() < 1.5 * len(by_person.matches)


def test_two_thousand_people_have_different_appearances():
    cast = sample_collection_cast("people", 0, 7000)
    assert len(cast) == 2000
    assert len({tuple(sorted(look.facts().items())) for look in cast}) == 2000


def test_an_appearance_does_not_depend_on_the_number_of_people():
    assert sample_collection_cast("people", 4, 700)[:20] == sample_collection_cast("people", 4, 70)


def test_descriptions_are_grammatical(people):
    for text in people.column("captions", "text"):
        assert re.fullmatch(r"[A-Z].*\.", text)
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]|  | ,", text), text
