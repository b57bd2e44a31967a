from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.device import ASYNCHRONOUS_BYTES, pin_if_large, prepare_ahead
from calligram.features.images.pixels import Augment, PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary, length_groups
from calligram.models.matcher import Encoded
from calligram.training.batches.batch import (
    Batches,
    PairSampler,
    copy_to_device,
    fits_device,
)
from calligram.training.objectives.objective import RankingObjective


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
    assert batch.text_lengths == tuple(batch.text_mask.sum(1).tolist())


def test_objectives_tell_text_encoders_the_lengths_of_texts(tiny):
    batch, seen = next(batches(tiny.sentences("train"), 15).epoch(0)), []
    longer = replace(batch, texts=torch.zeros(80, 40), text_lengths=tuple(range(1, 41)) * 2)

    class Watching:
        def encode_images(self, images):
            return Encoded(images.flatten(1))

        def encode_texts(self, texts, mask):
            seen.append(length_groups(*texts.shape))
            return Encoded(texts.float())

    RankingObjective().encode(Watching(), longer)
    lengths = np.array(longer.text_lengths)
    assert len(seen[0]) == 4
    assert all(lengths[rows].max() <= length for rows, length in seen[0])


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


def test_images_that_are_kept_on_the_device_give_the_same_batches(tiny):
    options = {"augment": Augment(0.5, True, 0.2), "word_dropout": 0.3}
    host, kept = (
        list(batches(tiny.sentences("train"), 4, keep_on_device=keep, **options).epoch(1)) for keep in (False, True)
    )
    assert len(host) == len(kept) > 1
    for one, two in zip(host, kept, strict=True):
        for name, value in vars(one).items():
            assert torch.equal(value, vars(two)[name]) if isinstance(value, torch.Tensor) else value == vars(two)[name]


class Rows:
    """Images whose number of regions grows by one after every 600 images."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def take(self, rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(rows).float().view(-1, 1, 1).expand(-1, 1 + int(rows.max()) // 600, 4)


def test_images_on_the_device_are_those_of_the_host_and_have_one_shape():
    assert torch.equal(copy_to_device(Rows(599), torch.device("cpu"))[:, 0, 0], torch.arange(599.0))
    assert copy_to_device(Rows(700), torch.device("cpu")) is None


def test_images_are_kept_on_a_gpu_where_they_take_a_quarter_of_its_free_memory(monkeypatch):
    cpu, gpu, free = torch.device("cpu"), torch.device("cuda"), 4 * 16 * 100
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10 * free))
    assert fits_device(Rows(100), gpu)
    assert not fits_device(Rows(101), gpu)
    assert not fits_device(Rows(100), cpu)
    assert not fits_device(Rows(0), gpu)


def test_only_large_tensors_are_pinned(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: "pinned")
    small, large = (torch.zeros(ASYNCHRONOUS_BYTES + more, dtype=torch.uint8) for more in (0, 1))
    assert pin_if_large(small) is small
    assert pin_if_large(large) == "pinned"


def test_items_are_prepared_in_order_one_ahead_in_a_thread_with_one_core():
    threads, begun = torch.get_num_threads(), []

    def prepare(item):
        begun.append(item)
        return item, torch.get_num_threads(), threading.current_thread() is threading.main_thread()

    torch.set_num_threads(3)
    try:
        source = prepare_ahead(prepare, range(4))
        assert next(source) == (0, 1, False)
        assert torch.get_num_threads() == 3
        assert list(source) == [(1, 1, False), (2, 1, False), (3, 1, False)]
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(threads)
    assert begun == [0, 1, 2, 3]
    assert list(prepare_ahead(prepare, [])) == []
