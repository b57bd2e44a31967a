from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calligram.data.grounding import GroundedPhrases, ImageBoxes
from calligram.features.images.region_input import RegionRows
from calligram.losses.ranking import bidirectional_ranking_loss
from calligram.training.batches.phrase_pairs import PhrasePairs
from calligram.training.batches.phrases import PhraseBatches, draw_pairs, draw_triplets

WORDS = ("a dog", "A  Dog", "the puppy", "a man", "someone", "grass", "a hat")


def overlap(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(0.0, width) * max(0.0, height)
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


class World:
    """Five images with two or three chains each, phrases that occur in several images, and forty proposals per
    image."""

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        images = np.repeat(np.arange(5), rng.integers(2, 4, 5))
        corner = rng.uniform(0, 60, (len(images), 2))
        truth = np.concatenate([corner, corner + rng.uniform(20, 40, (len(images), 2))], axis=1).astype(np.float32)
        self.truth = ImageBoxes(truth, images)
        self.chains = np.repeat(np.arange(len(images)), 4)
        self.said = [WORDS[i] for i in rng.integers(0, len(WORDS), len(self.chains))]
        around = np.repeat(truth, 6, axis=0) + rng.normal(0, 2.0, (6 * len(truth), 4))
        where = np.repeat(images, 6)
        corner = rng.uniform(0, 70, (100, 2))
        anywhere = np.concatenate([corner, corner + rng.uniform(10, 30, (100, 2))], axis=1)
        boxes = np.concatenate([around, anywhere]).astype(np.float32)
        self.proposals = ImageBoxes(boxes, np.concatenate([where, rng.integers(0, 5, 100)]))
        grounded = GroundedPhrases(np.arange(len(self.said)), self.chains, self.truth)
        self.pairs = PhrasePairs.of(grounded, self.said, self.proposals)

    def box(self, region):
        """Image and box of a region by its number."""
        count = len(self.truth)
        where = self.truth if region < count else self.proposals
        place = region if region < count else region - count
        return int(where.images[place]), where.boxes[place]

    def spoken(self, chain):
        return {" ".join(s.lower().split()) for s, c in zip(self.said, self.chains, strict=True) if c == chain}


def hinges(scores, margin, top_k):
    """The K highest nonnegative losses of triplets, given as (score of the positive, score of the negative)."""
    losses = sorted((max(0.0, margin - p + n) for p, n in scores), reverse=True)
    return sum(losses[:top_k])


@pytest.mark.parametrize("extra", ["none", "neighbours", "random"])
@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_triplets_equal_the_literal_loops(seed, augment, extra):
    """Two-branch, Algorithm 1, step by step; the random choices of the batch are read from it and checked."""
    world = World(seed)
    pairs, rng = world.pairs, np.random.default_rng(seed)
    chosen = rng.permutation(len(pairs))[:14]
    drawn = draw_triplets(pairs, chosen, rng, augment=augment, extra=extra)
    scores = rng.normal(size=(len(drawn.regions), len(drawn.texts)))
    names = [pairs.strings[t] for t in drawn.texts]
    batch_phrases = {pairs.strings[pairs.texts[p]] for p in chosen}
    columns = {name: names.index(name) for name in batch_phrases}
    margin, top_k = 0.1, 5
    expected, count = 0.0, 0

    def add(triplets):
        nonlocal expected, count
        expected += hinges(triplets, margin, top_k)
        count += min(top_k, len(triplets))

    anchors = [*chosen, *[None] * (0 if extra != "random" else (drawn.image_target[:, len(chosen) :] > 0).sum())]
    for row, pair in enumerate(anchors):
        text = names[row]
        if pair is None:  # an extra pair: it is in the split and not in the set
            chain = next(
                c
                for c, t in zip(pairs.chains, pairs.texts, strict=True)
                if t == drawn.texts[row] and drawn.regions[row] in pairs.positives[c]
            )
        else:
            chain = int(pairs.chains[pair])
            assert text == pairs.strings[pairs.texts[pair]]
        image, box = world.box(chain)
        there, region_box = world.box(drawn.regions[row])
        assert there == image
        assert overlap(region_box, box) >= 0.7 if augment else drawn.regions[row] == chain
        # 3a: phrases of the mini-batch outside the chain
        others = [name for name in batch_phrases if name not in world.spoken(chain)]
        negatives = [scores[row, columns[name]] for name in others]
        add([(scores[row, row], n) for n in negatives])
        # 3b: background regions of the same image
        first = len(anchors) + extra_rows(drawn, len(anchors))
        place_of = {int(region): first + place for place, region in enumerate(drawn.regions[first:])}
        background = [
            scores[place_of[number + len(world.truth)], row]
            for number in range(len(world.proposals))
            if world.proposals.images[number] == image and overlap(world.proposals.boxes[number], box) < 0.3
        ]
        add([(scores[row, row], n) for n in background])
        if extra == "neighbours":
            add_seconds(world, drawn, row, chain, names, scores, negatives, background, add, augment)
    found = bidirectional_ranking_loss(
        torch.from_numpy(scores), torch.from_numpy(drawn.image_target), torch.from_numpy(drawn.text_target),
        margin=margin, top_k=top_k,
    )  # fmt: skip
    assert float(found) == pytest.approx(expected)
    assert drawn.triplets(top_k) == count


def extra_rows(drawn, anchors):
    """Rows of second regions: they come after the anchors and have a positive."""
    return int((drawn.text_target[:, anchors:] > 0).sum())


def add_seconds(world, drawn, row, chain, names, scores, negatives, background, add, augment):
    """3c: a second positive if the target has only one in the batch and another exists."""
    pairs, anchors = world.pairs, 14
    region, text = drawn.regions[row], names[row]
    partners = {names[r] for r in range(anchors) if drawn.regions[r] == region}
    more = [c for c in range(anchors, len(names)) if drawn.image_target[row, c] > 0]
    needed = len(partners) < 2 and len(world.spoken(chain)) > 1
    assert len(more) == needed
    for column in more:
        assert names[column] in world.spoken(chain) - {text}
        add([(scores[row, column], n) for n in negatives])
    seen = {int(drawn.regions[r]) for r in range(anchors) if names[r] == text}
    more = [r for r in range(anchors, len(drawn.regions)) if drawn.text_target[row, r] > 0]
    needed = augment and len(seen) < 2 and len(pairs.positives[chain]) > 1
    assert len(more) == needed
    for place in more:
        where, box = world.box(drawn.regions[place])
        image, truth = world.box(chain)
        assert where == image
        assert overlap(box, truth) >= 0.7
        assert drawn.regions[place] != region
        add([(scores[place, row], n) for n in background])


@pytest.mark.parametrize("augment", [True, False])
def test_pairs_are_all_positives_and_equally_many_negatives_of_the_same_image(augment):
    """Two-branch, Algorithm 1, pair sampling."""
    world = World(7)
    pairs = world.pairs
    chosen = np.arange(12)
    drawn = draw_pairs(pairs, chosen, np.random.default_rng(0), augment=augment)
    assert drawn.texts.tolist() == pairs.texts[chosen].tolist()
    assert (drawn.image_target == drawn.text_target.T).all()
    assert (drawn.text_target != 0).sum(axis=0).tolist() == [1] * len(drawn.regions)
    for column, pair in enumerate(chosen):
        chain = int(pairs.chains[pair])
        image, truth = world.box(chain)
        matching = [chain]
        for place in range(len(world.proposals)):
            if world.proposals.images[place] == image and overlap(world.proposals.boxes[place], truth) >= 0.7:
                matching.append(place + len(world.truth))
        positive = drawn.regions[drawn.text_target[column] > 0].tolist()
        assert sorted(positive) == (sorted(matching) if augment else [chain])
        negative = drawn.regions[drawn.text_target[column] < 0]
        assert len(negative) == len(positive)
        for region in negative:
            where, box = world.box(region)
            assert where == image
            assert overlap(box, truth) < 0.3
    assert drawn.pairs == len(drawn.regions)


def test_equal_phrases_are_one_text_and_one_pair():
    world = World(1)
    keys = {(int(c), " ".join(s.lower().split())) for c, s in zip(world.chains, world.said, strict=True)}
    pairs = world.pairs
    assert {(int(c), pairs.strings[t]) for c, t in zip(pairs.chains, pairs.texts, strict=True)} == keys
    assert len(pairs) == len(keys)


def test_candidates_limit_the_negative_regions_of_a_phrase():
    world = World(2)
    chosen = np.arange(10)
    drawn = draw_triplets(world.pairs, chosen, np.random.default_rng(0), candidates=3)
    assert (drawn.text_target < 0).sum(axis=1).max() == 3


def test_the_draws_of_a_set_are_reproducible_and_differ_between_epochs():
    world = World(3)
    one, two, three = (draw_triplets(world.pairs, np.arange(8), np.random.default_rng(s)) for s in (0, 0, 1))
    assert one.regions.tolist() == two.regions.tolist()
    assert (one.image_target == two.image_target).all()
    assert one.regions.tolist() != three.regions.tolist()


class TextVectors:
    def take(self, rows):
        return torch.from_numpy(rows).float()[:, None], torch.ones(len(rows), 1, dtype=torch.bool)


def batches_of(world, **options):
    """Batches whose features are the numbers of the regions."""
    numbers = np.arange(len(world.truth) + len(world.proposals), dtype=np.float16)[:, None].repeat(3, axis=1)
    inputs = SimpleNamespace(images=SimpleNamespace(finish=lambda rows: rows.float() + 0.5))
    truth, proposals = np.split(numbers, [len(world.truth)])
    draw = partial(draw_triplets, extra="neighbours")
    return PhraseBatches(
        world.pairs, inputs, RegionRows(truth), RegionRows(proposals), TextVectors(), draw, seed=0, size=6, **options
    )


@pytest.mark.parametrize("keep_on_device", [True, False])
def test_batches_have_the_features_of_their_regions_whether_or_not_these_stay_on_the_device(keep_on_device):
    batches = batches_of(World(0), keep_on_device=keep_on_device)
    for step, batch in enumerate(batches.epoch(1)):
        drawn = batches.drawn(1, step)
        assert batch.images.dtype == torch.float32
        assert (batch.images == torch.from_numpy(drawn.regions)[:, None] + 0.5).all()
        assert batch.image_target.shape == (len(batch.images), len(batch.texts))
        assert batch.image_neighbours.shape == (drawn.paired, len(batch.images))
    assert step == len(batches) - 1


def test_batches_without_neighbourhoods_are_the_same_otherwise():
    batches = batches_of(World(0))
    for given, other in zip(batches.epoch(0), batches.without_neighbourhoods().epoch(0), strict=True):
        assert other.image_neighbours is None
        assert other.text_neighbours is None
        assert torch.equal(given.images, other.images)
        assert torch.equal(given.text_target, other.text_target)


# Four images, one chain each. Every chain has its truth region (its number) and one proposal (its number plus four).
# Image 0: a man, the worker. Image 1: a man, a guy. Image 2: a dog. Image 3: a guy.
SHARED = ((0, "a man"), (0, "the worker"), (1, "a man"), (1, "a guy"), (2, "a dog"), (3, "a guy"))


def shared_phrases() -> PhrasePairs:
    truth = np.array([[10, 10, 50, 50]] * 4, dtype=np.float32)
    far = np.array([[60, 60, 90, 90]] * 4, dtype=np.float32)
    grounded = GroundedPhrases(
        np.arange(len(SHARED)), np.array([chain for chain, _ in SHARED]), ImageBoxes(truth, np.arange(4))
    )
    proposals = ImageBoxes(np.concatenate([truth + 1, far]), np.tile(np.arange(4), 2))
    return PhrasePairs.of(grounded, [text for _, text in SHARED], proposals)


def texts_of_region(pairs: PhrasePairs, region: int) -> set[int]:
    """Texts of the chains whose positives contain a region."""
    chains = [chain for chain, positives in enumerate(pairs.positives) if region in positives]
    return {int(t) for c, t in zip(pairs.chains, pairs.texts, strict=True) if c in chains}


def literal_region_neighbourhoods(pairs, paired, regions, texts):
    """Two-branch, Eq. 4: N(x) are the regions that the same text describes, for a batch with repeated regions."""
    found = np.zeros((len(paired), len(regions)), dtype=int)
    for i, x in enumerate(paired):
        for j, other in enumerate(regions):
            if x == other or x in paired[:i] or other in regions[:j]:
                continue  # the same region, or one that was counted
            shared = texts_of_region(pairs, x) & texts_of_region(pairs, other)
            if j < len(paired) and shared & set(texts):
                found[i, j] = 1
            elif not shared:
                found[i, j] = -1
    return found


def literal_text_neighbourhoods(pairs, paired, texts):
    """Two-branch, Eq. 5: N(y) are the texts that describe the same region, for a batch with repeated texts."""
    chains = {c: {int(t) for d, t in zip(pairs.chains, pairs.texts, strict=True) if d == c} for c in pairs.chains}
    found = np.zeros((len(texts), len(texts)), dtype=int)
    for i, y in enumerate(texts):
        for j, other in enumerate(texts):
            if y == other or y in texts[:i] or other in texts[:j]:
                continue
            if any({y, other} <= texts_of_region(pairs, x) for x in paired):
                found[i, j] = 1
            elif not any({y, other} <= members for members in chains.values()):
                found[i, j] = -1
    return found


def test_neighbourhoods_of_shared_phrases_by_hand():
    """Pairs (0, a man), (0, the worker), (1, a man), (2, a dog), (3, a guy), in this order."""
    pairs = shared_phrases()
    names = ["a man", "the worker", "a man", "a dog", "a guy"]
    texts = np.array([pairs.strings.index(name) for name in names])
    # Image 1 contributes its truth region; image 0 its truth region and then the proposal that matches it.
    paired, background = np.array([0, 4, 1, 2, 3]), np.array([8, 9, 5])
    images, between = pairs.neighbourhoods(paired, background, texts)
    assert images.tolist() == [
        # 0   4   1   2   3   8   9   5
        [0, 1, 1, -1, -1, -1, -1, 0],  # a man of image 0; 5 is a region of a man too, as background
        [1, 0, 1, -1, -1, -1, -1, 0],
        [1, 1, 0, -1, 1, -1, -1, 0],  # a man of image 1, who is a guy as well: near both images
        [-1, -1, -1, 0, -1, -1, -1, -1],  # a dog
        [-1, -1, 1, -1, 0, -1, -1, 0],  # a guy of image 3
    ]
    assert between.tolist() == [
        [0, 1, 0, -1, 1],  # a man: the worker in image 0, a guy in image 1; the same text in column 2 is nothing
        [1, 0, 0, -1, -1],
        [0, 0, 0, 0, 0],  # the second column of a man is counted in its first one
        [-1, -1, 0, 0, -1],
        [1, -1, 0, -1, 0],
    ]


def test_what_only_a_pair_outside_the_batch_connects_is_ignored():
    pairs = shared_phrases()
    names = ["the worker", "a guy"]
    texts = np.array([pairs.strings.index(name) for name in names])
    # Images 0 and 1 share a man, which is not in the batch.
    images, between = pairs.neighbourhoods(np.array([0, 1]), np.zeros(0, dtype=np.int64), texts)
    assert images.tolist() == [[0, 0], [0, 0]]
    assert between.tolist() == [[0, -1], [-1, 0]]
    # A man and a guy share image 1, which is not in the batch.
    texts = np.array([pairs.strings.index(name) for name in ("a man", "a guy")])
    assert pairs.neighbourhoods(np.array([0, 3]), np.zeros(0, dtype=np.int64), texts)[1].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("extra", ["none", "neighbours", "random"])
@pytest.mark.parametrize("seed", range(3))
def test_neighbourhoods_equal_the_literal_loops(seed, extra):
    """Two-branch, Eqs. 4 and 5, over drawn batches, where phrases and regions repeat."""
    pairs, rng = World(seed).pairs, np.random.default_rng(seed)
    drawn = draw_triplets(pairs, rng.permutation(len(pairs))[:14], rng, extra=extra)
    assert drawn.paired is not None
    paired, background = drawn.regions[: drawn.paired], drawn.regions[drawn.paired :]
    assert (drawn.image_target > 0).any(axis=1).tolist() == [True] * len(paired) + [False] * len(background)
    images, texts = pairs.neighbourhoods(paired, background, drawn.texts)
    regions, names = drawn.regions.tolist(), drawn.texts.tolist()
    assert len(set(names)) < len(names)
    assert images.tolist() == literal_region_neighbourhoods(pairs, paired.tolist(), regions, names).tolist()
    assert texts.tolist() == literal_text_neighbourhoods(pairs, paired.tolist(), names).tolist()
    assert {-1, 0, 1} == set(images.ravel().tolist())
