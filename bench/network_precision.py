"""Networks in bfloat16 and in float32, as indexing runs them: speed, vectors and recall.

    python bench/network_precision.py COLLECTION SPLIT RUN [RUN ...]

The networks of a run encode the images and texts of a split in both precisions. Speed is that of the image network for
pixels that are decoded. On a device without matrix units for bfloat16 both are the same. Rows are added to
``results/bench.json``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rows import Row, row, stored_rows, write_rows

from calligram.data.collection import Collection
from calligram.data.pairing import Pairing
from calligram.device import device_named, use_half_networks
from calligram.evaluation.recall import EncodedPairing, score_matrix
from calligram.evaluation.retrieval import measure_retrieval
from calligram.memory import keep_freed_memory
from calligram.models.catalog import StoredMatcher, load_matcher
from calligram.models.matcher import Encoded, stack
from calligram.search.indexing.encode import BATCH_PICTURES, ImageEncoder
from calligram.search.library.matchers import MatcherEncoder
from calligram.vectors import unit_length

TIMED_BATCHES = 8
Pictures = list[torch.Tensor]
"""decoded pixels"""


def encode(run: StoredMatcher, batches: list[Pictures], texts: tuple[str, ...], half: bool) -> EncodedPairing:
    with use_half_networks(half):
        images = stack([ImageEncoder(run, device_named()).encode(batch) for batch in batches])
        vectors = torch.from_numpy(MatcherEncoder(run, device_named()).text_vectors(texts))
    return EncodedPairing(images, Encoded(vectors))


def seconds(run: StoredMatcher, batches: list[Pictures]) -> tuple[float, float]:
    """Median time of a batch in float32 and in bfloat16, taken in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    encoder = ImageEncoder(run, device_named())
    for batch in batches[: TIMED_BATCHES + 1]:
        for half, found in enumerate(times):
            began = time.perf_counter()
            with use_half_networks(bool(half)):
                encoder.encode(batch)
            found.append(time.perf_counter() - began)
    return median(times[0][1:]), median(times[1][1:])


def compare(folder: str, pairing: Pairing) -> list[Row]:
    run = load_matcher(folder)
    pixels = run.inputs.images.pixel_input
    assert pixels is not None
    decoded = [torch.from_numpy(pixels.resize(pairing.visuals.open(row))) for row in range(len(pairing.visuals))]
    batches = [decoded[start : start + BATCH_PICTURES] for start in range(0, len(decoded), BATCH_PICTURES)]
    full, half = (encode(run, batches, pairing.texts.strings, on) for on in (False, True))
    images, texts = (
        float((unit_length(one.vectors) * unit_length(two.vectors)).sum(1).min())
        for one, two in zip(full, half, strict=True)
    )
    scores = [score_matrix(run.to(torch.device("cpu")).matcher, each) for each in (full, half)]
    rsums = [measure_retrieval(each, pairing.matches).rsum for each in scores]
    plain, fast = seconds(run, batches)
    what = f"networks of {Path(folder).name} in bfloat16"
    return [
        row(f"{what}: images", BATCH_PICTURES / fast, "images/s"),
        row(f"{what}: speed of images against float32", plain / fast, "ratio"),
        row(f"{what}: smallest cosine of an image to its vector in float32", images, "cosine"),
        row(f"{what}: smallest cosine of a text to its vector in float32", texts, "cosine"),
        row(f"{what}: largest difference of a score", float(np.abs(scores[0] - scores[1]).max()), "cosine"),
        row(f"{what}: rsum of {len(decoded)} images in float32", rsums[0], "points"),
        row(f"{what}: rsum of {len(decoded)} images in bfloat16", rsums[1], "points"),
    ]


def main() -> None:
    collection, split, *runs = sys.argv[1:]
    pairing = Collection.open(collection).sentences(split)
    keep_freed_memory()
    rows = [found for run in runs for found in compare(run, pairing)]
    write_rows(rows, stored_rows())


if __name__ == "__main__":
    main()
