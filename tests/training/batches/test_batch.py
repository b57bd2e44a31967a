from __future__ import annotations

import numpy as np
import torch

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.features.images.pixels import Augment, PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.training.batches.batch import ASYNCHRONOUS_BYTES, Batches, PairSampler, pin_if_large


def batches(pairing: Pairing, size: int = 14, **options: object) -> Batches:
    inputs = Inputs(PixelInput(16), Vocabulary.build(pairing.texts.strings, 1))
    return Batches(pairing, inputs, PairSampler(pairing.matches, size, 0), **options)  # type: ignore[arg-type]


def test_a_batch_has_each_image_and_text_once_with_all_their_matches(tiny):
    pairing = tiny.sentences("train")
    batch = next(batches(pairing, 15).epoch(0))
    assert batch.images.shape == (6, 3, 16, 16)
    assert len(batch.texts) == 14  # the shared caption is there once, though it is in two pairs
    assert (batch.image_target > 0).sum() == len(pairing.matches) == 15
    assert torch.equal(batch.image_target.T, batch.text_target)
    matching = batch.image_groups[:, None] == batch.text_groups[None, :]
    assert matching[batch.image_target > 0].all()


def test_an_image_drawn_twice_is_not_its_own_negative(tiny):
    batch = next(batches(tiny.sentences("train"), 8).epoch(0))
    assert len(batch.images) <= 6
    assert (batch.image_target > 0).sum() >= 8


def test_known_false_negatives_can_be_ignored(tiny):
    pairing = tiny.sentences("train")
    visual, text = pairing.matches.pairs()
    also = Matches(np.append(visual, 1), np.append(text, 0), pairing.matches.shape)
    known = Pairing(pairing.visuals, pairing.texts, pairing.matches, also)
    kept = next(batches(known, 15, ignore_also_true=True).epoch(0))
    assert (kept.image_target == 0).sum() == 1
    assert (next(batches(known, 15).epoch(0)).image_target == 0).sum() == 0


def test_starting_an_epoch_in_the_middle_gives_the_same_batches(tiny):
    feed = batches(tiny.sentences("train"), 4, augment=Augment(0.5, True, 0.2))
    whole = list(feed.epoch(5))
    rest = list(feed.epoch(5, start=2))
    assert len(whole) == len(feed)
    for one, two in zip(whole[2:], rest, strict=True):
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.texts, two.texts)


def test_drawing_a_batch_leaves_the_global_random_state_alone(tiny):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    next(batches(tiny.sentences("train"), 4, augment=Augment(0.5)).epoch(0))
    assert torch.equal(torch.rand(1), expected)


def test_only_large_tensors_are_pinned(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: "pinned")
    small, large = (torch.zeros(ASYNCHRONOUS_BYTES + more, dtype=torch.uint8) for more in (0, 1))
    assert pin_if_large(small) is small
    assert pin_if_large(large) == "pinned"
