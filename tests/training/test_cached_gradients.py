"""Batches in pieces: the gradients of the whole batch, with every kind of encoding, and the same training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from calligram.data.collection import Collection
from calligram.errors import UserError
from calligram.models.matcher import Matcher, stack
from calligram.recipes.catalog import find_preset
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.training.batches.batch import Batch
from calligram.training.cached_gradients import CachedObjective
from calligram.training.objectives.objective import EnsembleObjective, InfoNCEObjective, Objective
from calligram.training.runs import Run

SMALL = ("batch=6", "texts=2", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1", "epochs=1")


def planned(tiny: Collection, preset: str, *changes: str) -> tuple[Matcher, Objective, Batch]:
    """The matcher, the objective and the first batch of a run."""
    chosen = find_preset(preset)
    torch.manual_seed(0)
    plan = chosen.recipe.plan(resolve(chosen.defaults, [*SMALL, *changes]), tiny, RunContext(torch.device("cpu")))
    stage = plan.stages[-1]
    return plan.matcher.train(), stage.objective, next(iter(stage.batches.epoch(0, 0)))


def gradients(matcher: Matcher, objective: Objective, batch: Batch) -> dict[str, Tensor]:
    """Gradients after the passes of a step, as the training loop runs them."""
    modules = torch.nn.ModuleDict({"matcher": matcher, "objective": objective})
    modules.zero_grad()
    torch.manual_seed(7)
    groups = objective.passes(matcher, batch)
    while terms := next(groups, {}):
        torch.stack(list(terms.values())).sum().backward()
    found = {name: p.grad.clone() for name, p in modules.named_parameters() if p.grad is not None}
    return {name.replace("objective.objective.", "objective."): value for name, value in found.items()}


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("vse", ("text.encoder={bert}", "text.train=true", "image.backbone={clip}", "image.train=true")),
        ("vse", ("image.backbone={clip}", "terms=ranking")),
        ("scan", ("image.backbone={clip}", "image.train=true")),
    ],
)
@pytest.mark.parametrize("items", [1, 4, 100])
def test_gradients_are_those_of_the_whole_batch(tiny, tiny_bert, tiny_clip, preset, changes, items):
    given = [change.format(bert=tiny_bert, clip=tiny_clip) for change in changes]
    matcher, objective, batch = planned(tiny, preset, *given)
    matcher.eval()  # without dropout, whose numbers depend on the order of the items
    expected = gradients(matcher, objective, batch)
    found = gradients(matcher, CachedObjective(objective, items), batch)
    assert found.keys() == expected.keys()
    assert any(value.abs().max() > 1e-4 for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def test_dropout_draws_the_same_numbers_when_a_piece_is_encoded_again(tiny, tiny_bert):
    changes = (
        f"text.encoder={tiny_bert}",
        "text.train=true",
        "text.dropout=0.5",
        "image.channels=4,8",
        "image.size=16",
    )
    matcher, objective, batch = planned(tiny, "vse", *changes)
    matcher.image.eval()  # its batch normalisation would use each piece
    cached = CachedObjective(objective, 3)
    found = gradients(matcher, cached, batch)
    # The same pieces with all activations in memory: one graph, and the same random numbers.
    torch.nn.ModuleDict({"matcher": matcher, "objective": objective}).zero_grad()
    torch.manual_seed(7)
    starts = range(0, len(batch.images), 3), range(0, len(batch.texts), 3)
    images = stack([matcher.encode_images(batch.images[n : n + 3]) for n in starts[0]])
    texts = stack([matcher.encode_texts(batch.texts[n : n + 3], batch.text_mask[n : n + 3]) for n in starts[1]])
    torch.stack(list(objective.terms(matcher, batch, images, texts).values())).sum().backward()
    expected = {f"matcher.{name}": p.grad for name, p in matcher.named_parameters() if p.grad is not None}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_activations_of_one_piece_at_a_time_are_in_memory(tiny, tiny_clip):
    given = (f"image.backbone={tiny_clip}", "image.train=true", "text.word_dropout=0")
    matcher, objective, batch = planned(tiny, "vse", *given)

    def largest(used: Objective) -> int:
        """Largest number of items whose activations a layer keeps for the backward pass."""
        kept: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            if tensor.ndim == 3:
                kept.append(len(tensor))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            gradients(matcher, used, batch)
        return max(kept)

    assert largest(objective) >= len(batch.images)
    assert largest(CachedObjective(objective, 2)) == 2


def test_a_cached_run_learns_as_a_plain_run_does(tiny, tiny_bert, tmp_path):
    preset = find_preset("vse")
    settings = [*SMALL, f"text.encoder={tiny_bert}", "image.channels=4,8", "image.size=16", "epochs=2", "lr=0.01"]
    rows = {}
    for speed in ("auto", "cached"):
        own = resolve(preset.defaults, [*settings, f"speed={speed}"])
        run_preset(preset, own, tiny, Path(tmp_path / speed), context=RunContext(torch.device("cpu")))
        rows[speed] = [row["dev"]["rsum"] for row in Run(tmp_path / speed).metrics() if "dev" in row]
    assert len(rows["cached"]) == len(rows["auto"]) == 2
    np.testing.assert_allclose(rows["cached"], rows["auto"], atol=1e-6)  # a batch of six is one piece


def test_objectives_that_encode_in_their_own_way_are_refused():
    with pytest.raises(UserError, match="EnsembleObjective encodes it in its own way; take speed=auto"):
        CachedObjective(EnsembleObjective([InfoNCEObjective()]))
