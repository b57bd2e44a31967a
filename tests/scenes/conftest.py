"""A hundred scenes with their captions, without pictures: enough for every kind of sentence to occur."""

from __future__ import annotations

import random

import pytest

from calligram.scenes.captions import write_captions
from calligram.scenes.generate import cast_of_image, sample_collection_cast
from calligram.scenes.layout import compose_scene
from calligram.scenes.phrases import SceneCaption
from calligram.scenes.truth import SceneView
from calligram.scenes.world import Scene


@pytest.fixture(scope="session")
def scenes() -> list[Scene]:
    cast = sample_collection_cast("scenes", 5, 100)
    return [compose_scene(5, i, cast_of_image("scenes", i, cast)) for i in range(100)]


@pytest.fixture(scope="session")
def captions(scenes: list[Scene]) -> list[tuple[int, SceneCaption]]:
    """Each caption with the row of the scene it was written for."""
    written = []
    for row, scene in enumerate(scenes):
        written += [(row, c) for c in write_captions(random.Random(row), SceneView.of(scene), 5)]
    return written
