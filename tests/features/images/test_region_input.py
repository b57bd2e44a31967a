from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from calligram.data.boxes import iou
from calligram.data.collection import Collection
from calligram.data.draft import RegionRecord
from calligram.data.grounding import ImageBoxes, box_visuals, feature_boxes
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import (
    RegionInput,
    RegionSettings,
    StoredRegionRows,
    region_input,
    stored_part_boxes,
)
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.regions.extract import ExtractionTask, add_regions
from calligram.features.regions.proposers import Proposals, SlidingWindows
from calligram.features.regions.region_features import CLASS_WEIGHT, RegionCrops, RegionPooling
from calligram.features.texts.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """The folder of a small random MobileNet."""
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


def test_stored_features_equal_those_computed_for_the_same_boxes_and_for_a_new_image(collection, network):
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


def test_stored_features_of_another_network_are_not_used(collection, network):
    after = add_regions(
        collection, ExtractionTask(SlidingWindows(12), "grid", 12, RegionPooling.load(network, 64)), "test"
    ).collection
    found = RegionInput(RegionPooling.load(network, 32), "grid", "grid", 12).proposal_features(
        after, after.images_in("test")
    )
    assert not isinstance(found.rows, StoredRegionRows)


def test_computed_features_are_stored(collection, monkeypatch):
    places = ImageBoxes(np.array([[0, 0, 20, 16], [8, 4, 33, 29], [2, 2, 9, 9]], np.float32), np.array([3, 3, 0]))
    first = crops().load(box_visuals(collection, places))
    monkeypatch.setattr(RegionCrops, "__call__", None)
    again = crops().load(box_visuals(collection, places))
    assert torch.equal(first.take(np.arange(3)), again.take(np.arange(3)))
    assert len(first) == 3


def test_a_crop_contains_the_pixels_of_the_box():
    picture = Image.new("RGB", (80, 40), "black")
    picture.paste("white", (40, 0, 80, 40))
    inputs = RegionInput(RegionCrops(PixelInput(32), 2, margin=0.0), "grid", "grid", geometry=0.0)
    left, right = inputs.finish(inputs.regions(picture, np.array([[4, 4, 30, 30], [50, 4, 76, 30]], np.float32)))
    assert left.tolist() == pytest.approx([-2.0] * 12, abs=0.02)
    assert right.tolist() == pytest.approx([2.0] * 12, abs=0.02)


def test_geometry_is_relative_to_the_image_and_weighted():
    picture = Image.new("RGB", (80, 40))
    found = crops(geometry=2.0).finish(crops().regions(picture, np.array([[20, 10, 60, 30]], np.float32)))
    assert found[0, -5:].tolist() == pytest.approx([0.5, 0.5, 1.5, 1.5, 0.5])
    bare = crops(geometry=0.0)
    assert bare.finish(bare.regions(picture, np.array([[20, 10, 60, 30]], np.float32))).shape == (1, bare.dim)


def test_a_whole_image_is_a_region(collection):
    visuals = collection.visuals(np.array([0, 1, 0]))
    rows = crops().load(visuals)
    whole = crops().images([collection.pictures.open(0), collection.pictures.open(1)])
    torch.testing.assert_close(rows.take(np.array([0, 1, 2])), whole[[0, 1, 0]])


@pytest.mark.parametrize("kind", ["crops", "network"])
def test_the_input_is_saved_with_the_matcher(kind, network, tmp_path):
    inputs = crops() if kind == "crops" else RegionInput(RegionPooling.load(network, 32), "grid", "grid", 9, 3.0)
    inputs = replace(inputs, vote=5.0)
    Inputs(inputs, Vocabulary.build(["a disc", "a disc"], 1, 9)).save(tmp_path)
    back = Inputs.read(tmp_path).images
    assert back == inputs
    picture, boxes = Image.effect_noise((40, 30), 90).convert("RGB"), np.array([[3, 4, 30, 20]], np.float32)
    torch.testing.assert_close(back.regions(picture, boxes), inputs.regions(picture, boxes))


class OneDetection:
    """A detector that finds the left half of every image, with class 1."""

    class_count, digest = 3, "d"

    def __call__(self, image):
        width, height = image.size
        boxes = np.array([[0, 0, width / 2, height], [0, 0, width / 2, height]], np.float32)
        return Proposals(boxes, np.array([0.8, 0.2], np.float32), ("class 1", "class 1"))


def test_classes_of_a_detector_follow_the_features_of_the_network(network):
    """IoU times score: 1 x 0.8 for the left half, 0.5 x 0.8 for the whole image, 0 for the right half."""
    plain = RegionPooling.load(network, 64)
    pooling = replace(plain, detector=OneDetection())
    picture = Image.effect_noise((40, 30), 90).convert("RGB")
    boxes = np.array([[0, 0, 20, 30], [0, 0, 40, 30], [20, 0, 40, 30]], np.float32)
    inputs = RegionInput(pooling, "grid", "grid", 9, 3.0)
    found = inputs.finish(inputs.regions(picture, boxes))
    assert inputs.dim == found.shape[1] == plain.dim + 3 + 5
    before = replace(inputs, pooling=plain)
    torch.testing.assert_close(found[:, : plain.dim], before.finish(before.regions(picture, boxes))[:, : plain.dim])
    classes = found[:, plain.dim : plain.dim + 3] / CLASS_WEIGHT
    torch.testing.assert_close(classes, torch.tensor([[0, 0.8, 0], [0, 0.4, 0], [0, 0, 0]]), atol=1e-3, rtol=1e-3)
    assert pooling.settings != plain.settings


def test_the_detector_is_saved_with_the_matcher(network, assets, tmp_path):
    pooling = RegionPooling.load(network, 64, detector=str(assets / "models" / "yolox_nano.onnx"))
    inputs = RegionInput(pooling, "grid", "grid", 9, 3.0)
    Inputs(inputs, Vocabulary.build(["a disc", "a disc"], 1, 9)).save(tmp_path)
    back = Inputs.read(tmp_path).images
    picture, boxes = Image.effect_noise((40, 30), 90).convert("RGB"), np.array([[3, 4, 30, 20]], np.float32)
    torch.testing.assert_close(back.regions(picture, boxes), inputs.regions(picture, boxes))
    assert back.dim == pooling.backbone.dim + 80 + 5


def test_overlapping_boxes_vote_for_each_other():
    """The best box stands alone. Two boxes with lower scores overlap by an IoU of 0.5 and win together."""
    boxes = np.array([[50, 50, 60, 60], [0, 0, 10, 10], [0, 0, 20, 10]], np.float32)
    probabilities = np.array([[0.4, 0.35, 0.25]], np.float32)
    scores = np.log(probabilities) / 7
    voted = crops(vote=7.0).voted(scores, boxes)
    np.testing.assert_allclose(voted, [[0.4, 0.35 + 0.5 * 0.25, 0.25 + 0.5 * 0.35]], rtol=1e-5)
    assert voted.argmax() == 1
    assert crops().voted(scores, boxes) is scores


def test_a_detector_of_classes_needs_a_network(collection):
    after = add_regions(collection, ExtractionTask(SlidingWindows(12), "grid", 12), "test").collection
    with pytest.raises(UserError, match=r"give region\.backbone as well"):
        region_input(RegionSettings(proposals="grid", detector="some.onnx"), after)


def test_images_without_proposals_are_refused_with_the_command_to_run(collection):
    after = add_regions(collection, ExtractionTask(SlidingWindows(12), "grid", 12), "test").collection
    with pytest.raises(UserError, match=r"6 of 6 images of .* have no proposals 'grid'.*--proposals grid --top 12"):
        crops().proposal_features(after, after.images_in("dev"))


def test_a_new_image_without_proposals_is_one_box():
    flat = Image.new("RGB", (60, 50))
    found = RegionInput(RegionCrops(PixelInput(32), 4), "edgeboxes", "edgeboxes").propose(flat)
    assert found.tolist() == [[0, 0, 60, 50]]
    assert iou(found, found)[0, 0] == 1


@pytest.mark.parametrize("fit", ["squash", "crop"])
@pytest.mark.parametrize("size", [(90, 60), (60, 91), (64, 64)])
def test_the_pixels_of_a_grid_cell_lie_in_its_box_of_the_image(fit, size):
    """A white patch in the box of a cell fills this cell of the network input, and no other cell."""
    pixels = PixelInput(48, fit)
    boxes = pixels.part_boxes(size, 9)
    for number, (left, top, right, bottom) in enumerate(boxes * np.array([*size, *size])):
        picture = Image.new("RGB", size)
        picture.paste("white", (round(left), round(top), round(right), round(bottom)))
        given = pixels.resize(picture).mean(0).reshape(3, 16, 3, 16).mean((1, 3)).ravel()
        assert given.argmax() == number
        assert given[number] > 220
        assert np.delete(given, number).max() < 25


def test_square_grid_boxes_equal_those_computed_by_hand():
    """Of 100 x 50 pixels, crop keeps columns 25 to 75: two by two cells of 25 pixels."""
    expected = [[0.25, 0, 0.5, 0.5], [0.5, 0, 0.75, 0.5], [0.25, 0.5, 0.5, 1], [0.5, 0.5, 0.75, 1]]
    np.testing.assert_allclose(PixelInput(8, "crop").part_boxes((100, 50), 4), expected)
    np.testing.assert_allclose(PixelInput(8).part_boxes((100, 50), 1), [[0, 0, 1, 1]])
    assert PixelInput(8).part_boxes((100, 50), 6) is None
    assert StoredInput("colour").part_boxes((100, 50), 4) is None


@pytest.fixture(scope="module")
def boxed(tiny_draft, tmp_path_factory):
    """A collection with features of up to three boxes per image, named by their source and as in bottom-up files."""
    folder = tmp_path_factory.mktemp("boxed")
    (folder / "pictures").mkdir()
    draft = tiny_draft(folder / "pictures")
    values = np.random.default_rng(0).normal(size=(len(draft.images), 3, 4)).astype(np.float32)
    for name, source in (("windows", "windows"), ("regions", "bottom-up")):
        np.save(folder / f"{name}.npy", values)
        draft.features[name] = [folder / f"{name}.npy"]
        for row, image in enumerate(draft.images):
            image.feature_rows[name] = row
            for number in range(3):
                box = (4.0 * number, 2.0, 20.0 + number, 30.0)
                draft.regions.append(RegionRecord(f"{image.id}/{source}{number}", image.id, box, source=source))
    return write_draft(draft, folder / "collection")


@pytest.mark.parametrize("name", ["windows", "regions"])
def test_stored_features_have_the_boxes_of_their_regions(boxed, name):
    boxes = feature_boxes(boxed, name, 2)
    np.testing.assert_allclose(boxes, [[0, 2, 20, 30], [4, 2, 21, 30], [8, 2, 22, 30]])
    np.testing.assert_allclose(stored_part_boxes(name, boxed, 2), boxes / np.array([40, 32, 40, 32]), rtol=1e-6)


def test_features_without_boxes_have_no_part_boxes(stored_tiny):
    assert feature_boxes(stored_tiny, "colour", 0).shape == (0, 4)
    assert stored_part_boxes("colour", stored_tiny, 0) is None
