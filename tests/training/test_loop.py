from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from calligram import device
from calligram.data.collection import Collection
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.models.vse import VSE
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.training import loop
from calligram.training.objectives.objective import optimizer_tensors, restore_optimizer
from calligram.training.runs import Run

SMALL = (
    "batch=4", "dim=16", "image.size=16", "image.channels=4,8", "text.word_dim=8", "text.hidden=16", "text.min_count=1",
    "ema_decay=0.9", "image.jitter=0.1", "text.dropout=0.2", "lr=0.01",
)  # fmt: skip


def run(collection: Collection, out: Path, *changes: str, resume: bool = False) -> dict[str, float]:
    preset = PRESETS["vse"]
    settings = resolve(preset.defaults, [*SMALL, *changes])
    return run_preset(preset, settings, collection, out, resume=resume, context=RunContext(torch.device("cpu")))


def numbers(folder: Path) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k != "steps_per_second"} for row in Run(folder).metrics()]


def test_training_learns_the_tiny_collection(tiny, tmp_path):
    best = run(tiny, tmp_path / "run", "epochs=40", "batch=14", "image.crop=1", "image.jitter=0", "text.dropout=0")
    assert best["t2i_r1"] > 60  # chance is 1 in 6


def test_the_same_seed_gives_bit_identical_weights(tiny, tmp_path):
    for name in ("one", "two"):
        run(tiny, tmp_path / name, "epochs=3", "warmup_epochs=1")
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")
    one, two = (load_file(tmp_path / name / "best.safetensors") for name in ("one", "two"))
    assert all(torch.equal(one[k], two[k]) for k in one)
    run(tiny, tmp_path / "other", "epochs=3", "warmup_epochs=1", "seed=1")
    assert numbers(tmp_path / "one") != numbers(tmp_path / "other")


def test_training_steps_queue_no_seeds_for_devices_that_are_not_in_use(tiny, tmp_path, monkeypatch):
    seeded = []
    original = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: seeded.append(seed) or original(seed))
    run(tiny, tmp_path / "run", "epochs=2")
    assert seeded == [0]  # once for the initial weights, never for a step


def test_a_run_records_the_kernels_that_it_used(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(device, "_KERNEL_STATES", {"a kernel": "plain: Triton is not installed"})
    for speed in ("auto", "plain"):
        run(tiny, tmp_path / speed, "epochs=1", f"speed={speed}")
    assert Run(tmp_path / "auto").about["kernels"] == {"a kernel": "plain: Triton is not installed"}
    assert "kernels" not in Run(tmp_path / "plain").about


@pytest.mark.parametrize(("speed", "half"), [("auto", True), ("plain", False)])
def test_dev_alone_is_measured_with_networks_in_half_precision(tiny, tmp_path, monkeypatch, speed, half):
    seen, encode = [], VSE.encode_images
    monkeypatch.setattr(
        VSE, "encode_images", lambda *a: seen.append((device.half_networks_on(), a[0].training)) or encode(*a)
    )
    run(tiny, tmp_path / "run", "epochs=1", f"speed={speed}")
    assert set(seen) == {(False, True), (half, False)}
    matcher, inputs = Run.open(tmp_path / "run").load()
    seen.clear()
    evaluate_retrieval(matcher, inputs, tiny.sentences("test"))
    assert set(seen) == {(False, False)}


TRAINER = """
import json, os, sys
import torch, torch.utils.tensorboard
import calligram.recipes.catalog, calligram.recipes.parts.run, calligram.training.loop
from calligram.cli.main import main
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # the first optimizer imports parts of torch that are lazy
for line in sys.stdin:            # what is imported once is shared by all that are killed
    child = os.fork()
    if child == 0:
        sys.argv = ["calligram", *json.loads(line)]
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        main()
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def trainer(preloaded):
    """A process with all imports done, which runs the command in child processes."""
    threads = f"import torch; torch.set_num_threads({torch.get_num_threads()})"
    with preloaded.start(f"{threads}\n{TRAINER}", errors=Path(os.devnull)) as process:
        yield process


KILLED = ("epochs=5", "warmup_epochs=2", "save_steps=1")


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """A run that was not killed, and its result."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, run(tiny, out, *KILLED)


def killed_after(steps: int, tiny: Collection, out: Path, trainer) -> bool:
    """Train, and kill the process when so many steps are stored; whether it was not done before."""
    flags = [flag for change in (*SMALL, *KILLED) for flag in ("--set", change)]
    command = ["train", "vse", str(tiny.folder), "--out", str(out), "--device", "cpu", *flags]
    trainer.stdin.write(f"{json.dumps(command)}\n")
    trainer.stdin.flush()
    victim = int(trainer.stdout.readline())
    pointer = out / "state" / "LATEST"
    with contextlib.suppress(ProcessLookupError):  # it was done before
        while not pointer.is_file() or int(pointer.read_text() or 0) < steps:
            os.kill(victim, 0)
            time.sleep(0.001)
        os.kill(victim, signal.SIGKILL)
    return int(trainer.stdout.readline()) == -signal.SIGKILL


@pytest.mark.parametrize("wait_for", [1, 4, 9])
def test_a_run_killed_with_sigkill_and_resumed_ends_with_the_same_numbers(tiny, tmp_path, trainer, whole, wait_for):
    for attempt in range(10):
        out = tmp_path / f"killed-{attempt}"
        if killed_after(wait_for, tiny, out, trainer):  # else it ended before it could be killed
            break
    else:
        pytest.fail("no run could be killed")
    resumed = run(tiny, out, *KILLED, resume=True)
    assert resumed == whole[1]
    assert numbers(out) == numbers(whole[0])
    one, two = (load_file(folder / "best.safetensors") for folder in (out, whole[0]))
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_a_run_killed_frees_its_folder_which_others_could_not_train_in(tiny, tmp_path, trainer, calligram):
    flags = [flag for change in (*SMALL, "epochs=100000") for flag in ("--set", change)]
    command = ["train", "vse", str(tiny.folder), "--out", str(tmp_path / "run"), "--device", "cpu", *flags]
    trainer.stdin.write(f"{json.dumps(command)}\n")
    trainer.stdin.flush()
    victim = int(trainer.stdout.readline())
    deadline = time.monotonic() + 120
    while not (tmp_path / "run/state/LATEST").is_file() and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        refused = [calligram(*command), calligram(*command, "--resume")]
    finally:
        os.kill(victim, signal.SIGKILL)
    for done in refused:
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert f"error: run {tmp_path / 'run'} is being written to by process {victim} on " in done.stderr
    assert int(trainer.stdout.readline()) == -signal.SIGKILL
    steps = [row["step"] for row in Run(tmp_path / "run").metrics() if "loss" in row]
    assert steps == sorted(set(steps))
    with Run.lock(tmp_path / "run"):
        pass


def test_resuming_a_finished_run_returns_its_result(tiny, tmp_path, caplog):
    first = run(tiny, tmp_path / "run", "epochs=2")
    caplog.set_level("INFO")
    assert run(tiny, tmp_path / "run", "epochs=2", resume=True) == first
    assert "is complete" in caplog.text
    assert "resuming at" not in caplog.text


def test_dropout_is_independent_where_a_gpu_trains(tiny, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr("calligram.training.loop.use_independent_dropout", kept.append)
    run(tiny, tmp_path / "cpu", "epochs=1", "speed=plain")
    assert not kept
    monkeypatch.setattr("calligram.training.loop.GRAPH_DEVICE_TYPE", "cpu")
    run(tiny, tmp_path / "gpu", "epochs=1", "speed=plain")
    assert any(isinstance(part, torch.nn.Dropout) for module in kept for part in module.modules())


def test_short_epochs_have_losses_too(tiny, tmp_path):
    run(tiny, tmp_path / "run", "epochs=2")
    rows = Run(tmp_path / "run").metrics()
    assert {row["epoch"] for row in rows if "loss" in row} == {0, 1}


def test_resuming_with_another_number_of_processes_warns(tiny, tmp_path, caplog):
    """Each process has random numbers of its own, so the steps are others."""
    run(tiny, tmp_path / "run", "epochs=1")
    Run(tmp_path / "run").add_entries(processes=2)
    run(tiny, tmp_path / "run", "epochs=1", resume=True)
    assert "was started with processes=2 and goes on with 1" in caplog.text


def test_a_run_is_not_overwritten_and_not_resumed_with_other_settings(tiny, tmp_path):
    run(tiny, tmp_path / "run", "epochs=1")
    with pytest.raises(UserError, match="already contains a run; continue it with --resume"):
        run(tiny, tmp_path / "run", "epochs=1")
    with pytest.raises(UserError, match=r"started with other settings: epochs was 1, now 2"):
        run(tiny, tmp_path / "run", "epochs=2", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not a run"):
        run(tiny, tmp_path / "other", "epochs=1")


def test_resuming_with_a_changed_collection_is_refused_and_the_run_is_unchanged(tiny_draft, tmp_path):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    collection = write_draft(draft, tmp_path / "collection")
    run(collection, tmp_path / "run", "epochs=1")
    draft.captions[0].text = "something else entirely"
    changed = write_draft(draft, tmp_path / "collection", overwrite=True)
    with pytest.raises(UserError, match="was started with other content"):
        run(changed, tmp_path / "run", "epochs=1", resume=True)
    matcher, _ = Run.open(tmp_path / "run").load()
    assert matcher.settings.dim == 16


def test_invalid_settings_leave_no_folder(tiny, tmp_path):
    with pytest.raises(UserError, match="unknown stored feature 'foo': the collection has none"):
        run(tiny, tmp_path / "run", "image.features=foo")
    assert not (tmp_path / "run").exists()


def test_the_first_step_changes_weights_and_steps_are_logged_once(tiny, tmp_path):
    small = run(tiny, tmp_path / "small", "epochs=1", "batch=14", "lr=0.0001", "ema_decay=0")
    large = run(tiny, tmp_path / "large", "epochs=1", "batch=14", "lr=0.1", "ema_decay=0")
    assert small["step"] == large["step"] == 1
    one, two = (load_file(tmp_path / name / "best.safetensors") for name in ("small", "large"))
    assert not torch.equal(one["project.weight"], two["project.weight"])
    run(tiny, tmp_path / "many", "epochs=12", "optim.accumulate=2", "batch=2")
    steps = [row["step"] for row in Run(tmp_path / "many").metrics() if "loss" in row]
    assert steps
    assert len(steps) == len(set(steps))
    assert Run(tmp_path / "many").about["seconds"] > 0


def test_a_run_folder_is_self_contained_and_without_pickle(tiny, tmp_path):
    run(tiny, tmp_path / "run", "epochs=1")
    moved = tmp_path / "moved"
    (tmp_path / "run").rename(moved)
    matcher, inputs = Run.open(moved).load()
    words, mask = inputs.texts.texts(["a red disc"])
    assert matcher.encode_texts(words, mask).vectors.shape == (1, 16)
    kinds = {file.suffix for file in moved.rglob("*") if file.is_file() and "tensorboard" not in file.parts}
    assert kinds <= {".json", ".jsonl", ".safetensors", ""}
    assert json.loads((moved / "run.json").read_text())["settings"]["epochs"] == 1


def test_a_loss_that_is_not_finite_stops_the_run_and_says_what_to_do(tiny, tmp_path):
    with pytest.raises(UserError, match=r"not finite at step \d+ .*--set lr="):
        run(tiny, tmp_path / "run", "epochs=80", "lr=1000", "optim.clip=none", "ema_decay=0", "optim.optimizer=sgd")


def test_modules_can_have_their_own_learning_rate_and_unknown_modules_are_refused(tiny, tmp_path):
    start = run(tiny, tmp_path / "fixed", "epochs=1", "optim.lr_scale=image:0", "ema_decay=0")
    assert start["rsum"] > 0
    with pytest.raises(UserError, match="has no module 'imge'; it has: image"):
        run(tiny, tmp_path / "typo", "epochs=1", "optim.lr_scale=imge:0.1")
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("fast", [True, False])
def test_lower_precision_trains_where_it_is_fast(tiny, tmp_path, monkeypatch, fast):
    """Where it is slow, the steps are those of float32, unless ``speed=plain`` asks for what the settings say."""
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda device_type: fast)
    settings = {"full": ("precision=fp32",), "half": ("precision=bf16",), "plain": ("precision=bf16", "speed=plain")}
    for name, changes in settings.items():
        assert run(tiny, tmp_path / name, "epochs=2", *changes)["rsum"] > 0
    full, half, plain = (numbers(tmp_path / name) for name in settings)
    assert (half == full) != fast
    assert plain != full
    assert Run(tmp_path / "half").about["speed"] == {"precision": "bf16" if fast else "fp32"}
    assert Run(tmp_path / "plain").about["speed"] == {"precision": "bf16"}
    assert "speed" not in Run(tmp_path / "full").about


def test_a_run_that_goes_on_in_another_precision_says_so(tiny, tmp_path, monkeypatch, caplog):
    fast, changes = [False], ("epochs=2", "precision=bf16")
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda device_type: fast[0])
    end_epoch = loop._Trainer._end_epoch
    monkeypatch.setattr(loop._Trainer, "_end_epoch", interrupt_after(end_epoch))
    with pytest.raises(KeyboardInterrupt):
        run(tiny, tmp_path / "run", *changes)
    monkeypatch.setattr(loop._Trainer, "_end_epoch", end_epoch)
    fast[0] = True
    run(tiny, tmp_path / "run", *changes, resume=True)
    assert Run(tmp_path / "run").about["speed"] == {"precision": "fp32, then bf16"}
    assert "took its steps in fp32 and goes on in bf16" in caplog.text
    fast[0] = False
    run(tiny, tmp_path / "run", *changes, resume=True)  # it is complete
    assert Run(tmp_path / "run").about["speed"] == {"precision": "fp32, then bf16"}


def interrupt_after(function):
    """The function, and then Ctrl-C."""

    def call(*arguments):
        function(*arguments)
        raise KeyboardInterrupt

    return call


def test_accumulating_two_batches_takes_half_the_steps(tiny, tmp_path):
    once = run(tiny, tmp_path / "one", "epochs=1", "warmup_epochs=0")
    twice = run(tiny, tmp_path / "two", "epochs=1", "warmup_epochs=0", "optim.accumulate=2")
    assert twice["step"] == -(-once["step"] // 2)


def test_a_restored_optimizer_has_the_memory_layout_of_its_parameters(tmp_path):
    """Fused optimizers on a GPU need this layout, and files do not keep it."""
    torch.manual_seed(0)
    made = [torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last) for _ in range(2)]
    optimizers = [torch.optim.AdamW(module.parameters()) for module in made]
    made[0](torch.randn(2, 3, 8, 8)).sum().backward()
    optimizers[0].step()
    save_file(
        {name: value.contiguous() for name, value in optimizer_tensors(optimizers[0]).items()}, tmp_path / "state"
    )
    restore_optimizer(optimizers[1], load_file(tmp_path / "state"))
    for one, other in zip(made[0].parameters(), made[1].parameters(), strict=True):
        before, after = optimizers[0].state[one], optimizers[1].state[other]
        for name in ("exp_avg", "exp_avg_sq"):
            assert after[name].stride() == other.stride() == before[name].stride()
            torch.testing.assert_close(after[name], before[name])
        assert after["step"] == before["step"]
