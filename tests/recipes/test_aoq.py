from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from calligram.data.negatives import NegativeLists
from calligram.errors import UserError
from calligram.evaluation.mine import mine_pairing
from calligram.recipes.catalog import RECIPES
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_recipe
from calligram.studies.claims import Claim, Row, Study
from calligram.studies.reproduce import reproduce_study
from calligram.training.batches.mined_negatives import OfflineSampler
from calligram.training.loop import _Trainer
from calligram.training.runs import Run

SMALL = (
    "batch=6", "texts=1", "dim=8", "ema_decay=0", "image.size=16", "image.channels=4", "image.crop=1",
    "text.word_dim=6", "text.hidden=8", "text.min_count=1", "epochs=2", "warmup_epochs=1", "mined.texts=6",
    "mined.images=3",
)  # fmt: skip


def settings_of(*changes):
    return resolve(RECIPES["aoq"].defaults, [*SMALL, *changes])


def run(collection, out, *changes, resume=False):
    context = RunContext(torch.device("cpu"))
    return run_recipe(RECIPES["aoq"], settings_of(*changes), collection, out, resume=resume, context=context)


def test_two_rounds_train_and_keep_the_mined_negatives_of_the_first(tiny, tmp_path):
    changes = ("dim=32", "image.size=24", "image.channels=8,16", "text.word_dim=16", "text.hidden=16", "lr=0.01")
    best = run(tiny, tmp_path / "run", *changes, "batch=14", "texts=3", "epochs=25", "warmup_epochs=10")
    assert best["t2i_r1"] > 60  # chance is 1 in 6
    opened = Run.open(tmp_path / "run")
    rows = opened.metrics()
    names = ["round 1, warm-up", "round 1, ranking", "round 2, warm-up", "round 2, adaptive"]
    assert list(dict.fromkeys(row["stage"] for row in rows)) == names
    last = [row for row in rows if row["stage"] == names[-1] and "loss" in row][-1]
    assert {"online", "offline", "derived"} <= set(last)
    # What was mined is what the first round's best matcher finds.
    train = tiny.sentences("train").join_equal_texts()
    matcher, inputs = opened.load()
    matcher.load_state_dict(load_file(tmp_path / "run" / "first.safetensors"))
    found = mine_pairing(matcher, inputs, train, texts=6, images=3)
    kept = NegativeLists.open(tmp_path / "run" / "negatives")
    assert (kept.texts == found.texts).all()
    assert (kept.images == found.images).all()
    assert kept.about["content"] == tiny.fingerprint


def test_the_second_round_starts_from_scratch_or_continues(tiny, tmp_path, monkeypatch):
    at_start = {}

    def watched(self, number, epoch, start, optimizer, real=_Trainer._run_epoch):
        at_start[self.stages[number].name, epoch] = {k: v.clone() for k, v in self.matcher.state_dict().items()}
        return real(self, number, epoch, start, optimizer)

    monkeypatch.setattr(_Trainer, "_run_epoch", watched)
    run(tiny, tmp_path / "scratch", "ema_decay=0.9")
    same = at_start["round 1, warm-up", 0], at_start["round 2, warm-up", 0]
    assert all(torch.equal(same[0][name], same[1][name]) for name in same[0])
    run(tiny, tmp_path / "on", "fine_tune=true")
    first = load_file(tmp_path / "on" / "first.safetensors")
    assert all(torch.equal(first[name], value) for name, value in at_start["round 2, adaptive", 0].items())


@pytest.mark.parametrize("where", [("round 2, warm-up", 0), ("round 2, adaptive", 0), ("round 2, adaptive", 1)])
def test_a_run_that_was_killed_takes_the_same_steps(tiny, tmp_path, monkeypatch, where):
    changes = ("epochs=3", "ema_decay=0.9", "save_steps=1")
    run(tiny, tmp_path / "whole", *changes)

    def dies(self, number, epoch, optimizer, real=_Trainer._end_epoch):
        if (self.stages[number].name, epoch) == where:
            raise KeyboardInterrupt
        return real(self, number, epoch, optimizer)

    with monkeypatch.context() as patch:
        patch.setattr(_Trainer, "_end_epoch", dies)
        with pytest.raises(KeyboardInterrupt):
            run(tiny, tmp_path / "killed", *changes)
    run(tiny, tmp_path / "killed", *changes, resume=True)
    one, two = (Run(tmp_path / name).load_state()[0] for name in ("whole", "killed"))
    for group in ("matcher", "average"):
        assert all(torch.equal(one[group][name], two[group][name]) for name in one[group])


def test_negatives_of_a_folder_or_of_a_teacher_make_one_round(tiny, tmp_path):
    run(tiny, tmp_path / "teacher", "loss=online")
    assert not (tmp_path / "teacher" / "negatives").exists()
    matcher, inputs = Run.open(tmp_path / "teacher").load()
    train = tiny.sentences("train").join_equal_texts()
    mine_pairing(matcher, inputs, train, texts=6, images=3).save(tmp_path / "lists")
    drawn = []
    sparse = settings_of(f"negatives={tmp_path / 'lists'}", "sparse.images=0.5")
    with pytest.raises(UserError, match=r"other items .*; give negatives= a run folder .*, or leave negatives out"):
        RECIPES["aoq"].plan(sparse, sparse.sparse.of(tiny), RunContext())
    for number, negatives in enumerate(("lists", "teacher")):
        changes = (f"negatives={tmp_path / negatives}", "loss=offline-triplet")
        plan = RECIPES["aoq"].plan(settings_of(*changes), tiny, RunContext())
        assert [(stage.name, stage.resets_best) for stage in plan.stages] == [
            ("warm-up", False),
            ("offline-triplet", True),
        ]
        drawn.append(next(iter(plan.stages[-1].batches.epoch(0))).drawn)
        run(tiny, tmp_path / f"run-{number}", *changes)
    assert torch.equal(drawn[0], drawn[1])
    one, two = (load_file(tmp_path / f"run-{n}" / "best.safetensors") for n in (0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_miner_that_saw_removed_captions_is_refused(tiny, tmp_path):
    run(tiny, tmp_path / "miner", "loss=online")
    run(tiny, tmp_path / "own lists", "epochs=2")
    for name in ("miner", "own lists"):
        with pytest.raises(UserError, match=r"negatives=.* was trained on .* captions that .* leaves out"):
            run(tiny, tmp_path / "run", f"negatives={tmp_path / name}", "sparse.images=0.5")
    run(tiny, tmp_path / "sparse", "loss=online", "sparse.images=0.5")
    run(tiny, tmp_path / "run", f"negatives={tmp_path / 'sparse'}", "sparse.images=0.5")


def test_table_3_is_settings(tiny):
    for changes, wanted in (
        (("loss=offline-quintuplet", "online=false"), {"online": False}),
        (("loss=offline-quintuplet", "derive=online"), {"derive": "online"}),
        (("weigh_by=positive",), {"against": "positive", "kind": "adaptive"}),
        (("squared=true", "alpha=0.5", "beta=2", "offline_margin=0.1"), {"squared": True, "alpha": 0.5, "beta": 2.0}),
    ):
        plan = RECIPES["aoq"].plan(settings_of(*changes), tiny, RunContext())
        options = plan.stages[-1].objective.options
        assert {name: getattr(options, name) for name in wanted} == wanted
    plan = RECIPES["aoq"].plan(settings_of("mined.spread=normal"), tiny, RunContext())
    sampler = plan.stages[-1].batches.sampler
    assert isinstance(sampler, OfflineSampler)
    assert sampler.distribution == "normal"


CNN = ("text.cnn.blocks=1,1", "text.cnn.width=4", "text.cnn.length=8")


@pytest.mark.parametrize(
    ("matcher", "changes"),
    [
        ("dual-path", CNN),
        ("scan", ("image.features=colour",)),
        ("mmca", ("image.features=colour", "mmca.heads=2", "mmca.filters=4", "candidates=2")),
        ("bfan", ("image.features=colour",)),
        ("vsrn", ("image.features=colour", "vsrn.layers=1", "vsrn.decoder_dim=8")),
        ("mmca", ("image.features=colour", "mmca.heads=2", "mmca.filters=8")),
    ],
)
def test_other_matchers_train_in_two_rounds(matcher, changes, stored_tiny, tmp_path):
    best = run(stored_tiny, tmp_path / "run", f"matcher={matcher}", *changes)
    assert best["rsum"] > 0
    assert (tmp_path / "run" / "negatives" / "negatives.json").is_file()
    losses = [row for row in Run.open(tmp_path / "run").metrics() if row["stage"] == "round 2, adaptive"]
    assert losses


def test_a_pretrained_model_trains_in_two_rounds(tiny, tiny_clip, tmp_path):
    best = run(tiny, tmp_path / "run", "matcher=pretrained", f"model={tiny_clip}", "lr=3e-3", "warmup_epochs=0")
    assert best["rsum"] > 0
    with pytest.raises(UserError, match="matcher=pretrained needs a model"):
        run(tiny, tmp_path / "none", "matcher=pretrained")
    assert not (tmp_path / "none").exists()


def test_a3vse_has_the_sizes_and_rates_of_its_own_recipe():
    found, own = resolve(RECIPES["aoq"].defaults, ["matcher=a3vse"]), RECIPES["a3vse"].defaults
    for key in ("batch", "texts", "epoch_of", "lr", "dim"):
        assert getattr(found, key) == getattr(own, key), key
    for key in ("word_dim", "hidden", "bidirectional", "dropout", "effective_word_dropout"):
        assert getattr(found.text, key) == getattr(own.text, key), key


def test_mmca_has_the_rates_of_fragments_at_the_size_of_its_paper():
    found, own = resolve(RECIPES["aoq"].defaults, ["matcher=mmca"]), RECIPES["fragments"].defaults
    assert (found.lr, found.batch, found.epochs, found.ema_decay) == (own.lr, own.batch, own.epochs, own.ema_decay)
    assert (found.dim, found.dim % found.mmca.heads) == (256, 0)


def test_contradictory_settings_are_refused(tiny, tmp_path):
    for changes, message in (
        (("warmup_epochs=2",), "warmup_epochs=2 leaves none of epochs=2"),
        (("online=false",), "online=false needs loss=offline-quintuplet"),
        (("fine_tune=true", "negatives=x"), "fine_tune continues from the first round"),
    ):
        with pytest.raises(UserError, match=message):
            settings_of(*changes)
    with pytest.raises(UserError, match="holds no mined negatives"):
        run(tiny, tmp_path / "run", f"negatives={tmp_path / 'missing'}")


def test_rows_of_a_study_learn_from_another_rows_run(tiny, tmp_path):
    rows = (Row("base", "aoq", ("loss=online",)), Row("taught", "aoq", ("loss=adaptive", "negatives=row:base")))
    study = Study("paper", rows, (Claim("taught beats base", "taught", "base"),), compared=(("base", "taught"),))
    (verdict,) = reproduce_study(
        study, tiny, results=tmp_path / "results", runs=tmp_path / "runs", seeds=1, changes=SMALL,
        context=RunContext(torch.device("cpu")),
    )  # fmt: skip
    assert verdict.verdict != "not run"
    (together,) = (tmp_path / "results" / "pictures").glob("paper-base-compared-*.png")
    assert together.stat().st_size > 5000
    assert [row["stage"] for row in Run(next((tmp_path / "runs").glob("*taught*"))).metrics()][-1] == "adaptive"
