from __future__ import annotations

import numpy as np
import pytest

from calligram.data.matches import Matches
from calligram.errors import UserError
from calligram.training.batches.batch import PairSampler, derived_seed


def random_matches(seed: int = 0) -> Matches:
    rng = np.random.default_rng(seed)
    return Matches(*np.nonzero(rng.random((40, 90)) < 0.05), (40, 90))


@pytest.mark.parametrize("texts", [1, 2, 5])
def test_an_epoch_has_every_pair_once(texts):
    matches = random_matches()
    sampler = PairSampler(matches, 5, seed=0, texts=texts)
    pairs = [tuple(p) for batch in sampler.epoch(3) for p in batch]
    assert len(pairs) == len(set(pairs))
    assert len(matches) - len(pairs) < 5 / 2 * texts
    assert len(sampler.epoch(3)) == len(sampler)
    assert set(pairs) <= set(zip(*(side.tolist() for side in matches.pairs()), strict=True))


def test_batches_have_distinct_images_if_all_have_equally_many_captions():
    matches = Matches(np.repeat(np.arange(20), 5), np.arange(100), (20, 100))
    for batch in PairSampler(matches, 10, seed=1).epoch(0):
        assert len(set(batch[:, 0])) == len(batch)


def test_an_image_comes_with_the_given_number_of_texts():
    matches = Matches(np.repeat(np.arange(20), 5), np.arange(100), (20, 100))
    for batch in PairSampler(matches, 10, seed=1, texts=3, per_image=True).epoch(0):
        images, counts = np.unique(batch[:, 0], return_counts=True)
        assert len(images) == 10
        assert set(counts) == {3}


def test_an_epoch_of_images_has_each_image_once_with_another_text_each_time():
    matches = Matches(np.repeat(np.arange(20), 5), np.arange(100), (20, 100))
    sampler = PairSampler(matches, 10, seed=1, per_image=True)
    epochs = [np.concatenate(sampler.epoch(n)) for n in range(8)]
    assert all(sorted(e[:, 0]) == list(range(20)) for e in epochs)
    assert len({int(t) for e in epochs for i, t in e if i == 0}) > 2


def test_epochs_differ_and_are_reproducible():
    sampler = PairSampler(random_matches(), 8, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(sampler.epoch(1), sampler.epoch(1), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(sampler.epoch(1), sampler.epoch(2), strict=True))
    assert derived_seed(1, "a") != derived_seed("1a")
    assert derived_seed(0, "step", 1) == derived_seed(0, "step", 1)


def test_splits_that_are_too_small_are_refused():
    with pytest.raises(UserError, match="at least 2 matching pairs, this split has 1"):
        PairSampler(Matches([0], [0], (3, 3)), 4, seed=0)
    with pytest.raises(UserError, match="2 different texts; this split has 3 and 1"):
        PairSampler(Matches([0, 1, 2], [1, 1, 1], (3, 3)), 4, seed=0)
    with pytest.raises(UserError, match=r"at least 2 images .*; this split has 1 and 2"):
        PairSampler(Matches([1, 1], [0, 1], (3, 3)), 4, seed=0)
    with pytest.raises(UserError, match="batch must be at least 2 images, got 1"):
        PairSampler(random_matches(), 1, seed=0)
