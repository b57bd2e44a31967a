"""A library of real scenes with matchers that have barely been trained, served by the real command on a free port."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PictureFile
from calligram.data.write_collection import write_draft
from calligram.features.regions.extract import ExtractionTask, add_regions
from calligram.features.regions.proposers import load_proposer
from calligram.recipes.catalog import find_recipe
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, device_named, run_recipe
from calligram.scenes.generate import generate_scenes
from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers

SMALL = ["epochs=1", "batch=8", "dim=16", "image.size=16", "image.channels=4", "text.hidden=8", "text.word_dim=8"]
SMALL_PHRASES = [
    "epochs=2", "hidden=32", "dim=16", "lr=0.01", "text.vectors.kind=tfidf", "region.proposals=grid", "region.size=64",
    "region.bins=4", "region.geometry=10",
]  # fmt: skip
SMALL_FRAGMENTS = ["epochs=1", "batch=8", "dim=16", "image.size=64", "text.hidden=8", "text.word_dim=8"]
IMAGES, WINDOWS = 60, 100
TOKEN = "correct horse battery"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--proxy-server=direct://", "--disable-default-apps",
    "--disable-domain-reliability",
]  # fmt: skip


class Served(NamedTuple):
    """A server that runs."""

    url: str
    process: subprocess.Popen[str]
    client: httpx.Client

    def hits(self, **terms: object) -> list[dict[str, object]]:
        answer = self.client.get("/api/search", params=terms)
        assert answer.status_code == 200, answer.text
        return answer.json()["hits"]

    def located(self, id: str, text: str, **more: object) -> dict[str, Any]:
        answer = self.client.get("/api/locate", params={"id": id, "text": text, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="session")
def served_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that have barely been trained: what is found does not matter here, only that it is."""
    folder = tmp_path_factory.mktemp("served")
    collection = generate_scenes(folder / "scenes", images=IMAGES, size=64)
    collection = add_regions(
        collection, ExtractionTask(load_proposer("grid", WINDOWS), "grid", WINDOWS, None)
    ).collection
    around = RunContext(device_named("cpu"))
    for name, changes, out in (("vse", SMALL, "run"), ("two-branch-phrases", SMALL_PHRASES, "phrases")):
        recipe = find_recipe(name)
        run_recipe(recipe, resolve(recipe.defaults, changes), collection, folder / out, around=around)
    return folder


@pytest.fixture(scope="session")
def library_folder(served_run: Path) -> Path:
    models = LibraryMatchers.load(served_run / "run", localizer=served_run / "phrases")
    index_source(models, served_run / "scenes", served_run / "library")
    return served_run / "library"


@contextmanager
def _serving(library: Path, *options: str, headers: dict[str, str] | None = None) -> Iterator[Served]:
    """The verb as a user runs it; its first line says where it is."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", "from calligram.cli.main import main; main()", "serve", str(library), "--port", "0",
             *options],
            stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            errors.seek(0)
            found = re.search(r"http://\S+", line)
            assert found, f"no address in {line!r}: {errors.read()}"
            with httpx.Client(base_url=found[0], timeout=30, headers=headers, trust_env=False) as client:
                yield Served(found[0], process, client)
            errors.seek(0)
            said = errors.read()
            assert "Traceback" not in said, said
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(20)


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[Served]]:
    """Serves a library with options of its own."""
    return _serving


@pytest.fixture(scope="session")
def served(library_folder: Path) -> Iterator[Served]:
    with _serving(library_folder) as running:
        yield running


@pytest.fixture(scope="session")
def attending_folder(served_run: Path) -> Path:
    """A library whose matcher has attention: words look at four by four cells."""
    import torch
    import transformers

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**shape, image_size=64, patch_size=16)
    transformers.ViTModel(config).save_pretrained(served_run / "backbone")
    recipe, collection = find_recipe("fragments"), Collection.open(served_run / "scenes")
    settings = resolve(recipe.defaults, [*SMALL_FRAGMENTS, f"image.backbone={served_run / 'backbone'}"])
    around = RunContext(device_named("cpu"))
    run_recipe(recipe, settings, collection, served_run / "fragments", around=around)
    index_source(LibraryMatchers.load(served_run / "fragments"), served_run / "scenes", served_run / "attending")
    return served_run / "attending"


@pytest.fixture(scope="session")
def attending(attending_folder: Path) -> Iterator[Served]:
    with _serving(attending_folder) as running:
        yield running


@pytest.fixture(scope="session")
def few_captions(served_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of thirty scenes as files, of which four have captions."""
    scenes = Collection.open(served_run / "scenes")
    folder = tmp_path_factory.mktemp("few-captions")
    (folder / "pictures").mkdir()
    draft, texts = Draft("few captions"), scenes.sentences("all").texts.strings
    for row in range(30):
        name, file = f"scene {row}", folder / "pictures" / f"{row}.png"
        file.write_bytes(scenes.pictures.read(row))
        draft.images.append(ImageRecord(name, PictureFile(file), "train"))
        if row < 4:
            draft.captions.append(CaptionRecord(f"{name}#", texts[5 * row], (name,)))
    return write_draft(draft, folder / "collection").folder


@pytest.fixture(scope="session")
def captioning(library_folder: Path, few_captions: Path) -> Iterator[Served]:
    """A server that takes captions for it."""
    with _serving(library_folder, "--collection", str(few_captions)) as running:
        yield running


@pytest.fixture(scope="session")
def token() -> str:
    """Asked for by ``guarded``."""
    return TOKEN


@pytest.fixture(scope="session")
def guarded(library_folder: Path, few_captions: Path) -> Iterator[Served]:
    """A server that asks everyone for a token."""
    with _serving(library_folder, "--collection", str(few_captions), "--token", TOKEN) as running:
        yield running


@pytest.fixture
def stranger(guarded: Served) -> Iterator[httpx.Client]:
    """A client that the guarded server has not met, and whose cookies nobody else has."""
    with httpx.Client(base_url=guarded.url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture(scope="session")
def item(served: Served) -> str:
    """Id of a picture."""
    return served.client.get("/api/browse", params={"k": 1}).json()["hits"][0]["id"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Callable]:
    """The system's Chromium; there is no skipping without it."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail('the page is tested in Chromium, which is not there: "apt-get install chromium" installs it')
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, headless=True, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, served):
    """An empty page that fails the test when the console complains."""
    with _watched(browser, served.url) as opened:
        yield opened


@pytest.fixture
def attending_page(browser, attending):
    """Another, for the library with attention."""
    with _watched(browser, attending.url) as opened:
        yield opened


@pytest.fixture
def captioning_page(browser, captioning):
    """Another, for the server that takes captions."""
    with _watched(browser, captioning.url) as opened:
        yield opened


def _until(page, condition: str) -> None:
    """Playwright's own waiting evaluates strings within the page, which its security policy forbids."""
    end = time.monotonic() + 10
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """Waits until something is true within a page."""
    return _until


@contextmanager
def _watched(browser, url: str):
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    opened = context.new_page()
    opened.set_default_timeout(30_000)
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on(
        "request",
        lambda asked: complaints.append(asked.url) if not asked.url.startswith((url, "blob:")) else None,
    )
    opened.complaints = complaints
    yield opened
    context.close()
    assert complaints == []
