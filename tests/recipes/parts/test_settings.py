"""The stages of a loss over pairs."""

from __future__ import annotations

import pytest

from calligram.recipes.parts.settings import Optimisation, PairLoss, plan_pair_stages
from calligram.training.objectives.objective import InfoNCEObjective, RankingObjective


@pytest.mark.parametrize(
    ("warmup", "first"), [("ranking", RankingObjective), ("infonce", InfoNCEObjective)], ids=["ranking", "infonce"]
)
def test_all_negatives_come_before_the_hardest(warmup, first):
    loss = PairLoss("ranking", 0.2, 1, 2, 0.07, warmup)
    warm, hard = plan_pair_stages(loss, 5, [], Optimisation(), 0.1)
    assert (warm.name, warm.epochs, hard.name, hard.epochs) == ("warm-up", 2, "ranking", 3)
    assert isinstance(warm.objective, first)
    assert isinstance(hard.objective, RankingObjective)
    assert (getattr(warm.objective, "top_k", None), hard.objective.top_k) == (None, 1)


def test_without_hardest_negatives_there_is_one_stage():
    for loss in (PairLoss("infonce", 0.2, 1, 2, 0.07), PairLoss("ranking", 0.2, None, 2, 0.07)):
        assert len(plan_pair_stages(loss, 5, [], Optimisation(), 0.1)) == 1
