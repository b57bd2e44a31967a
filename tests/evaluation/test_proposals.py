from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PhraseRecord, PictureFile, RegionRecord
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.evaluation.proposals import (
    NO_HIT,
    ImageBoxes,
    first_hits,
    phrase_targets,
    proposal_recall,
    recall_within,
)
from calligram.features.regions.extract import ExtractionTask, add_regions
from calligram.features.regions.proposers import SlidingWindows


def overlap(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(0.0, width) * max(0.0, height)
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def random_boxes(rng, count, images):
    start = rng.uniform(0, 20, (count, 2))
    boxes = np.concatenate([start, start + rng.uniform(4, 20, (count, 2))], axis=1).astype(np.float32)
    return ImageBoxes(boxes, rng.integers(0, images, count))


@pytest.mark.parametrize("seed", range(4))
def test_recall_is_that_of_the_literal_loops(seed):
    rng = np.random.default_rng(seed)
    targets, proposals = random_boxes(rng, 40, 6), random_boxes(rng, 120, 5)  # image 5 has no proposal
    ranks = first_hits(targets, proposals)
    for k in (1, 3, 10, 50):
        hits = 0
        for box, image in zip(targets.boxes, targets.images, strict=True):
            first = [b for b, i in zip(proposals.boxes, proposals.images, strict=True) if i == image][:k]
            hits += any(overlap(box, b) >= 0.5 for b in first)
        assert recall_within(ranks, k) == pytest.approx(100 * hits / 40)


def test_an_overlap_of_exactly_a_half_counts():
    """Boxes of 2 and 1 units, one inside the other: IoU 1/2."""
    target = ImageBoxes(np.array([[0, 0, 2, 1]], np.float32), np.array([3]))
    proposals = ImageBoxes(np.array([[5, 5, 6, 6], [0, 0, 1, 1]], np.float32), np.array([3, 3]))
    assert first_hits(target, proposals).tolist() == [2]
    assert first_hits(target, proposals, 0.51).tolist() == [NO_HIT]


@pytest.fixture
def grounded(tmp_path):
    """Two pictures of 100 x 100; the phrase of the first has two boxes, that of the second one."""
    draft = Draft("grounded")
    for name in ("a", "b"):
        Image.new("RGB", (100, 100)).save(tmp_path / f"{name}.png")
        draft.images.append(ImageRecord(name, PictureFile(tmp_path / f"{name}.png"), "test"))
        draft.captions.append(CaptionRecord(f"{name}#0", "two dogs play", (name,)))
    draft.regions += [
        RegionRecord("a/0", "a", (0, 0, 40, 100)),
        RegionRecord("a/1", "a", (60, 0, 100, 100)),
        RegionRecord("b/0", "b", (0, 0, 10, 10)),
    ]
    draft.phrases += [
        PhraseRecord("a#0/0", "a#0", 0, 8, regions=("a/0", "a/1")),
        PhraseRecord("b#0/0", "b#0", 0, 8, regions=("b/0",)),
        PhraseRecord("b#0/1", "b#0", 9, 13),
    ]
    return write_draft(draft, tmp_path / "collection")


def test_a_phrase_with_several_boxes_is_one_box_around_them(grounded):
    targets = phrase_targets(grounded, np.array([0, 1]))
    assert targets.boxes.tolist() == [[0, 0, 100, 100], [0, 0, 10, 10]]
    assert targets.images.tolist() == [0, 1]
    assert phrase_targets(grounded, np.array([1])).images.tolist() == [1]


def test_the_report_has_every_source_and_their_union(grounded):
    """The whole picture is the first window: it reaches the pair of dogs and not the small one."""
    few = add_regions(grounded, ExtractionTask(SlidingWindows(1), "one", 1)).collection
    both = add_regions(few, ExtractionTask(SlidingWindows(40), "forty", 40)).collection
    report = proposal_recall(both, "test", counts=(1, 36, 100))
    assert [row.source for row in report.rows] == ["one", "forty", "union"]
    assert report.rows[0].recall == {1: 50.0, 36: None, 100: None}
    assert report.rows[1].recall[1] == 50.0
    assert report.rows[1].recall[100] is None
    assert report.rows[2].recall[36] == report.rows[1].recall[36]
    assert (report.images, report.count) == (2, 2)
    assert report.rows[2].boxes == 41


def test_single_boxes_can_be_targets(grounded):
    """Of the three boxes the whole picture reaches none: 0.4, 0.4 and 0.01 of it."""
    after = add_regions(grounded, ExtractionTask(SlidingWindows(1), "one", 1)).collection
    report = proposal_recall(after, "test", "boxes", counts=(1,))
    assert (report.count, report.rows[0].recall) == (3, {1: 0.0})
    assert proposal_recall(after, "test", "boxes", counts=(1,), threshold=0.4).rows[0].recall[1] == pytest.approx(
        200 / 3
    )


def test_missing_proposals_are_refused(grounded):
    with pytest.raises(UserError, match=r"no proposals for split test .* --proposals edgeboxes --split test"):
        proposal_recall(grounded)
