"""Two real processes over gloo against one process with the joined batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from calligram.data.collection import Collection

HERE = Path(__file__)


def one_step(folder: Path, out: Path) -> None:
    """Take one training step and save gradients, loss and the images this process saw."""
    from calligram.recipes.catalog import RECIPES
    from calligram.recipes.config import resolve
    from calligram.recipes.plan import Surroundings
    from calligram.training.distributed import Processes

    torch.set_num_threads(1)
    processes = Processes.join()
    recipe = RECIPES["vse"]
    settings = resolve(
        recipe.defaults,
        [
            *("batch=7", "dim=16", "image.features=colour", "text.word_dim=8", "text.min_count=1", "text.dropout=0"),
            *("instance=0.5", "classifier.chunk=2"),
        ],
    )
    torch.manual_seed(0)
    plan = recipe.plan(settings, Collection.open(folder), Surroundings(processes=processes))
    stage = plan.stages[-1]
    batch = next(iter(stage.batches.epoch(0)))
    plan.matcher.double()
    stage.objective.double()
    terms = stage.objective(plan.matcher, type(batch)(batch.images.double(), *list(vars(batch).values())[1:]))
    sum(terms.values()).backward()
    named = dict([*plan.matcher.named_parameters(), *stage.objective.named_parameters("objective")])
    processes.average_gradients(named.values())
    grads = {name: p.grad for name, p in named.items() if p.grad is not None}
    assert "objective.parts.1.classes" in grads
    save_file({**grads, "loss": sum(terms.values()).detach().reshape(1), "seen": batch.images.contiguous()}, out)


def launch(folder: Path, out: Path, rank: int, count: int, port: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": "0"}
    return subprocess.Popen([sys.executable, str(HERE), str(folder), str(out)], env=environment)


def test_two_processes_give_the_loss_and_gradients_of_one_with_the_joined_batch(stored_tiny, tmp_path):
    port = 20000 + os.getpid() % 20000
    started = [launch(stored_tiny.folder, tmp_path / "one", 0, 1, port)]
    started += [launch(stored_tiny.folder, tmp_path / f"two-{rank}", rank, 2, port) for rank in (0, 1)]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    one = load_file(tmp_path / "one")
    two = [load_file(tmp_path / f"two-{rank}") for rank in (0, 1)]
    assert torch.equal(torch.cat([two[0].pop("seen"), two[1].pop("seen")]), one.pop("seen"))
    for name, value in one.items():
        for part in two:
            torch.testing.assert_close(part[name], value, rtol=1e-9, atol=1e-12)


def test_torchrun_trains_to_the_weights_of_a_single_process(stored_tiny, tmp_path):
    settings = ("epochs=2", "batch=6", "dim=16", "image.features=colour", "text.word_dim=8", "text.min_count=1")
    settings += ("text.dropout=0", "average=0", "warmup_epochs=1")
    flags = [flag for change in settings for flag in ("--set", change)]
    script = tmp_path / "calligram_main.py"
    script.write_text("from calligram.cli.main import main\nmain()\n")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for count in (1, 2):
        out = tmp_path / f"run-{count}"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        arguments = ["train", "vse", str(stored_tiny.folder), "--out", str(out), "--device", "cpu", *flags]
        done = subprocess.run(
            [*launcher, str(script), *arguments], env=environment, timeout=180, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / f"run-{count}" / "best.safetensors") for count in (1, 2))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    one_step(Path(sys.argv[1]), Path(sys.argv[2]))
