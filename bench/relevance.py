"""What the cut-off hides and what words add, measured on queries whose matches are known.

    python bench/relevance.py RUN COLLECTION SPLIT

One caption of each image is kept out of the library and used as a query, whole or a piece of one to three words; whole
ones match what the collection says is true of them, pieces the images whose kept-out caption has the piece. The rules
of ``relevance.py`` and ``fusion.py`` were chosen on scenes of seed 501 and on Flickr8k's dev split; report others.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PictureFile
from calligram.data.pairing import Pairing
from calligram.data.write_collection import write_draft
from calligram.models.catalog import StoredMatcher, load_matcher
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder, unit_vectors
from calligram.search.query.cutoff import COUNTED_HITS, ScoreScales, measure_scales, random_phrase, words_of
from calligram.search.query.encoded_query import QueryPlanner
from calligram.search.query.searcher import Searcher

MOST_IMAGES, QUERIES = 1000, 250
FOREIGN = tuple(
    re.split(
        r",\s+",
        """a thermometer showing fever, shelves of law books, an ultrasound scan, a stock market chart,
        a dentist's drill, welding in a shipyard, a fingerprint, rows of gravestones, a bowl of noodle soup,
        the engine of a lorry, a ballot box, a wine cellar, a beekeeper with a hive,
        the cockpit of a helicopter, a petri dish, graffiti of a skull, a printed circuit board,
        a conductor with an orchestra, a glass of beer, an astronaut, a mosaic of an emperor, folded laundry,
        a sewing machine, a bank note, a train timetable, a cathedral organ, a hospital corridor, solar panels,
        a lecture about grammar, an octopus""",
    )
)
"""what neither scenes nor snapshots of people and dogs would show; not the list that the rules were chosen on"""
Flags = NDArray[np.bool_]
Floats = NDArray[np.float32]


class Known(NamedTuple):
    """Images, a caption of each kept out, and what it matches."""

    pairing: Pairing
    kept_out: list[int]
    """number of each image's caption"""

    @property
    def captions(self) -> list[str]:
        """Those kept out."""
        return [self.pairing.texts.strings[text] for text in self.kept_out]

    def true(self, queries: Sequence[int]) -> Flags:
        """What is true of these images' captions (queries, images)."""
        relation = self.pairing.also_true or self.pairing.matches
        true = np.zeros((len(queries), len(self.pairing.visuals)), dtype=np.bool_)
        for row, image in enumerate(queries):
            true[row, relation.visuals_of(self.kept_out[image])] = True
        return true

    def pieces(self, rng: np.random.Generator) -> list[str]:
        """Different pieces of them."""
        found = dict.fromkeys(random_phrase(words_of(caption), rng) for caption in self.captions)
        return [piece for piece in found if piece]

    def holding(self, pieces: Sequence[str]) -> Flags:
        """Which of them have these pieces (pieces, images)."""
        spoken = [f" {' '.join(words_of(caption))} " for caption in self.captions]
        return np.array([[f" {piece} " in caption for caption in spoken] for piece in pieces])


def known(collection: Collection, split: str) -> Known:
    whole = collection.sentences(split)
    chosen = np.sort(np.random.default_rng(0).permutation(len(whole.visuals))[:MOST_IMAGES])
    pairing = whole.select(chosen)
    return Known(pairing, [int(pairing.matches.texts_of(image)[0]) for image in range(len(pairing.visuals))])


def library_of(known: Known, stored: StoredMatcher, folder: Path, every: int | None) -> Library:
    """A library of the images, with the other captions of every so many of them."""
    pairing, draft, folder = known.pairing, Draft("known"), folder / f"every-{every}"
    (folder / "pictures").mkdir(parents=True)
    for row in range(len(pairing.visuals)):
        id = f"{row:05d}"
        file = folder / "pictures" / f"{id}.jpg"
        file.write_bytes(pairing.visuals.pictures.read(int(pairing.visuals.rows[row])))
        draft.images.append(ImageRecord(id, PictureFile(file), "test"))
        if every is not None and row % every == 0:
            others = (int(t) for t in pairing.matches.texts_of(row) if t != known.kept_out[row])
            draft.captions += [CaptionRecord(f"{id}#{t}", pairing.texts.strings[t], (id,)) for t in others]
    write_draft(draft, folder / "collection")
    index_source(LibraryMatchers(stored), folder / "collection", folder / "library")
    return Library.open(folder / "library")


def numbers_of(library: Library) -> dict[str, int]:
    return {item.id: int(Path(item.name).stem) for item in library.items(library.sample(MOST_IMAGES))}


def first(searcher: Searcher, queries: Sequence[str], hybrid: bool | None) -> list[list[int]]:
    """Numbers of the images found first."""
    number = numbers_of(searcher.library)
    hits = (searcher.images(query, COUNTED_HITS, hybrid=hybrid, all=True).hits for query in queries)
    return [[number[hit.id] for hit in found] for found in hits]


def found_share(found: Sequence[Sequence[int]], true: Flags) -> float:
    """Mean share of a query's matches among its first hits, of as many as fit there."""
    shares = [true[row, hits].sum() / min(COUNTED_HITS, true[row].sum()) for row, hits in enumerate(found)]
    return 100 * float(np.mean(shares))


Rows = list[tuple[str, float, str]]


def words(known: Known, stored: StoredMatcher, libraries: dict[str, Library]) -> Rows:
    """What words bring: whole captions by the rank of their own image, pieces by what is found of their matches."""
    rng, encoder, rows = np.random.default_rng(1), MatcherEncoder(stored), []
    pieces = known.pieces(rng)[:QUERIES]
    images = rng.permutation(len(known.kept_out))[:QUERIES].tolist()
    whole = [known.captions[image] for image in images]
    for name, library in libraries.items():
        searcher = Searcher(library, encoder, scales=ScoreScales())
        for way, hybrid in (("no words", False), ("every word", None), ("any word", True)):
            hits = first(searcher, whole, hybrid)
            r1 = np.mean([found[0] == image for found, image in zip(hits, images, strict=True)])
            share = found_share(first(searcher, pieces, hybrid), known.holding(pieces))
            rows.append((f"search, {name}, {way}: whole captions, R@1", 100 * float(r1), "%"))
            rows.append((f"search, {name}, {way}: short queries, matches within the first ten", share, "%"))
    return rows


def cutoff(known: Known, stored: StoredMatcher, library: Library, name: str) -> Rows:
    """What the cut-off lets through and what it refuses."""
    encoder = MatcherEncoder(stored)
    asker = QueryPlanner(library, encoder, measure_scales(library, encoder))

    def learnt(queries: Sequence[str], *, by_words: bool = True) -> Floats:
        asked = [asker.encode(query, "image", None) for query in queries]
        asked = asked if by_words else [a._replace(unknown_words=()) for a in asked]
        return np.array([[a.cutoff(asker.scales, reranked=False)] for a in asked])

    ids = sorted(numbers_of(library).items(), key=lambda pair: pair[1])
    vectors = library.images.vectors([id for id, _ in ids])
    rng, rows = np.random.default_rng(1), []
    images, pieces = rng.permutation(len(ids)).tolist(), known.pieces(rng)
    kinds = {
        "whole captions": ([known.captions[image] for image in images], known.true(images)),
        "short queries": (pieces, known.holding(pieces)),
    }
    for kind, (queries, true) in kinds.items():
        scores = unit_vectors(encoder.texts(queries)) @ vectors.T
        order = np.argsort(-scores, axis=1)[:, :COUNTED_HITS]
        least = learnt(queries)
        shown, right = np.take_along_axis(scores, order, 1) >= least, np.take_along_axis(true, order, 1)
        removed = np.where(true, -np.inf, scores).max(axis=1, keepdims=True)
        figures = {
            "matches among the first ten that are shown": shown[right].mean(),
            "other hits among the first ten that are hidden": (~shown)[~right].mean(),
            "queries with an answer": shown[:, 0].mean(),
            "queries without one once their matches are removed": (removed < least).mean(),
        }
        rows += [(f"cut-off, {name}, {kind}: {what}", 100 * float(value), "%") for what, value in figures.items()]
    foreign = (unit_vectors(encoder.texts(list(FOREIGN))) @ vectors.T).max(axis=1, keepdims=True)
    for how, by_words in (("", True), (", by their scores alone", False)):
        refused = 100 * float((foreign < learnt(FOREIGN, by_words=by_words)).mean())
        rows.append((f"cut-off, {name}: foreign queries without an answer{how}", refused, "%"))
    return rows


def measured(run: str | Path, collection: Collection, split: str) -> Rows:
    """All figures of a matcher on a split of a collection."""
    stored, about = load_matcher(run), known(collection, split)
    with tempfile.TemporaryDirectory() as folder:
        ways = {"4 captions an image": 1, "captions on a tenth": 10, "no captions": None}
        libraries = {name: library_of(about, stored, Path(folder), every) for name, every in ways.items()}
        rows = [row for name, library in libraries.items() for row in cutoff(about, stored, library, name)]
        del libraries["no captions"]
        return rows + words(about, stored, libraries)


if __name__ == "__main__":
    for what, value, unit in measured(sys.argv[1], Collection.open(sys.argv[2]), sys.argv[3]):
        print(f"{what}: {value:.1f} {unit}")
