"""Networks in bfloat16 against float32: speed, vectors and recall.

    python bench/network_precision.py COLLECTION SPLIT RUN [RUN ...]

A run encodes the images and texts of a split in float32, with its transformers in bfloat16, as indexing does on devices
that multiply such matrices faster, and with all its networks in bfloat16. Speed is that of images whose pixels are
decoded. Rows are added to ``results/bench.json``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
from calligram.models.matcher import EmbeddingMatcher, Encoded, stack
from calligram.search.indexing.encode import BATCH_PICTURES, ImageEncoder
from calligram.search.library.matchers import MatcherEncoder
from calligram.vectors import unit_length

TIMED_BATCHES = 8
Pictures = list[torch.Tensor]
"""decoded pixels"""


def in_float32() -> AbstractContextManager[object]:
    return nullcontext()


def all_in_bfloat16() -> AbstractContextManager[object]:
    return torch.autocast(device_named().type, torch.bfloat16)


WAYS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "float32": in_float32,
    "transformers in bfloat16": use_half_networks,
    "all networks in bfloat16": all_in_bfloat16,
}


def encode(run: StoredMatcher, batches: list[Pictures], texts: tuple[str, ...]) -> EncodedPairing:
    images = stack([ImageEncoder(run, device_named()).encode(batch) for batch in batches])
    vectors = torch.from_numpy(MatcherEncoder(run, device_named()).text_vectors(texts))
    return EncodedPairing(images, Encoded(vectors))


def seconds(run: StoredMatcher, batches: list[Pictures]) -> list[float]:
    """Median time of a batch in each way, taken in turns."""
    times: list[list[float]] = [[] for _ in WAYS]
    encoder = ImageEncoder(run, device_named())
    for batch in batches[: TIMED_BATCHES + 1]:
        for way, found in zip(WAYS.values(), times, strict=True):
            began = time.perf_counter()
            with way():
                encoder.encode(batch)
            found.append(time.perf_counter() - began)
    return [median(found[1:]) for found in times]


def compare(folder: str, pairing: Pairing) -> list[Row]:
    run = load_matcher(folder)
    pixels = run.inputs.images.pixel_input
    assert pixels is not None
    decoded = [torch.from_numpy(pixels.resize(pairing.visuals.open(row))) for row in range(len(pairing.visuals))]
    batches = [decoded[start : start + BATCH_PICTURES] for start in range(0, len(decoded), BATCH_PICTURES)]
    times, exact, rows = seconds(run, batches), None, []
    for (name, way), taken in zip(WAYS.items(), times, strict=True):
        with way():
            encoded = encode(run, batches, pairing.texts.strings)
        scores = score_matrix(EmbeddingMatcher(), encoded)
        what = f"{Path(folder).name}, {name}"
        rows += [
            row(f"{what}: images", BATCH_PICTURES / taken, "images/s"),
            row(f"{what}: rsum of {len(decoded)} images", measure_retrieval(scores, pairing.matches).rsum, "points"),
        ]
        if exact is None:
            exact = encoded, scores
            continue
        images, texts = (
            float((unit_length(one.vectors) * unit_length(two.vectors)).sum(1).min())
            for one, two in zip(exact[0], encoded, strict=True)
        )
        rows += [
            row(f"{what}: speed of images against float32", times[0] / taken, "ratio"),
            row(f"{what}: smallest cosine of an image to its vector in float32", images, "cosine"),
            row(f"{what}: smallest cosine of a text to its vector in float32", texts, "cosine"),
            row(f"{what}: largest difference of a score", float(np.abs(exact[1] - scores).max()), "cosine"),
        ]
    return rows


def main() -> None:
    collection, split, *runs = sys.argv[1:]
    pairing = Collection.open(collection).sentences(split)
    keep_freed_memory()
    rows = [found for run in runs for found in compare(run, pairing)]
    write_rows(rows, stored_rows())


if __name__ == "__main__":
    main()
