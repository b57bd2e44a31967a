"""A library of scenes with matchers that have barely been trained, and the servers that all tests here share."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch
import transformers
from PIL import ExifTags, Image

from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PictureFile
from calligram.data.write_collection import write_draft
from calligram.features.regions.extract import ExtractionTask, add_regions
from calligram.features.regions.proposers import load_proposer
from calligram.recipes.parts.run import train_preset
from calligram.scenes.generate import generate_scenes
from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers
from calligram.search.vectors import mapped
from calligram.serve.guard import COOKIE_NAME, cookie_value
from calligram.serve.server import LibraryServer
from calligram.serve.settings import Address, ServerSettings

SMALL = ["epochs=1", "batch=8", "dim=16", "image.size=16", "image.channels=4", "text.hidden=8", "text.word_dim=8"]
SMALL_PHRASES = [
    "epochs=2", "two-branch.hidden=32", "dim=16", "lr=0.01", "text.fitted.kind=tfidf", "region.proposals=grid",
    "region.size=64", "region.bins=4", "region.geometry=10",
]  # fmt: skip
SMALL_SCAN = ["epochs=1", "batch=8", "dim=16", "image.size=64", "text.hidden=8", "text.word_dim=8"]
IMAGES, WINDOWS = 60, 100
TOKEN = "correct horse battery"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--proxy-server=direct://", "--disable-default-apps",
    "--disable-domain-reliability",
]  # fmt: skip


class Served(NamedTuple):
    """A server that runs, and a client that it knows."""

    url: str
    client: httpx.Client

    def hits(self, **terms: object) -> list[dict[str, object]]:
        answer = self.client.get("/api/search", params=terms)
        assert answer.status_code == 200, answer.text
        return answer.json()["hits"]

    def located(self, id: str, text: str, **more: object) -> dict[str, Any]:
        answer = self.client.get("/api/locate", params={"id": id, "text": text, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()


def _train(folder: Path) -> None:
    """Scenes with regions, a matcher, a localizer and a matcher with attention, all of them barely trained."""
    scenes = generate_scenes(folder / "scenes", images=IMAGES, size=64)
    scenes = add_regions(scenes, ExtractionTask(load_proposer("grid", WINDOWS), "grid", WINDOWS, None)).collection
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**shape, image_size=64, patch_size=16)
    transformers.ViTModel(config).save_pretrained(folder / "backbone")
    backbone = f"image.backbone={folder / 'backbone'}"
    for name, changes, out in (
        ("vse", SMALL, "run"),
        ("two-branch-phrases", SMALL_PHRASES, "phrases"),
        ("scan", [*SMALL_SCAN, backbone], "scan"),
    ):
        train_preset(name, scenes, folder / out, *changes)


@pytest.fixture(scope="session")
def served_run(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The scenes and the runs; which pictures a search finds does not matter here."""
    return made_once("served", _train)


@pytest.fixture(scope="session")
def library_folder(served_run: Path, made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A library of the scenes, with a localizer."""

    def index(folder: Path) -> None:
        matchers = LibraryMatchers.load(served_run / "run", localizer=served_run / "phrases")
        index_source(matchers, served_run / "scenes", folder / "library")

    return made_once("library", index) / "library"


@pytest.fixture(scope="session")
def attending_folder(served_run: Path, made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A library with a second stage: its matcher attends from words to four by four cells."""

    def index(folder: Path) -> None:
        index_source(LibraryMatchers.load(served_run / "scan"), served_run / "scenes", folder / "library")

    return made_once("attending", index) / "library"


class Faults(logging.Handler):
    """Collects the errors that the threads of one server log."""

    def __init__(self, thread: str) -> None:
        super().__init__(logging.ERROR)
        self.thread, self.lines = thread, []
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.threadName == self.thread:
            self.lines.append(self.format(record))


LONGEST_SECONDS = 60.0
"""for an answer, for a page to change and for a server to stop, also on a slow and busy machine"""


@contextmanager
def _serving(library: Path, **settings: object) -> Iterator[str]:
    """Serve a library in a thread of this process, which has everything imported; gives the address."""
    server = LibraryServer.open(library, Address("127.0.0.1", 0), ServerSettings(**settings))
    with server:
        thread = threading.Thread(target=server.run, name=f"server of {server.address.url}", daemon=True)
        faults = Faults(thread.name)
        logs = [logging.getLogger(name) for name in ("calligram.serve", "uvicorn.error")]
        for log in logs:
            log.addHandler(faults)
        thread.start()
        try:
            yield server.address.url
        finally:
            server.stop()
            thread.join(LONGEST_SECONDS)
            for log in logs:
                log.removeHandler(faults)
    assert not thread.is_alive(), f"{thread.name} does not stop:\n{_stacks()}"
    assert faults.lines == []


def _stacks() -> str:
    """Return what each thread of this process does."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames)


@pytest.fixture(scope="session")
def serving() -> Callable[..., object]:
    """Serves a library with settings of its own, within a context."""
    return _serving


def _client(url: str, **headers: str) -> httpx.Client:
    """Without certificates, which take long to load and which http does not need."""
    return httpx.Client(base_url=url, timeout=LONGEST_SECONDS, headers=headers, trust_env=False, verify=False)


@pytest.fixture(scope="session")
def client() -> Callable[..., httpx.Client]:
    """Makes a client of a server; gives it headers."""
    return _client


@pytest.fixture(scope="session")
def served(library_folder: Path) -> Iterator[Served]:
    """The server of most tests: open to this machine, without a collection."""
    with _serving(library_folder) as url, _client(url) as client:
        yield Served(url, client)


@pytest.fixture(scope="session")
def copies(served_run: Path, made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A library of a folder with six scenes, one of them three times, and a picture that is taken on another day."""

    def index(folder: Path) -> None:
        scenes = Collection.open(served_run / "scenes")
        (folder / "photos" / "more").mkdir(parents=True)
        for row in range(6):
            exif = Image.Exif()
            exif[ExifTags.Base.DateTime] = f"{2019 + row // 3}:0{row + 1}:1{row} 12:30:00"
            scenes.pictures.open(row).convert("RGB").save(folder / "photos" / f"{row}.jpg", quality=95, exif=exif)
        shutil.copy(folder / "photos" / "0.jpg", folder / "photos" / "more" / "0.jpg")
        small = scenes.pictures.open(0).convert("RGB").resize((48, 48))
        small.save(folder / "photos" / "small <b>.jpg")
        index_source(LibraryMatchers.load(served_run / "run"), folder / "photos", folder / "library")

    return made_once("copies", index)


@pytest.fixture(scope="session")
def copies_served(copies: Path) -> Iterator[Served]:
    """The server of that library."""
    with _serving(copies / "library") as url, _client(url) as client:
        yield Served(url, client)


@pytest.fixture(scope="session")
def approximate_served(
    served_run: Path, made_once: Callable[[str, Callable[[Path], object]], Path]
) -> Iterator[Served]:
    """The server of a library that is searched approximately, as if it were large."""

    def index(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mapped, "MAPPED_ROWS", 10)
            index_source(LibraryMatchers.load(served_run / "run"), served_run / "scenes", folder / "library")

    with _serving(made_once("approximate", index) / "library") as url, _client(url) as client:
        yield Served(url, client)


@pytest.fixture
def approximate_page(browser, approximate_served):
    """A page for it."""
    with _watched(browser, approximate_served.url) as opened:
        yield opened


@pytest.fixture
def copies_page(browser, copies_served):
    """A page for it."""
    with _watched(browser, copies_served.url) as opened:
        yield opened


@pytest.fixture(scope="session")
def attending(attending_folder: Path) -> Iterator[Served]:
    """The server of the library with a second stage."""
    with _serving(attending_folder) as url, _client(url) as client:
        yield Served(url, client)


@pytest.fixture(scope="session")
def few_captions(served_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of thirty scenes as files; four of them have captions. Each worker writes into its own."""
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
def token() -> str:
    """The token of ``guarded``."""
    return TOKEN


@pytest.fixture(scope="session")
def guarded(library_folder: Path, few_captions: Path) -> Iterator[str]:
    """The address of a server that asks for a token, and that writes captions."""
    with _serving(library_folder, collection=few_captions, token=TOKEN) as url:
        yield url


@pytest.fixture(scope="session")
def captioning(guarded: str) -> Iterator[Served]:
    """The same server, for those who have the token."""
    with _client(guarded, Authorization=f"Bearer {TOKEN}") as client:
        yield Served(guarded, client)


@pytest.fixture
def stranger(guarded: str) -> Iterator[httpx.Client]:
    """A client without the token, whose cookies nobody else has."""
    with _client(guarded) as client:
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
    """Another, for the server that takes captions, logged in."""
    cookie = {"name": COOKIE_NAME, "value": cookie_value(ServerSettings(token=TOKEN)), "url": captioning.url}
    with _watched(browser, captioning.url, cookie) as opened:
        yield opened


@pytest.fixture(scope="session")
def watched(browser) -> Callable[..., object]:
    """Opens a page of any server, which fails the test when the console complains."""
    return partial(_watched, browser)


def _until(page, condition: str) -> None:
    """Playwright's own waiting evaluates strings within the page, which its security policy forbids."""
    end = time.monotonic() + LONGEST_SECONDS
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """Waits until something is true within a page."""
    return _until


@contextmanager
def _watched(browser, url: str, *cookies: dict[str, str]):
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.add_cookies(list(cookies))
    opened = context.new_page()
    opened.set_default_timeout(1000 * LONGEST_SECONDS)
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
