"""Speed and memory of what users wait for, into ``results/bench.json``.

    make bench

Ratios compare two ways of doing the same work in one run; absolute times are for orientation on the named hardware.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from calligram.data.matches import Matches
from calligram.data.scenes.generate import generate_scenes
from calligram.evaluation.encoding import EncodedPairing, score_matrix
from calligram.evaluation.retrieval import retrieval
from calligram.models.matcher import EmbeddingMatcher, Encoded
from calligram.recipes.catalog import RECIPES
from calligram.recipes.plan import Surroundings
from calligram.recipes.results import commit
from calligram.training.loop import Loop, Stage, train
from calligram.training.runs import Run

RESULTS = Path(__file__).parent.parent / "results" / "bench.json"
Row = dict[str, object]


def row(what: str, value: float, unit: str) -> Row:
    print(f"{what}: {value:.3g} {unit}", flush=True)
    return {"what": what, "value": float(f"{value:.4g}"), "unit": unit}


def in_a_process(work: Callable[[], list[Row]]) -> list[Row]:
    """Peak memory is a process's own, so each measurement gets a fresh one."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(work)


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def scenes() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        generate_scenes(Path(folder) / "scenes", images=2000, size=128)
        return [row("scenes drawn and stored at 128 px", 2000 / (time.perf_counter() - began), "images/s")]


def training() -> list[Row]:
    """Steps of the loop against the bare forward and backward passes of the same network on one fixed batch."""
    recipe = RECIPES["vse"]
    with tempfile.TemporaryDirectory() as folder:
        collection = generate_scenes(Path(folder) / "scenes", images=1000, size=64)
        plan = recipe.plan(recipe.defaults, collection, Surroundings())
        stage = plan.stages[-1]
        batch = next(iter(stage.batches.epoch(0)))

        def bare(steps: int) -> float:
            began = time.perf_counter()
            for _ in range(steps):
                plan.matcher.zero_grad(set_to_none=True)
                sum(stage.objective(plan.matcher, batch).values()).backward()  # type: ignore[union-attr]
            return steps / (time.perf_counter() - began)

        bare(3)
        fixed = bare(len(stage.batches))
        run = Run(Path(folder) / "run")
        run.folder.mkdir()
        once = Stage(**{**vars(stage), "epochs": 1})
        began = time.perf_counter()
        train(plan.matcher, [once], run, lambda matcher: {"rsum": 0.0}, loop=Loop())
        looped = len(stage.batches) / (time.perf_counter() - began)
    return [
        row("training, default vse on scenes", looped, "steps/s"),
        row("training loop against bare forward and backward", looped / fixed, "ratio"),
    ]


def evaluation(images: int, texts: int) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    encoded = EncodedPairing(
        Encoded(torch.randn(images, 1024, generator=generator)), Encoded(torch.randn(texts, 1024, generator=generator))
    )
    per_image = texts // images
    matches = Matches(np.repeat(np.arange(images), per_image), np.arange(texts), (images, texts))
    began = time.perf_counter()
    scores = score_matrix(EmbeddingMatcher(), encoded)
    scored = time.perf_counter() - began
    began = time.perf_counter()
    retrieval(scores, matches)
    ranked = time.perf_counter() - began
    name = f"evaluation of {images} x {texts}"
    return [
        row(f"{name}: scores of 1024 dimensions", scored, "s"),
        row(f"{name}: all metrics, both directions", ranked, "s"),
        row(f"{name}: peak memory of the process", peak_gigabytes(), "GB"),
    ]


def evaluation_1k() -> list[Row]:
    return evaluation(1000, 5000)


def evaluation_5k() -> list[Row]:
    return evaluation(5000, 25000)


def main() -> None:
    rows: list[Row] = []
    for work in (scenes, training, evaluation_1k, evaluation_5k):
        rows += in_a_process(work)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    hardware = f"{os.cpu_count()} CPU cores ({platform.machine()}), {versions}"
    RESULTS.parent.mkdir(exist_ok=True)
    content = {"hardware": hardware, "commit": commit(), "command": "make bench", "rows": rows}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written: {RESULTS.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
