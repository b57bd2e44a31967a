"""Speed and memory of what users wait for, into ``results/bench.json``.

    make bench

Ratios compare two ways of doing the same work in one run; absolute times are for orientation on the named hardware.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import torch
from decoding import decoding
from image_groups import image_groups
from indexing import indexing, unchanged
from memory import memory
from rows import Row, results_file, row, stored_rows, write_rows
from training_steps import end_to_end, half_steps, text_lengths, training

from calligram.data.matches import Matches
from calligram.device import device_named
from calligram.evaluation.recall import EncodedPairing, score_matrix
from calligram.evaluation.retrieval import measure_retrieval
from calligram.features.images.backbones import Backbone, BackboneInput, pixel_input
from calligram.features.store import FeatureStore
from calligram.models.matcher import EmbeddingMatcher, Encoded
from calligram.progress import silent
from calligram.scenes.generate import generate_scenes
from calligram.studies.claims import ASSETS

DEMO = Path(__file__).parent.parent / "demo" / "run"
"""what ``make demo`` trained"""


def in_a_process(work: Callable[[], list[Row]]) -> list[Row]:
    """Peak memory is a process's own, so each measurement gets a fresh one."""
    context = multiprocessing.get_context("spawn")
    # Not a Pool: its workers may not have children, and scenes are drawn by several processes.
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work).result()


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def scenes() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        generate_scenes(Path(folder) / "scenes", images=2000, size=128)
        return [row("scenes drawn and stored at 128 px", 2000 / (time.perf_counter() - began), "images/s")]


def extraction() -> list[Row]:
    """Features through the store against the bare loop of decoding and the forward pass."""
    backbone = (
        Backbone.load(str(Path(os.environ[ASSETS]) / "models" / "mobilenet_v2_1.0_224")).eval().to(device_named())
    )
    pixels = pixel_input(str(Path(os.environ[ASSETS]) / "models" / "mobilenet_v2_1.0_224"))
    count = 600 if device_named().type == "cpu" else 6000
    with tempfile.TemporaryDirectory() as folder:
        visuals = generate_scenes(Path(folder) / "scenes", images=count, size=256).sentences("all").visuals
        source = BackboneInput(backbone, pixels, "mobilenet")
        source.images([visuals.open(0)] * 64)

        def bare() -> float:
            began = time.perf_counter()
            for start in range(0, count, source.batch):
                # Decoded with as many threads as ours has; without them one would wait for the other.
                with ThreadPoolExecutor() as pool:
                    rows = range(start, min(start + source.batch, count))
                    decoded = list(pool.map(lambda row: pixels.resize(visuals.open(row)), rows))
                source.features(torch.from_numpy(np.stack(decoded))).cpu()
            return count / (time.perf_counter() - began)

        def stored(number: int) -> float:
            began = time.perf_counter()
            source.fill(FeatureStore(Path(folder) / f"store-{number}", {}), visuals, silent)
            return count / (time.perf_counter() - began)

        pairs = [(bare(), stored(turn)) for turn in range(3)]
    plain, ours = (median(column) for column in zip(*pairs, strict=True))
    return [
        row("MobileNetV2 features: extraction into the store", ours, "images/s"),
        row("MobileNetV2 features: extraction against bare decode and forward", ours / plain, "ratio"),
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
    measure_retrieval(scores, matches)
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


def relevance() -> list[Row]:
    """The demo's matcher, on scenes it never saw."""
    from relevance import measured

    with tempfile.TemporaryDirectory() as folder:
        collection = generate_scenes(Path(folder) / "scenes", images=1000, size=96, seed=777)
        return [row(f"scenes, {what}", value, unit) for what, value, unit in measured(DEMO, collection, "all")]


def search_index() -> list[Row]:
    from search_index import search_index as measured

    return measured(row)


def large_index() -> list[Row]:
    from search_index import large_index as measured

    return measured(row)


def ten_million() -> list[Row]:
    from ten_million import ten_million as measured

    return measured(row)


def kills() -> list[Row]:
    from kills import kills as measured

    return measured(row)


def fisher() -> list[Row]:
    from fisher import fisher as measured

    return measured(row)


def instance() -> list[Row]:
    from instance import instance as measured

    return measured(row)


def mining() -> list[Row]:
    from mining import mining as measured

    return measured(row)


def offline_steps() -> list[Row]:
    from offline_steps import offline_steps as measured

    return measured(row)


def fragments() -> list[Row]:
    from fragments import fragments as measured

    return measured(row)


def mmca() -> list[Row]:
    from mmca import mmca as measured

    return measured(row)


def rerank() -> list[Row]:
    from rerank import rerank as measured

    return measured(row)


def startup() -> list[Row]:
    from startup import startup as measured

    return measured(row)


def serving() -> list[Row]:
    from serving import measured

    return measured(row)


BY_NAME_ONLY: tuple[Callable[[], list[Row]], ...] = (ten_million, kills)
"""what takes more than five minutes is measured only if it is named on the command line"""


def chosen_work() -> list[Callable[[], list[Row]]]:
    """Everything, or what is named on the command line; what needs real weights only where they are."""
    works = (
        startup,
        scenes,
        memory,
        training,
        evaluation_1k,
        evaluation_5k,
        end_to_end,
        decoding,
        extraction,
        image_groups,
        search_index,
        large_index,
        indexing,
        unchanged,
        relevance,
        serving,
        rerank,
        fisher,
        instance,
        mining,
        text_lengths,
        half_steps,
        offline_steps,
        fragments,
        mmca,
    )
    known = {w.__name__: w for w in (*works, *BY_NAME_ONLY)}
    missing = set() if ASSETS in os.environ else {"end_to_end", "extraction", "image_groups"}
    missing |= set() if DEMO.is_dir() else {"relevance"}
    missing |= {w.__name__ for w in BY_NAME_ONLY}
    names = sys.argv[1:] or [n for n in known if n not in missing]
    if set(names) - set(known):
        sys.exit(f"unknown: {', '.join(set(names) - set(known))}; known: {', '.join(known)}")
    return [known[name] for name in names]


def main() -> None:
    kept = stored_rows() if sys.argv[1:] else []
    rows: list[Row] = []
    for work in chosen_work():
        rows += in_a_process(work)
        write_rows(rows, kept)
    print(f"written: {results_file()}")


if __name__ == "__main__":
    main()
