"""A folder with one of everything, all verbs that read or write it, and verbs in processes of their own."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from verbs import Ending, run

warnings.filterwarnings("ignore", message="lancedb fork support")

SMALL = ("batch=8", "dim=8", "image.size=16", "image.channels=4", "text.hidden=8", "text.word_dim=8")
SMALL_PHRASES = (
    "epochs=1", "two-branch.hidden=8", "dim=8", "text.fitted.kind=tfidf", "region.proposals=grid", "region.size=16",
    "region.bins=2", "region.geometry=10",
)  # fmt: skip
SETTINGS = tuple(word for change in (*SMALL, "epochs=2", "save_steps=1") for word in ("--set", change))
PICTURES = 20
LONGEST_SECONDS = 150.0
"""a process that is not killed must end in this time; a verb stops itself earlier"""


class Verb(NamedTuple):
    """A verb with its arguments; paths are within the workspace."""

    words: tuple[object, ...]
    makes: str = ""
    """file or folder that it makes; it must be whole or absent"""


CPU = ("--device", "cpu")
VERBS = {
    "import": Verb(("import", "folder", "photos", "new"), "new"),
    "import --overwrite": Verb(("import", "folder", "photos", "imported", "--overwrite")),
    "scenes": Verb(("scenes", "new", "--images", 10, "--size", 16), "new"),
    "info": Verb(("info", "scenes")),
    "regions": Verb(("regions", "scenes", "--proposals", "grid", "--top", 4, *CPU)),
    "features": Verb(
        ("regions", "scenes", "--proposals", "grid", "--top", 2, "--backbone", "backbone", "--size", 16, *CPU)
    ),
    "suggest": Verb(("suggest", "run", "imported", "-n", 3, "--out", "new.csv", *CPU), "new.csv"),
    "caption": Verb(("caption", "scenes", "captions.csv")),
    "words": Verb(("words", "scenes", "new.txt", "--dim", 8, "--epochs", 1), "new.txt"),
    "list": Verb(("list",)),
    "show": Verb(("show", "vse")),
    "copy": Verb(("copy", "vse", "new.toml"), "new.toml"),
    "train": Verb(("train", "vse", "scenes", "--out", "new", *CPU, *SETTINGS)),
    "train --resume the new run": Verb(("train", "vse", "scenes", "--out", "new", "--resume", *CPU, *SETTINGS)),
    "train --resume": Verb(("train", "vse", "scenes", "--out", "half", "--resume", *CPU, *SETTINGS)),
    "mine": Verb(("mine", "run", "scenes", "--out", "new", *CPU), "new"),
    "export --onnx": Verb(("export", "run", "--onnx", "new"), "new"),
    "export": Verb(("export", "library", "--out", "new", "--query", "a dog", "--all"), "new"),
    "evaluate": Verb(("evaluate", "run", "scenes", "--split", "train", "--sheet", "new.png", *CPU), "new.png"),
    "compare": Verb(("compare", "run", "half", "scenes", "--split", "train", *CPU)),
    "index": Verb(("index", "run", "more", "--out", "library", *CPU)),
    "index a new library": Verb(("index", "run", "photos", "--out", "new", *CPU)),
    "index --rebuild": Verb(("index", "run", "photos", "--out", "library", "--rebuild", *CPU)),
    "forget": Verb(("forget", "library", "photos/00.png", "photos/01.png")),
    "search": Verb(("search", "library", "a dog")),
    "search --save": Verb(("search", "library", "a dog", "--save", "dogs")),
    "searches": Verb(("searches", "library")),
    "clusters": Verb(("clusters", "library", *CPU)),
    "duplicates": Verb(("duplicates", "library", *CPU)),
    "check": Verb(("check", "library", *CPU)),
    "check --repair": Verb(("check", "damaged", "--repair", *CPU)),
    "localize": Verb(("localize", "phrases", "photos/00.png", "a dog", "--out", "new.png", *CPU), "new.png"),
    "explain": Verb(("explain", "run", "photos/00.png", "a red dog", "--out", "new.png", *CPU), "new.png"),
}
"""by the name under which kills and failures are counted"""
CHECKED = ("scenes", "run", "library", "imported")
"""folders that must be undamaged after whatever happened to a verb"""


class Workspace:
    """A workspace that is filled once and restored before each trial; libraries name their sources by path."""

    def __init__(self, work: Path) -> None:
        self.folder, self.pristine = work / "now", work / "pristine"
        if not self.pristine.exists():
            self.folder.mkdir(parents=True)
            in_child("make", lambda: make(self.folder))
            self.folder.rename(self.pristine)
        import_modules(in_child("modules", self._modules))

    def restore(self) -> None:
        """Bring it back into its first state; the folder itself stays, because it may be a mounted disk."""
        self.folder.mkdir(exist_ok=True)
        for old in self.folder.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copytree(self.pristine, self.folder, dirs_exist_ok=True)

    def run(self, name: str) -> Ending:
        """Run a verb in this process."""
        os.chdir(self.folder)
        return run(*VERBS[name].words)

    def damage(self) -> list[str]:
        """What ``calligram check`` says of the folders; call it in a child."""
        os.chdir(self.folder)
        ended = {name: run("check", name, *CPU) for name in CHECKED}
        return [f"{name}: {end.code} {end.out[-300:]} {end.err[-300:]}" for name, end in ended.items() if end.code]

    def _modules(self) -> list[str]:
        """All modules that the slow verbs import."""
        for name in ("train", "clusters", "evaluate", "features", "words", "localize", "search", "index"):
            self.restore()
            wanted(self.run(name))
        return sorted(sys.modules)


def import_modules(names: list[str]) -> None:
    """Import modules before the fork, so that children start fast."""
    import lancedb  # noqa: F401
    import torch

    torch.set_num_threads(1)
    for name in names:
        if name.partition(".")[0] not in ("__main__", "workspace") and name not in sys.modules:
            with contextlib.suppress(BaseException):
                importlib.import_module(name)


def make(folder: Path) -> None:
    """Fill a workspace; call it in a child, because it opens tables."""
    import torch
    import transformers

    from calligram.data.collection import Collection
    from calligram.recipes.parts.run import train_preset
    from calligram.scenes.generate import generate_scenes

    torch.set_num_threads(1)
    os.chdir(folder)
    generate_scenes(Path("scenes"), images=PICTURES, size=24)
    scenes = Collection.open(Path("scenes"))
    for name in ("photos", "more"):
        Path(name).mkdir()
    for row in range(PICTURES):
        scenes.pictures.open(row).convert("RGB").save(f"{'photos' if row < 12 else 'more'}/{row:02}.png")
    Path("captions.csv").write_text(f"image,caption\n{scenes.column('images', 'id')[0]},a caption by hand\n")
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    transformers.ViTModel(transformers.ViTConfig(**shape, image_size=16, patch_size=8)).save_pretrained("backbone")
    train_preset("vse", scenes, "run", *SMALL, "epochs=1")
    _half_a_run(scenes)
    shutil.copytree("scenes", "with regions")
    wanted(run("regions", "with regions", "--proposals", "grid", "--top", 4, *CPU))
    train_preset("two-branch-phrases", Collection.open(Path("with regions")), "phrases", *SMALL_PHRASES)
    shutil.rmtree("with regions")
    wanted(run("import", "folder", "photos", "imported"))
    wanted(run("index", "run", "photos", "--out", "library", *CPU))
    shutil.copytree("library", "damaged")
    damaged = max(Path("damaged/1/tables/thumbnails.lance/data").iterdir(), key=lambda file: file.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:-100] + b"\0" * 100)


def wanted(ended: Ending) -> None:
    """Refuse a verb that did not end with its answer."""
    if ended.code != 0:
        raise AssertionError(f"{ended.code}: {ended.err}")


def _half_a_run(scenes: Any) -> None:
    """A run that was stopped after its first epoch."""
    from calligram.recipes.catalog import find_preset
    from calligram.recipes.parts.config import resolve
    from calligram.recipes.parts.run import RunContext, run_preset

    epochs = 0

    def track(items: Any, label: str, total: int | None = None) -> Any:
        nonlocal epochs
        epochs += "2/2" in label
        for place, item in enumerate(items):
            if epochs and place == 1:
                raise KeyboardInterrupt
            yield item

    preset = find_preset("vse")
    settings = resolve(preset.defaults, [*SMALL, "epochs=2", "save_steps=1"])
    with contextlib.suppress(KeyboardInterrupt):
        run_preset(preset, settings, scenes, Path("half"), context=RunContext(track=track))


class Child:
    """Work in a process of its own, forked from this one, which may be killed."""

    def __init__(self, name: str, work: Callable[[], object], kill_after: float | None = None) -> None:
        self.name, self.started, self.kill_after = name, time.monotonic(), kill_after
        reading, writing = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(reading)
            answer: object = None
            try:
                answer = {"answer": work()}
            except BaseException as error:
                answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            with contextlib.suppress(BaseException), os.fdopen(writing, "wb") as stream:
                stream.write(json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        self._reading = reading

    def wait(self) -> dict[str, Any] | None:
        """What it answered; None if it was killed. Kills it when its time has come."""
        limit = self.started + (LONGEST_SECONDS if self.kill_after is None else self.kill_after)
        ready, _, _ = select.select([self._reading], [], [], max(0.0, limit - time.monotonic()))
        if not ready:
            os.kill(self.process, signal.SIGKILL)
        with os.fdopen(self._reading, "rb") as stream:
            data = stream.read()
        _, status = os.waitpid(self.process, 0)
        if not ready:
            return {"error": f"{self.name} did not end", "hung": True} if self.kill_after is None else None
        return json.loads(data) if data else {"error": f"{self.name} ended by signal {os.WTERMSIG(status)}"}


def in_child(name: str, work: Callable[[], object]) -> Any:
    """The answer of work in a child that nobody kills."""
    answer = Child(name, work).wait()
    if answer is None or "answer" not in answer:
        raise AssertionError(f"{name}: {answer}")
    return answer["answer"]
