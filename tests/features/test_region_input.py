from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from calligram.data.boxes import iou
from calligram.data.collection import Collection
from calligram.data.grounding import ImageBoxes, box_visuals
from calligram.errors import UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import RegionInput, StoredRegionRows
from calligram.features.inputs import Inputs
from calligram.features.regions.extract import ExtractionTask, add_regions
from calligram.features.regions.proposers import SlidingWindows
from calligram.features.regions.region_features import RegionCrops, RegionPooling
from calligram.features.texts.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A random MobileNet, small, as a folder."""
    from transformers import MobileNetV2Config, MobileNetV2Model

    folder = tmp_path_factory.mktemp("network")
    torch.manual_seed(0)
    MobileNetV2Model(MobileNetV2Config(image_size=32, depth_multiplier=0.25)).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def collection(tiny, tmp_path):
    shutil.copytree(tiny.folder, tmp_path / "copy")
    return Collection.open(tmp_path / "copy")


def crops(**changes):
    return RegionInput(RegionCrops(PixelInput(32), 4), "grid", "grid", **{"top": 12, "geometry": 1.0, **changes})


def test_stored_features_are_those_computed_for_the_same_boxes_and_for_a_new_picture(collection, network):
    pooling = RegionPooling.load(network, 64)
    after = add_regions(collection, ExtractionTask(SlidingWindows(12), "grid", 12, pooling), "test").collection
    inputs = RegionInput(pooling, "grid", "grid", 12, geometry=2.0)
    images = after.images_in("test")
    stored = inputs.proposal_features(after, images)
    assert isinstance(stored.rows, StoredRegionRows)
    rows = np.array([0, 13, 30, 71])
    taken = inputs.finish(stored.rows.take(rows))
    computed = inputs.load(box_visuals(after, stored.boxes))
    torch.testing.assert_close(taken, inputs.finish(computed.take(rows)))
    image = after.pictures.open(int(images[0]))
    boxes = inputs.propose(image)
    np.testing.assert_allclose(boxes, stored.boxes.boxes[stored.boxes.rows_of_image(int(images[0]))])
    fresh = inputs.finish(inputs.regions(image, boxes))
    torch.testing.assert_close(fresh, inputs.finish(stored.rows.take(np.arange(12))), rtol=1e-2, atol=2e-3)
    assert fresh.shape == (12, inputs.dim)


def test_features_of_another_network_are_not_taken(collection, network):
    after = add_regions(
        collection, ExtractionTask(SlidingWindows(12), "grid", 12, RegionPooling.load(network, 64)), "test"
    ).collection
    found = RegionInput(RegionPooling.load(network, 32), "grid", "grid", 12).proposal_features(
        after, after.images_in("test")
    )
    assert not isinstance(found.rows, StoredRegionRows)


def test_what_was_computed_is_kept(collection, monkeypatch):
    places = ImageBoxes(np.array([[0, 0, 20, 16], [8, 4, 33, 29], [2, 2, 9, 9]], np.float32), np.array([3, 3, 0]))
    first = crops().load(box_visuals(collection, places))
    monkeypatch.setattr(RegionCrops, "__call__", None)
    again = crops().load(box_visuals(collection, places))
    assert torch.equal(first.take(np.arange(3)), again.take(np.arange(3)))
    assert len(first) == 3


def test_a_crop_shows_what_is_in_the_box():
    picture = Image.new("RGB", (80, 40), "black")
    picture.paste("white", (40, 0, 80, 40))
    inputs = RegionInput(RegionCrops(PixelInput(32), 2, margin=0.0), "grid", "grid", geometry=0.0)
    left, right = inputs.finish(inputs.regions(picture, np.array([[4, 4, 30, 30], [50, 4, 76, 30]], np.float32)))
    assert left.tolist() == pytest.approx([-2.0] * 12, abs=0.02)
    assert right.tolist() == pytest.approx([2.0] * 12, abs=0.02)


def test_place_is_told_in_shares_of_the_picture_and_weighted():
    picture = Image.new("RGB", (80, 40))
    found = crops(geometry=2.0).finish(crops().regions(picture, np.array([[20, 10, 60, 30]], np.float32)))
    assert found[0, -5:].tolist() == pytest.approx([0.5, 0.5, 1.5, 1.5, 0.5])
    bare = crops(geometry=0.0)
    assert bare.finish(bare.regions(picture, np.array([[20, 10, 60, 30]], np.float32))).shape == (1, bare.dim)


def test_a_whole_picture_is_a_region(collection):
    visuals = collection.visuals(np.array([0, 1, 0]))
    rows = crops().load(visuals)
    whole = crops().images([collection.pictures.open(0), collection.pictures.open(1)])
    torch.testing.assert_close(rows.take(np.array([0, 1, 2])), whole[[0, 1, 0]])


@pytest.mark.parametrize("kind", ["crops", "network"])
def test_it_is_saved_with_the_matcher(kind, network, tmp_path):
    inputs = crops() if kind == "crops" else RegionInput(RegionPooling.load(network, 32), "grid", "grid", 9, 3.0)
    Inputs(inputs, Vocabulary.build(["a disc", "a disc"], 1, 9)).save(tmp_path)
    back = Inputs.read(tmp_path).images
    assert back == inputs
    picture, boxes = Image.effect_noise((40, 30), 90).convert("RGB"), np.array([[3, 4, 30, 20]], np.float32)
    torch.testing.assert_close(back.regions(picture, boxes), inputs.regions(picture, boxes))


def test_images_that_were_never_looked_at_are_named(collection):
    after = add_regions(collection, ExtractionTask(SlidingWindows(12), "grid", 12), "test").collection
    with pytest.raises(UserError, match=r"6 of 6 images of .* have no proposals 'grid'.*--proposals grid --top 12"):
        crops().proposal_features(after, after.images_in("dev"))


def test_a_picture_without_proposals_is_one_box():
    flat = Image.new("RGB", (60, 50))
    found = RegionInput(RegionCrops(PixelInput(32), 4), "edgeboxes", "edgeboxes").propose(flat)
    assert found.tolist() == [[0, 0, 60, 50]]
    assert iou(found, found)[0, 0] == 1
