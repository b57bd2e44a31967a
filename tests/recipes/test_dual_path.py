from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from calligram.errors import UserError
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.features.images.backbones import BackboneInput
from calligram.recipes.catalog import PRESETS, find_preset
from calligram.recipes.parts.config import as_plain, from_plain, resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.recipes.parts.schedule import trained_stages
from calligram.training.loop import _Trainer
from calligram.training.runs import Run

SMALL = (
    "batch=6", "dim=16", "ema_decay=0", "image.crop=1", "image.jitter=0", "text.word_dim=8", "text.min_count=1",
    "text.cnn.blocks=1,1", "text.cnn.width=4", "text.cnn.length=8", "text.dropout=0", "text.word_dropout=0",
    "instance.dropout=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    import transformers

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("backbone")
    transformers.MobileNetV2Model(transformers.MobileNetV2Config(depth_multiplier=0.2, image_size=32)).save_pretrained(
        folder
    )
    return folder


def settings_of(*changes):
    return resolve(PRESETS["dual-path"].defaults, [*SMALL, *changes])


def run(collection, out, *changes, resume=False):
    context = RunContext(torch.device("cpu"))
    return run_preset(PRESETS["dual-path"], settings_of(*changes), collection, out, resume=resume, context=context)


def test_both_stages_train_from_scratch_and_the_classifier_is_not_saved(tiny, tmp_path):
    changes = (
        "image.size=24",
        "image.channels=8,16",
        "stages.1.epochs=20",
        "stages.2.epochs=20",
        "batch=14",
        "texts=3",
    )
    changes += ("text.cnn.width=8", "dim=32", "stages.1.lr=0.01", "stages.2.lr=0.01", "stages.2.optim.lr_scale=")
    best = run(tiny, tmp_path / "run", *changes)
    assert best["t2i_r1"] > 60  # chance is 1 in 6
    rows = Run.open(tmp_path / "run").metrics()
    assert {"stage I", "stage II"} == {row["stage"] for row in rows}
    assert "ranking" not in next(row for row in rows if row["stage"] == "stage I" and "loss" in row)
    matcher, _ = Run.open(tmp_path / "run").load()
    assert not [name for name, _ in matcher.named_parameters() if "classes" in name]


def test_stage_one_alone_stores_features_and_stage_two_trains_the_backbone(tiny, backbone, tmp_path):
    image = (f"image.backbone={backbone}", "image.size=32", "image.views=flip")
    run(tiny, tmp_path / "one", *image, "stages.1.epochs=2", "stages.2.epochs=0")
    _, inputs = Run.open(tmp_path / "one").load()
    assert isinstance(inputs.images, BackboneInput)
    run(tiny, tmp_path / "two", *image, "stages.1.epochs=2", "stages.2.epochs=2")
    matcher, inputs = Run.open(tmp_path / "two").load()
    assert evaluate_retrieval(matcher, inputs, tiny.sentences("test")).retrieval.t2i.queries == 14
    started = load_file(backbone / "model.safetensors")
    trained = dict(matcher.image.model.named_parameters())
    assert any(not torch.equal(trained[name], started[name]) for name in trained)


def test_features_of_the_first_stage_are_those_of_the_backbone(tiny, backbone, tmp_path):
    """Trained on stored features and on pixels through the held backbone, the first stage is the same."""
    changes = (f"image.backbone={backbone}", "image.size=32", "stages.1.epochs=1", "stages.2.epochs=1")
    plan = PRESETS["dual-path"].recipe.plan(settings_of(*changes), tiny, RunContext())
    first, second = plan.stages
    assert first.frozen == ("image",)
    plan.matcher.eval()
    features, pixels = (next(iter(s.batches.epoch(0))) for s in (first, second))
    assert features.images.ndim == 2
    seen = plan.inputs.images.finish(plan.inputs.images.load(tiny.sentences("train").visuals).take(range_of(tiny)))
    stored = first.batches.inputs.images.load(tiny.sentences("train").visuals).take(range_of(tiny)).float()
    one, two = plan.matcher.encode_images(seen).vectors, plan.matcher.encode_images(stored).vectors
    torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-2)  # stored in half precision
    assert pixels.images.ndim == 4


def range_of(collection):
    return np.arange(len(collection.sentences("train").visuals))


def test_the_classifier_continues_from_the_first_stage_into_the_second_also_after_a_kill(tiny, tmp_path, monkeypatch):
    changes = ("image.size=16", "image.channels=4", "stages.1.epochs=2", "stages.2.epochs=2", "instance.dropout=0.3")
    run(tiny, tmp_path / "whole", *changes)
    saved = _Trainer._save

    def stop_between(self, stage, epoch, batch, optimizer):
        saved(self, stage, epoch, batch, optimizer)
        if (stage, epoch, batch) == (1, 0, 0):
            raise KeyboardInterrupt

    monkeypatch.setattr(_Trainer, "_save", stop_between)
    with pytest.raises(KeyboardInterrupt):
        run(tiny, tmp_path / "stopped", *changes)
    monkeypatch.undo()
    run(tiny, tmp_path / "stopped", *changes, resume=True)
    one, two = (load_file(tmp_path / name / "best.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("network", ["gru", "cnn", "encoder"])
def test_any_text_branch_serves_with_ranking_infonce_and_instance_loss(tiny, tiny_bert, tmp_path, network):
    text = ("text.network=gru", f"text.encoder={tiny_bert}", "text.train=true")
    chosen = text if network == "encoder" else (f"text.network={network}",)
    losses = (
        "terms=ranking,infonce,instance", "ranking.random=true", "stages.1.without=ranking,infonce",
        "stages.1.epochs=1", "stages.2.epochs=1", "stages.2.instance.weights=0.5,0.5",
    )  # fmt: skip
    run(tiny, tmp_path / "run", "image.size=16", "image.channels=4", *chosen, *losses)
    terms = [row for row in Run.open(tmp_path / "run").metrics() if "dev" in row]
    assert len(terms) == 2


def test_classes_by_clusters_and_persons(tiny, stored_tiny, tmp_path):
    clusters = ("image.features=colour", "instance.clusters=3", "stages.1.epochs=1", "stages.2.epochs=0")
    plan = PRESETS["dual-path"].recipe.plan(settings_of(*clusters), stored_tiny, RunContext())
    assert plan.stages[0].batches.groups == 3
    persons = ("groups=identity", "image.size=16", "image.channels=4", "stages.1.epochs=1", "stages.2.epochs=1")
    plan = PRESETS["dual-path"].recipe.plan(settings_of(*persons), tiny, RunContext())
    assert plan.stages[0].batches.groups == 2
    assert run(tiny, tmp_path / "run", *persons)["t2i_r10"] > 0
    settings = settings_of("image.features=colour", "instance.clusters=7")
    with pytest.raises(UserError, match="clusters=7 is more than the 6 training images"):
        PRESETS["dual-path"].recipe.plan(settings, stored_tiny, RunContext())
    with pytest.raises(UserError, match="clusters needs image features"):
        PRESETS["dual-path"].recipe.plan(settings_of("instance.clusters=3"), tiny, RunContext())


def test_equal_captions_do_not_join_the_classes_of_their_images(tiny):
    plan = PRESETS["dual-path"].recipe.plan(settings_of("image.size=16", "image.channels=4"), tiny, RunContext())
    # "a warm colour" is one caption of two images: a group by the paper's definition, so five classes for six images.
    assert plan.stages[0].batches.groups == 5


@pytest.mark.parametrize("preset", ["dual-path", "dual-path-paper", "dual-path-release"])
def test_presets_replace_defaults_and_given_settings_replace_presets(preset):
    defaults = PRESETS[preset].defaults
    settings = resolve(defaults, ["stages.1.epochs=3"])
    (_, first), (_, second) = trained_stages(settings)
    assert first.epochs == 3
    assert first.lr == {"dual-path": 1e-3, "dual-path-paper": 1e-3, "dual-path-release": 0.1}[preset]
    assert first.optim.optimizer == second.optim.optimizer == ("adamw" if preset == "dual-path" else "sgd")
    assert second.image.train
    assert from_plain(defaults, as_plain(settings)) == settings
    with pytest.raises(UserError, match="unknown preset 'dual-path-papers'; did you mean 'dual-path-paper'"):
        find_preset("dual-path-papers")


def test_contradictory_settings_are_refused(tiny):
    for changes, message in (
        (("stages.1.epochs=0", "stages.2.epochs=0"), "no stage trains anything"),
        (("instance.weights=0,0",), r"instance\.weights are both zero"),
        (("stages.1.instance.weights=0,0",), r"instance\.weights are both zero"),
        (("text.encoder=x",), r"text\.network=cnn and text\.encoder are two different text towers"),
    ):
        with pytest.raises(UserError, match=message):
            PRESETS["dual-path"].recipe.plan(settings_of(*changes), tiny, RunContext())


def test_the_backbone_can_be_trained_in_both_stages(tiny, backbone):
    """``image.train=true`` was refused before; now it holds in all stages that do not change it."""
    changes = (f"image.backbone={backbone}", "image.size=32", "image.train=true")
    first, second = PRESETS["dual-path"].recipe.plan(settings_of(*changes), tiny, RunContext()).stages
    assert (first.frozen, second.frozen) == ((), ())
    assert next(iter(first.batches.epoch(0))).images.ndim == 4


def test_vse_adds_the_instance_loss_to_its_own(tiny, tmp_path):
    preset = PRESETS["vse"]
    changes = (
        "terms=infonce,instance",
        "instance.weight=0.5",
        "image.size=16",
        "image.channels=4",
        "dim=16",
        "text.min_count=1",
        "epochs=2",
        "batch=6",
    )
    settings = resolve(preset.defaults, [*changes, "text.network=cnn", "text.cnn.blocks=1", "text.cnn.width=4"])
    run_preset(preset, settings, tiny, tmp_path / "run", context=RunContext(torch.device("cpu")))
    assert (tmp_path / "run" / "best.safetensors").is_file()


def test_settings_of_the_instance_loss_reach_its_objective(tiny):
    changes = ("instance.dropout=0.3", "instance.scale=5", "instance.weights=0.2,0.7", "image.size=16")
    made = PRESETS["dual-path"].recipe.plan(settings_of(*changes), tiny, RunContext()).stages[0].objective
    assert (made.dropout.p, made.scale, made.weights) == (0.3, 5, (0.2, 0.7))


def test_classes_can_be_initialized_with_their_images(stored_tiny):
    changes = ("image.features=colour", "instance.init=images", "vse.head=linear", "stages.2.epochs=1")
    plan = PRESETS["dual-path"].recipe.plan(settings_of(*changes), stored_tiny, RunContext())
    first, second = plan.stages[0].objective.classes, plan.stages[1].objective.parts[-1].classes
    assert first is second
    train = stored_tiny.sentences("train")
    vectors = plan.matcher.encode_images(plan.inputs.images.load(train.visuals).take(range_of(stored_tiny))).vectors
    centred = torch.nn.functional.normalize(vectors - vectors.mean(0))
    groups = torch.from_numpy(train.matches.groups()[0])
    for group in range(5):
        expected = torch.nn.functional.normalize(centred[groups == group].sum(0), dim=0)
        torch.testing.assert_close(first[group].detach(), expected.detach())
