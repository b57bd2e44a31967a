"""A tiny collection of real pictures (six images, fourteen captions, one shared by two images), and the command."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import io
import json
import logging
import os
import random
import re
import resource
import shutil
import socket
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from PIL import Image, ImageDraw

from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PhraseRecord, PictureFile, RegionRecord
from calligram.data.write_collection import write_draft

# Examples are the same in each run, and a slow machine is no failure: by default, an example may take 200 ms.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

COLOURS = ("red", "green", "blue", "yellow", "white", "black")


SLOW_TESTS = (
    "cli/", "hostile/", "recipes/", "search/explain/", "search/indexing/", "search/test_startup.py", "serve/",
    "studies/",
    "data/test_add_captions.py::test_a_process_killed", "data/test_write_collection_kills.py",
    "features/regions/test_extract.py::test_a_killed_run",
    "features/regions/test_photographs.py", "features/test_store.py::test_an_extraction_killed",
    "features/texts/test_word_vectors.py::test_the_command_gives", "models/test_export",
    "models/test_catalog.py::test_a_matcher_is_imported", "search/library/test_library.py::test_vectors_may_be_kept",
    "search/query/test_rerank_runs.py", "search/vectors/test_engines.py", "test_device.py::test_compiled",
    "test_house.py::test_files_entered", "test_imports.py::test_training_and_evaluation", "test_results_document.py",
    "test_readme.py::test_the_commands", "test_site.py", "test_examples.py", "test_wheel.py",
    "training/test_distributed.py",
    "training/test_loop.py::test_a_run_killed",
)  # fmt: skip
"""beginnings of the names of tests that train runs, fill libraries, export, or start servers, browsers and processes"""


FIRST_TESTS = (
    "training/test_distributed.py", "training/test_loop.py::test_a_run_killed", "test_house.py::test_files_entered",
    "test_readme.py::test_the_commands", "test_examples.py", "test_wheel.py", "studies/test_rows.py",
    "recipes/test_paper_presets.py", "studies/test_mmca.py",
)  # fmt: skip
"""long tests that would come last by name: then one worker would wait for the other"""


MEMORY_FILES = Path("/dev/shm")
"""files in memory, on Linux"""
MEMORY_FILES_BYTES = 6 * 2**30
"""free there and in memory; the tests write less than 2 GB"""


def pytest_configure(config: pytest.Config) -> None:
    """Put temporary folders into memory, where a write need not wait for a disk: a small run waits half of its time."""
    if config.option.basetemp or "PYTEST_DEBUG_TEMPROOT" in os.environ or not os.access(MEMORY_FILES, os.W_OK):
        return
    (available,) = re.findall(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    if min(1024 * int(available), shutil.disk_usage(MEMORY_FILES).free) >= MEMORY_FILES_BYTES:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY_FILES)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Free the memory of temporary folders, unless a test failed and somebody wants to look at them."""
    folder = session.config._tmp_path_factory._basetemp
    whole = "PYTEST_XDIST_WORKER" not in os.environ
    if whole and exitstatus == 0 and folder is not None and folder.is_relative_to(MEMORY_FILES):
        shutil.rmtree(folder, ignore_errors=True)


def _name(item: pytest.Item) -> str:
    return f"{item.path.relative_to(Path(__file__).parent).as_posix()}::{item.name}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, which ``make quick`` leaves out, and start with the long ones."""
    items.sort(key=lambda item: not _name(item).startswith(FIRST_TESTS))
    for item in items:
        if _name(item).startswith(SLOW_TESTS):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed random numbers by the name of the test: the tests that run before it differ from run to run."""
    seed = zlib.crc32(_name(item).encode())
    random.seed(seed)
    np.random.seed(seed)
    ctypes.CDLL(None).srand(seed)  # Pillow's noise
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)


def pytest_collection_finish() -> None:
    """Collect garbage less often, and without all that the imports made: it took a tenth of the time of the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _tiny_draft(folder: Path, repeats: int = 1) -> Draft:
    """Six images per repeat, a coloured disc on grey each; all of them in train, and again in dev and test."""
    draft = Draft("tiny")
    for split in ("train", "dev", "test"):
        for number in range(6 * repeats):
            colour = COLOURS[number % 6]
            image_id = f"{split}-{number}"
            picture = Image.new("RGB", (40, 32), (120 + number // 6, 120, 120))
            ImageDraw.Draw(picture).ellipse((8, 4, 32, 28), fill=colour)
            picture.save(folder / f"{image_id}.png")
            draft.images.append(
                ImageRecord(
                    image_id,
                    PictureFile(folder / f"{image_id}.png"),
                    split,
                    identity=number % 2,
                    metadata={"n": number},
                )
            )
            draft.regions.append(RegionRecord(f"{image_id}/disc", image_id, (8, 4, 33, 29), label="disc"))
            for turn, text in enumerate((f"a {colour} disc", f"the round thing is {colour}")):
                caption_id = f"{image_id}#{turn}"
                draft.captions.append(CaptionRecord(caption_id, text, (image_id,)))
                if turn == 0:
                    draft.phrases.append(
                        PhraseRecord(f"{caption_id}/0", caption_id, 2, len(text), "disc", regions=(f"{image_id}/disc",))
                    )
        draft.captions.append(CaptionRecord(f"{split}-shared", "a warm colour", (f"{split}-0", f"{split}-3")))
        draft.captions.append(CaptionRecord(f"{split}-extra", "snow", (f"{split}-4",)))
    return draft


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """``made_once(name, make)`` gives a folder that ``make(folder)`` filled once for all workers of pytest-xdist."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # then the base folder belongs to one worker, and its parent to the run
        shared = shared.parent

    def find(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / f"once-{name}", shared / f"once-{name}.done"
        with FileLock(shared / f"once-{name}.lock"):
            if not done.exists():
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return find


@pytest.fixture(scope="session")
def tiny_draft() -> Callable[..., Draft]:
    """Makes the collection's draft in a folder, for tests that change or repeat it."""
    return _tiny_draft


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """The collection, written once."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "pictures").mkdir()
    return write_draft(_tiny_draft(folder / "pictures"), folder / "collection")


@pytest.fixture(scope="session")
def odd_files() -> Callable[[Path], None]:
    """Fills a folder with files that have names of pictures and are none: pipes, a socket, a device, and loops."""

    def make(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        os.mkfifo(folder / "pipe.jpg")
        (folder / "linked-pipe.jpg").symlink_to(folder / "pipe.jpg")
        (folder / "null.jpg").symlink_to("/dev/null")
        (folder / "loop").symlink_to(folder / "loop")
        (folder / "back.jpg").symlink_to(folder / "there.jpg")
        (folder / "there.jpg").symlink_to(folder / "back.jpg")
        before = Path.cwd()
        os.chdir(folder)  # the path of a socket has at most about a hundred characters
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind("socket.jpg")
        finally:
            os.chdir(before)

    return make


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real photographs and small models; tests that need them are skipped without."""
    folder = os.environ.get("CALLIGRAM_ASSETS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs CALLIGRAM_ASSETS: a folder with flickr8k/, models/ and text/")
    return Path(folder)


@pytest.fixture(scope="session")
def stored_tiny(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """The same with a feature array, three parts of four numbers per image, for matchers without a CNN."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "pictures").mkdir()
    draft = _tiny_draft(folder / "pictures")
    values = np.random.default_rng(0).normal(size=(len(draft.images), 3, 4)).astype(np.float32)
    np.save(folder / "colour.npy", values)
    draft.features["colour"] = [folder / "colour.npy"]
    for row, image in enumerate(draft.images):
        image.feature_rows["colour"] = row
    return write_draft(draft, folder / "collection")


@pytest.fixture(scope="session")
def spoken_tiny(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Twelve images a split with features that show each disc's colour, and a detector "finder" that says it."""
    folder = tmp_path_factory.mktemp("spoken")
    (folder / "pictures").mkdir()
    draft = _tiny_draft(folder / "pictures", 2)
    values = 0.3 * np.random.default_rng(0).normal(size=(len(draft.images), 3, 8)).astype(np.float32)
    for row, image in enumerate(draft.images):
        number = int(image.id.rpartition("-")[2]) % 6
        values[row, row % 3, number] += 2
        image.feature_rows["colour"] = row
        draft.regions.append(
            RegionRecord(f"{image.id}/found", image.id, (8, 4, 32, 28), "finder", "disc", COLOURS[number], 0.9)
        )
    np.save(folder / "colour.npy", values)
    draft.features["colour"] = [folder / "colour.npy"]
    return write_draft(draft, folder / "collection")


CAPTIONS = [
    *(text for c in COLOURS for text in (f"a {c} disc", f"the round thing is {c}")), "a warm colour", "snow",
]  # fmt: skip
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


def byte_pairs(folder: Path, words: list[str]) -> None:
    """The two files of CLIP's tokenizer, with merges that spell ``words`` from left to right."""
    merges: dict[tuple[str, str], str] = {}
    for word in words:
        *inner, last = word
        so_far, *rest = [*inner, f"{last}</w>"]
        for piece in rest:
            merges[so_far, piece] = so_far + piece
            so_far += piece
    characters = sorted({c for word in words for c in word})
    pieces = ["<|startoftext|>", "<|endoftext|>", *characters, *(f"{c}</w>" for c in characters), *merges.values()]
    (folder / "vocab.json").write_text(json.dumps({p: n for n, p in enumerate(dict.fromkeys(pieces))}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges), ""]))


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random CLIP as the hub would hold it: weights, byte pairs and preprocessing."""
    import torch
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

    folder = tmp_path_factory.mktemp("clip")
    byte_pairs(folder, sorted({word for text in CAPTIONS for word in text.split()}))
    tokenizer = CLIPTokenizer.from_pretrained(str(folder), model_max_length=12)
    tokenizer.save_pretrained(folder)
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 12, "bos_token_id": 0, "eos_token_id": 1}
    vision = {"image_size": 16, "patch_size": 4}
    torch.manual_seed(0)
    CLIPModel(
        CLIPConfig(text_config={**TINY, **text}, vision_config={**TINY, **vision}, projection_dim=16)
    ).save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_siglip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random SigLIP with a tokenizer of word pieces."""
    import torch
    from transformers import SiglipConfig, SiglipImageProcessorPil, SiglipModel

    from calligram.features.texts.wordpieces import WordPieces

    folder = tmp_path_factory.mktemp("siglip")
    pieces = WordPieces.train(CAPTIONS, min_count=1, max_pieces=12)
    pieces.tokenizer.save_pretrained(folder)
    text = {"vocab_size": len(pieces), "max_position_embeddings": 12, "projection_size": 32}
    torch.manual_seed(0)
    SiglipModel(
        SiglipConfig(text_config={**TINY, **text}, vision_config={**TINY, "image_size": 16, "patch_size": 4})
    ).save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT with its tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    from calligram.features.texts.wordpieces import WordPieces

    folder = tmp_path_factory.mktemp("bert")
    pieces = WordPieces.train(CAPTIONS, min_count=1, max_pieces=20)
    pieces.tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(BertConfig(**TINY, vocab_size=len(pieces), max_position_embeddings=20)).save_pretrained(folder)
    return folder


NOUNS = (  # words of a meaning, the number of its file, and what it is a kind of
    ("thing", "03", ""), ("animal", "05", "thing"), ("dog", "05", "animal"), ("hunting_dog", "05", "dog"),
    ("hound", "05", "hunting_dog"), ("whippet", "05", "hound"), ("person", "18", "thing"), ("setter", "18", "person"),
    ("setter", "05", "hunting_dog"), ("bird", "05", "animal"), ("toy", "06", "thing"),
    ("shuttlecock bird", "06", "toy"), ("vehicle", "06", "thing"), ("unicycle monocycle", "06", "vehicle"),
    ("child kid", "18", "person"), ("man", "18", "person"), ("glass", "06", "thing"), ("frank dog", "13", "thing"),
)  # fmt: skip


@pytest.fixture(scope="session")
def tiny_wordnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few nouns in the format of WordNet's database (wndb(5)): an index by word, and meanings at their offsets."""
    folder = tmp_path_factory.mktemp("wordnet")
    data, offsets, index = "  1 a line of the licence\n", [], {}
    above = {words.split()[0]: place for place, (words, _, _) in reversed(list(enumerate(NOUNS)))}
    for words, file, kind in NOUNS:
        offsets.append(len(data))
        pointers = f"001 @ {offsets[above[kind]]:08d} n 0000" if kind else "000"
        names = words.split()
        data += f"{offsets[-1]:08d} {file} n {len(names):02x} {' '.join(f'{n} 0' for n in names)} {pointers} | gloss\n"
        for name in names:
            index.setdefault(name, []).append(offsets[-1])
    (folder / "data.noun").write_text(data)
    lines = [f"{w} n {len(o)} 1 @ {len(o)} 0 {' '.join(f'{x:08d}' for x in o)}  " for w, o in sorted(index.items())]
    (folder / "index.noun").write_text("\n".join(["  1 a line of the licence", *lines, ""]))
    (folder / "noun.exc").write_text("children child\nmen man\n")
    return folder


@pytest.fixture(scope="session")
def tiny_classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random convolutional network with labels."""
    import torch
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    labels = {0: "background", 1: "whippet", 2: "unicycle, monocycle", 3: "disc", 4: "gizmo"}
    config = MobileNetV2Config(depth_multiplier=0.2, image_size=32, id2label=labels, label2id={})
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("classifier")
    model = MobileNetV2ForImageClassification(config)
    with torch.no_grad():
        for _ in range(100):  # statistics of batch norm; without them a random network's features vanish
            model.train()(2 * torch.rand(8, 3, 32, 32) - 1)
    model.save_pretrained(folder)
    return folder


class Done(NamedTuple):
    """What a process leaves, named as in ``subprocess``."""

    returncode: int
    stdout: str
    stderr: str


def _calligram(*arguments: object, cwd: Path | None = None, input: str = "") -> Done:
    """What ``main`` does not handle is raised here, where a process would show a traceback."""
    import torch

    from calligram.cli import main, screen

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    logs = logging.getLogger(), logging.getLogger("calligram")
    levels, threads, code = [log.level for log in logs], torch.get_num_threads(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        mock.patch.dict(os.environ, {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}),
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
    ):
        patch.chdir(cwd or Path.cwd())
        stdin = io.TextIOWrapper(io.BytesIO(input.encode()), "utf-8")
        for name, value in (("stdin", stdin), ("stdout", out), ("stderr", err)):
            patch.setattr(sys, name, value)
        patch.setattr(sys, "argv", ["calligram", *map(str, arguments)])
        patch.setattr(logs[0], "handlers", [])  # those of pytest would keep ``basicConfig`` from adding its own
        for shown in (screen.console, screen.errors):  # which looked at the environment when they were made
            patch.setattr(shown, "_width", 200)
            patch.setattr(shown, "_color_system", None)
        try:
            main.main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        finally:
            torch.set_num_threads(threads)
            for log, level in zip(logs, levels, strict=True):
                log.setLevel(level)
    return Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


@pytest.fixture(scope="session")
def calligram() -> Callable[..., Done]:
    """Runs a verb as the command does but in this process, which has everything imported and is left as it was."""
    return _calligram


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Starts and runs Python programs in processes of their own that have the slow libraries; see ``preloaded.py``."""
    spec = importlib.util.spec_from_file_location("preloaded", Path(__file__).parent / "preloaded.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = module.Preloaded(tmp_path_factory.mktemp("preloaded"))
    yield server
    server.close()


@contextmanager
def _full_disk() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="session")
def full_disk() -> Callable[[], AbstractContextManager[None]]:
    """Gives a context in which no file of this process can grow, as on a full disk; the system calls it too large."""
    return _full_disk
