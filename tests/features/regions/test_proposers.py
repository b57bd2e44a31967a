"""EdgeBoxes, selective search and sliding windows on drawings with known objects, and non-maximum suppression."""

from __future__ import annotations

import re
import sys
import time

import numpy as np
import pytest
from PIL import Image, ImageDraw

from calligram.data.boxes import iou
from calligram.errors import UserError
from calligram.extras import install_command
from calligram.features.regions.proposers import (
    PROPOSERS,
    Proposals,
    ProposalUnion,
    SlidingWindows,
    limit_side,
    load_proposer,
    non_maximum_suppression,
    source_name,
)

OBJECT = (60, 40, 150, 130)


def drawing(width=240, height=180):
    image = Image.new("RGB", (width, height), (200, 200, 190))
    ImageDraw.Draw(image).ellipse(OBJECT, fill=(180, 30, 30), outline=(20, 20, 20))
    return image


@pytest.mark.parametrize("name", PROPOSERS)
def test_a_method_gives_ranked_boxes_inside_the_image_and_is_deterministic(name):
    image = drawing()
    found = load_proposer(name, 50)(image).keep_top(50, image)
    assert 1 <= len(found.boxes) <= 50
    assert (found.boxes[:, :2] >= 0).all()
    assert (found.boxes[:, 2:] <= (240, 180)).all()
    again = load_proposer(name, 50)(image).keep_top(50, image)
    assert np.array_equal(found.boxes, again.boxes)


@pytest.mark.parametrize("name", ["edgeboxes", "selective"])
def test_the_object_is_among_the_first_boxes(name):
    found = load_proposer(name, 10)(drawing())
    assert iou(np.array([OBJECT], dtype=np.float32), found.boxes[:10]).max() > 0.8


class Fixed:
    """A method with given boxes."""

    def __init__(self, *boxes, labels=None):
        self.settings = {"method": "fixed", "most": len(boxes)}
        self.found = Proposals(np.array(boxes, dtype=np.float32), np.ones(len(boxes), np.float32), labels)

    def __call__(self, image):
        return self.found


def test_a_union_takes_turns_and_drops_near_duplicates():
    """The second box of the second method nearly equals the first box of the first method."""
    first = Fixed((0, 0, 100, 100), (50, 50, 90, 90))
    second = Fixed((10, 10, 40, 60), (1, 0, 100, 100), (0, 0, 30, 30), labels=("dog", "cat", "bird"))
    union = ProposalUnion((first, second))
    found = union(drawing())
    assert found.boxes.tolist() == [[0, 0, 100, 100], [10, 10, 40, 60], [50, 50, 90, 90], [0, 0, 30, 30]]
    assert found.labels == ("", "dog", "", "bird")
    assert found.scores is None
    assert union.settings == {
        "method": "union", "most": 200, "overlap": 0.9,
        "method 1": "fixed", "most 1": 2, "method 2": "fixed", "most 2": 3,
    }  # fmt: skip
    assert ProposalUnion((first, first))(drawing()).labels is None
    assert len(ProposalUnion((first, second), max_boxes=1)(drawing()).boxes) == 2


def test_a_union_limits_a_method_that_gives_too_many_boxes():
    many = Fixed(*np.random.default_rng(0).uniform(0, 90, (20000, 4)).cumsum(axis=1).tolist())
    assert len(load_proposer("edgeboxes-dense+grid", 30)(drawing()).boxes) <= 60
    assert len(ProposalUnion((many, many), 30)(drawing()).boxes) <= 30


def test_a_union_is_named_with_plus_unless_a_file_has_that_name(tmp_path):
    image = drawing()
    found = load_proposer("grid+edgeboxes", 20)(image).keep_top(20, image).boxes
    windows = load_proposer("grid", 20)(image).boxes
    assert len(found) == 20
    assert 9 <= sum(box.tolist() in windows.tolist() for box in found) <= 11
    with pytest.raises(UserError, match="unknown proposals 'edgebox'"):
        load_proposer("grid+edgebox", 20)
    detector = tmp_path / "a+b.onnx"
    detector.write_bytes(b"not a network")
    assert source_name(str(detector)) == "a-b"


def test_dense_edge_boxes_match_an_object_several_times():
    """Positives of a phrase have an IoU of 0.7 with the truth (two-branch, Sec. 4.1)."""
    target = np.array([OBJECT], dtype=np.float32)
    sparse, dense = (load_proposer(name, 100) for name in ("edgeboxes", "edgeboxes-dense"))
    counts = [int((iou(target, method(drawing()).boxes) >= 0.7).sum()) for method in (sparse, dense)]
    assert counts[0] <= 3
    assert counts[1] >= 10
    changed = {name for name, value in dense.settings.items() if sparse.settings[name] != value}
    assert changed == {"method", "step", "overlap"}


@pytest.mark.parametrize("name", PROPOSERS)
def test_boxes_of_a_large_image_are_in_its_own_pixels(name):
    large = drawing().resize((1200, 900))
    found = load_proposer(name, 100)(large)
    target = np.array([OBJECT], dtype=np.float32) * 5
    assert iou(target, found.boxes).max() > (0.8 if name != "grid" else 0.4)


@pytest.mark.parametrize("name", PROPOSERS)
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (200, 5)])
def test_empty_images_are_accepted(name, size):
    image = Image.new("RGB", size, "blue")
    assert load_proposer(name, 10)(image).keep_top(10, image).boxes.shape[1] == 4


def test_edge_boxes_are_fast_on_pure_noise():
    noise = np.random.default_rng(0).integers(0, 256, (375, 500, 3)).astype(np.uint8)
    began = time.perf_counter()
    load_proposer("edgeboxes", 200)(Image.fromarray(noise))
    assert time.perf_counter() - began < 60  # it took minutes


def test_the_first_window_is_the_whole_image_and_there_are_hundreds():
    found = SlidingWindows(300)(Image.new("RGB", (200, 100)))
    assert found.boxes[0].tolist() == [0, 0, 200, 100]
    assert len(found.boxes) == 300
    assert len(np.unique(found.boxes, axis=0)) == 300


def test_boxes_are_clipped_to_the_image_and_empty_ones_dropped():
    image = Image.new("RGB", (10, 10))
    boxes = np.array([[-5, -5, 5, 5], [3, 3, 3.5, 9], [20, 20, 30, 30], [1, 1, 9, 9]], dtype=np.float32)
    kept = Proposals(boxes, np.array([4, 3, 2, 1], np.float32), ("a", "b", "c", "d")).keep_top(5, image)
    assert kept.boxes.tolist() == [[0, 0, 5, 5], [1, 1, 9, 9]]
    assert kept.labels == ("a", "d")
    assert kept.scores.tolist() == [4, 1]


def test_small_images_are_not_enlarged():
    image = drawing()
    assert limit_side(image, 500) == (image, 1.0)
    small, factor = limit_side(image, 120)
    assert (small.size, factor) == ((120, 90), 2.0)


def test_unknown_names_of_methods_are_refused():
    with pytest.raises(UserError, match="unknown proposals 'edgebox'; did you mean 'edgeboxes'"):
        load_proposer("edgebox", 10)
    with pytest.raises(UserError, match="top must be at least 1, got 0"):
        load_proposer("grid", 0)


def test_a_source_is_named_after_the_method_or_the_file():
    assert source_name("selective") == "selective"
    assert source_name("../models/yolox_nano.onnx") == "yolox_nano"
    assert source_name("facebook/detr-resnet-50") == "detr-resnet-50"


@pytest.mark.parametrize(("module", "name"), [("cv2", "edgeboxes"), ("onnxruntime", "some.onnx")])
def test_a_missing_extra_is_reported_with_the_package_to_install(monkeypatch, module, name):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=re.escape(install_command("regions"))):
        load_proposer(name, 10)(drawing())


def overlap(a, b):
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def naive(boxes, scores, threshold, classes):
    kept = []
    for i in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        if all(
            overlap(boxes[i], boxes[j]) <= threshold or (classes is not None and classes[i] != classes[j]) for j in kept
        ):
            kept.append(i)
    return kept


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_classes", [False, True])
def test_non_maximum_suppression_equals_the_greedy_loop(seed, with_classes):
    rng = np.random.default_rng(seed)
    start = rng.uniform(0, 30, (60, 2))
    boxes = np.concatenate([start, start + rng.uniform(5, 25, (60, 2))], axis=1).astype(np.float32)
    scores = rng.integers(0, 20, 60).astype(np.float32)  # with ties
    classes = rng.integers(0, 3, 60) if with_classes else None
    assert non_maximum_suppression(boxes, scores, 0.4, classes).tolist() == naive(boxes, scores, 0.4, classes)


def test_non_maximum_suppression_of_no_boxes_is_empty():
    assert len(non_maximum_suppression(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), 0.5)) == 0


def test_equal_boxes_of_two_classes_are_both_kept():
    boxes = np.array([[0, 0, 2, 2], [0, 0, 2, 2]], dtype=np.float32)
    scores = np.array([0.5, 0.6], dtype=np.float32)
    assert non_maximum_suppression(boxes, scores, 0.5).tolist() == [1]
    assert non_maximum_suppression(boxes, scores, 0.5, np.array([3, 4])).tolist() == [1, 0]
