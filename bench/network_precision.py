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
from calligram.device import device_named, half_networks_apply, use_half_networks
from calligram.evaluation.recall import EncodedPairing, score_matrix
from calligram.evaluation.retrieval import measure_retrieval
from calligram.memory import keep_freed_memory
from calligram.models.catalog import load_matcher
from calligram.models.matcher import Encoded, stack
from calligram.search.indexing.encode import BATCH_PICTURES
from calligram.search.library.matchers import MatcherEncoder
from calligram.vectors import unit_length

TIMED_BATCHES = 8


def encode(encoder: MatcherEncoder, pixels: list[torch.Tensor], texts: list[str], half: bool) -> EncodedPairing:
    with use_half_networks(half), torch.inference_mode():
        images = stack([encoder.matcher.encode_images(_finished(encoder, batch)) for batch in pixels])
        vectors = torch.from_numpy(encoder.text_vectors(texts)).to(encoder.device)
    return EncodedPairing(Encoded(images.vectors.float()), Encoded(vectors))


def _finished(encoder: MatcherEncoder, batch: torch.Tensor) -> torch.Tensor:
    source = encoder.inputs.images
    return source.finish(source.run_network(batch.to(encoder.device)))


def seconds(encoder: MatcherEncoder, pixels: list[torch.Tensor]) -> tuple[float, float]:
    """Median time of a batch in float32 and in bfloat16, taken in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for batch in pixels[: TIMED_BATCHES + 1]:
        for half, found in enumerate(times):
            began = time.perf_counter()
            with use_half_networks(bool(half)), torch.inference_mode():
                encoder.matcher.encode_images(_finished(encoder, batch)).vectors.sum().item()
            found.append(time.perf_counter() - began)
    return median(times[0][1:]), median(times[1][1:])


def compare(run: str, pairing: Pairing) -> list[Row]:
    encoder = MatcherEncoder(load_matcher(run), device_named())
    source = encoder.inputs.images
    count = len(pairing.visuals)
    pixels = [
        source.images([pairing.visuals.open(number) for number in range(start, min(start + BATCH_PICTURES, count))])
        for start in range(0, count, BATCH_PICTURES)
    ]
    texts = pairing.texts.strings
    full, half = (encode(encoder, pixels, texts, on) for on in (False, True))
    cosines = [
        float((unit_length(one.vectors) * unit_length(two.vectors)).sum(1).min())
        for one, two in zip(full, half, strict=True)
    ]
    scores = [score_matrix(encoder.matcher, each) for each in (full, half)]
    rsums = [measure_retrieval(each, pairing.matches).rsum for each in scores]
    plain, fast = seconds(encoder, pixels)
    what = f"network in bfloat16, {Path(run).name}"
    with use_half_networks():
        print(f"{what}: bfloat16 {'applies' if half_networks_apply(encoder.device) else 'does not apply'} here")
    return [
        row(f"{what}: images a second", BATCH_PICTURES / fast, "images/s"),
        row(f"{what}: speed against float32", plain / fast, "ratio"),
        row(f"{what}: smallest cosine of an image to its vector in float32", cosines[0], "cosine"),
        row(f"{what}: smallest cosine of a text to its vector in float32", cosines[1], "cosine"),
        row(f"{what}: largest difference of a score", float(np.abs(scores[0] - scores[1]).max()), "score"),
        row(f"{what}: rsum in float32", rsums[0], "rsum"),
        row(f"{what}: rsum in bfloat16", rsums[1], "rsum"),
    ]


def main() -> None:
    collection, split, *runs = sys.argv[1:]
    pairing = Collection.open(collection).sentences(split)
    keep_freed_memory()
    rows = [found for run in runs for found in compare(run, pairing)]
    write_rows(rows, stored_rows())


if __name__ == "__main__":
    main()
