from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.files import remove_leftovers
from calligram.scenes.generate import (
    SceneJob,
    cast_of_image,
    generate_images,
    generate_scenes,
    sample_collection_cast,
    split_by_block,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Collection:
    return generate_scenes(tmp_path_factory.mktemp("made") / "scenes", images=60, seed=3, size=64)


def contents(collection):
    return {
        p.relative_to(collection.folder): p.read_bytes() for p in sorted(collection.folder.rglob("*")) if p.is_file()
    }


def test_the_same_seed_gives_the_same_bytes_with_one_process_or_two(tmp_path):
    first = generate_scenes(tmp_path / "first", images=30, seed=1, size=32, workers=1)
    second = generate_scenes(tmp_path / "second", images=30, seed=1, size=32, workers=2)
    other = generate_scenes(tmp_path / "other", images=30, seed=2, size=32)
    assert contents(first) == contents(second)
    assert contents(first) != contents(other)


def test_what_a_killed_generator_leaves_is_removed_by_the_next(tmp_path):
    """Its workers end too; they would hold the lock of the scratch folder."""
    code = "import sys; from pathlib import Path; from calligram.scenes.generate import generate_scenes; "
    code += "generate_scenes(Path(sys.argv[1]), images=5000, workers=2)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "c")]) as process:
        while not any(tmp_path.glob(".c.writing-*/*.tar")):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    assert len(list(tmp_path.iterdir())) == 1
    deadline = time.monotonic() + 60
    while any(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)  # the workers need a moment
        remove_leftovers(tmp_path / "c")
    assert not any(tmp_path.iterdir())


def test_a_worker_leaves_ctrl_c_to_its_parent():
    """A terminal sends it to both. A worker that ends while it takes a job would let all others wait forever."""
    cast = sample_collection_cast("scenes", 0, 200)
    jobs = [SceneJob("scenes", 0, index, cast_of_image("scenes", index, cast), 32, 1) for index in range(200)]
    images = generate_images(jobs, workers=2)
    next(images)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker.pid, signal.SIGINT)
        worker.join(0.5)
        assert worker.is_alive()
    assert len(list(images)) == 199


def test_an_image_does_not_depend_on_the_number_of_images(made, tmp_path):
    fewer = generate_scenes(tmp_path / "fewer", images=12, seed=3, size=64)
    assert [fewer.pictures.read(i) for i in range(12)] == [made.pictures.read(i) for i in range(12)]
    assert fewer.column("captions", "text") == made.column("captions", "text")[:60]
    assert fewer.column("images", "facts") == made.column("images", "facts")[:12]


def test_boxes_scale_with_the_pictures(made, tmp_path):
    larger = generate_scenes(tmp_path / "larger", images=5, seed=3, size=160)
    count = len(larger.table("regions"))
    for edge in ("x0", "y0", "x1", "y1"):
        small, large = (np.array(c.column("regions", edge)[:count], dtype=float) for c in (made, larger))
        np.testing.assert_allclose(large, small * 2.5, rtol=1e-5)
    assert larger.pictures.open(0).size == (160, 160)


def test_pictures_are_in_one_tar_and_no_temporary_files_are_left(made):
    assert made.manifest["shards"] == ["shards/0000-pictures-000.tar"]
    assert [p.name for p in made.folder.parent.iterdir()] == ["scenes"]
    assert made.pictures.open(59).size == (64, 64)


def test_every_image_has_its_captions_phrases_and_regions(made):
    assert len(made.table("captions")) == 300
    phrases = made.table("phrases").to_pylist()
    texts = made.column("captions", "text")
    assert all(texts[p["caption"]][p["start"] : p["end"]] == p["text"] for p in phrases)
    grounded = set(made.column("groundings", "phrase"))
    assert grounded == set(range(len(phrases)))
    assert not made.has("problems")


def test_phrases_refer_to_regions_of_their_own_image(made):
    image_of_caption = dict(zip(made.column("matches", "caption"), made.column("matches", "image"), strict=True))
    phrase_caption, region_image = made.column("phrases", "caption"), made.column("regions", "image")
    for pair in made.table("groundings").to_pylist():
        assert image_of_caption[phrase_caption[pair["phrase"]]] == region_image[pair["region"]]


def test_true_pairs_contain_every_match_and_more(made):
    pairing = made.sentences("all")
    everything = (np.arange(60), np.arange(300))
    matched, true = pairing.matches.target(*everything) > 0, pairing.also_true.target(*everything) > 0
    assert (true | ~matched).all()
    assert len(pairing.also_true) > len(pairing.matches)


def test_people_appear_in_several_images_but_in_one_split(made):
    splits = made.column("images", "split")
    seen: dict[int, set[int]] = {}
    for region in made.table("regions").to_pylist():
        if region["identity"] is not None:
            seen.setdefault(region["identity"], set()).add(region["image"])
    assert 12 <= len(seen) <= 24
    assert np.mean([len(images) for images in seen.values()]) > 2
    assert all(len({splits[i] for i in images}) == 1 for images in seen.values())


def test_a_person_has_the_same_appearance_in_every_image(made):
    looks: dict[int, set[str]] = {}
    poses: dict[int, set[str]] = {}
    for facts in made.column("images", "facts"):
        for thing in json.loads(facts)["things"]:
            if "identity" in thing:
                fixed = {k: v for k, v in thing.items() if k not in ("box", "pose", "identity")}
                looks.setdefault(thing["identity"], set()).add(json.dumps(fixed, sort_keys=True))
                poses.setdefault(thing["identity"], set()).add(thing["pose"])
    assert all(len(found) == 1 for found in looks.values())
    assert max(len(found) for found in poses.values()) >= 3


def test_metadata_have_the_facts_of_the_generator(made):
    assert made.metadata_columns == ("setting", "time", "things", "people", "facts")
    assert made.name == "scenes-60-s3"
    assert made.manifest["about"]["licence"] == "CC0-1.0"
    for row, facts in enumerate(made.column("images", "facts")):
        known = json.loads(facts)
        assert known["setting"] == made.column("images", "setting")[row]
        assert len(known["things"]) == made.column("images", "things")[row] >= 1


@pytest.mark.parametrize(
    "images, expected",
    [(2000, (1600, 200, 200)), (100, (80, 10, 10)), (50, (30, 10, 10)), (12, (10, 1, 1)), (1, (1, 0, 0))],
)
def test_splits_have_whole_blocks_if_there_are_enough(images, expected):
    names = split_by_block("scenes", images, (0.8, 0.1, 0.1))
    assert tuple(names.count(s) for s in ("train", "dev", "test")) == expected


def test_a_share_of_zero_gives_no_images():
    assert set(split_by_block("scenes", 200, (0.0, 0.0, 1.0))) == {"test"}


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"images": 0}, "images must be at least 1, got 0"),
        ({"size": 8}, r"size must lie in 16\.\.4096 pixels, got 8"),
        ({"captions": 0}, r"captions must lie in 1\.\.20, got 0"),
        ({"splits": (0.5, 0.5, 0.5)}, "three shares that add up to 1"),
        ({"kind": "scene"}, "unknown kind of scenes 'scene'; did you mean 'scenes'"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, wrong, message):
    with pytest.raises(UserError, match=message):
        generate_scenes(tmp_path / "refused", **wrong)
    assert not any(tmp_path.iterdir())


def test_an_existing_destination_is_refused_before_the_generation(made):
    with pytest.raises(UserError, match="already holds a collection"):
        generate_scenes(made.folder, images=10**9)
