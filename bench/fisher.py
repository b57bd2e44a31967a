"""Fisher vectors: a hybrid mixture of 30 centres on 300,000 word vectors, and the encoding of 30,000 captions."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np

from calligram.features.texts.fisher_vectors import FisherVectorizer, IcaProjection
from calligram.features.texts.mixture import fit_mixture
from calligram.features.texts.word_counts import KnownWords, WordVectors

Row = dict[str, object]
VECTORS, DIM, CENTRES = 300_000, 300, 30
WORDS, TEXTS, LENGTH, KEPT = 12_000, 30_000, 11, 1000


def fisher(row: Callable[[str, float, str], Row]) -> list[Row]:
    return [*fitting(row), *encoding(row)]


def fitting(row: Callable[[str, float, str], Row]) -> list[Row]:
    """Heavy-tailed vectors around 100 places, as word vectors are."""
    vectors = clouds(VECTORS)
    began = time.perf_counter()
    space = IcaProjection.fit(vectors)
    points = space(vectors)
    whitened = time.perf_counter() - began
    began = time.perf_counter()
    fit_mixture(points, CENTRES, hybrid=True)
    fitted = time.perf_counter() - began
    name = f"{VECTORS} vectors of {DIM}"
    return [
        row(f"independent components of {name}", whitened, "s"),
        row(f"hybrid mixture of {CENTRES} centres on {name}", fitted, "s"),
        row("the same: peak memory of the process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, "GB"),
    ]


def encoding(row: Callable[[str, float, str], Row]) -> list[Row]:
    """Captions of words drawn as often as words are, by Zipf's law."""
    words = WordVectors(KnownWords(tuple(to_letters(n) for n in range(WORDS))), clouds(WORDS))
    random = np.random.default_rng(1)
    often = 1 / np.arange(1, WORDS + 1)
    drawn = random.choice(WORDS, (TEXTS, LENGTH), p=often / often.sum())
    texts = [" ".join(words.known.words[number] for number in numbers) for numbers in drawn]
    began = time.perf_counter()
    coder = FisherVectorizer.fit(texts, words, hybrid=[True], centres=CENTRES, pca=KEPT)
    fitted = time.perf_counter() - began
    began = time.perf_counter()
    for start in range(0, TEXTS, 1024):
        coder.encode(texts[start : start + 1024])
    encoded = time.perf_counter() - began
    return [
        row(f"Fisher vectors of {TEXTS} captions: fit, with {KEPT} principal components", fitted, "s"),
        row(f"Fisher vectors of {TEXTS} captions: encoding", encoded, "s"),
    ]


def clouds(count: int) -> np.ndarray:
    random = np.random.default_rng(0)
    places = random.normal(size=(100, DIM)).astype(np.float32)
    return places[random.integers(100, size=count)] + random.laplace(size=(count, DIM)).astype(np.float32)


def to_letters(number: int) -> str:
    """A number without digits, which would be taken for something to split a word at."""
    return "".join(chr(97 + int(digit)) for digit in str(number))
