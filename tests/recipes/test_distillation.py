from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calligram.checksums import sealed
from calligram.errors import UserError
from calligram.evaluation.recall import encode_pairing, load_pairing
from calligram.models.matcher import Encoded
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, load_teacher, run_preset
from calligram.training.loop import _Trainer
from calligram.training.objectives.distillation import DistillationObjective
from calligram.training.runs import Run

SMALL = ("batch=6", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1", "ema_decay=0", "lr=0.01")
STORED = "image.features=colour"
CPU = RunContext(torch.device("cpu"))


def run(preset, collection, out, *changes, resume=False):
    chosen = PRESETS[preset]
    settings = resolve(chosen.defaults, [*SMALL, *changes])
    return run_preset(chosen, settings, collection, out, resume=resume, context=CPU)


@pytest.fixture(scope="module", params=["mmca", "scan,mmca"])
def teacher(request, stored_tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher") / "run"
    changes = (f"matcher={request.param}", "mmca.heads=4", "mmca.filters=8", "precision=fp32", "epochs=10")
    still = ("image.train=false", "image.views=one", "text.train=false", "text.word_dropout=0")
    run("best", stored_tiny, folder, STORED, *changes, *still)
    return folder


def test_a_teacher_scores_rows_of_the_training_pairing_as_it_does_alone(stored_tiny, teacher):
    train = stored_tiny.sentences("train").join_equal_texts()
    found = load_teacher(str(teacher), train, CPU)
    matcher, inputs = Run.open(teacher).load()
    encoded = encode_pairing(matcher, inputs, load_pairing(inputs, train))
    images, texts = torch.tensor([3, 0, 5]), torch.tensor([2, 7, 1, 4])
    expected = matcher.score(encoded.images.rows(images), encoded.texts.rows(texts))
    batch = SimpleNamespace(image_rows=images, text_rows=texts)
    torch.testing.assert_close(found.scores(batch), expected, rtol=1e-2, atol=2e-3)  # half precision


PIXELS = ("image.size=16", "image.channels=4", "image.crop=0.3", "image.flip=true")


@pytest.fixture(scope="module")
def ensemble(stored_tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensemble") / "run"
    run("vse", stored_tiny, folder, *PIXELS, "matcher=vse,vse", "epochs=10")
    return folder


def plan(collection, *changes):
    settings = resolve(PRESETS["distil"].defaults, [*SMALL, *PIXELS, "terms=distillation", *changes])
    return PRESETS["distil"].recipe.plan(settings, collection, CPU)


@torch.no_grad()
def test_a_teacher_with_the_same_pixels_sees_the_augmented_images(stored_tiny, ensemble):
    stage = plan(stored_tiny, f"distillation.teacher={ensemble}").stages[0]
    teacher, inputs = Run.open(ensemble).load()
    batch = next(iter(stage.batches.epoch(0)))
    (part,) = (each for each in stage.objective.modules() if isinstance(each, DistillationObjective))
    train = stored_tiny.sentences("train").join_equal_texts()
    still = encode_pairing(teacher, inputs, load_pairing(inputs, train))
    texts = still.texts.rows(batch.text_rows)
    found, near = part._teacher[0].scores(batch), {"rtol": 1e-2, "atol": 2e-3}  # half precision
    torch.testing.assert_close(found, teacher.score(teacher.eval().encode_images(batch.images), texts), **near)
    assert not torch.allclose(found, teacher.score(still.images.rows(batch.image_rows), texts), **near)


@pytest.mark.parametrize("pictures", [(STORED,), ("image.size=16", "image.channels=4", "image.crop=1")])
def test_a_student_with_other_inputs_is_distilled_from_a_teacher(stored_tiny, teacher, tmp_path, pictures):
    run(
        "distil",
        stored_tiny,
        tmp_path / "run",
        f"distillation.teacher={teacher}",
        *pictures,
        "epochs=30",
        "infonce.weight=0.1",
    )
    rows = [row for row in Run.open(tmp_path / "run").metrics() if "divergence" in row]
    assert rows[-1]["divergence"] < 0.7 * rows[0]["divergence"]
    assert "info_nce" in rows[-1]
    matcher, _ = Run.open(tmp_path / "run").load()
    assert not matcher.scoring.reranks
    assert not any("teacher" in name for name, _ in matcher.named_parameters())


@pytest.fixture
def further(stored_tiny, tmp_path):
    """Sentences that are no captions, one of them twice, with two captions that are left out."""
    own = [str(stored_tiny.sentences(split).texts.strings[0]) for split in ("train", "test")]
    (tmp_path / "texts.txt").write_text(
        "\n".join([*(f"a further text {n}" for n in range(50)), *own, "a further text 1"])
    )
    return f"distillation.texts={tmp_path / 'texts.txt'}"


@pytest.mark.parametrize("more", [(), ("extra_pairs=neighbours",), ("texts=2",)])
def test_further_texts_are_scored_by_student_and_teacher_and_have_no_label(stored_tiny, ensemble, further, more):
    named = f"distillation.teacher={ensemble}"
    plain = plan(stored_tiny, named, *more).stages[0].batches
    planned = plan(stored_tiny, named, further, "terms=infonce,distillation", *more)
    student, objective = planned.matcher, planned.stages[0].objective
    (part,) = (each for each in objective.modules() if isinstance(each, DistillationObjective))
    captions = len(stored_tiny.sentences("train").join_equal_texts().texts)
    seen = set()
    for batch, without in zip(planned.stages[0].batches.epoch(0), plain.epoch(0), strict=True):
        own = len(without.text_rows)
        assert torch.equal(batch.text_rows[:own], without.text_rows)
        assert torch.equal(batch.image_rows, without.image_rows)
        assert torch.equal(batch.image_target[:, :own], without.image_target)
        assert not batch.image_target[:, own:].any()
        assert len(batch.text_rows) - own == len(batch.drawn)  # as many as the batch has pairs
        assert (batch.text_rows[own:] >= captions).all()
        seen |= set(batch.text_rows[own:].tolist())
        encoded = objective.encode(student, batch)
        found = objective.terms(student, batch, *encoded)
        scores, theirs = student.score(*encoded), part._teacher[0].scores(batch)
        assert theirs.shape == (len(batch.image_rows), len(batch.text_rows))
        expected = [
            (b.softmax(1) * (b.log_softmax(1) - a.log_softmax(1))).sum(1).mean()
            for a, b in ((scores / part.temperature, theirs / 0.05), (scores.T / part.temperature, theirs.T / 0.05))
        ]
        torch.testing.assert_close(found["divergence"], sum(expected) / 2)
        paired = Encoded(encoded[1].vectors[:own])
        alone = objective.parts[0].terms(student, without, encoded[0], paired)
        torch.testing.assert_close(found["info_nce"], alone["info_nce"])
    assert seen <= set(range(captions, captions + 50))


def test_a_student_is_trained_with_further_texts_whose_words_it_knows(stored_tiny, teacher, further, tmp_path):
    run("distil", stored_tiny, tmp_path / "run", STORED, f"distillation.teacher={teacher}", further, "epochs=2")
    _, inputs = Run.open(tmp_path / "run").load()
    assert "further" in inputs.texts.words


def test_a_run_with_further_texts_is_not_resumed_with_others(stored_tiny, ensemble, further, tmp_path):
    changes = (*PIXELS, f"distillation.teacher={ensemble}", further, "epochs=1")
    run("distil", stored_tiny, tmp_path / "run", *changes)
    run("distil", stored_tiny, tmp_path / "run", *changes, resume=True)
    with (tmp_path / "texts.txt").open("a") as file:
        file.write("\none more text")
    with pytest.raises(UserError, match="was started with other further texts: their source has changed"):
        run("distil", stored_tiny, tmp_path / "run", *changes, resume=True)


def test_items_that_batches_on_a_gpu_repeat_do_not_change_the_divergence(stored_tiny, ensemble, further, monkeypatch):
    changes = (f"distillation.teacher={ensemble}", further, "text.dropout=0", "image.crop=1", "image.flip=false")
    found = []
    for device_type in ("cuda", "cpu"):  # of the device that has this loss: here, the CPU
        monkeypatch.setattr("calligram.training.batches.batch.GRAPH_DEVICE_TYPE", device_type)
        torch.manual_seed(0)
        planned = plan(stored_tiny, *changes)
        batch = next(iter(planned.stages[0].batches.epoch(0)))
        (divergence,) = planned.stages[0].objective(planned.matcher.eval(), batch).values()
        gradients = torch.autograd.grad(divergence, list(planned.matcher.parameters()), allow_unused=True)
        found.append((divergence, *(g for g in gradients if g is not None)))
    assert len(batch.image_rows) > len(batch.image_rows.unique())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_a_stage_that_restarts_shares_the_teacher(stored_tiny, ensemble):
    stages = plan(
        stored_tiny, f"distillation.teacher={ensemble}", "stages.1.epochs=1", "stages.2.epochs=1",
        "stages.2.on_start=restart",
    ).stages  # fmt: skip
    first, second = (
        next(each for each in stage.objective.modules() if isinstance(each, DistillationObjective)) for stage in stages
    )
    assert first is not second
    assert first._teacher[0] is second._teacher[0]


def test_batches_hold_the_rows_of_their_items(stored_tiny, teacher):
    settings = resolve(PRESETS["distil"].defaults, [*SMALL, STORED, f"distillation.teacher={teacher}"])
    plan = PRESETS["distil"].recipe.plan(settings, stored_tiny, CPU)
    train = stored_tiny.sentences("train").join_equal_texts()
    for batch in plan.stages[0].batches.epoch(0):
        target = train.matches.target(batch.image_rows.numpy(), batch.text_rows.numpy())
        assert np.array_equal(target, batch.image_target.numpy())
    own = dict(plan.stages[0].objective.named_parameters())
    assert set(own) == {"parts.0.log_scale", "parts.1.log_scale"}  # the teacher is neither trained nor saved


def test_a_run_that_was_killed_takes_the_same_steps(stored_tiny, teacher, tmp_path, monkeypatch):
    changes = (f"distillation.teacher={teacher}", STORED, "epochs=3", "save_steps=1")
    run("distil", stored_tiny, tmp_path / "whole", *changes)

    def dies(self, number, epoch, optimizer, real=_Trainer._end_epoch):
        if epoch == 1:
            raise KeyboardInterrupt
        return real(self, number, epoch, optimizer)

    with monkeypatch.context() as patched:
        patched.setattr(_Trainer, "_end_epoch", dies)
        with pytest.raises(KeyboardInterrupt):
            run("distil", stored_tiny, tmp_path / "killed", *changes)
    run("distil", stored_tiny, tmp_path / "killed", *changes, resume=True)
    whole, killed = (Run(tmp_path / name).load()[0].state_dict() for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)


def test_a_changed_teacher_in_the_same_folder_is_refused(stored_tiny, tmp_path):
    run("vse", stored_tiny, tmp_path / "teacher", STORED, "epochs=1")
    changes = (f"distillation.teacher={tmp_path / 'teacher'}", STORED, "epochs=1")
    run("distil", stored_tiny, tmp_path / "run", *changes)
    run("distil", stored_tiny, tmp_path / "run", *changes, resume=True)
    shutil.rmtree(tmp_path / "teacher")
    run("vse", stored_tiny, tmp_path / "teacher", STORED, "epochs=1", "seed=1")
    with pytest.raises(UserError, match=r"was started with other teachers: distillation\.teacher was '\w+', now '\w+'"):
        run("distil", stored_tiny, tmp_path / "run", *changes, resume=True)
    file = tmp_path / "run" / "run.json"  # of a run that began before teachers were noted
    file.write_text(json.dumps(sealed({k: v for k, v in json.loads(file.read_text()).items() if k != "teachers"})))
    run("distil", stored_tiny, tmp_path / "run", *changes, resume=True)


def test_a_teacher_that_saw_captions_which_are_removed_is_refused(stored_tiny, tmp_path, caplog):
    sparse = ("sparse.captions=1", "sparse.seed=3")
    for name, changes in (("all", ()), ("same", sparse), ("fewer", (*sparse, "sparse.images=0.5"))):
        run("vse", stored_tiny, tmp_path / name, STORED, "epochs=1", *changes)
    run("distil", stored_tiny, tmp_path / "whole", STORED, f"distillation.teacher={tmp_path / 'all'}", "epochs=1")
    for name in ("same", "fewer"):
        run(
            "distil",
            stored_tiny,
            tmp_path / f"by {name}",
            STORED,
            f"distillation.teacher={tmp_path / name}",
            "epochs=1",
            *sparse,
        )
    for number, changes in enumerate((sparse, ("sparse.captions=1", "sparse.seed=4"))):
        teacher = tmp_path / ("same" if number else "all")
        with pytest.raises(UserError, match=r"distillation\.teacher=.* was trained on .* captions that .* leaves out"):
            run(
                "distil",
                stored_tiny,
                tmp_path / "leak",
                STORED,
                f"distillation.teacher={teacher}",
                "epochs=1",
                *changes,
            )
    assert not (tmp_path / "leak").exists()
    assert "may have seen captions" not in caplog.text
    about = json.loads((tmp_path / "all" / "run.json").read_text())
    (tmp_path / "all" / "run.json").write_text(json.dumps(sealed({**about, "content": "another"})))
    run(
        "distil",
        stored_tiny,
        tmp_path / "other",
        STORED,
        f"distillation.teacher={tmp_path / 'all'}",
        "epochs=1",
        *sparse,
    )
    assert "may have seen captions" in caplog.text


@pytest.mark.parametrize("preset", ["distil", "mmca"])
def test_any_matcher_can_be_a_student(stored_tiny, teacher, tmp_path, preset):
    """Only matchers of vectors could be students before; mmca with its pair module is one now."""
    student = ("matcher=mmca", "mmca.heads=4", "mmca.filters=8", "terms=distillation", "text.word_dropout=0")
    run(preset, stored_tiny, tmp_path / "run", STORED, *student, f"distillation.teacher={teacher}", "epochs=20")
    rows = [row for row in Run.open(tmp_path / "run").metrics() if "divergence" in row]
    assert rows[-1]["divergence"] < rows[0]["divergence"]
    assert Run.open(tmp_path / "run").load()[0].scoring.reranks


def test_mmca_without_its_pair_module_can_be_a_student():
    (student,) = resolve(PRESETS["distil"].defaults, ["matcher=mmca", "mmca.alpha=0"]).matcher
    assert student.alpha == 0


def test_a_weight_of_zero_leaves_the_teacher_out(stored_tiny, tmp_path):
    run("distil", stored_tiny, tmp_path / "run", STORED, "distillation.weight=0", "epochs=1")
    plan = PRESETS["distil"].recipe.plan(
        resolve(PRESETS["distil"].defaults, [*SMALL, STORED, "distillation.weight=0"]), stored_tiny, CPU
    )
    assert [stage.name for stage in plan.stages] == ["infonce"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((), r"the term distillation needs a teacher: give distillation\.teacher="),
        (("distillation.teacher=/no/run",), "there is no folder /no/run"),
        (("distillation.texts=/no/file.txt", "distillation.teacher=x"), "/no/file.txt"),
        (
            ("terms=infonce,offline,distillation", "distillation.texts=TEXTS", "offline.negatives=x"),
            "draws its own texts; leave distillation.texts out",
        ),
        (
            ("distillation.teacher=TEACHER", "stages.1.epochs=1", "stages.1.distillation.texts=TEXTS"),
            "distillation.texts holds for the whole run",
        ),
    ],
)
def test_contradictory_settings_are_refused(stored_tiny, tmp_path, teacher, further, changes, message):
    texts = further.partition("=")[2]
    changes = [change.replace("TEXTS", texts).replace("TEACHER", str(teacher)) for change in changes]
    with pytest.raises(UserError, match=message):
        run("distil", stored_tiny, tmp_path / "run", STORED, *changes)
    assert not (tmp_path / "run").exists()
