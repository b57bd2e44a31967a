"""Decoding of pictures into memory on all cores: against one core times cores, and against what the machine can do.

Cores share caches and memory, and two of them may be one core with two threads, so all together do less than one of
them times their number. The limit of the machine is measured: one process for each core, each with one thread and its
own pictures, without anything in common. Their start is not counted; that of the processes which decode for one run
is, as a user waits for it.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image
from rows import Row, row

from calligram.data.collection import Collection
from calligram.data.pairing import Visuals
from calligram.data.pictures import core_share, share_cores
from calligram.data.readers.catalog import import_collection
from calligram.features.images.pixels import MAX_CACHE_BYTES, PixelInput, PixelRows
from calligram.progress import silent
from calligram.scenes.generate import generate_scenes

PICTURES, CORE_PICTURES = 200, 1000
"""different pictures, and pictures decoded for each core in one measurement"""
WIDTH, HEIGHT, SIZE = 640, 480, 224
PROCESSES = 4
TURNS = 3

_started: list[Barrier] = []


def make_collection(folder: Path) -> Collection:
    """A collection of JPEG files."""
    scenes = generate_scenes(folder / "scenes", images=PICTURES, size=256)
    (folder / "photos").mkdir()
    for number in range(PICTURES):
        picture = scenes.pictures.open(number).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        picture.save(folder / "photos" / f"{number:05d}.jpg", quality=90)
    return import_collection("folder", folder / "photos", folder / "collection")[0]


def some(collection: Collection, count: int) -> Visuals:
    return collection.visuals(np.arange(count) % PICTURES)


def seconds(visuals: Visuals) -> float:
    """Time in which a run has all its pictures in memory."""
    began = time.perf_counter()
    PixelRows(PixelInput(SIZE), visuals, silent, MAX_CACHE_BYTES)
    return time.perf_counter() - began


def _enter(barrier: Barrier, processes: int) -> None:
    _started.append(barrier)
    share_cores(processes)


def _one_of_several(folder: Path, count: int) -> tuple[float, float]:
    """Decode when all processes are ready; return when it began and ended."""
    visuals = some(Collection.open(folder), count)
    seconds(some(Collection.open(folder), PICTURES))
    _started[0].wait()
    began = time.monotonic()
    seconds(visuals)
    return began, time.monotonic()


def together(folder: Path, processes: int, count: int) -> float:
    """Pictures a second of several processes that divide the cores and the pictures."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _enter, (context.Barrier(processes), processes)) as pool:
        times = [pool.submit(_one_of_several, folder, count // processes) for _ in range(processes)]
        began, ended = zip(*(each.result() for each in times), strict=True)
    return count / (max(ended) - min(began))


def decoding() -> list[Row]:
    cores = core_share()
    with tempfile.TemporaryDirectory() as name:
        collection = make_collection(Path(name))

        def rate(share: int, count: int) -> float:
            share_cores(cores // share)
            speed = count / seconds(some(collection, count))
            share_cores(1)
            return speed

        rate(cores, PICTURES)
        # In turns, so that a machine that slows down slows all.
        count = cores * CORE_PICTURES
        speeds = [
            (
                rate(1, CORE_PICTURES),
                rate(cores, count),
                together(collection.folder, PROCESSES, count),
                together(collection.folder, cores, count),
            )
            for _ in range(TURNS)
        ]
    what = f"decoding of {WIDTH} x {HEIGHT} JPEGs to {SIZE} px"
    return [
        row(f"{what}, one core", median(one for one, *_ in speeds), "images/s"),
        row(f"{what}, all cores against one core times cores", median(b / (a * cores) for a, b, *_ in speeds), "ratio"),
        row(f"{what}, one process for each core against one core", median(d / a for a, *_, d in speeds), "ratio"),
        row(f"{what}, all cores against one process for each core", median(b / d for _, b, _, d in speeds), "ratio"),
        row(f"{what}, {PROCESSES} processes together against one", median(c / b for _, b, c, _ in speeds), "ratio"),
    ]


if __name__ == "__main__":
    print(json.dumps(decoding(), indent=1))
