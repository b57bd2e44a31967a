"""A library of real scenes with a matcher of random weights, served by the real command on a free port."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from calligram.data.scenes.generate import generate_scenes
from calligram.recipes.catalog import recipe_named
from calligram.recipes.config import resolve
from calligram.recipes.plan import Surroundings, device_named, run_recipe
from calligram.search.indexing import index_source
from calligram.search.models import Models

SMALL = ["epochs=1", "batch=8", "dim=16", "image.size=16", "image.channels=4", "text.hidden=8", "text.word_dim=8"]
IMAGES = 60
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


@pytest.fixture(scope="session")
def served_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that have barely been trained: what is found does not matter here, only that it is."""
    folder = tmp_path_factory.mktemp("served")
    collection = generate_scenes(folder / "scenes", images=IMAGES, size=64)
    recipe = recipe_named("vse")
    around = Surroundings(device_named("cpu"))
    run_recipe(recipe, resolve(recipe.defaults, SMALL), collection, folder / "run", around=around)
    return folder


@pytest.fixture(scope="session")
def library_folder(served_run: Path) -> Path:
    index_source(Models.load(served_run / "run"), served_run / "scenes", served_run / "library")
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
