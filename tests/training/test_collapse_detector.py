from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from calligram.errors import UserError
from calligram.models.matcher import Encoded
from calligram.training.objectives.objective import CollapseDetector, RankingObjective, VectorSpread


def spread_of(vectors: torch.Tensor) -> VectorSpread:
    return VectorSpread.of(Encoded(vectors), Encoded(torch.eye(4)))


def test_spread_is_zero_for_equal_vectors_and_large_for_different_ones():
    assert float(spread_of(torch.ones(4, 3)).images) == pytest.approx(0, abs=1e-6)
    assert float(spread_of(torch.eye(4)).images) == pytest.approx(0.75)


def test_the_spread_of_an_objective_is_computed_on_use_and_once(monkeypatch):
    measured = []
    original = VectorSpread.of
    monkeypatch.setattr(VectorSpread, "of", lambda *sides: measured.append(sides) or original(*sides))
    vectors = torch.eye(4, requires_grad=True) * 2
    matcher = SimpleNamespace(encode_images=lambda _: Encoded(vectors), encode_texts=lambda *_: Encoded(vectors + 1))
    objective, batch = RankingObjective(), SimpleNamespace(images=None, texts=None, text_mask=None, text_lengths=())
    assert objective.spread is None
    objective.encode(matcher, batch)
    assert not measured
    assert float(objective.spread.images) == pytest.approx(0.75)
    assert not objective.spread.texts.requires_grad
    assert len(measured) == 1
    objective.spread = None
    assert objective.spread is None


def test_a_lasting_collapse_stops_the_run_with_advice():
    watch = CollapseDetector(patience=5)
    for step in range(4):
        watch.check(step, {"loss": 0.4}, spread_of(torch.ones(4, 3)))
    with pytest.raises(UserError, match=r"embeddings collapsed: at step 4 all images .*warmup_epochs=2"):
        watch.check(4, {"loss": 0.4}, spread_of(torch.ones(4, 3)))


def test_a_short_collapse_does_not_stop_the_run():
    watch = CollapseDetector(patience=5)
    for step in range(20):
        watch.check(step, {"loss": 0.4}, spread_of(torch.eye(4) if step % 4 == 3 else torch.ones(4, 3)))
    assert watch._below < 5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_term_that_is_not_finite_is_named(value):
    with pytest.raises(UserError, match=r"not finite at step 7 \(ranking="):
        CollapseDetector().check(7, {"loss": 1.0, "ranking": value}, None)
