"""Two real processes over gloo against one process with the joined batch."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from calligram.data.collection import Collection
from calligram.training import distributed
from calligram.training.batches.batch import Batch
from calligram.training.batches.pseudo_pairs import PseudoPairBatch

HERE = Path(__file__)
SMALL = ("batch=7", "dim=16", "image.features=colour", "text.word_dim=8", "text.min_count=1", "text.dropout=0")


STEPS = {
    "vectors": ("stored", "vse", "terms=infonce,instance", "instance.weight=0.5"),
    "bfan": ("stored", "bfan", "text.hidden=16", "text.word_dropout=0"),
    "mmca": (
        "stored", "mmca", "text.hidden=16", "text.word_dropout=0",
        "mmca.heads=4", "mmca.filters=8", "candidates=2",
    ),
    "vsrn": (
        "stored", "vsrn", "text.hidden=16", "text.word_dropout=0", "text.bidirectional=true",
        "vsrn.layers=0", "vsrn.norm=features", "caption.weight=0.5",
    ),
    "a3vse": (
        "spoken", "a3vse", "text.hidden=16", "text.word_dropout=0",
        "pseudo.region_source=finder", "sparse.images=0.5", "a3vse.context=8",
    ),
}  # fmt: skip
"""collection, preset and settings of each case"""
Saved = tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]
"""results of one process, and of each of two"""


def take_steps(folders: Mapping[str, str], out: Path) -> None:
    for step, (collection, name, *changes) in STEPS.items():
        one_step(Path(folders[collection]), out.with_name(f"{out.name}-{step}"), name, *changes)


def one_step(folder: Path, out: Path, name: str, *changes: str) -> None:
    """Take one training step of a preset and save gradients, loss and the images this process saw."""
    from calligram.recipes.catalog import PRESETS
    from calligram.recipes.parts.config import resolve
    from calligram.recipes.parts.run import RunContext
    from calligram.training.objectives.instance import InstanceObjective

    torch.set_num_threads(1)
    processes = distributed.Processes.join()
    preset = PRESETS[name]
    settings = resolve(preset.defaults, [*SMALL, *changes])
    torch.manual_seed(0)
    plan = preset.recipe.plan(settings, settings.sparse.of(Collection.open(folder)), RunContext(processes=processes))
    stage = plan.stages[-1]
    batch = next(iter(stage.batches.epoch(0)))
    plan.matcher.double()
    for part in stage.objective.modules():
        if isinstance(part, InstanceObjective):
            part.chunk = 2  # so that classes are divided into chunks
    stage.objective.double().eval()  # without dropout, whose random numbers differ between processes
    stage.objective.set_progress(0.5)
    terms = stage.objective(plan.matcher, doubled(batch))
    sum(terms.values()).backward()
    named = dict([*plan.matcher.named_parameters(), *stage.objective.named_parameters("objective")])
    processes.average_gradients(named.values())
    grads = {name: p.grad for name, p in named.items() if p.grad is not None}
    save_file({**grads, "loss": sum(terms.values()).detach().reshape(1), "seen": batch.images.contiguous()}, out)


def doubled(batch: Batch) -> Batch:
    """A batch, and its batch of pseudo pairs, in float64."""
    beside = (
        {"pseudo": doubled(batch.pseudo)} if isinstance(batch, PseudoPairBatch) and batch.pseudo is not None else {}
    )
    return replace(batch, images=batch.images.double(), **beside)


def leave_the_group(out: Path) -> None:
    """Use the process group as training does, leave it, and write the names of the remaining threads."""
    distributed.Processes.join().broadcast_number(1.0)
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # the first optimizer imports parts of torch
    distributed._leave_group()
    names = [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]
    out.with_name(f"{out.name}-threads").write_text("\n".join(names))


def free_port() -> int:
    """A port that nothing uses, below those that the system gives to clients and servers of other tests."""
    first = os.getpid() % 10000
    for offset in range(10000):
        port = 20000 + (first + offset) % 10000
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@pytest.fixture(scope="module")
def stepped(stored_tiny, spoken_tiny, tmp_path_factory, preloaded) -> Path:
    """Folders in which one process, and each of two, saved the results of each case; one launch for all."""
    out, threads = tmp_path_factory.mktemp("stepped"), torch.get_num_threads()
    folders = {"stored": str(stored_tiny.folder), "spoken": str(spoken_tiny.folder)}
    port = free_port()
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    script = f"import runpy; runpy.run_path({str(HERE)!r}, run_name='__main__')"
    with contextlib.ExitStack() as open_processes:
        started = [
            open_processes.enter_context(
                preloaded.start(script, json.dumps(folders), out / f"two-{rank}", env={**common, "RANK": str(rank)})
            )
            for rank in (0, 1)
        ]
        take_steps(folders, out / "one")
        torch.set_num_threads(threads)
        assert [process.wait() for process in started] == [0, 0]
    return out


def saved(out: Path, step: str) -> Saved:
    """Results of one process, and of each of two, on the same images."""
    one, *two = (load_file(out / f"{name}-{step}") for name in ("one", "two-0", "two-1"))
    assert torch.equal(torch.cat([two[0].pop("seen"), two[1].pop("seen")]), one.pop("seen"))
    return one, two


def test_two_processes_have_the_loss_and_gradients_of_one_with_the_joined_batch(stepped):
    one, two = saved(stepped, "vectors")
    assert "objective.parts.1.classes" in one
    for name, value in one.items():
        for part in two:
            torch.testing.assert_close(part[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("step", ["bfan", "mmca", "vsrn"])
def test_two_processes_agree_with_one_for_parts_and_caption_decoding(stepped, step):
    one, two = saved(stepped, step)
    loss = one.pop("loss")
    torch.testing.assert_close((two[0].pop("loss") + two[1].pop("loss")) / 2, loss, rtol=1e-5, atol=1e-6)
    for name, value in one.items():
        for part in two:
            torch.testing.assert_close(part[name], value, rtol=1e-4, atol=1e-6)


def test_two_processes_agree_with_one_for_pseudo_pairs_and_adversaries(stepped):
    one, two = saved(stepped, "a3vse")
    assert "objective.adversary.discriminators.image-pseudo_text.0.weight" in one
    for name, value in one.items():
        for part in two:
            torch.testing.assert_close(part[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="names of native threads are read from /proc")
def test_no_thread_of_the_process_group_survives_leaving_it(stepped):
    for rank in (0, 1):
        names = (stepped / f"two-{rank}-threads").read_text().splitlines()
        assert names
        assert not [name for name in names if "gloo" in name], names


def test_torchrun_trains_to_the_weights_of_a_single_process(calligram, stored_tiny, tmp_path):
    settings = ("epochs=2", "batch=6", "dim=16", "image.features=colour", "text.word_dim=8", "text.min_count=1")
    # Steps of Adam hardly depend on the size of gradients, and for gradients near zero they magnify rounding.
    settings += ("text.dropout=0", "ema_decay=0", "warmup_epochs=1", "optim.optimizer=sgd", "lr=0.1")
    flags = [flag for change in settings for flag in ("--set", change)]
    outs = [tmp_path / f"run-{count}" for count in (1, 2)]
    asked = [["train", "vse", str(stored_tiny.folder), "--out", str(out), "--device", "cpu", *flags] for out in outs]
    alone = calligram(*asked[0])
    assert alone.returncode == 0, alone.stderr
    script = tmp_path / "calligram_main.py"
    script.write_text("from calligram.cli.main import main\nmain()\n")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    together = subprocess.run(
        [sys.executable, *torchrun, str(script), *asked[1]],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=400, capture_output=True, text=True,
    )  # fmt: skip
    assert together.returncode == 0, together.stderr
    assert together.stderr.count("too few to select the best epoch") == 1  # not once by each process
    one, two = (load_file(out / "best.safetensors") for out in outs)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("device", "backend", "current"), [("cuda:1", "nccl", "cuda:1"), ("cpu", "gloo", None)])
def test_a_process_joins_the_group_of_its_device(monkeypatch, device, backend, current):
    """Without a second GPU only the calls can be looked at."""
    called = {"current": None}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda kind, timeout: called.update(kind=kind))
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: called.update(current=str(gpu)))
    monkeypatch.setattr(distributed.atexit, "register", lambda function: None)
    assert distributed.Processes.join(torch.device(device)) == distributed.Processes(1, 2)
    assert called == {"kind": backend, "current": current}


if __name__ == "__main__":
    take_steps(json.loads(sys.argv[1]), Path(sys.argv[2]))
    leave_the_group(Path(sys.argv[2]))
