"""How well an album suggests pictures, measured on albums that captions define.

    python bench/albums.py RUN COLLECTION SPLIT

An album is a noun such as "dog": its pictures are those of which two or more captions have the noun. The library is the
split, which the run was not trained on. Up to ten pictures of the album are examples. The average precision is that of
the ranking of all pictures but ten of the album, so that figures can be compared. The constants of
``search/query/album_suggestions.py`` were chosen on Flickr8k's dev split; report others.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.evaluation.recall import encode_images
from calligram.models.catalog import load_matcher
from calligram.search.library.matchers import MatcherEncoder, unit_vectors
from calligram.search.query.album_suggestions import album_direction
from calligram.text import STOP_WORDS, tokenise

FEWEST_PICTURES, LARGEST_SHARE, CAPTIONS_WITH_NOUN = 20, 0.25, 2
NOUN_SHARE = 0.5
"""of the uses of a word in captions, in which it is the last word of a noun phrase"""
DRAWS, EXAMPLES = 10, (1, 3, 5, 10)
ROUNDS, ANSWERS = 4, 24
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
Rows = list[tuple[str, float]]


class Albums(NamedTuple):
    """Vectors of pictures, and the pictures of each noun."""

    vectors: Floats
    """of the pictures (N, D)"""
    names: Floats
    """of the nouns (A, D)"""
    nouns: list[str]
    members: Flags
    """(A, N)"""


def albums_of(run: str | Path, collection: Collection, split: str) -> Albums:
    pairing, stored = collection.sentences(split), load_matcher(run)
    encoder = MatcherEncoder(stored)
    counts = np.array([Counter(_words(pairing, image)) for image in range(len(pairing.visuals))], dtype=object)
    heads = Counter(tokenise(text)[-1] for text in collection.column("phrases", "text") if tokenise(text))
    nouns, members = [], []
    uses = Counter(word for text in collection.column("captions", "text") for word in tokenise(text))
    for noun in (noun for noun, count in heads.most_common() if count >= NOUN_SHARE * uses[noun]):
        has = np.array([count[noun] >= CAPTIONS_WITH_NOUN for count in counts])
        if noun not in STOP_WORDS and FEWEST_PICTURES <= has.sum() <= LARGEST_SHARE * len(has):
            nouns.append(noun)
            members.append(has)
    images = encode_images(encoder.matcher, stored.inputs, stored.inputs.images.load(pairing.visuals))
    return Albums(unit_vectors(images), unit_vectors(encoder.texts(nouns)), nouns, np.array(members))


def _words(pairing, image: int) -> Iterator[str]:
    """Each word once for each caption of an image that has it."""
    for text in pairing.matches.texts_of(image):
        yield from set(tokenise(pairing.texts.strings[text]))


def average_precision(scores: Floats, true: Flags) -> float:
    ranked = true[np.argsort(-scores, kind="stable")]
    ranks = np.flatnonzero(ranked) + 1
    return float(np.mean(np.arange(1, len(ranks) + 1) / ranks))


def usual(albums: Albums, answered: Ints) -> Floats:
    """The sample of a library that is small enough to be its own sample, without the pictures that are answered."""
    return np.delete(albums.vectors, answered, axis=0)


def mean_precision(albums: Albums, count: int, name: str) -> float:
    """Mean average precision over albums and draws of examples.

    Args:
        name: right, wrong (that of another album) or none.
    """
    rng, found, none = np.random.default_rng(1), [], albums.vectors[:0]
    for row, true in enumerate(albums.members):
        for _ in range(DRAWS):
            drawn = rng.choice(np.flatnonzero(true), max(EXAMPLES), replace=False)
            other = (row + int(rng.integers(1, len(albums.nouns)))) % len(albums.nouns)
            chosen, left = drawn[:count], np.setdiff1d(np.arange(len(true)), drawn)
            vector = {"right": albums.names[row], "wrong": albums.names[other], "none": None}[name]
            learnt = album_direction(usual(albums, chosen), vector, albums.vectors[chosen], none)
            found.append(average_precision(albums.vectors[left] @ learnt, true[left]))
    return 100 * float(np.mean(found))


def rounds(albums: Albums, *, rejecting: bool, examples: int = 3) -> list[float]:
    """Share of the suggestions that belong to the album, in each round of answers."""
    rng, shares = np.random.default_rng(7), np.zeros(ROUNDS)
    for row, true in enumerate(albums.members):
        good = rng.choice(np.flatnonzero(true), examples, replace=False)
        bad = np.empty(0, dtype=np.int64)
        for turn in range(ROUNDS):
            answered = np.concatenate([good, bad])
            used = albums.vectors[bad if rejecting else bad[:0]]
            learnt = album_direction(usual(albums, answered), albums.names[row], albums.vectors[good], used)
            order = np.argsort(-(albums.vectors @ learnt), kind="stable")
            shown = order[~np.isin(order, answered)][:ANSWERS]
            possible = min(ANSWERS, int(true.sum()) - int(true[answered].sum()))
            shares[turn] += true[shown].sum() / max(1, possible)
            good, bad = np.concatenate([good, shown[true[shown]]]), np.concatenate([bad, shown[~true[shown]]])
    return (100 * shares / len(albums.members)).tolist()


def measured(run: str | Path, collection: Collection, split: str) -> Rows:
    """All figures of a run on a split of a collection."""
    albums = albums_of(run, collection, split)
    chance = 100 * float(albums.members.mean())
    rows = [(f"{len(albums.nouns)} albums of {len(albums.vectors)} pictures, chance", chance)]
    rows.append(("name alone (zero-shot)", mean_precision(albums, 0, "right")))
    for count in EXAMPLES:
        many = f"{count} example{'s' if count > 1 else ''}"
        for how, name in (("alone", "none"), ("and the name", "right"), ("and the name of another album", "wrong")):
            rows.append((f"{many} {how}", mean_precision(albums, count, name)))
    for how, rejecting in (("only the accepted", False), ("all answers", True)):
        for turn, share in enumerate(rounds(albums, rejecting=rejecting), 1):
            rows.append((f"from 3 examples, learning from {how}, round {turn}: found of those that fit", share))
    return rows


if __name__ == "__main__":
    for what, value in measured(sys.argv[1], Collection.open(sys.argv[2]), sys.argv[3]):
        print(f"{what}: {value:.1f}%", flush=True)
