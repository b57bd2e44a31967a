"""Damage files of collections, runs, libraries and feature stores at random, and see what their readers say.

    python tests/hostile/flips.py [COUNT] [SEED]

Each trial copies a folder, damages one file (a flipped bit, a zeroed block, a cut end, a missing file), and reads
everything that the folder can answer. The answer must be the one of the undamaged folder, or one line of error. A
wrong answer and a traceback are failures. Half of the trials of libraries also run ``calligram index`` on the copy.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from calligram.cli.main import LANCE_ERROR
from calligram.data.collection import Collection
from calligram.errors import UserError, disk_error_number
from calligram.features.store import FeatureStore
from calligram.models.catalog import load_matcher, read_run_file
from calligram.models.damage import latest_state
from calligram.recipes.parts.run import train_preset
from calligram.scenes.generate import generate_scenes
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder
from calligram.search.query.searcher import Searcher

SMALL = ("epochs=2", "batch=8", "dim=8", "image.size=16", "image.channels=4", "text.hidden=8", "text.word_dim=8")
QUERIES = "a dog", "two people on a beach", "snow"
LEFT_OUT = (".lock", ".png", ".tfevents", "metrics.jsonl", "about.txt", "latest_version_hint.json", ".txn")
"""files that no answer depends on: locks, pictures of curves, logs"""


def make(folder: Path) -> None:
    """A collection, a run, a library in several pieces, and a store of features."""
    generate_scenes(folder / "scenes", images=24, size=24)
    train_preset("vse", Collection.open(folder / "scenes"), folder / "run", *SMALL)
    models = LibraryMatchers.load(folder / "run")
    index_source(models, folder / "scenes", folder / "library")
    store = FeatureStore(folder / "store", {})
    for part in range(3):
        rows = np.random.default_rng(part).normal(size=(20, 8))
        store.append([f"{part}/{row}" for row in range(20)], rows)


# What each kind of folder can answer.


def collection_answer(folder: Path) -> object:
    """All tables and all pixels."""
    collection = Collection.open(folder)
    counts = collection.manifest["counts"]
    assert isinstance(counts, dict)
    tables = {name: collection.table(name).to_pylist() for name in counts}
    pixels = [hashlib.sha256(collection.pictures.open(row).tobytes()).hexdigest() for row in range(counts["images"])]
    return collection.name, tables, pixels


def run_answer(folder: Path) -> object:
    """Settings and encodings; then the run is resumed, which reads its state."""
    stored, about = load_matcher(folder), read_run_file(folder)
    latest_state(folder)
    vectors = MatcherEncoder(stored).text_vectors(QUERIES).tolist()
    return about["settings"], stored.fingerprint, vectors


def library_answer(folder: Path) -> object:
    """Hits of several kinds, all items with thumbnails, and all captions."""
    searcher = Searcher.open(folder)
    library: Library = searcher.library
    hits = [
        [(hit.id, round(hit.score, 5)) for hit in search(query, k=5).hits]
        for search in (searcher.images, searcher.texts)
        for query in QUERIES
    ]
    ids = [hit.id for hit in searcher.images("a dog", k=30).hits]
    thumbnails = {id: hashlib.sha256(jpeg).hexdigest() for id, jpeg in library.thumbnails(ids).items()}
    rows = sorted((tuple(sorted((k, str(v)) for k, v in row.items() if k != "source"))) for row in library.rows())
    words = [(hit.id, round(hit.score, 4)) for hit in library.full_text("dog", 5)]
    return hits, thumbnails, rows, words, library.problems()


def indexed_answer(folder: Path) -> object:
    """The same after ``calligram index`` has brought the library up to date."""
    index_source(
        LibraryMatchers.load(folder.parent / "pristine" / "run"), folder.parent / "pristine" / "scenes", folder
    )
    return library_answer(folder)


def store_answer(folder: Path) -> object:
    """All rows."""
    store, keys = FeatureStore(folder, {}), [f"{part}/{row}" for part in range(3) for row in range(20)]
    if missing := [key for key in keys if key not in store]:
        raise UserError(f"{len(missing)} rows are missing, which are then computed again")
    return store.take(keys).tolist()


ANSWERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "collection": ("scenes", collection_answer),
    "run": ("run", run_answer),
    "library": ("library", library_answer),
    "library, indexed": ("library", indexed_answer),
    "features": ("store", store_answer),
}


def is_one_line(error: BaseException) -> bool:
    """Whether ``calligram`` shows an error in one line."""
    if isinstance(error, UserError):
        return "\n" not in str(error)
    paths = (PermissionError, NotADirectoryError, IsADirectoryError, FileNotFoundError, FileExistsError)
    known = isinstance(error, paths) or (isinstance(error, Exception) and disk_error_number(error) is not None)
    return known or (isinstance(error, Exception) and LANCE_ERROR.match(str(error)) is not None)


def damage(file: Path, draw: random.Random) -> str:
    """Damage a file; returns how."""
    data = bytearray(file.read_bytes())
    how = draw.choices(("flip", "zeros", "cut", "gone"), (8, 1, 1, 1))[0]
    if how == "gone" or not data:
        file.unlink()
        return "gone"
    place = draw.randrange(len(data))
    if how == "flip":
        data[place] ^= 1 << draw.randrange(8)
    elif how == "zeros":
        data[place : place + 64] = bytes(min(64, len(data) - place))
    else:
        del data[place:]
    file.unlink()
    file.write_bytes(data)
    return how


def trials(work: Path, count: int, seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """Kind, what was damaged, and the outcome: harmless, noticed, WRONG or TRACEBACK."""
    pristine, draw = work / "pristine", random.Random(seed)
    if not pristine.exists():
        pristine.mkdir(parents=True)
        make(pristine)
    wanted = {kind: answer(pristine / name) for kind, (name, answer) in ANSWERS.items() if kind != "library, indexed"}
    wanted["library, indexed"] = wanted["library"]
    time.sleep(0.2)  # so that no file is too young to be remembered as checked
    for number in range(count):
        kind = list(ANSWERS)[number % len(ANSWERS)]
        name, answer = ANSWERS[kind]
        copy = work / f"trial-{number}"
        shutil.copytree(pristine / name, copy)
        files = sorted(f for f in copy.rglob("*") if f.is_file())
        file = draw.choice([file for file in files if not any(part in file.name for part in LEFT_OUT)])
        how = damage(file, draw)
        try:
            outcome = "harmless" if answer(copy) == wanted[kind] else "WRONG"
        except BaseException as error:  # a panic of Lance is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome = "noticed" if is_one_line(error) else f"TRACEBACK {type(error).__name__}: {str(error)[:200]}"
        shutil.rmtree(copy, ignore_errors=True)
        yield kind, f"{how} {file.relative_to(copy)}", outcome


def main() -> None:
    """Run the trials and print their counts; the exit code is 1 if one failed."""
    given = [int(word) for word in sys.argv[1:3]]
    count, seed = (*given, *(600, 0)[len(given) :])
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for kind, what, outcome in trials(Path(folder), count, seed):
            counts[kind, outcome.split()[0]] += 1
            if outcome not in ("harmless", "noticed"):
                print(f"{kind}: {what}: {outcome}", flush=True)
    for (kind, outcome), number in sorted(counts.items()):
        print(f"{kind:17} {outcome:10} {number}")
    failures = sum(number for (_, outcome), number in counts.items() if outcome in ("WRONG", "TRACEBACK"))
    print(f"{sum(counts.values())} trials, {failures} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
