"""Random operations by several processes that are killed at random moments, compared with a model in memory.

    python tests/hostile/soak.py [SECONDS] [SEED]

Rounds of two kinds take turns. Those of ``kills.py`` kill verbs of every kind and look at what they leave. The others
know what must be there: a round changes a folder of pictures, then starts ``index``, ``index --rebuild``, ``search``,
``caption``, ``forget``, ``check``, ``train --resume`` and ``import --overwrite`` side by side and kills most of them
with signal 9. Then one
``index`` runs to its end, and everything is compared with the model: which pictures must be there, with which vectors,
which captions were acknowledged, which pictures were forgotten. A search that was not killed may only return pictures
that existed, with their right scores. A run that was killed and resumed must have the weights of one that was not. The
place of an import always has a whole collection: that before it or that after it, with the captions added by hand.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lancedb
import lancedb.index
import lancedb.query  # noqa: F401 - imported before the fork, as everything that a child needs
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))
from child import Child, DifferenceError
from kills import Kills

from calligram.data.add_captions import NewCaption, add_new_captions
from calligram.data.collection import Collection
from calligram.data.readers.catalog import import_collection
from calligram.recipes.parts.run import train_preset
from calligram.scenes.generate import generate_scenes
from calligram.search.indexing import encode
from calligram.search.indexing import run as indexing
from calligram.search.indexing.forget import forget_items
from calligram.search.indexing.repair import library_damage
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder, unit_vectors
from calligram.search.query.searcher import Searcher

SMALL = ("epochs=1", "batch=8", "dim=8", "image.size=16", "image.channels=4", "text.hidden=8", "text.word_dim=8")
TRAINED = (*SMALL, "epochs=2", "save_steps=1")
QUERY = "a dog on the beach"
ADDED = "a caption by hand"
BUSY = "is being written to by"
"""in the error of a command that finds another one at work"""
CHANGED = "has changed since it was opened"
"""in the error of a search that has opened a version that ``forget`` then deletes"""
MIN_SECONDS_FOR_ALL_VERBS = 60.0
"""of a soak; a workspace for all verbs takes longer to make than a short soak"""
KILLS_SHARE = 0.65
"""of the time, for verbs of every kind"""
TOLERANCE = 4e-3
"""vectors are stored in half precision, and a picture encoded beside others differs in the last place"""


warnings.filterwarnings("ignore", message="lancedb fork support")


@dataclass
class Model:
    """What must be in the library and in the collection."""

    pictures: dict[str, int] = field(default_factory=dict)
    """number of the content of each file"""
    forgotten: set[int] = field(default_factory=set)
    """contents that must stay out"""
    captions: set[tuple[str, str]] = field(default_factory=set)
    """image and text of captions that were acknowledged"""
    in_doubt: set[tuple[str, str]] = field(default_factory=set)
    """of captions whose writer was killed"""
    vectors: dict[int, Any] = field(default_factory=dict)
    """unit vector of each content"""


class Soak:
    """One library, one collection, one folder of pictures, and the model of all."""

    def __init__(self, work: Path, seed: int) -> None:
        self.work, self.draw = work, random.Random(seed)
        self.photos, self.library, self.scenes = work / "photos", work / "library", work / "scenes"
        self.photos.mkdir(parents=True)
        self.model, self.kills, self.done = Model(), Counter[str](), Counter[str]()
        self.contents, self.history = 0, dict[str, set[int]]()
        torch.set_num_threads(1)
        generate_scenes(self.scenes, images=20, size=16)
        train_preset("vse", Collection.open(self.scenes), work / "run", *SMALL)
        self.models = LibraryMatchers.load(work / "run")
        self.encoder = MatcherEncoder(self.models.matcher)
        self.query = unit_vectors(self.encoder.texts([QUERY]))[0]
        collection = Collection.open(self.scenes)
        self.images = [str(id) for id in collection.column("images", "id")]
        self.imported = self._captions()
        generate_scenes(work / "fixed", images=20, size=16)
        train_preset("vse", Collection.open(work / "fixed"), work / "whole", *TRAINED)
        self.weights = load_file(work / "whole" / "best.safetensors")
        self.source, self.imports = work / "source", work / "imported"
        self.source.mkdir()
        self.names = {"before": set[str](), "after": set[str]()}
        self._change_source()
        self.import_()
        self.names["before"] = self.names["after"]
        add_new_captions(self.imports, [NewCaption(sorted(self.names["before"])[0], ADDED)])
        indexing.COMMIT_ROWS, encode.BATCH_PICTURES = 5, 3  # many commits, so that kills fall between and into them
        self.seconds = dict.fromkeys(
            ("index", "rebuild", "forget", "caption", "search", "check", "train", "import"), 0.5
        )

    # Changes of files.

    def _new_picture(self, name: str) -> None:
        self.contents += 1
        pixels = np.random.default_rng(self.contents).integers(0, 255, (3, 4, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((24, 20), Image.Resampling.NEAREST)
        partial = self.photos / "partial.tmp"
        image.save(partial, "PNG")
        partial.rename(self.photos / name)
        self.model.pictures[name] = self.contents
        self.model.vectors[self.contents] = unit_vectors(self.encoder.images([image]))[0]
        self.history.setdefault(name, set()).add(self.contents)

    def change_files(self) -> None:
        """Add, change, rename and delete pictures."""
        for _ in range(self.draw.randrange(3, 9)):
            self._new_picture(f"{self.contents + 1:04d}.png")
        names = sorted(self.model.pictures)
        for name in self.draw.sample(names, min(len(names), self.draw.randrange(5))):
            what = self.draw.choice(("change", "rename", "delete"))
            if what == "change":
                self._new_picture(name)
                continue
            content = self.model.pictures.pop(name)
            if what == "rename":
                new = f"renamed-{self.contents}-{name}"[:60]
                (self.photos / name).rename(self.photos / new)
                self.model.pictures[new] = content
                self.history.setdefault(new, set()).add(content)
            else:
                (self.photos / name).unlink()

    # Operations.

    def index(self) -> object:
        """Bring the library up to date."""
        return dict(indexing.index_source(self.models, self.photos, self.library).counts)

    def rebuild(self) -> object:
        """Encode everything again."""
        return dict(indexing.index_source(self.models, self.photos, self.library, rebuild=True).counts)

    def search(self) -> object:
        """Paths and scores of hits."""
        found = Searcher.open(self.library, measure_costs=False).images(QUERY, k=8, all=True, hybrid=False).hits
        return [(Path(str(hit.path)).name, float(hit.score)) for hit in found]

    def train(self) -> object:
        """Train a run, or continue it."""
        fixed = Collection.open(self.work / "fixed")
        return train_preset("vse", fixed, self.work / "trained", *TRAINED, resume=True)["rsum"]

    def import_(self) -> object:
        """Import the source in place of the collection of the last import."""
        made, _ = import_collection("folder", self.source, self.imports, overwrite=True)
        return len(made.images_in("all"))

    def _change_source(self) -> None:
        for _ in range(2):
            name = f"{len(self.names['after']):03d}.png"
            Image.new("RGB", (20, 16), (len(self.names["after"]), 0, 0)).save(self.source / name)
            self.names["after"] = self.names["after"] | {name}

    def imported_now(self) -> object:
        """Names of the images of the imported collection, and whether it or a list in it has the caption by hand."""
        opened = Collection.open(self.imports)
        texts = [*map(str, opened.column("captions", "text"))]
        texts += [file.read_text() for file in self.imports.glob("added-*.csv")]
        return [sorted(map(str, opened.column("images", "id"))), any(ADDED in text for text in texts)]

    def check(self) -> object:
        """Damage."""
        return [str(damage[:2]) for damage in library_damage(self.library)]

    def start(self, name: str, work: Callable[[], object], *, kill: bool) -> Child:
        """Start an operation that may be killed."""
        after = self.draw.uniform(0, 1.1 * self.seconds[name]) if kill else None
        return Child(name, work, after)

    def finish(self, child: Child) -> dict[str, Any] | None:
        """Wait for an operation, and refuse errors that are none of the user's."""
        answer = child.wait()
        if answer is None:
            self.kills[child.name] += 1
            return None
        if "traceback" in answer:
            raise DifferenceError(f"{child.name}: {answer['traceback']}")
        allowed = (BUSY, "is not a library", *([CHANGED] if child.name == "search" else []))
        if "error" in answer and not any(words in answer["error"] for words in allowed):
            raise DifferenceError(f"{child.name}: {answer['error']}")
        self.done[child.name] += 1
        if child.kill_after is None and "answer" in answer:
            took = time.monotonic() - child.started
            self.seconds[child.name] = 0.7 * self.seconds[child.name] + 0.3 * took
        return answer

    # Rounds.

    def round(self) -> None:
        """One round."""
        self.change_files()
        self._change_source()
        for _ in range(self.draw.randrange(2, 5)):
            writers = self.draw.choices((("index", self.index), ("rebuild", self.rebuild)), (3, 1), k=2)
            children = [self.start(name, work, kill=True) for name, work in writers]
            children += [self._caption(kill=self.draw.random() < 0.7)]
            if (self.library / "library.json").is_file():
                children += [self.start("search", self.search, kill=self.draw.random() < 0.3)]
            children += [self.start("train", self.train, kill=True), self.start("import", self.import_, kill=True)]
            for child in children:
                self._judge(child, self.finish(child))
            self._compare_import(ended=False)
        self._compare_training()
        self._judge(last := self.start("index", self.index, kill=False), self.finish(last))
        self.compare()
        if left := [str(path) for path in self.library.rglob("*.partial")]:  # an ``index`` has just ended
            raise DifferenceError(f"left behind: {left}")
        for _ in range(self.draw.randrange(1, 3)):
            self._forget()
        self.compare_captions()

    def _compare_training(self) -> None:
        """Train to the end, and compare the weights with those of a run that was never killed."""
        self.finish(self.start("train", self.train, kill=False))
        found = load_file(self.work / "trained" / "best.safetensors")
        if found.keys() != self.weights.keys() or not all(torch.equal(found[k], v) for k, v in self.weights.items()):
            raise DifferenceError("a resumed run has other weights")
        shutil.rmtree(self.work / "trained")
        self.finish(self.start("import", self.import_, kill=False))
        self._compare_import(ended=True)
        self.names["before"] = self.names["after"]

    def _compare_import(self, *, ended: bool) -> None:
        names, added = self._ask(self.imported_now)
        allowed = [self.names["after"]] if ended else list(self.names.values())
        if set(names) not in allowed or not added:
            raise DifferenceError(f"the imported collection has the images {names}, the caption by hand: {added}")

    def _caption(self, *, kill: bool) -> Child:
        new = [(self.draw.choice(self.images), f"text {self.draw.randrange(10**9)}") for _ in range(3)]

        def work() -> object:
            return add_new_captions(self.scenes, [NewCaption(image, text) for image, text in new]).captions

        child = self.start("caption", work, kill=kill)
        child.captions = new  # type: ignore[attr-defined]
        return child

    def _judge(self, child: Child, answer: dict[str, Any] | None) -> None:
        """Compare what an operation answered with the model."""
        if child.name == "caption":
            target = self.model.in_doubt if answer is None else self.model.captions
            target |= set(child.captions)  # type: ignore[attr-defined]
        elif child.name == "search" and answer is not None and "answer" in answer:
            for name, score in answer["answer"]:
                right = [float(self.model.vectors[content] @ self.query) for content in self.history.get(name, ())]
                if not any(abs(score - each) < TOLERANCE for each in right):
                    raise DifferenceError(f"search: {name} has score {score}, not {right}")
        elif child.name == "check" and answer is not None and answer.get("answer"):
            raise DifferenceError(f"check: {answer['answer']}")

    def _forget(self) -> None:
        """Forget some pictures, killed or not; one that was killed has forgotten all of them or none."""
        present = [name for name, content in sorted(self.model.pictures.items()) if content not in self.model.forgotten]
        chosen = self.draw.sample(present, min(2, len(present)))
        if not chosen:
            return
        paths = [str(self.photos / name) for name in chosen]
        child = self.start("forget", lambda: forget_items(self.library, paths), kill=self.draw.random() < 0.8)
        others = [self.start("search", self.search, kill=False), self.start("check", self.check, kill=False)]
        answer = self.finish(child)
        for other in others:
            self._judge(other, self.finish(other))
        there = self._ask(self.everything)["vectors"]
        gone = [name not in there for name in chosen]
        if len(set(gone)) != 1 or (answer is not None and not all(gone)):
            raise DifferenceError(f"forget {chosen}: {gone} after {answer}")
        if all(gone):
            self.model.forgotten |= {self.model.pictures[name] for name in chosen}
        self.compare()

    # Comparisons.

    def everything(self) -> object:
        """Vectors of present items by file name, scores of all hits, and damage."""
        library = Library.open(self.library)
        rows = [row for row in library.rows() if row["state"] == "present"]
        ids = [str(row["id"]) for row in rows]
        if not len(library) == len(rows) == len(library.images):
            raise DifferenceError(f"{len(library)} items, {len(rows)} rows, {len(library.images)} vectors")
        if missing := set(ids) - library.thumbnails(ids).keys():
            raise DifferenceError(f"no thumbnails of {missing}")
        vectors = library.images.vectors(ids).tolist()
        hits = (
            Searcher.open(self.library, measure_costs=False)
            .images(QUERY, k=max(1, len(ids)), all=True, hybrid=False)
            .hits
        )
        return {
            "vectors": dict(zip((str(row["name"]) for row in rows), vectors, strict=True)),
            "scores": [float(hit.score) for hit in hits],
            "damage": self.check(),
        }

    def _ask(self, work: Callable[[], object]) -> Any:
        """Read in a child: this process never opens a table, because threads of Lance do not survive a fork."""
        answer = Child("read", work, None).wait()
        if answer is None or "answer" not in answer:
            raise DifferenceError(f"reading: {answer}")
        return answer["answer"]

    def compare(self) -> None:
        """Compare the library with the model: items, vectors, hits, files."""
        everything = self._ask(self.everything)
        found = everything["vectors"]
        wanted = {name: c for name, c in self.model.pictures.items() if c not in self.model.forgotten}
        if found.keys() != wanted.keys():
            raise DifferenceError(f"more: {sorted(found.keys() - wanted)}; missing: {sorted(wanted.keys() - found)}")
        for name, content in wanted.items():
            if not np.allclose(found[name], self.model.vectors[content], atol=TOLERANCE):
                raise DifferenceError(f"{name} has another vector")
        scores = sorted((float(self.model.vectors[content] @ self.query) for content in wanted.values()), reverse=True)
        if not np.allclose(everything["scores"], scores, atol=TOLERANCE):
            raise DifferenceError("a search has other scores")
        if everything["damage"]:
            raise DifferenceError(f"damage: {everything['damage']}")

    def _captions(self) -> set[tuple[str, str]]:
        collection = Collection.open(self.scenes)
        ids, texts = collection.column("images", "id"), collection.column("captions", "text")
        pairs = zip(collection.numbers("matches", "image"), collection.numbers("matches", "caption"), strict=True)
        return {(str(ids[int(image)]), str(texts[int(caption)])) for image, caption in pairs}

    def compare_captions(self) -> None:
        """Compare the captions with the model: all acknowledged ones, and nothing that nobody wrote."""
        found = self._captions() - self.imported
        if missing := self.model.captions - found:
            raise DifferenceError(f"captions are lost: {missing}")
        if more := found - self.model.captions - self.model.in_doubt:
            raise DifferenceError(f"captions that nobody wrote: {more}")


def soak(work: Path, seconds: float, seed: int) -> tuple[Soak, Kills | None]:
    """Run rounds of both kinds for some time; of the first kind only, if the time is short."""
    kills = Kills(work / "verbs", seed) if seconds >= MIN_SECONDS_FOR_ALL_VERBS else None
    trial, start, in_kills = Soak(work / "library", seed), time.monotonic(), 0.0
    while (now := time.monotonic()) < start + seconds:
        if kills is not None and in_kills < KILLS_SHARE * (now - start):
            kills.batch()
            in_kills += time.monotonic() - now
        else:
            trial.round()
            trial.done["rounds"] += 1
    return trial, kills


def main() -> None:
    """Run for the given time; the exit code is 1 at the first difference."""
    given = [float(word) for word in sys.argv[1:3]]
    seconds, seed = (*given, *(600.0, float(time.time_ns() % 10**6))[len(given) :])
    work = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"{seconds:g} seconds in {work}, seed {seed:.0f}", flush=True)
    try:
        trial, others = soak(work, seconds, int(seed))
    except AssertionError as difference:
        print(f"DIFFERENCE: {difference}\nwhat it looked like: {work}")
        sys.exit(1)
    rounds = trial.done.pop("rounds", 0)
    print(f"{rounds} rounds with a model of the library, {trial.contents} pictures, "
          f"{len(trial.model.captions)} captions acknowledged")  # fmt: skip
    for name in sorted(trial.done):
        print(f"{name:20} {trial.kills[name]:4} kills {trial.done[name]:5} to the end")
    if others is not None:
        print("verbs of every kind")
        print("\n".join(others.table()))
    total = trial.kills.total() + (others.kills.total() if others else 0)
    fewest = min(others.kills[name] for name in others.verbs) if others else 0
    print(f"{total} kills, of every verb at least {fewest}; 0 differences")
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
