from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calligram.data.matches import Matches
from calligram.models.matcher import EmbeddingMatcher, Encoded
from calligram.training.batches.batch import Batch
from calligram.training.objectives.instance import ClassLabels, InstanceObjective, pseudo_classes
from calligram.training.objectives.objective import JointObjective, RankingObjective, keep_one_negative


class Given(EmbeddingMatcher):
    """A matcher that returns its inputs as vectors."""

    def encode_images(self, images, mask=None):
        return Encoded(images)

    def encode_texts(self, texts, mask=None):
        return Encoded(texts)


def batch():
    """Three images, five texts; the last text belongs to images 1 and 2, whose classes differ."""
    random = torch.Generator().manual_seed(0)
    target = torch.tensor([[1, 1, -1, -1, -1], [-1, -1, 1, -1, 1], [-1, -1, -1, 1, 1]])
    return Batch(
        torch.randn(3, 4, generator=random).double(), torch.randn(5, 4, generator=random).double(),
        torch.ones(5, 1).bool(), target, target.T.contiguous(), torch.tensor([4, 0, 2]),
        torch.tensor([4, 4, 0, 2, -1]),
    )  # fmt: skip


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def literal_ranking(given, margin):
    """Eq. 4 for every matching pair, with the hardest negatives of its image and of its text."""
    images, texts, target = given.images.tolist(), given.texts.tolist(), given.image_target.tolist()
    total, pairs = 0.0, 0
    for i in range(3):
        for t in range(5):
            if target[i][t] != 1:
                continue
            own = cosine(images[i], texts[t])
            text_n = max(cosine(images[i], texts[n]) for n in range(5) if target[i][n] == -1)
            image_n = max(cosine(texts[t], images[n]) for n in range(3) if target[n][t] == -1)
            total += max(0, margin - (own - text_n)) + max(0, margin - (own - image_n))
            pairs += 1
    return total / pairs


def literal_instance(vectors, classes, labels):
    found = []
    for f, c in zip(vectors.tolist(), labels.tolist(), strict=True):
        if c >= 0:
            powers = [math.exp(sum(a * b for a, b in zip(w, f, strict=True))) for w in classes.tolist()]
            found.append(-math.log(powers[c] / sum(powers)))
    return sum(found) / len(found)


def test_ranking_with_the_hardest_negatives_is_dual_path_eq_4():
    terms = RankingObjective(1.0, 1)(Given(), batch())
    assert float(terms["ranking"]) == pytest.approx(literal_ranking(batch(), 1.0))


def test_the_joint_objective_is_the_weighted_sum_of_dual_path_eq_9():
    given = batch()
    shared = InstanceObjective(4, 6, weights=(0.5, 0.1)).double()
    terms = JointObjective((2.0, RankingObjective(1.0, 1)), (1.0, shared), (0.0, RankingObjective()))(Given(), given)
    assert set(terms) == {"ranking", "instance_image", "instance_text"}
    expected = 2 * literal_ranking(given, 1.0)
    expected += 0.5 * literal_instance(given.images, shared.classes, given.image_groups)
    expected += 0.1 * literal_instance(given.texts, shared.classes, given.text_groups)
    assert float(sum(terms.values()).detach()) == pytest.approx(expected)


def test_a_scale_classifies_cosines():
    given = batch()
    found = InstanceObjective(4, 6, weights=(1.0, 0.0), scale=8.0).double()
    unit = torch.nn.functional.normalize
    expected = literal_instance(8 * unit(given.images), unit(found.classes), given.image_groups)
    assert float(found(Given(), given)["instance_image"].detach()) == pytest.approx(expected, rel=1e-5)


def test_dropout_before_the_classifier_acts_in_training_only():
    objective, given = InstanceObjective(4, 6, dropout=0.5).double(), batch()
    torch.manual_seed(0)
    one, two = (float(objective(Given(), given)["instance_image"].detach()) for _ in range(2))
    assert one != two
    objective.eval()
    one, two = (float(objective(Given(), given)["instance_image"].detach()) for _ in range(2))
    assert one == two


def test_one_random_negative_is_kept_in_each_row():
    target = torch.tensor([[1, -1, -1, 0, -1], [1, 1, 1, 0, 1], [-1, 1, 0, 0, 0]])
    seen = set()
    for _ in range(50):
        drawn = keep_one_negative(target)
        assert torch.equal(drawn > 0, target > 0)
        assert (drawn < 0).sum(1).tolist() == [1, 0, 1]
        assert ((target < 0) | (drawn >= 0)).all()
        seen.add(int((drawn[0] < 0).nonzero()))
    assert seen == {1, 2, 4}
    assert torch.isfinite(RankingObjective(1.0, draw=True)(Given(), batch())["ranking"])


def test_objectives_with_all_weights_zero_are_refused():
    with pytest.raises(ValueError, match="all weights are zero"):
        JointObjective((0.0, RankingObjective()))


def test_a_text_has_the_class_that_all_its_images_share():
    matches = Matches.from_pairs([(0, 0), (1, 0), (1, 1), (2, 2), (0, 3)], (3, 5))
    classes = ClassLabels.of(matches, np.array([7, 7, 2]))
    assert classes.texts.tolist() == [7, 7, 2, 7, -1]
    assert ClassLabels.of(matches, np.array([0, 1, 2])).texts.tolist() == [-1, 1, 2, 0, -1]


def test_pseudo_classes_are_clusters_of_features_and_the_same_again():
    rng = np.random.default_rng(0)
    centres = np.repeat(rng.normal(size=(4, 6)) * 20, 5, axis=0)
    features = (centres + rng.normal(size=centres.shape)).astype(np.float32)
    found = pseudo_classes(features, 4, seed=1)
    assert sorted(map(tuple, {tuple(np.flatnonzero(found == c)) for c in range(4)})) == [
        tuple(range(5 * c, 5 * c + 5)) for c in range(4)
    ]
    assert np.array_equal(found, pseudo_classes(features, 4, seed=1))


def test_error_rates_of_both_towers_are_measured_and_not_minimised():
    given = batch()
    objective = InstanceObjective(4, 5).double()
    joint = JointObjective((1.0, RankingObjective(1.0, 1)), (1.0, objective))
    terms = joint(Given(), given)
    assert set(terms) == {"ranking", "instance_image", "instance_text"}
    wrong = [
        int((objective.classes @ f).argmax()) != int(c) for f, c in zip(given.images, given.image_groups, strict=True)
    ]
    assert float(joint.measures["instance_image_error"]) == pytest.approx(np.mean(wrong))
    assert set(joint.measures) == {"instance_image_error", "instance_text_error"}
