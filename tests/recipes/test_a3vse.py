from __future__ import annotations

import logging

import pytest
import torch
from safetensors.torch import load_file

from calligram.errors import UserError
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.training.batches.pseudo_pairs import PseudoPairBatch
from calligram.training.loop import _Trainer
from calligram.training.objectives.objective import InfoNCEObjective, RankingObjective
from calligram.training.objectives.pseudo_pairs import PseudoPairObjective
from calligram.training.runs import Run

SMALL = (
    "image.features=colour", "batch=4", "dim=8", "ema_decay=0", "text.word_dim=6", "text.hidden=8", "epochs=2",
    "a3vse.context=6", "a3vse.heads=2", "pseudo.region_source=finder", "sparse.images=0.5",
)  # fmt: skip
COLOURS = ("red", "green", "blue", "yellow", "white", "black")


def settings_of(*changes, preset="a3vse"):
    without = any(c.startswith("terms=") and "adversarial" not in c for c in changes)
    hidden = () if without else ("adversarial.hidden=5",)
    without_a3vse = any(c.startswith("matcher=") for c in changes)
    small = [c for c in SMALL if not (without_a3vse and c.startswith("a3vse."))]
    return resolve(PRESETS[preset].defaults, [*small, *hidden, *changes])


def planned(collection, *changes, preset="a3vse"):
    settings = settings_of(*changes, preset=preset)
    return PRESETS["a3vse"].recipe.plan(settings, settings.sparse.of(collection), RunContext())


def run(collection, out, *changes, resume=False):
    context = RunContext(torch.device("cpu"))
    return run_preset(PRESETS["a3vse"], settings_of(*changes), collection, out, resume=resume, context=context)


def test_pseudo_pairs_teach_words_that_captions_do_not_have(spoken_tiny, tmp_path):
    """Two captioned images know two colours; the detector knows all six, by the same words."""
    changes = ("sparse.images=0.17", "dim=32", "text.word_dim=16", "text.hidden=32", "text.dropout=0",
               "text.word_dropout=0",
               "lr=0.01", "epochs=12", "steps=8", "batch=6", "adversarial.weight=0.1")  # fmt: skip
    with_them = run(spoken_tiny, tmp_path / "with", *changes)
    without = run(spoken_tiny, tmp_path / "without", *changes, "pseudo.images=none")
    assert with_them["rsum"] > 1.3 * without["rsum"]
    weights = load_file(tmp_path / "with" / "best.safetensors")
    assert not [name for name in weights if "discriminator" in name or "adversary" in name]
    terms = next(row for row in reversed(Run(tmp_path / "with").metrics()) if "loss" in row)
    assert {"info_nce", "pseudo_info_nce", "intra", "cross", "trans", "cross_error"} <= set(terms)


def test_words_of_pseudo_sentences_are_in_the_vocabulary_and_their_images_differ(spoken_tiny):
    plan = planned(spoken_tiny, "sparse.images=0.17")
    assert set(COLOURS) <= set(plan.inputs.texts.words)
    (stage,) = plan.stages
    batch = next(iter(stage.batches.epoch(0)))
    assert isinstance(batch, PseudoPairBatch)
    own, beside = ({tuple(image.flatten().tolist()) for image in b.images} for b in (batch, batch.pseudo))
    assert not own & beside


def test_the_papers_preset_is_the_triplet_loss_with_its_margins_beta_and_weights(spoken_tiny):
    plan = planned(spoken_tiny, "warmup_epochs=1", "epochs=4", preset="a3vse-paper")
    warm, hard = plan.stages
    assert [stage.name for stage in plan.stages] == ["ranking, warm-up", "ranking"]
    for stage, top_k in ((warm, None), (hard, 1)):
        objective = stage.objective
        assert isinstance(objective, PseudoPairObjective)
        assert isinstance(objective.annotated, RankingObjective)
        assert isinstance(objective.pseudo, RankingObjective)
        assert (objective.annotated.margin, objective.pseudo.margin, objective.beta) == (0.2, 0.3, 0.8)
        assert objective.annotated.top_k == objective.pseudo.top_k == top_k
        assert objective.adversary.weights == {
            ("image", "pseudo_image"): 0.2,
            ("text", "pseudo_text"): 0.1,
            ("image", "text"): 0.5,
            ("pseudo_image", "pseudo_text"): 0.5,
            ("image", "pseudo_text"): 0.3,
            ("pseudo_image", "text"): 0.3,
        }
        assert objective.adversary.steepness == 10
    pseudo = settings_of(preset="a3vse-paper").pseudo
    assert (pseudo.min_label_score, pseudo.naming, pseudo.attributes) == (0.3, "own", "all")
    assert (warm.objective.span, hard.objective.span) == ((0.0, 0.25), (0.25, 1.0))
    assert warm.objective.adversary is hard.objective.adversary
    assert isinstance(planned(spoken_tiny).stages[0].objective.annotated, InfoNCEObjective)


def test_discriminators_restart_with_the_other_weights(spoken_tiny):
    changes = ("stages.1.name=first", "stages.2.name=second", "stages.2.on_start=restart", "warmup_epochs=0")
    first, second = (stage.objective.adversary for stage in planned(spoken_tiny, *changes).stages)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter += 1
    assert all((one - two).min() > 0.99 for one, two in zip(first.parameters(), second.parameters(), strict=True))


def test_each_weight_of_the_adversary_and_eta_reach_their_discriminator(spoken_tiny):
    changes = ("adversarial.intra=1,2", "adversarial.cross=3,4", "adversarial.trans=5,6", "adversarial.weight=10")
    adversary = planned(spoken_tiny, *changes, "adversarial.steepness=7").stages[0].objective.adversary
    assert adversary.weights == {
        ("image", "pseudo_image"): 10,
        ("text", "pseudo_text"): 20,
        ("image", "text"): 30,
        ("pseudo_image", "pseudo_text"): 40,
        ("image", "pseudo_text"): 50,
        ("pseudo_image", "text"): 60,
    }
    assert adversary.steepness == 7


def test_table_5_is_settings(spoken_tiny):
    for changes, kinds in (
        (("adversarial.intra=0,0",), {"cross", "trans"}),
        (("adversarial.cross=0,0",), {"intra", "trans"}),
        (("adversarial.trans=0,0",), {"intra", "cross"}),
    ):
        plan = planned(spoken_tiny, *changes)
        objective = plan.stages[0].objective
        terms = objective(plan.matcher, next(iter(plan.stages[0].batches.epoch(0))))
        assert set(terms) - {"info_nce", "pseudo_info_nce"} == kinds
    for change in ("adversarial.weight=0", "terms=infonce"):
        assert planned(spoken_tiny, change).stages[0].objective.adversary is None
    assert not isinstance(planned(spoken_tiny, "pseudo.images=none").stages[0].objective, PseudoPairObjective)
    assert planned(spoken_tiny, "a3vse.attention=mean").matcher.settings.attention == "mean"


def test_without_uncaptioned_images_training_uses_captions_only(spoken_tiny, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="calligram"):
        best = run(spoken_tiny, tmp_path / "run", "sparse.images=1", "steps=3")
    assert best["rsum"] > 0
    said = [
        record.message
        for record in caplog.records
        if "training without pseudo pairs and adversarial terms" in record.message
    ]
    assert len(said) == 1
    assert len(planned(spoken_tiny, "sparse.images=1", "steps=3").stages[0].batches) == 3
    # Or captioned images are spoken of as well.
    plan = planned(spoken_tiny, "sparse.images=1", "pseudo.images=all", "batch=50")
    (batch,) = plan.stages[0].batches.epoch(0)
    assert len(batch.images) == len(batch.pseudo.images) == 12


def test_discriminators_without_pseudo_pairs_are_reported(spoken_tiny, caplog):
    message = "pseudo.images=none makes no pseudo pairs, so the term adversarial has no effect"
    for changes, expected in (
        (("pseudo.images=none",), True),
        (("pseudo.images=none", "terms=ranking"), False),
        (("pseudo.images=all",), False),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="calligram"):
            planned(spoken_tiny, *changes)
        assert (message in caplog.text) == expected


def test_too_few_pseudo_pairs_are_left_out(spoken_tiny, caplog):
    with caplog.at_level(logging.INFO, logger="calligram"):
        plan = planned(spoken_tiny, "sparse.images=0.9167", "batch=3")
    assert not isinstance(plan.stages[0].objective, PseudoPairObjective)
    assert "1 images with 1 different pseudo-sentences are too few" in caplog.text


@pytest.mark.parametrize("where", [("warm-up", 0), ("ranking", 0), ("ranking", 1)])
def test_a_run_that_was_killed_takes_the_same_steps(spoken_tiny, tmp_path, monkeypatch, where):
    changes = ("epochs=3", "terms=ranking,adversarial", "warmup_epochs=1", "ema_decay=0.9", "save_steps=1", "steps=5")
    run(spoken_tiny, tmp_path / "whole", *changes)
    count = []

    def dies(self, stage, batch, real=_Trainer._backward):
        count.append(stage.name)
        place = {"warm-up": 0, "ranking": 5}[where[0]] + 5 * where[1] + 3
        if len(count) == place:
            raise KeyboardInterrupt
        return real(self, stage, batch)

    with monkeypatch.context() as patch:
        patch.setattr(_Trainer, "_backward", dies)
        with pytest.raises(KeyboardInterrupt):
            run(spoken_tiny, tmp_path / "killed", *changes)
    run(spoken_tiny, tmp_path / "killed", *changes, resume=True)
    one, two = (Run(tmp_path / name).load_state()[0] for name in ("whole", "killed"))
    for group in ("matcher", "average"):
        assert all(torch.equal(one[group][name], two[group][name]) for name in one[group])
    numbers = [
        [{k: v for k, v in row.items() if k != "steps_per_second"} for row in Run(tmp_path / name).metrics()]
        for name in ("whole", "killed")
    ]
    assert numbers[0] == numbers[1]


CNN = ("text.network=cnn", "text.cnn.blocks=1,1", "text.cnn.width=4", "text.cnn.length=16", "vse.head=paper")


@pytest.mark.parametrize(
    ("matcher", "changes"),
    [
        ("vse", ()),
        ("vse", CNN),
        ("two-branch", ("two-branch.hidden=16",)),
        ("vsrn", ("terms=infonce,caption,adversarial", "vsrn.layers=1", "caption.hidden=8")),
        ("scan", ("terms=infonce",)),
        ("mmca", ("mmca.heads=2", "mmca.filters=8")),
    ],
)
def test_other_matchers_learn_from_pseudo_pairs_too(matcher, changes, spoken_tiny, tmp_path):
    best = run(spoken_tiny, tmp_path / "run", f"matcher={matcher}", *changes)
    assert best["rsum"] > 0
    terms = next(row for row in reversed(Run(tmp_path / "run").metrics()) if "stage" in row)
    assert terms["stage"] == ("infonce+caption" if matcher == "vsrn" else "infonce")


def test_contradictory_settings_are_refused(spoken_tiny):
    for changes in ((), ("pseudo.region_source=missing",)):  # before pseudo-sentences are made
        with pytest.raises(
            UserError, match=r"matcher=scan does not score by vectors.* leave adversarial out of terms="
        ):
            planned(spoken_tiny, "matcher=scan", *changes)
    assert planned(spoken_tiny, "matcher=scan", "sparse.images=1").stages
    with pytest.raises(UserError, match="setting batch takes a whole number from 2 "):
        settings_of("batch=1")
    with pytest.raises(UserError, match="setting pseudo_batch is now called batch"):
        settings_of("pseudo_batch=3")
    with pytest.raises(UserError, match="pseudo pairs need one of the terms ranking, infonce"):
        planned(spoken_tiny, "terms=instance")


def test_any_text_tower_serves_two_branch(spoken_tiny):
    plan = planned(spoken_tiny, "matcher=two-branch", "two-branch.hidden=16", *CNN[:-1])
    assert plan.matcher.settings.text.kind == "cnn"
    assert isinstance(plan.stages[0].objective, PseudoPairObjective)
