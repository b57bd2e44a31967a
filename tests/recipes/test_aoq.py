from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from calligram.data.negatives import NegativeLists
from calligram.errors import UserError
from calligram.evaluation.mine import mine_pairing
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.studies.claims import Claim, Row, Study
from calligram.studies.reproduce import reproduce_study
from calligram.training.batches.mined_negatives import OfflineSampler
from calligram.training.loop import _Trainer
from calligram.training.runs import Run

SMALL = (
    "batch=6", "texts=1", "dim=8", "ema_decay=0", "image.size=16", "image.channels=4", "image.crop=1",
    "text.word_dim=6", "text.hidden=8", "text.min_count=1", "epochs=2", "warmup_epochs=1",
)  # fmt: skip
LISTS = ("offline.texts=6", "offline.images=3")


def settings_of(*changes):
    lists = () if "terms=ranking" in changes else LISTS
    return resolve(PRESETS["aoq"].defaults, [*SMALL, *lists, *changes])


def run(collection, out, *changes, resume=False):
    context = RunContext(torch.device("cpu"))
    return run_preset(PRESETS["aoq"], settings_of(*changes), collection, out, resume=resume, context=context)


def test_two_rounds_train_and_keep_the_mined_negatives_of_the_first(tiny, tmp_path):
    changes = ("dim=32", "image.size=24", "image.channels=8,16", "text.word_dim=16", "text.hidden=16", "lr=0.01")
    best = run(tiny, tmp_path / "run", *changes, "batch=14", "texts=3", "epochs=25", "warmup_epochs=10")
    assert best["t2i_r1"] > 60  # chance is 1 in 6
    opened = Run.open(tmp_path / "run")
    rows = opened.metrics()
    names = ["round 1, warm-up", "round 1", "round 2, warm-up", "round 2"]
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
    run(tiny, tmp_path / "on", "stages.2.on_start=mine", "stages.2.warmup_epochs=0")
    first = load_file(tmp_path / "on" / "first.safetensors")
    assert all(torch.equal(first[name], value) for name, value in at_start["round 2", 0].items())


@pytest.mark.parametrize("where", [("round 2, warm-up", 0), ("round 2", 0), ("round 2", 1)])
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
    run(tiny, tmp_path / "teacher", "terms=ranking")
    assert not (tmp_path / "teacher" / "negatives").exists()
    matcher, inputs = Run.open(tmp_path / "teacher").load()
    train = tiny.sentences("train").join_equal_texts()
    mine_pairing(matcher, inputs, train, texts=6, images=3).save(tmp_path / "lists")
    drawn = []
    sparse = settings_of(f"offline.negatives={tmp_path / 'lists'}", "sparse.images=0.5")
    with pytest.raises(UserError, match=r"other items .*; give offline.negatives= a run folder .*, or leave it out"):
        PRESETS["aoq"].recipe.plan(sparse, sparse.sparse.of(tiny), RunContext())
    for number, negatives in enumerate(("lists", "teacher")):
        changes = (f"offline.negatives={tmp_path / negatives}", "offline.loss=triplet")
        plan = PRESETS["aoq"].recipe.plan(settings_of(*changes), tiny, RunContext())
        assert [(stage.name, stage.resets_best) for stage in plan.stages] == [
            ("round 2, warm-up", True),
            ("round 2", False),
        ]
        drawn.append(next(iter(plan.stages[-1].batches.epoch(0))).drawn)
        run(tiny, tmp_path / f"run-{number}", *changes)
    assert torch.equal(drawn[0], drawn[1])
    one, two = (load_file(tmp_path / f"run-{n}" / "best.safetensors") for n in (0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_first_h_items_of_given_lists_are_drawn(tiny, tmp_path):
    """h is the setting, also where the lists of a folder are longer (aoq, Sec. 3.2)."""
    matcher = PRESETS["aoq"].recipe.plan(settings_of(), tiny, RunContext())
    train = tiny.sentences("train").join_equal_texts()
    lists = mine_pairing(matcher.matcher, matcher.inputs, train, texts=6, images=3)
    lists.save(tmp_path / "lists")
    changes = (f"offline.negatives={tmp_path / 'lists'}", "offline.texts=1", "offline.images=1")
    sampler = PRESETS["aoq"].recipe.plan(settings_of(*changes), tiny, RunContext()).stages[-1].batches.sampler
    rows = [row for number in range(5) for batch in sampler.epoch(number) for row in batch.tolist()]
    assert {(row[0], row[3]) for row in rows if row[3] >= 0} <= set(enumerate(lists.texts[:, 0].tolist()))
    assert {(row[1], row[2]) for row in rows if row[2] >= 0} <= set(enumerate(lists.images[:, 0].tolist()))
    assert any(row[3] >= 0 for row in rows)


def test_a_miner_that_saw_removed_captions_is_refused(tiny, tmp_path):
    run(tiny, tmp_path / "miner", "terms=ranking")
    run(tiny, tmp_path / "own lists", "epochs=2")
    for name in ("miner", "own lists"):
        with pytest.raises(UserError, match=r"offline\.negatives=.* was trained on .* captions that .* leaves out"):
            run(tiny, tmp_path / "run", f"offline.negatives={tmp_path / name}", "sparse.images=0.5")
    run(tiny, tmp_path / "sparse", "terms=ranking", "sparse.images=0.5")
    run(tiny, tmp_path / "run", f"offline.negatives={tmp_path / 'sparse'}", "sparse.images=0.5")


def test_table_3_is_settings(tiny):
    for changes, wanted in (
        (("offline.loss=quintuplet", "offline.online=false"), {"online": False}),
        (("offline.loss=quintuplet", "offline.derive=online"), {"derive": "online"}),
        (("offline.weigh_by=positive",), {"against": "positive", "kind": "adaptive"}),
        (
            (
                "offline.squared=true", "offline.alpha=0.5", "offline.beta=2", "offline.offline_margin=0.1",
                "offline.margin=0.4",
            ),
            {"squared": True, "alpha": 0.5, "beta": 2.0, "margin": 0.4, "offline_margin": 0.1},
        ),
    ):  # fmt: skip
        plan = PRESETS["aoq"].recipe.plan(settings_of(*changes), tiny, RunContext())
        options = plan.stages[-1].objective.options
        assert {name: getattr(options, name) for name in wanted} == wanted
    plan = PRESETS["aoq"].recipe.plan(settings_of("offline.spread=normal"), tiny, RunContext())
    sampler = plan.stages[-1].batches.sampler
    assert isinstance(sampler, OfflineSampler)
    assert sampler.distribution == "normal"


CNN = ("text.network=cnn", "vse.head=paper", "text.cnn.blocks=1,1", "text.cnn.width=4", "text.cnn.length=8")


@pytest.mark.parametrize(
    ("matcher", "changes"),
    [
        ("vse", CNN),
        ("scan", ("image.features=colour",)),
        ("mmca", ("image.features=colour", "mmca.heads=2", "mmca.filters=4", "candidates=2")),
        ("bfan", ("image.features=colour",)),
        ("vsrn", ("image.features=colour", "vsrn.layers=1", "terms=ranking,offline,caption", "caption.hidden=8")),
        ("mmca", ("image.features=colour", "mmca.heads=2", "mmca.filters=8")),
    ],
)
def test_other_matchers_train_in_two_rounds(matcher, changes, stored_tiny, tmp_path):
    best = run(stored_tiny, tmp_path / "run", f"matcher={matcher}", *changes)
    assert best["rsum"] > 0
    assert (tmp_path / "run" / "negatives" / "negatives.json").is_file()
    losses = [row for row in Run.open(tmp_path / "run").metrics() if row["stage"] == "round 2"]
    assert losses


def test_a_pretrained_model_trains_in_two_rounds(tiny, tiny_clip, tmp_path):
    best = run(
        tiny, tmp_path / "run", "matcher=pretrained", f"pretrained.model={tiny_clip}", "lr=3e-3", "warmup_epochs=0"
    )
    assert best["rsum"] > 0
    with pytest.raises(UserError, match="matcher=pretrained needs a model"):
        run(tiny, tmp_path / "none", "matcher=pretrained")
    assert not (tmp_path / "none").exists()


def test_a_round_can_be_added_to_the_settings_of_any_preset(stored_tiny, tmp_path):
    """What ``matcher=`` of aoq changed before, sizes and rates, comes from the preset that rounds are added to."""
    preset = PRESETS["mmca"]
    changes = (
        "batch=6", "dim=8", "text.word_dim=6", "text.hidden=8", "text.min_count=1", "text.word_dropout=0", "epochs=2",
        "image.features=colour", "mmca.heads=2", "mmca.filters=4", "terms=infonce,offline", "offline.texts=6",
        "stages.1.without=offline", "stages.2.on_start=mine", "stages.2.warmup_epochs=0", "stages.2.epochs=5",
    )  # fmt: skip
    settings = resolve(preset.defaults, changes)
    assert (settings.lr, settings.ema_decay) == (preset.defaults.lr, preset.defaults.ema_decay)
    run_preset(preset, settings, stored_tiny, tmp_path / "run", context=RunContext(torch.device("cpu")))
    rows = Run.open(tmp_path / "run").metrics()
    assert list(dict.fromkeys(row["stage"] for row in rows)) == ["infonce", "infonce+offline"]
    assert {"info_nce", "offline", "online"} <= set([row for row in rows if "loss" in row][-1])


def test_mined_lists_have_at_least_ten_items_by_default(tiny, tmp_path):
    defaults = PRESETS["aoq"].defaults.terms[1]
    assert (defaults.share, defaults.texts, defaults.images) == (0.002, None, None)
    run(tiny, tmp_path / "run", "offline.texts=none", "offline.images=none")
    lists = NegativeLists.open(tmp_path / "run" / "negatives")
    assert (lists.texts.shape[1], lists.images.shape[1]) == (10, 6)  # there are six images


def test_contradictory_settings_are_refused(tiny, tmp_path):
    with pytest.raises(UserError, match=r"offline\.online=false needs offline\.loss=quintuplet"):
        settings_of("offline.online=false")
    for changes, message in (
        (("warmup_epochs=2",), "warmup_epochs=2 leaves none of epochs=2"),
        (("extra_pairs=neighbours",), "the term offline draws its own pairs; give extra_pairs=none"),
        ((f"offline.negatives={tmp_path / 'missing'}",), "holds no mined negatives"),
    ):
        with pytest.raises(UserError, match=message):
            run(tiny, tmp_path / "run", *changes)
    assert not (tmp_path / "run").exists()


def test_a_round_that_continues_may_use_given_negatives(tiny, tmp_path):
    """Settings that contradicted each other before: the second round continues from the first, with given lists."""
    run(tiny, tmp_path / "teacher", "terms=ranking")
    changes = ("stages.2.on_start=mine", "stages.2.warmup_epochs=0", f"offline.negatives={tmp_path / 'teacher'}")
    plan = PRESETS["aoq"].recipe.plan(settings_of(*changes), tiny, RunContext())
    assert [(stage.name, stage.on_start) for stage in plan.stages] == [
        ("round 1, warm-up", None),
        ("round 1", None),
        ("round 2", None),
    ]


def test_rows_of_a_study_learn_from_another_rows_run(tiny, tmp_path):
    rows = (Row("base", "aoq", ("terms=ranking",)), Row("taught", "aoq", ("offline.negatives=row:base",)))
    study = Study("paper", rows, (Claim("taught beats base", "taught", "base"),), compared=(("base", "taught"),))
    (verdict,) = reproduce_study(
        study, tiny, results=tmp_path / "results", runs=tmp_path / "runs", seeds=1, changes=SMALL,
        context=RunContext(torch.device("cpu")),
    )  # fmt: skip
    assert verdict.verdict != "not run"
    (together,) = (tmp_path / "results" / "pictures").glob("paper-base-compared-*.png")
    assert together.stat().st_size > 5000
    assert [row["stage"] for row in Run(next((tmp_path / "runs").glob("*taught*"))).metrics()][-1] == "round 2"


def test_a_third_round_mines_again_with_the_matcher_of_the_second(tiny, tmp_path):
    third = ("stages.3.name=round 3", "stages.3.without=ranking", "stages.3.on_start=mine,restart",
             "stages.3.resets_best=true", "stages.3.offline.texts=4")  # fmt: skip
    run(tiny, tmp_path / "run", "lr=0.01", *third)
    folder = tmp_path / "run"
    first, second = (NegativeLists.open(folder / name) for name in ("negatives", "negatives-2"))
    assert (first.texts.shape[1], second.texts.shape[1]) == (6, 4)
    assert first.about["run"] != second.about["run"]
    # Each mining keeps the weights that mined: the best of the round before it.
    one, two = (load_file(folder / name) for name in ("first.safetensors", "round-2.safetensors"))
    assert any(not torch.equal(one[name], two[name]) for name in one)
