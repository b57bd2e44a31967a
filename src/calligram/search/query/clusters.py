"""Clusters of a library's pictures, a name for each, and their places on a map.

1. At most ``MAX_SAMPLED_PICTURES`` pictures are used. Ids are hashes, so the first ids are a random sample, and always
   the same one. k-means on their unit vectors, with a seed, gives the centres. A picture belongs to the cluster whose
   centre is nearest by cosine. With a sample, sizes are estimates.
2. A name is made of words. If enough pictures of a cluster have captions, the name has words that are more frequent in
   these captions than in captions of other clusters. Otherwise the matcher scores words of a list with the centre. The
   list is the matcher's vocabulary, or ``picture_words.txt`` for a matcher that reads any word. The mean score of a
   word with all centres is subtracted, because some words are near to every picture.
3. The map places centres by their two principal components and moves circles apart until none overlap. The area of a
   circle shows the size. Pictures within a circle are ordered by the two principal components of their cluster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.errors import UserError
from calligram.files import text_hash
from calligram.progress import Track, silent
from calligram.search.library.library import Library
from calligram.search.library.matchers import MatcherEncoder
from calligram.search.vectors.index import VectorHit
from calligram.text import STOP_WORDS, tokenise
from calligram.vectors import unit_rows

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

MAX_SAMPLED_PICTURES = 100_000
READ_PICTURES = 5_000
"""pictures whose vectors are read at a time"""
MAX_CLUSTERS = 500
DEFAULT_CLUSTERS = (4, 64)
"""fewest and most clusters if no number is given"""
MAX_ITERATIONS = 60
FITTED_PICTURES = 256
"""pictures for each cluster that k-means is fitted to; more change the centres little"""
EXAMPLES = 8
"""pictures that stand for a cluster: the nearest to its centre"""
MAP_PICTURES = 37
"""pictures of each cluster that are on the map"""

NAME_WORDS = 3
SPARE_WORDS = 6
"""words that are ranked for each cluster; names use more than ``NAME_WORDS`` if two clusters have the same ones"""
MAX_CAPTIONED_PICTURES = 20_000
"""pictures of the sample whose captions are read"""
MIN_CAPTIONED_PICTURES = 5
"""in a cluster, for a name from its captions"""
MIN_WORD_SHARE = 0.1
"""of the captioned pictures of a cluster, for a word of its name"""
MIN_WORD_LIFT = 1.2
"""share of a word in the captions of a cluster, relative to its share in all captions"""
MIN_WORD_CHARACTERS = 3
MAX_VOCABULARY_WORDS = 3_000
"""the most frequent words of the matcher's vocabulary"""
WORDS_FILE = Path(__file__).with_name("picture_words.txt")

CIRCLE_GAP = 1.08
"""distance of two circles that touch, in sums of their radii"""
MAP_STRETCH = 1.8
"""maps are wider than high, as screens are"""
MAX_MOVES = 400
GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


class MapPoint(NamedTuple):
    """A place on the map, whose width is 1."""

    x: float
    y: float


@dataclass(frozen=True)
class Cluster:
    """Pictures that are near to one centre."""

    number: int
    """from 1, the largest first"""
    name: str
    words: tuple[str, ...]
    """of the name, the best first"""
    named_by: str
    """``captions`` or ``matcher``, or ``number`` where neither has a word"""
    size: int
    """pictures of the library; an estimate if only a sample was clustered"""
    examples: tuple[str, ...]
    """ids of the pictures of the sample that are nearest to the centre"""
    place: MapPoint
    radius: float
    pictures: tuple[tuple[str, MapPoint], ...]
    """ids and places of some of its pictures"""


@dataclass(frozen=True)
class LibraryClusters:
    """The clusters of a library, the largest first."""

    clusters: tuple[Cluster, ...]
    centres: Floats
    """unit vectors, in the order of the clusters"""
    items: int
    sampled: int
    """pictures that were clustered; fewer than ``items`` in a large library"""
    seed: int
    height: float
    """of the map; its width is 1"""

    @property
    def key(self) -> str:
        """A hash of the centres: equal for equal clusters."""
        return text_hash(self.centres.tobytes().hex(), 8)

    def members(self, library: Library, number: int, k: int) -> list[VectorHit]:
        """The pictures of a cluster that are nearest to its centre, at most ``k``.

        Raises:
            UserError: for a number that no cluster has.
        """
        if not 1 <= number <= len(self.clusters):
            raise UserError(f"there is no cluster {number}; the numbers are 1 to {len(self.clusters)}")
        # Near a centre, most pictures belong to it, but a small cluster may lie within a large one.
        wanted = k
        while True:
            hits = library.images.search(self.centres[number - 1 : number], wanted)[0]
            nearest = nearest_centres(library.images.vectors([hit.id for hit in hits]), self.centres)
            own = [hit for hit, centre in zip(hits, nearest.tolist(), strict=True) if centre == number - 1]
            if len(own) >= k or len(hits) < wanted or wanted >= 16 * k:
                return own[:k]
            wanted *= 4


def cluster_library(
    library: Library, encoder: MatcherEncoder, *, count: int | None = None, seed: int = 0, track: Track = silent
) -> LibraryClusters:
    """Cluster the pictures of a library, name the clusters and place them on a map. Nothing is changed.

    Args:
        library: to cluster.
        encoder: of its matcher.
        count: number of clusters; by default the square root of half the number of pictures, from 4 to 64.
        seed: of k-means; equal seeds give equal clusters.
        track: shows progress.

    Raises:
        UserError: for a number of clusters out of range.
    """
    if count is not None and not 1 <= count <= MAX_CLUSTERS:
        raise UserError(f"the number of clusters is from 1 to {MAX_CLUSTERS}, got {count}")
    ids = library.sample(MAX_SAMPLED_PICTURES)
    if not ids:
        return LibraryClusters((), np.empty((0, library.images.dim), np.float32), 0, 0, seed, 1.0)
    starts = range(0, len(ids), READ_PICTURES)
    vectors = np.concatenate(
        [library.images.vectors(ids[at : at + READ_PICTURES]) for at in track(starts, "reading vectors", len(starts))]
    )
    if count is None:
        fewest, most = DEFAULT_CLUSTERS
        count = min(most, max(fewest, round(math.sqrt(len(ids) / 2))))
    centres, labels = k_means(vectors, min(count, len(ids)), seed)
    names = cluster_names(library, encoder, ids, labels, centres)
    clusters, height = _place(ids, vectors, labels, centres, len(library))
    named = tuple(replace(cluster, **name._asdict()) for cluster, name in zip(clusters, names, strict=True))
    return LibraryClusters(named, centres, len(library), len(ids), seed, height)


# Clusters.


def k_means(vectors: Floats, count: int, seed: int) -> tuple[Floats, Ints]:
    """Unit centres (K, D) and the nearest centre of each unit vector, the largest cluster first.

    There are fewer than ``count`` centres if there are fewer different vectors. The vectors are in random order.
    """
    from sklearn.cluster import KMeans

    different = len(np.unique(vectors, axis=0)) if len(vectors) <= 4 * count else len(vectors)
    fitted = KMeans(min(count, different), n_init=1, max_iter=MAX_ITERATIONS, random_state=seed)
    fitted.fit(vectors[: FITTED_PICTURES * count])
    centres = unit_rows(np.asarray(fitted.cluster_centers_, dtype=np.float32))
    labels = nearest_centres(vectors, centres)
    sizes = np.bincount(labels, minlength=len(centres))
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] > 0]
    place = np.empty(len(centres), np.int64)
    place[order] = np.arange(len(order))
    return np.ascontiguousarray(centres[order]), place[labels]


def nearest_centres(vectors: Floats, centres: Floats) -> Ints:
    """The centre with the largest cosine, for each vector."""
    found: Ints = np.empty(len(vectors), np.int64)
    for start in range(0, len(vectors), READ_PICTURES):
        found[start : start + READ_PICTURES] = (vectors[start : start + READ_PICTURES] @ centres.T).argmax(axis=1)
    return found


# Names.


class ClusterName(NamedTuple):
    """The name of a cluster, the words that it is made of, and where they come from."""

    name: str
    words: tuple[str, ...]
    named_by: str


def cluster_names(
    library: Library, encoder: MatcherEncoder, ids: Sequence[str], labels: Ints, centres: Floats
) -> list[ClusterName]:
    """A name for each cluster, from captions or by the matcher; no two names are equal."""
    read = min(len(ids), MAX_CAPTIONED_PICTURES)
    captions, _ = library.captions_and_metadata(ids[:read])
    by_captions = caption_words(captions, labels[:read], len(centres))
    by_matcher: list[list[str]] | None = None
    chosen: list[tuple[list[str], str]] = []
    for number in range(len(centres)):
        if by_captions[number]:
            chosen.append((by_captions[number], "captions"))
            continue
        by_matcher = by_matcher or matcher_words(encoder, centres)
        words = by_matcher[number]
        chosen.append((words, "matcher") if words else ([f"cluster {number + 1}"], "number"))
    return _different_names(chosen)


def caption_words(captions: Sequence[Sequence[str]], labels: Ints, count: int) -> list[list[str]]:
    """For each cluster, words that its captions share and others do not, best first; none with too few captions.

    The score of a word is p log(p / q): p is the share of the cluster's captioned pictures that have the word in a
    caption, q the share of all captioned pictures. A cluster without words of its own gets its most frequent words.
    """
    everywhere: Counter[str] = Counter()
    inside: list[Counter[str]] = [Counter() for _ in range(count)]
    captioned: Ints = np.zeros(count, np.int64)
    for texts, label in zip(captions, labels.tolist(), strict=True):
        words = {word for text in texts for word in tokenise(text) if _is_name_word(word)}
        if texts:
            captioned[label] += 1
            everywhere.update(words)
            inside[label].update(words)
    found: list[list[str]] = []
    for number, counter in enumerate(inside):
        own, total = int(captioned[number]), int(captioned.sum())
        if own < MIN_CAPTIONED_PICTURES:
            found.append([])
            continue
        shares = {word: times / own for word, times in counter.items() if times >= MIN_WORD_SHARE * own}
        lifts = {word: share / (everywhere[word] / total) for word, share in shares.items()}
        scores = {word: shares[word] * math.log(lift) for word, lift in lifts.items() if lift >= MIN_WORD_LIFT}
        scores = scores or shares
        found.append(_without_forms(sorted(scores, key=lambda word: (-scores[word], word))))
    return found


def _is_name_word(word: str) -> bool:
    return len(word) >= MIN_WORD_CHARACTERS and word not in STOP_WORDS and not word.isdigit()


def _without_forms(words: Sequence[str]) -> list[str]:
    """The first ``SPARE_WORDS`` words, without other forms of one that comes before: "dog" and "dogs"."""
    kept: list[str] = []
    for word in words:
        if not any(_are_forms(word, other) for other in kept):
            kept.append(word)
    return kept[:SPARE_WORDS]


def _are_forms(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and len(long) - len(short) <= 3


def matcher_words(encoder: MatcherEncoder, centres: Floats) -> list[list[str]]:
    """For each cluster, the words that the matcher scores higher with its centre than with the others, best first."""
    words = vocabulary_words(encoder)
    if not words:
        return [[] for _ in centres]
    scores = unit_rows(encoder.text_vectors(words)) @ centres.T
    scores = scores - scores.mean(axis=1, keepdims=True)
    # More than needed, because forms of a word are left out.
    best = np.argsort(-scores, axis=0, kind="stable")[: 4 * SPARE_WORDS].T
    return [_without_forms([words[row] for row in rows]) for rows in best.tolist()]


def vocabulary_words(encoder: MatcherEncoder) -> list[str]:
    """Words that a name may contain: of the matcher's vocabulary, or of a list for a matcher that reads any word."""
    vocabulary = encoder.inputs.texts.vocabulary
    if vocabulary is not None:
        known = [word for word in vocabulary.words if not word.startswith("<")]
        return [word for word in known[:MAX_VOCABULARY_WORDS] if _is_name_word(word)]
    return [word for word in WORDS_FILE.read_text(encoding="utf-8").split() if encoder.inputs.texts.is_known(word)]


def _different_names(chosen: Sequence[tuple[list[str], str]]) -> list[ClusterName]:
    """Names of ``NAME_WORDS`` words, or of more or with a number where another cluster has the same words."""
    taken: set[frozenset[str]] = set()
    names = []
    for number, (words, named_by) in enumerate(chosen, 1):
        length = min(NAME_WORDS, len(words))
        while frozenset(words[:length]) in taken and length < len(words):
            length += 1
        used = tuple(words[:length])
        text = ", ".join(used)
        if frozenset(used) in taken:
            text = f"{text} ({number})"
        taken.add(frozenset(used))
        names.append(ClusterName(text, used if named_by != "number" else (), named_by))
    return names


# The map.


def _place(
    ids: Sequence[str], vectors: Floats, labels: Ints, centres: Floats, items: int
) -> tuple[list[Cluster], float]:
    """Clusters without names, placed on the map, and the height of the map."""
    sizes = np.bincount(labels, minlength=len(centres))
    radii = np.sqrt(sizes / sizes.sum())
    places, radii, height = map_circles(principal_components(centres, sizes.astype(np.float64)), radii)
    clusters = []
    for number in range(len(centres)):
        rows = np.flatnonzero(labels == number)
        scores = vectors[rows] @ centres[number]
        nearest = rows[np.argsort(-scores, kind="stable")[:EXAMPLES]]
        shown = rows[:MAP_PICTURES]
        inside = places_in_circle(principal_components(vectors[shown]))
        pictures = tuple(
            (ids[row], MapPoint(*np.round(places[number] + radii[number] * spot, 5).tolist()))
            for row, spot in zip(shown.tolist(), inside, strict=True)
        )
        size, place = round(int(sizes[number]) * items / len(ids)), MapPoint(*np.round(places[number], 5).tolist())
        examples, radius = tuple(ids[row] for row in nearest.tolist()), round(float(radii[number]), 5)
        clusters.append(Cluster(number + 1, "", (), "", size, examples, place, radius, pictures))
    return clusters, height


def principal_components(rows: NDArray[np.floating], weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """The first two principal components (N, 2) of rows; the sign is such that the largest value is positive."""
    values = np.asarray(rows, dtype=np.float64)
    shares = np.full(len(values), 1 / len(values)) if weights is None else weights / weights.sum()
    centred = values - shares @ values
    _, _, axes = np.linalg.svd(np.sqrt(shares)[:, None] * centred, full_matrices=False)
    found = np.zeros((len(values), 2))
    projected = centred @ axes[:2].T
    found[:, : projected.shape[1]] = projected
    signs = np.sign(found[np.abs(found).argmax(axis=0), [0, 1]])
    return np.asarray(found * np.where(signs == 0, 1, signs))


def map_circles(
    places: NDArray[np.float64], radii: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Move circles apart until none overlap, and scale the map to a width of 1; returns places, radii and height."""
    spread = places.std(axis=0)
    now = places / np.where(spread > 0, spread, 1) * (MAP_STRETCH, 1) * 0.5 * math.sqrt(len(radii)) * radii.mean()
    now = now + 1e-6 * np.stack([np.cos(np.arange(len(now))), np.sin(np.arange(len(now)))], axis=1)  # no two are equal
    needed = CIRCLE_GAP * (radii[:, None] + radii[None, :])
    np.fill_diagonal(needed, 0)
    for _ in range(MAX_MOVES):
        apart = now[:, None] - now[None, :]
        distances = np.sqrt((apart**2).sum(axis=2))
        overlap = np.maximum(needed - distances, 0)
        if overlap.max(initial=0) < 1e-3 * radii.min():
            break
        directions = apart / np.where(distances > 0, distances, 1)[:, :, None]
        # Half of each overlap, so that circles do not jump past each other.
        now = now + 0.5 * (overlap[:, :, None] * directions).sum(axis=1)
    low, high = (now - radii[:, None]).min(axis=0), (now + radii[:, None]).max(axis=0)
    width = float(high[0] - low[0]) or 1.0
    return (now - low) / width, radii / width, round(float(high[1] - low[1]) / width, 5)


def places_in_circle(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A place in the unit circle for each row (N, 2): evenly spread, and neighbours stay near each other."""
    from scipy.optimize import linear_sum_assignment

    count = len(values)
    steps = np.arange(count) + 0.5
    # Vogel's spiral fills a circle evenly with any number of places.
    radii, angles = 0.86 * np.sqrt(steps / count), GOLDEN_ANGLE * np.arange(count)
    slots = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    spread = values.std(axis=0)
    scaled = (values - values.mean(axis=0)) / np.where(spread > 0, 2 * spread, 1)
    costs = ((scaled[:, None] - slots[None, :]) ** 2).sum(axis=2)
    rows, columns = linear_sum_assignment(costs)
    found = np.empty_like(slots)
    found[rows] = slots[columns]
    return found
