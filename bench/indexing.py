"""Indexing pictures against the bare loop of decoding and the forward pass, and a look at what did not change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from rows import Row, row

from calligram.data.collection import Collection
from calligram.data.pictures import decode_with_size
from calligram.device import device_named
from calligram.features.images.pixels import PixelInput
from calligram.files import content_hash
from calligram.models.catalog import StoredMatcher
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.scenes.generate import generate_scenes
from calligram.search.indexing.encode import BATCH_PICTURES, CONTENT_HASH_BYTES, ImageEncoder, thumbnail
from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers

SIZES = ((1000, 384), (4000, 384), (250, 1280), (1000, 1280))
"""pictures and their side: small, where all that is not the network weighs most, and as cameras make them; few, where
opening the tables and indexing them at the end weigh too, and more"""
TURNS = 3
FILES = 100_000


def make_run(folder: Path) -> Path:
    """A run of the default vse, barely trained."""
    preset, small = PRESETS["vse"], generate_scenes(folder / "small", images=60, size=64)
    settings = resolve(preset.defaults, ["epochs=1", "batch=16"])
    run_preset(preset, settings, small, folder / "run", context=RunContext(device_named("cpu")))
    return folder / "run"


def make_pictures(folder: Path, scenes: Collection, count: int, size: int) -> list[Path]:
    """JPEG files of scenes, enlarged where they would take long to draw."""
    files = [folder / f"photos-{count}-{size}" / f"{number:05d}.jpg" for number in range(count)]
    files[0].parent.mkdir()
    for number, file in enumerate(files):
        scenes.pictures.open(number).resize((size, size)).save(file, quality=90)
    return files


@torch.no_grad()
def in_turns(stored: StoredMatcher, files: list[Path]) -> float:
    """Images a second of a loop that decodes a batch with all cores, runs the network with all, and keeps nothing."""
    pixels = stored.inputs.images
    assert isinstance(pixels, PixelInput)
    began = time.perf_counter()
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(files), BATCH_PICTURES):
            chosen = files[start : start + BATCH_PICTURES]
            part = pool.map(lambda file: pixels.decode(file.read_bytes()), chosen)
            stored.matcher.encode_images(pixels.finish(torch.from_numpy(np.stack(list(part)))))
    return len(files) / (time.perf_counter() - began)


def side_by_side(stored: StoredMatcher, files: list[Path], *, with_thumbnails: bool = False) -> float:
    """The same, but each core takes whole batches: nothing waits, and it is the quickest way to write it.

    Args:
        with_thumbnails: also compute what a library needs of each picture, the hash of its file and its thumbnail.
            Nothing is stored, so no library can be faster.
    """
    pixels, before = stored.inputs.images, torch.get_num_threads()
    assert isinstance(pixels, PixelInput)
    encoder = ImageEncoder(stored)

    def prepared(data: bytes) -> NDArray[np.uint8]:
        if not with_thumbnails:
            return pixels.decode(data)
        content_hash(data, CONTENT_HASH_BYTES)
        image, size = decode_with_size(data, encoder.least_side)
        reduced = encoder.reduced(image)
        thumbnail(image, data if image.size == size else b"", reduced)
        return pixels.resize(image, reduced)

    @torch.no_grad()
    def batch(start: int) -> None:
        part = np.stack([prepared(file.read_bytes()) for file in files[start : start + BATCH_PICTURES]])
        stored.matcher.encode_images(pixels.finish(torch.from_numpy(part)))

    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(batch, range(0, len(files), BATCH_PICTURES)))
    speed = len(files) / (time.perf_counter() - began)
    torch.set_num_threads(before)
    return speed


def indexing() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = LibraryMatchers.load(make_run(folder))
        index_source(models, folder / "small", folder / "warm")
        scenes = generate_scenes(folder / "scenes", images=max(count for count, _ in SIZES), size=384)
        return [
            found
            for count, size in SIZES
            for found in against_bare(folder, models, make_pictures(folder, scenes, count, size), size)
        ]


def against_bare(folder: Path, models: LibraryMatchers, files: list[Path], size: int) -> list[Row]:
    with_thumbnails = partial(side_by_side, with_thumbnails=True)
    loops = (in_turns, side_by_side, with_thumbnails)
    for loop in loops:
        loop(models.matcher, files[:100])

    def whole(number: int) -> float:
        began = time.perf_counter()
        index_source(models, files[0].parent, folder / f"library-{len(files)}-{size}-{number}")
        return len(files) / (time.perf_counter() - began)

    # Taken in turns, so that a machine that slows down slows all.
    speeds = [(*(loop(models.matcher, files) for loop in loops), whole(turn)) for turn in range(TURNS)]
    turns, beside, most, ours = (median(column) for column in zip(*speeds, strict=True))
    what = f"indexing of {len(files)} pictures of {size} px with vse"
    return [
        row(what, ours, "images/s"),
        row(f"{what} against bare decode and forward, in turns", ours / turns, "ratio"),
        row(f"{what} against bare decode and forward, batches side by side", ours / beside, "ratio"),
        row(f"{what} against that loop with hashes and thumbnails", ours / most, "ratio"),
        row(f"{what}: that loop with hashes and thumbnails against without", most / beside, "ratio"),
    ]


def unchanged() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scenes = generate_scenes(folder / "scenes", images=100, size=96)
        return looking_again(folder, make_run(folder), make_pictures(folder, scenes, 100, 96))


def looking_again(folder: Path, run: Path, pictures: list[Path]) -> list[Row]:
    """``calligram index`` over an unchanged folder, as a command: imports and loading the matcher included."""
    many = folder / "many"
    for number in range(FILES):
        place = many / f"{number % 250:03d}"
        place.mkdir(parents=True, exist_ok=True)
        # The same pictures under many names: each is an item, and few are encoded.
        (place / f"{number:06d}.jpg").hardlink_to(pictures[number % len(pictures)])
    command = [sys.executable, "-c", "from calligram.cli.main import main; main()", "index", str(run), str(many)]
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        said = subprocess.run([*command, "--out", str(folder / "of-many")], capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - began)
    assert f"{FILES:,} unchanged" in said.stdout, said.stdout
    shutil.rmtree(many)
    return [
        row(f"first index of {FILES} files with {len(pictures)} contents", seconds[0], "s"),
        row(f"index again over {FILES} unchanged files", min(seconds[1:]), "s"),
    ]


if __name__ == "__main__":
    print(json.dumps(indexing() + unchanged(), indent=1))
