"""Two real processes over gloo against one process with the joined batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from calligram.data.collection import Collection
from calligram.training.batch import Batch
from calligram.training.weak_batches import WeakBatch

HERE = Path(__file__)
SMALL = ("batch=7", "dim=16", "image.features=colour", "text.word_dim=8", "text.min_count=1", "text.dropout=0")


Step = tuple[str, ...]
"""a recipe's name, and settings"""
Saved = tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]
"""of one process, and of each of two"""


def take_steps(folder: Path, out: Path, steps: Sequence[Sequence[str]]) -> None:
    for number, (name, *changes) in enumerate(steps):
        one_step(folder, out.with_name(f"{out.name}-{number}"), name, *changes)


def one_step(folder: Path, out: Path, name: str, *changes: str) -> None:
    """Take one training step of a recipe and save gradients, loss and the images this process saw."""
    from calligram.recipes.catalog import RECIPES
    from calligram.recipes.config import resolve
    from calligram.recipes.plan import Surroundings
    from calligram.training.distributed import Processes

    torch.set_num_threads(1)
    processes = Processes.join()
    recipe = RECIPES[name]
    settings = resolve(recipe.defaults, [*SMALL, *changes])
    torch.manual_seed(0)
    plan = recipe.plan(settings, settings.sparse.of(Collection.open(folder)), Surroundings(processes=processes))
    stage = plan.stages[-1]
    batch = next(iter(stage.batches.epoch(0)))
    plan.matcher.double()
    stage.objective.double().eval()  # without dropout, which every process draws for itself
    stage.objective.at(0.5)
    terms = stage.objective(plan.matcher, doubled(batch))
    sum(terms.values()).backward()
    named = dict([*plan.matcher.named_parameters(), *stage.objective.named_parameters("objective")])
    processes.average_gradients(named.values())
    grads = {name: p.grad for name, p in named.items() if p.grad is not None}
    save_file({**grads, "loss": sum(terms.values()).detach().reshape(1), "seen": batch.images.contiguous()}, out)


def doubled(batch: Batch) -> Batch:
    """The batch, and what is beside it, in double precision."""
    beside = {"pseudo": doubled(batch.pseudo)} if isinstance(batch, WeakBatch) and batch.pseudo is not None else {}
    return replace(batch, images=batch.images.double(), **beside)


def leave_the_group() -> None:
    """Join a group, use it as training does, leave it, and fail if threads of it go on."""
    from calligram.training import distributed

    distributed.Processes.join().agree(1.0)
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # the first optimizer imports parts of torch that are lazy
    distributed._leave()
    names = [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in names if "gloo" in name], names


def launch(rank: int, port: int, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    return subprocess.Popen([sys.executable, str(HERE), *arguments], env=environment)


def stepped(folder: Path, out: Path, *steps: Step) -> list[Saved]:
    """What this process, alone, and what each of two others saved of each step."""
    port = 20000 + os.getpid() % 20000
    asked = json.dumps(steps)
    started = [launch(rank, port, str(folder), str(out / f"two-{rank}"), asked) for rank in (0, 1)]
    take_steps(folder, out / "one", steps)
    assert [process.wait(120) for process in started] == [0, 0]
    found = []
    for number in range(len(steps)):
        one, *two = (load_file(out / f"{name}-{number}") for name in ("one", "two-0", "two-1"))
        assert torch.equal(torch.cat([two[0].pop("seen"), two[1].pop("seen")]), one.pop("seen"))
        found.append((one, two))
    return found


def test_two_processes_give_the_loss_and_gradients_of_one_with_the_joined_batch(stored_tiny, tmp_path):
    ((one, two),) = stepped(stored_tiny.folder, tmp_path, ("vse", "instance=0.5", "classifier.chunk=2"))
    assert "objective.parts.1.classes" in one
    for name, value in one.items():
        for part in two:
            torch.testing.assert_close(part[name], value, rtol=1e-9, atol=1e-12)


def test_so_they_do_with_parts_and_with_captions_that_each_writes_its_share_of(stored_tiny, tmp_path):
    cases = (
        ("matcher=bfan", "text.blank=0"),
        ("matcher=mmca", "mmca.heads=4", "mmca.filters=8", "candidates=2", "text.blank=0"),
        ("matcher=vsrn", "vsrn.layers=0", "vsrn.norm=features", "vsrn.captions=0.5", "text.blank=0"),
    )
    for one, two in stepped(stored_tiny.folder, tmp_path, *(("fragments", "text.hidden=16", *case) for case in cases)):
        loss = one.pop("loss")
        torch.testing.assert_close((two[0].pop("loss") + two[1].pop("loss")) / 2, loss, rtol=1e-5, atol=1e-6)
        for name, value in one.items():
            for part in two:
                torch.testing.assert_close(part[name], value, rtol=1e-4, atol=1e-6)


def test_so_they_do_with_pseudo_pairs_and_adversaries(spoken_tiny, tmp_path):
    changes = ("pseudo.source=finder", "sparse.images=0.5", "text.hidden=16", "text.blank=0", "a3vse.context=8")
    ((one, two),) = stepped(spoken_tiny.folder, tmp_path, ("a3vse", *changes))
    assert "objective.adversary.discriminators.image-pseudo_text.0.weight" in one
    for name, value in one.items():
        for part in two:
            torch.testing.assert_close(part[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="names of native threads are read from /proc")
def test_no_thread_of_the_group_goes_on_when_a_process_has_left_it():
    port = 20000 + os.getpid() % 20000
    started = [launch(rank, port, "leave") for rank in (0, 1)]
    assert [process.wait(120) for process in started] == [0, 0]


def test_torchrun_trains_to_the_weights_of_a_single_process(stored_tiny, tmp_path):
    settings = ("epochs=2", "batch=6", "dim=16", "image.features=colour", "text.word_dim=8", "text.min_count=1")
    settings += ("text.dropout=0", "average=0", "warmup_epochs=1")
    flags = [flag for change in settings for flag in ("--set", change)]
    script = tmp_path / "calligram_main.py"
    script.write_text("from calligram.cli.main import main\nmain()\n")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for count in (1, 2):
        out = tmp_path / f"run-{count}"
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"] if count > 1 else []
        arguments = ["train", "vse", str(stored_tiny.folder), "--out", str(out), "--device", "cpu", *flags]
        done = subprocess.run(
            [sys.executable, *torchrun, str(script), *arguments],
            env=environment, timeout=180, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / f"run-{count}" / "best.safetensors") for count in (1, 2))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


if __name__ == "__main__" and sys.argv[1] == "leave":
    leave_the_group()
elif __name__ == "__main__":
    take_steps(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
