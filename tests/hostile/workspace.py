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
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

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
    writes: bool = True
    again: tuple[object, ...] = ()
    """the arguments that continue what was begun; empty for the same ones"""


NEW, CPU = "NEW", ("--device", "cpu")
"""NEW is a file or folder that no other verb makes"""


def _verbs(**given: tuple[object, ...]) -> dict[str, Verb]:
    """Verbs by name; the first word after NEW with a dot is the suffix of what is made."""
    found = {}
    for name, words in given.items():
        made = next((str(word) for word in words if str(word).startswith(NEW)), "")
        own = made.replace(NEW, f"new_{name}")
        found[name.replace("__", " --").replace("_", " ")] = Verb(
            tuple(own if word == made and made else word for word in words), own
        )
    return found


VERBS = _verbs(
    import_=("import", "folder", "photos", NEW),
    import__overwrite=("import", "folder", "photos", "imported", "--overwrite"),
    scenes=("scenes", NEW, "--images", 10, "--size", 16),
    regions=("regions", "changing", "--proposals", "grid", "--top", 4, *CPU),
    features=("regions", "imported", "--proposals", "grid", "--top", 2, "--backbone", "backbone", "--size", 16, *CPU),
    suggest=("suggest", "run", "imported", "-n", 3, "--out", f"{NEW}.csv", *CPU),
    caption=("caption", "changing", "captions.csv"),
    words=("words", "texts.txt", f"{NEW}.txt", "--dim", 8, "--epochs", 1),
    copy=("copy", "vse", f"{NEW}.toml"),
    train=("train", "vse", "scenes", "--out", NEW, *CPU, *SETTINGS),
    train__resume=("train", "vse", "scenes", "--out", "half", "--resume", *CPU, *SETTINGS),
    mine=("mine", "run", "scenes", "--out", NEW, *CPU),
    export__onnx=("export", "run", "--onnx", NEW),
    export=("export", "still", "--out", NEW, "--query", "a dog", "--all"),
    evaluate=("evaluate", "run", "scenes", "--split", "train", "--sheet", f"{NEW}.png", *CPU),
    index=("index", "run", "more", "--out", "library", *CPU),
    index_new=("index", "run", "photos", "--out", NEW, *CPU),
    index__rebuild=("index", "run", "photos", "--out", "library", "--rebuild", *CPU),
    forget=("forget", "library", "photos/00.png", "photos/01.png"),
    search__save=("search", "library", "a dog", "--save", "dogs"),
    albums__add=("albums", "library", "Dogs", "photos/02.png", "--add"),
    check__repair=("check", "damaged", "--repair", *CPU),
    localize=("localize", "phrases", "photos/00.png", "a dog", "--out", f"{NEW}.png", *CPU),
    explain=("explain", "run", "photos/00.png", "a red dog", "--out", f"{NEW}.png", *CPU),
)
VERBS |= {
    name: Verb(words, writes=False)
    for name, words in {
        "info": ("info", "scenes"),
        "list": ("list",),
        "show": ("show", "vse"),
        "compare": ("compare", "run", "half", "scenes", "--split", "train", *CPU),
        "search": ("search", "library", "a dog"),
        "searches": ("searches", "library"),
        "albums": ("albums", "library"),
        "clusters": ("clusters", "library", *CPU),
        "duplicates": ("duplicates", "library", *CPU),
        "check": ("check", "library", *CPU),
    }.items()
}
for _name in ("train", "index new"):  # what they make grows step by step
    VERBS[_name] = VERBS[_name]._replace(makes="")
VERBS["train"] = VERBS["train"]._replace(again=(*VERBS["train"].words, "--resume"))
"""by the name under which kills and failures are counted"""
CHECKED = ("scenes", "changing", "run", "library", "still", "imported")
"""folders that must be undamaged after whatever happened to a verb"""


class Workspace:
    """A workspace that is filled once and restored before each trial; libraries name their sources by path."""

    def __init__(self, work: Path, verbs: Collection[str] = tuple(VERBS)) -> None:
        """Args:
        work: empty folder.
        verbs: that will run.
        """
        self.folder, self.pristine, self.verbs = work / "now", work / "pristine", verbs
        if not self.pristine.exists():
            self.folder.mkdir(parents=True)
            in_child("make", lambda: make(self.folder, verbs))
            self.folder.rename(self.pristine)
        self.restore()
        for name in verbs:
            import_modules(in_child(name, partial(self._modules, name)))

    def restore(self) -> None:
        """Bring it back into its first state; the folder itself stays, because it may be a mounted disk."""
        self.folder.mkdir(exist_ok=True)
        for old in self.folder.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copytree(self.pristine, self.folder, dirs_exist_ok=True)

    def run(self, name: str, *, again: bool = False) -> Ending:
        """Run a verb in this process, or continue what it has begun."""
        os.chdir(self.folder)
        return run(*((again and VERBS[name].again) or VERBS[name].words))

    def damage(self) -> list[str]:
        """What ``calligram check`` says of the folders; call it in a child."""
        os.chdir(self.folder)
        ended = {name: run("check", name, *CPU) for name in CHECKED}
        return [f"{name}: {end.code} {end.out[-300:]} {end.err[-300:]}" for name, end in ended.items() if end.code]

    def _modules(self, name: str) -> list[str]:
        """All modules that a verb imports."""
        wanted(self.run(name))
        return sorted(sys.modules)


def import_modules(names: list[str]) -> None:
    """Import modules before the fork: children start fast, and another user may not be able to read them."""
    import lancedb  # noqa: F401
    import torch

    torch.set_num_threads(1)
    for name in names:
        if name.partition(".")[0] not in ("__main__", "workspace") and name not in sys.modules:
            with contextlib.suppress(BaseException):
                importlib.import_module(name)


def make(folder: Path, verbs: Collection[str]) -> None:
    """Fill a workspace for some verbs; call it in a child, because it opens tables."""
    import torch

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
    train_preset("vse", scenes, "run", *SMALL, "epochs=1")
    _half_a_run(scenes)
    if "features" in verbs:
        _backbone()
    if "localize" in verbs:
        shutil.copytree("scenes", "with regions")
        wanted(run("regions", "with regions", "--proposals", "grid", "--top", 4, *CPU))
        train_preset("two-branch-phrases", Collection.open(Path("with regions")), "phrases", *SMALL_PHRASES)
        shutil.rmtree("with regions")
    wanted(run("import", "folder", "photos", "imported"))
    wanted(run("index", "run", "photos", "--out", "library", *CPU))
    for copy in ("damaged", "still"):
        shutil.copytree("library", copy)
    shutil.copytree("scenes", "changing")
    Path("texts.txt").write_text("\n".join(map(str, scenes.column("captions", "text"))))
    damaged = max(Path("damaged/1/tables/thumbnails.lance/data").iterdir(), key=lambda file: file.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[:-100] + b"\0" * 100)


def _backbone() -> None:
    """A vision model of transformers."""
    import torch
    import transformers

    torch.manual_seed(0)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    transformers.ViTModel(transformers.ViTConfig(**shape, image_size=16, patch_size=8)).save_pretrained("backbone")


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
    """Work in a process of its own, forked from this one, which may kill itself with signal 9 after some time."""

    def __init__(self, name: str, work: Callable[[], object], kill_after: float | None = None) -> None:
        self.name, self.kill_after = name, kill_after
        reading, writing = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(reading)
            self._work(work, writing)
        os.close(writing)
        self._reading = reading

    def _work(self, work: Callable[[], object], writing: int) -> NoReturn:
        started = time.monotonic()
        if self.kill_after is not None:
            threading.Thread(target=self._kill, daemon=True).start()
        try:
            answer: dict[str, object] = {"answer": work()}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        with contextlib.suppress(BaseException), os.fdopen(writing, "wb") as stream:
            stream.write(json.dumps({**answer, "seconds": time.monotonic() - started}).encode())
        os._exit(0)

    def _kill(self) -> None:
        time.sleep(self.kill_after or 0.0)
        os.kill(os.getpid(), signal.SIGKILL)

    def wait(self) -> dict[str, Any] | None:
        """What it answered; None if it was killed."""
        ready, _, _ = select.select([self._reading], [], [], LONGEST_SECONDS)
        if not ready:
            os.kill(self.process, signal.SIGKILL)
        with os.fdopen(self._reading, "rb") as stream:
            data = stream.read()
        _, status = os.waitpid(self.process, 0)
        if not ready:
            return {"error": f"{self.name} did not end"}
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and self.kill_after is not None:
            return None
        return json.loads(data) if data else {"error": f"{self.name} ended by signal {os.WTERMSIG(status)}"}


def in_child(name: str, work: Callable[[], object]) -> Any:
    """The answer of work in a child that nobody kills."""
    answer = Child(name, work).wait()
    if answer is None or "answer" not in answer:
        raise AssertionError(f"{name}: {answer}")
    return answer["answer"]
