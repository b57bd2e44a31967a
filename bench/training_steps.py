"""Steps of the training loop against the bare passes of the same network."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
from rows import Row, row

from calligram.data.collection import Collection
from calligram.device import device_named
from calligram.features.texts.text_encoder import TextEncoder
from calligram.features.texts.vocabulary import known_lengths
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext
from calligram.scenes.generate import generate_scenes
from calligram.studies.claims import ASSETS
from calligram.training.loop import Stage, train
from calligram.training.runs import Run

T = TypeVar("T")

SMALL_NETWORKS = {"MobileNetV2": "mobilenet_v2_1.0_224"}
LARGE_NETWORKS = {"DINOv2-S": "dinov2_small_saliency", "EfficientNet-Lite2": "efficientnet_lite2_256"}
"""folders of networks among the assets"""


class MeasuredEnoughError(Exception):
    """Stops the loop when it has been measured."""


def loop_against_bare(name: str, settings: list[str], collection: Collection) -> list[Row]:
    """Steps of the loop against the bare forward and backward passes of the same network on one fixed batch.

    The loop does more: it draws and augments batches, clips gradients, steps the optimiser, averages weights and saves
    the state of each epoch. It is the loop of a whole run, which is stopped when it has been measured: the ways to take
    steps that are tried on a GPU depend on how many steps there are. The first epoch is left out, since they are tried
    there.
    """
    preset, device = PRESETS["vse"], device_named()
    chosen = resolve(preset.defaults, settings)
    steps, turns = (40, 2) if device.type == "cpu" else (400, 1)
    with tempfile.TemporaryDirectory() as folder:
        plan = preset.recipe.plan(chosen, collection, RunContext(device))
        plan.matcher.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        stage = plan.stages[-1]
        stage.objective.to(device)
        batch = next(iter(stage.batches.epoch(0)))
        lower = torch.autocast(device.type, torch.bfloat16, enabled=plan.loop.precision == "bf16")
        measured = max(1, steps // len(stage.batches))
        tried: dict[str, float] = {}

        def bare(steps: int) -> float:
            plan.matcher.train()  # the loop leaves it as its evaluation does
            wait(device)
            began = time.perf_counter()
            for _ in range(steps):
                plan.matcher.zero_grad(set_to_none=True)
                with lower:
                    loss = torch.stack(list(stage.objective(plan.matcher, batch).values())).sum()
                loss.backward()
            wait(device)
            return steps / (time.perf_counter() - began)

        def looped(number: int) -> float:
            run = Run.create(Path(folder) / f"run-{number}", {})
            starts = []

            def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
                del label, total
                wait(device)
                starts.append(time.perf_counter())
                if len(starts) == measured + 2:
                    raise MeasuredEnoughError
                yield from items

            whole = Stage(**{**vars(stage), "epochs": max(stage.epochs, measured + 2)})
            with contextlib.suppress(MeasuredEnoughError):
                train(plan.matcher, [whole], run, lambda matcher: {"rsum": 0.0}, loop=plan.loop, track=track)
            tried.update(run.about.get("speed", {}).get(stage.name, {}).get("milliseconds", {}))
            return measured * len(stage.batches) / (starts[-1] - starts[1])

        bare(3)
        # Taken in turns, so that a machine that slows down slows both.
        pairs = [(bare(min(steps, 100)), looped(turn)) for turn in range(turns)]
        passes = [rate for rate, _ in pairs] + [bare(min(steps, 100))]
    fixed, real = median(passes), median(rate for _, rate in pairs)
    return [
        row(f"{name}: training", real, "steps/s"),
        row(f"{name}: training, batches of {chosen.batch}", real * chosen.batch, "images/s"),
        row(f"{name}: training loop against bare forward and backward", real / fixed, "ratio"),
        *(row(f"{name}: a training step as tried by speed=auto, {way}", value, "ms") for way, value in tried.items()),
    ]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def training() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        scenes = generate_scenes(Path(folder) / "scenes", images=500, size=96)
        return loop_against_bare("default vse on scenes", [], scenes)


def text_lengths() -> list[Row]:
    """A text encoder of MiniLM's size, forward and backward, for captions as long as Flickr's: with texts of similar
    length together, and with all texts padded to the longest. On a GPU so little work is not divided into groups.
    """
    from transformers import BertConfig, BertModel

    device, count = device_named(), 128
    torch.manual_seed(0)
    size = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    encoder = TextEncoder(BertModel(BertConfig(vocab_size=1000, **size), add_pooling_layer=False)).to(device).train()
    lengths = (14 + 4 * torch.randn(count)).round().clamp(5, 40).long()
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).to(device)
    words = torch.randint(1000, mask.shape, device=device)

    def step(known: list[int]) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            with known_lengths(known):
                states = encoder(words, mask)
            (states * mask[..., None]).float().square().mean().backward()
        encoder.zero_grad(set_to_none=True)
        wait(device)

    seconds: dict[str, list[float]] = {"together": [], "padded": []}
    for _ in range(8):
        for way, known in (("together", lengths.tolist()), ("padded", [])):
            began = time.perf_counter()
            step(known)
            seconds[way].append(time.perf_counter() - began)
    together, padded = (1000 * min(seconds[way]) for way in seconds)
    name = f"text encoder of MiniLM's size, {count} captions, both ways"
    return [
        row(f"{name}: texts of similar length together", together, "ms"),
        row(f"{name}: all padded", padded, "ms"),
        row(f"{name}: padded against together", padded / together, "ratio"),
    ]


HALF_STEPS = """
import sys, time, torch
from transformers import Dinov2Config, Dinov2Model
torch.manual_seed(0)
torch.set_num_threads(1)
size = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "patch_size": 14, "image_size": 224}
model, pixels = Dinov2Model(Dinov2Config(**size)).train(), torch.randn(4, 3, 224, 224)
for half in (False, True):
    times = []
    for _ in range(3):
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(pixels).last_hidden_state.float().square().mean()
        loss.backward()
        times.append(time.perf_counter() - began)
    print(min(times[1:]))
"""


def half_steps() -> list[Row]:
    """Forward and backward of a ViT in bfloat16 against float32 on one CPU core: with all instructions of the CPU, and
    as on a CPU that has AVX2 alone.
    """
    rows = []
    for instructions in ("all instructions", "AVX2"):
        limit = {"ONEDNN_MAX_CPU_ISA": instructions} if instructions == "AVX2" else {}
        printed = subprocess.run(
            [sys.executable, "-c", HALF_STEPS], env={**os.environ, **limit}, capture_output=True, text=True, check=True
        ).stdout
        full, half = (float(line) for line in printed.split())
        name = f"ViT-S on one CPU core, forward and backward, {instructions}"
        rows += [
            row(f"{name}: float32", full, "s"),
            row(f"{name}: bfloat16", half, "s"),
            row(f"{name}: speed of bfloat16 against float32", full / half, "ratio"),
        ]
    return rows


def end_to_end() -> list[Row]:
    """Pretrained backbones: the larger ones with mixed precision on an accelerator, the smallest one on a CPU."""
    cuda = torch.cuda.is_available()
    networks = LARGE_NETWORKS if cuda else SMALL_NETWORKS
    batches = ["precision=bf16", "batch=128", "epoch_of=pairs", "texts=1"] if cuda else ["batch=16"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        scenes = generate_scenes(Path(folder) / "scenes", images=6400 if cuda else 200, size=224)
        for name, network in networks.items():
            settings = [
                f"image.backbone={Path(os.environ[ASSETS]) / 'models' / network}",
                "image.train=true",
                "image.crop=0.5",
                "image.flip=true",
                "image.jitter=0.3",
                *batches,
            ]
            rows += loop_against_bare(f"{name} end to end", settings, scenes)
            seconds = [seconds_to_ten_steps(scenes, settings, Path(folder) / f"{network}-{n}") for n in range(2)][-1]
            rows.append(row(f"{name} end to end: from the start of a second run to its tenth step", seconds, "s"))
    return rows


def seconds_to_ten_steps(collection: Collection, settings: list[str], out: Path) -> float:
    """Seconds of a process from its start until it has written the loss of its tenth step; it is then killed."""
    flags = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "calligram", "train", "vse", str(collection.folder), "--out", str(out), *flags]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        metrics = out / "metrics.jsonl"
        while not (metrics.is_file() and metrics.stat().st_size):
            if process.poll() is not None:
                raise RuntimeError(f"training ended without ten steps: {' '.join(command)}")
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        process.kill()
    return seconds
