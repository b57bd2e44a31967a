from __future__ import annotations

import numpy as np
import pytest
import torch

from calligram.data.matches import Matches
from calligram.data.negatives import NegativeLists
from calligram.evaluation.mine import mine_negatives
from calligram.evaluation.recall import EncodedPairing
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import EmbeddingMatcher, Encoded
from calligram.models.vse import VSE, VSESettings
from calligram.training.batches import batch as batch_module
from calligram.training.batches.batch import Batches, PairSampler
from calligram.training.batches.mined_negatives import OfflineSampler
from calligram.training.distributed import Processes
from calligram.training.objectives.offline import OfflineObjective, OfflineTerms

IMAGES, TEXTS = 30, 80


def relation():
    """Images with one to six texts; some texts with two or three images."""
    random = np.random.default_rng(0)
    visual = np.concatenate([np.arange(TEXTS) % IMAGES, random.integers(IMAGES, size=15)])
    return Matches(visual, np.concatenate([np.arange(TEXTS), random.integers(TEXTS, size=15)]), (IMAGES, TEXTS))


def mined(matches, texts=10, images=5):
    generator = torch.Generator().manual_seed(0)
    sides = EncodedPairing(*(Encoded(torch.randn(n, 4, generator=generator)) for n in matches.shape))
    lists = [found.numpy() for found in mine_negatives(EmbeddingMatcher(), sides, matches, texts=texts, images=images)]
    ids = [tuple(map(str, range(n))) for n in matches.shape]
    return NegativeLists(lists[0], lists[1], ids[0], ids[1])


def test_offline_negatives_come_from_the_lists_and_never_match_each_other():
    matches = relation()
    negatives = mined(matches)
    sampler = OfflineSampler(matches, 8, 3, negatives)
    plain = PairSampler(matches, 8, 3)
    seen = 0
    for drawn, pairs in zip(sampler.epoch(1), plain.epoch(1), strict=True):
        np.testing.assert_array_equal(drawn[:, :2], pairs)
        for i, t, i_off, t_off, i_of, t_of in drawn:
            assert t_off in negatives.texts[i]
            assert i_off in negatives.images[t]
            assert not matches.among(np.array([i_off, i, i_off]), np.array([t_off, t_off, t])).any()
            assert matches.among(np.array([i_of, i_off]), np.array([t_off, t_of])).all()
            assert not matches.among(np.array([i_of]), np.array([t_of])).any()
            seen += 1
    assert seen >= 80
    again = OfflineSampler(matches, 8, 3, negatives).epoch(1)
    assert all((a == b).all() for a, b in zip(again, sampler.epoch(1), strict=True))
    assert any((a != b).any() for a, b in zip(sampler.epoch(2), sampler.epoch(1), strict=True) if a.shape == b.shape)


def test_ranks_are_drawn_uniformly_or_around_the_middle_of_the_list():
    matches = Matches(np.arange(40), np.arange(40), (40, 40))
    negatives = mined(matches, 30, 30)
    pairs = np.stack([np.arange(40)] * 2, axis=1).repeat(300, axis=0)
    for spread in ("uniform", "normal"):
        drawn = OfflineSampler(matches, 8, 0, negatives, distribution=spread).draw(pairs, np.random.default_rng(0))
        ranks = (negatives.texts[pairs[:, 0]] == drawn[:, 3:4]).argmax(1)
        counts = np.bincount(ranks, minlength=30) / len(ranks)
        assert (counts > 0).all()
        assert ranks.mean() == pytest.approx(14.5, abs=0.3)
        if spread == "uniform":
            np.testing.assert_allclose(counts, 1 / 30, atol=0.006)
        else:
            assert ranks.std() == pytest.approx(30 / 6, rel=0.05)
            assert counts[:3].sum() < 0.02  # the top of the list, where false negatives may be


def test_missing_negatives_are_left_out():
    # Image 0 matches everything; the only negatives of pair (1, 1) match each other through text 2 of image 2.
    matches = Matches([0, 0, 0, 1, 2], [0, 1, 2, 1, 2], (3, 3))
    ids = tuple("abc")
    negatives = NegativeLists(
        np.array([[-1], [2], [1]], dtype=np.int32), np.array([[1], [2], [1]], dtype=np.int32), ids, ids
    )
    pairs = np.array([[0, 0], [1, 1]])
    drawn = OfflineSampler(matches, 2, 0, negatives).draw(pairs, np.random.default_rng(0))
    assert drawn[0, 2:4].tolist() == [1, -1]
    assert drawn[0, 4] == -1
    assert drawn[1].tolist()[:4] == [1, 1, -1, 2]  # image 2 matches text 2, so it is left out
    assert drawn[1, 5] == -1


@pytest.fixture(scope="module")
def fed(tiny):
    train = tiny.sentences("train").join_equal_texts()
    words = Vocabulary.build(train.texts.strings, 1, 20)
    inputs = Inputs(PixelInput(16, "squash"), words)
    torch.manual_seed(0)
    matcher = VSE(
        VSESettings(
            ImageArchitecture("cnn", channels=(4,)),
            TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, pooling="last"),
            8,
        )
    ).eval()
    from calligram.evaluation.mine import mine_pairing

    sampler = OfflineSampler(train.matches, 3, 0, mine_pairing(matcher, inputs, train, texts=4, images=3))
    return train, matcher, sampler, Batches(train, inputs, sampler)


def test_a_batch_has_each_item_once_and_the_targets_of_its_pairs(fed):
    train, _, sampler, batches = fed
    for drawn, batch in zip(sampler.epoch(0), batches.epoch(0), strict=True):
        assert len(batch.images) == len({i for i in drawn[:, 0::2].ravel() if i >= 0})
        assert len(batch.texts) == len({t for t in drawn[:, 1::2].ravel() if t >= 0})
        own = np.unique(drawn[:, 0]), np.unique(drawn[:, 1])
        target, (rows, columns) = batch.image_target.numpy(), batch.paired_counts
        np.testing.assert_array_equal(target[:rows, :columns], train.matches.target(*own))
        assert target.shape == (len(batch.images), len(batch.texts))
        assert not target[rows:].any()
        assert not target[:, columns:].any()
        # Class labels identify the items of the batch, so drawn rows can be compared with those of the sampler.
        groups = train.matches.groups()
        for column, (of_batch, all_groups) in enumerate(
            [(batch.image_groups, groups[0]), (batch.text_groups, groups[1])] * 3
        ):
            there = drawn[:, column] >= 0
            found = of_batch[batch.drawn[:, column]].numpy()
            np.testing.assert_array_equal(found[there], all_groups[drawn[there, column]])
            assert (batch.drawn[:, column].numpy()[~there] == -1).all()


def literal(matcher, batches, drawn, pairing, options):
    """Eqs. 3-5 pair by pair; every score is read from the matrix of all items."""
    rows = batches.inputs.images.load(pairing.visuals).take(np.arange(len(pairing.visuals)))
    words, mask = batches.inputs.texts.load(pairing.texts.strings).take(np.arange(len(pairing.texts)))
    with torch.no_grad():
        s = matcher.score(
            matcher.encode_images(batches.inputs.images.finish(rows)), matcher.encode_texts(words, mask)
        ).numpy()
    images, texts = sorted(set(drawn[:, 0])), sorted(set(drawn[:, 1]))
    apart = lambda i, t: i >= 0 and t >= 0 and not pairing.matches.among(np.array([i]), np.array([t]))[0]  # noqa: E731
    total = 0.0
    for i, t, i_off, t_off, i_of, t_of in drawn:
        t_on = max((c for c in texts if apart(i, c)), key=lambda c: s[i, c])
        i_on = max((b for b in images if apart(b, t)), key=lambda b: s[b, t])
        for on, off, other in (
            (s[i, t_on], (i, t_off), (i_off, t_off)),
            (s[i_on, t], (i_off, t), (i_of, t_of)),
        ):
            weight, off_score = 1.0, s[off] if min(off) >= 0 else None
            if options.kind == "adaptive":
                weight = options.beta - (0 if off_score is None else off_score - on) / options.alpha
            total += weight * max(0, options.margin - s[i, t] + on) if options.online else 0
            total += 0 if off_score is None else max(0, options.offline_margin - s[i, t] + off_score)
            if options.kind != "offline-triplet" and min(other) >= 0:
                if options.derive == "online":
                    continue
                total += max(0, options.offline_margin - s[i, t] + s[other])
        if options.derive == "online":
            i_of_on = next(b for b in images if not apart(b, t_on))
            t_of_on = next(c for c in texts if not apart(i_on, c))
            for pair in ((i_on, t_on), (i_of_on, t_of_on)):
                total += max(0, options.offline_margin - s[i, t] + s[pair]) if apart(*pair) else 0
    return total / len(drawn)


@pytest.mark.parametrize(
    "options",
    [
        OfflineTerms("offline-triplet", offline_margin=0.1),
        OfflineTerms("offline-quintuplet", offline_margin=0.1),
        OfflineTerms("offline-quintuplet", offline_margin=0.1, online=False),
        OfflineTerms("offline-quintuplet", offline_margin=0.1, derive="online"),
        OfflineTerms("adaptive", offline_margin=0.1),
    ],
    ids=lambda o: f"{o.kind}-{o.online}-{o.derive}",
)
def test_the_objective_equals_the_papers_loss_over_all_scores(fed, options):
    train, matcher, sampler, batches = fed
    for drawn, batch in zip(sampler.epoch(0), batches.epoch(0), strict=True):
        found = sum(OfflineObjective(options)(matcher, batch).values())
        assert found.item() == pytest.approx(literal(matcher, batches, drawn, train, options), abs=1e-5)


def test_the_share_of_drawn_negatives_that_are_harder_than_the_batch_is_measured(fed):
    train, matcher, sampler, batches = fed
    inputs, shares = batches.inputs, []
    rows = inputs.images.load(train.visuals).take(np.arange(len(train.visuals)))
    words, mask = inputs.texts.load(train.texts.strings).take(np.arange(len(train.texts)))
    with torch.no_grad():
        s = matcher.score(matcher.encode_images(inputs.images.finish(rows)), matcher.encode_texts(words, mask)).numpy()
    apart = ~(train.matches.target(np.arange(len(train.visuals)), np.arange(len(train.texts))) > 0)
    for drawn, batch in zip(sampler.epoch(0), batches.epoch(0), strict=True):
        objective = OfflineObjective()
        objective(matcher, batch)
        images, texts = sorted(set(drawn[:, 0])), sorted(set(drawn[:, 1]))
        harder = []
        for i, t, i_off, t_off, *_ in drawn:
            if t_off >= 0:
                harder.append(s[i, t_off] > max(s[i, c] for c in texts if apart[i, c]))
            if i_off >= 0:
                harder.append(s[i_off, t] > max(s[b, t] for b in images if apart[b, t]))
        shares.append(np.mean(harder))
        assert float(objective.measures["offline_harder"]) == pytest.approx(shares[-1])
    assert 0 < np.mean(shares) < 1


@pytest.mark.parametrize(
    "options", [OfflineTerms("offline-triplet"), OfflineTerms("offline-quintuplet", derive="online")]
)
def test_losses_without_derived_pairs_encode_fewer_items(fed, options):
    train, matcher, sampler, batches = fed
    lists = NegativeLists(sampler._texts._lists, sampler._images._lists, train.visuals.ids, train.texts.ids)
    less = batches.with_sampler(OfflineSampler(train.matches, 3, 0, lists, derived=False))
    for one, two in zip(less.epoch(0), batches.epoch(0), strict=True):
        assert one.drawn.shape[1] == 4
        assert len(one.images) + len(one.texts) <= len(two.images) + len(two.texts)
    objective, drawn = OfflineObjective(options), next(iter(less.epoch(0)))
    assert not options.derived
    assert torch.isfinite(sum(objective(matcher, drawn).values()))
    with pytest.raises(ValueError, match="needs batches with offline negatives"):
        OfflineObjective()(matcher, drawn)


@pytest.mark.parametrize("options", [OfflineTerms("adaptive"), OfflineTerms("offline-quintuplet", derive="online")])
def test_repeated_items_and_drawn_ones_among_those_of_pairs_change_nothing(fed, options, monkeypatch):
    """On a GPU the numbers of items are rounded up, so that the same shapes come again."""
    _, matcher, _, batches = fed
    plain = list(batches.epoch(0))
    monkeypatch.setattr(batch_module, "GRAPH_DEVICE_TYPE", "cpu")
    padded = list(batches.epoch(0))
    assert {len(b.images) for b in padded} == {len(b.texts) for b in padded} == {batch_module.DRAWN_MULTIPLE}
    objective = OfflineObjective(options)
    for one, two in zip(plain, padded, strict=True):
        assert two.paired_counts == tuple(min(8, len(rows)) for rows in (two.images, two.texts))
        torch.testing.assert_close(objective(matcher, two), objective(matcher, one))
        torch.testing.assert_close(two.matching, one.matching)
        assert (two.image_groups >= 0).sum() == len(one.image_groups)
        assert torch.equal(two.drawn, one.drawn)
        assert torch.equal(two.images[: len(one.images)], one.images)


def test_batches_without_offline_negatives_are_refused(fed):
    train, matcher, _, batches = fed
    plain = Batches(train, batches.inputs, PairSampler(train.matches, 3, 0))
    with pytest.raises(ValueError, match="needs batches with offline negatives"):
        OfflineObjective()(matcher, next(iter(plain.epoch(0))))
    with pytest.raises(ValueError, match="accepted with kind=offline-quintuplet only"):
        OfflineTerms("adaptive", online=False)


def test_processes_share_a_batch_with_its_drawn_negatives(fed):
    train, _, sampler, batches = fed
    shares = [Batches(train, batches.inputs, sampler, processes=Processes(rank, 2)).epoch(0) for rank in range(2)]
    for whole, one, two in zip(batches.epoch(0), *shares, strict=True):
        assert torch.equal(torch.cat([one.images, two.images]), whole.images)
        assert len(one.texts) + len(two.texts) == len(whole.texts)
        for part in (one, two):
            assert part.paired_counts == whole.paired_counts
            assert torch.equal(part.drawn, whole.drawn)
            assert torch.equal(part.image_target, whole.image_target)
