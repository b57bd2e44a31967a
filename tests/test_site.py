"""The website: it builds without warnings, no link is dead, nothing comes from the net, and its commands run."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import click
import pytest
import typer
from PIL import Image

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"])
PAGES = [page for page in PAGES if page.parent.name != "results"]  # they have no commands
COMMANDS = ("calligram", "make", "pip", "curl", "python", "python3", "torchrun", "sbatch", "for", "CALLIGRAM_TOKEN=...")
MARK = re.compile(r"<!-- (run|run on photographs|not run: .+) -->")
SMALLER = "--set batch=8 --set epochs=1 --set dim=8 --set image.channels=4 --set image.size=16 --set text.hidden=8"
SMALLER_PYTHON = {"epochs=3)": "epochs=1, batch=8, dim=8, image=cg.ImageSettings(size=16, channels=(4,)))"}
"""what makes the training of the pages small enough for a test"""


class Snippet(NamedTuple):
    """A block of a page that can be run."""

    page: Path
    line: int
    mark: str
    """``run``, ``run on photographs``, ``not run: REASON``; empty where the page has no mark"""
    language: str
    text: str

    @property
    def place(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The words of each line, without what pipes and redirections do with its output."""
        lines = self.text.replace("\\\n", " ").splitlines()
        words = [shlex.split(line.replace("'\\n'", "LINE"), comments=True) for line in lines]
        return [list(_before_pipe(each)) for each in words if each]


def _before_pipe(words: list[str]) -> Iterator[str]:
    for word in words:
        if word in ("|", ">", "&&"):
            return
        yield word


def snippets(page: Path) -> list[Snippet]:
    """Return the blocks of a page that are Python, or that begin with a command."""
    found, lines = [], page.read_text(encoding="utf-8").splitlines()
    at, mark = 0, ""
    while at < len(lines):
        line = lines[at]
        fenced, indented = line.startswith("```"), line.startswith("    ") and not lines[at - 1].strip()
        if match := MARK.fullmatch(line):
            mark = match[1]
        elif fenced or indented:
            end = at + 1
            while end < len(lines) and (lines[end] != "```" if fenced else lines[end].startswith("    ")):
                end += 1
            text = "\n".join(each if fenced else each[4:] for each in lines[at + fenced : end])
            language = line[3:] if fenced else ""
            if language == "python" or text.split()[0] in COMMANDS:
                found.append(Snippet(page, at + 1, mark, language, text))
            at, mark = end, ""
        elif line.strip():
            mark = ""
        at += 1
    return found


SNIPPETS = [snippet for page in PAGES for snippet in snippets(page)]
RUN = [snippet for snippet in SNIPPETS if snippet.mark.startswith("run")]


def _command() -> click.Group:
    from calligram.cli.main import app

    return typer.main.get_command(app)


def test_every_snippet_is_run_or_says_why_not():
    unmarked = [snippet.place for snippet in SNIPPETS if not snippet.mark]
    assert not unmarked, "write <!-- run --> or <!-- not run: REASON --> before these blocks"
    assert len(RUN) > 20


def test_every_command_of_the_site_is_one_that_the_command_line_accepts():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    group = _command()
    for snippet in SNIPPETS:
        for words in snippet.commands if snippet.language != "python" else []:
            if words[0] == "make":
                assert words[1] in targets, snippet.place
            if words[0] != "calligram":
                continue
            verb = words[1]
            assert verb in group.commands, snippet.place
            accepted = {option for each in group.commands[verb].params for option in (*each.opts, *each.secondary_opts)}
            given = {word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
            assert given <= accepted | {"-h"}, snippet.place


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory, calligram) -> dict[str, Path]:
    """Folders in which snippets run: one with a library of a collection, one with a library of photographs."""
    scenes = tmp_path_factory.mktemp("scenes")
    photos = tmp_path_factory.mktemp("photos")
    for words in (
        "scenes data/scenes --images 60 --size 32",
        f"train vse data/scenes --out runs/vse {SMALLER}",
        "index runs/vse data/scenes --out library",
    ):
        done = calligram(*words.split(), cwd=scenes)
        assert done.returncode == 0, done.stderr
    _photographs(scenes, photos / "home" / "photos")
    for name in ("data", "runs"):
        (photos / name).symlink_to(scenes / name)
    for world in (scenes, photos):
        Image.new("RGB", (64, 48), "teal").save(world / "photo.jpg")
    done = calligram("index", "runs/vse", photos / "home" / "photos", "--out", "library", cwd=photos)
    assert done.returncode == 0, done.stderr
    return {"run": scenes, "run on photographs": photos}


def _photographs(scenes: Path, folder: Path) -> None:
    from calligram.data.collection import Collection

    pictures = Collection.open(scenes / "data" / "scenes").pictures
    for row in range(12):
        place = folder / ("trip" if row % 3 else "home") / f"{row}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0110] = "Canon EOS"
        exif.get_ifd(0x8769)[0x9003] = f"{2005 + 2 * row}:07:12 10:00:00"
        pictures.open(row).save(place, exif=exif)
    pictures.open(20).save(folder / "indoors.jpg")


@pytest.mark.parametrize("page", sorted({snippet.page for snippet in RUN}), ids=lambda page: page.stem)
def test_the_snippets_of_a_page_run(page, worlds, calligram, monkeypatch):
    for snippet in RUN:
        if snippet.page == page and snippet.mark in worlds:
            _run(snippet, worlds[snippet.mark], calligram, monkeypatch)


def _run(snippet: Snippet, world: Path, calligram: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    if snippet.language == "python":
        code = snippet.text
        for whole, small in SMALLER_PYTHON.items():
            code = code.replace(whole, small)
        monkeypatch.chdir(world)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, snippet.place, "exec"), {"__name__": "__main__"})
        return
    home = str(world / "home")
    for command in snippet.commands:
        assert command[0] == "calligram", f"{snippet.place}: only calligram and Python are run"
        words = [word.replace("~", home) if word.startswith("~/") else word for word in command[1:]]
        if words[0] in ("train", "scenes"):
            words = _small(words, world)
        done = calligram(*words, cwd=world)
        assert done.returncode == 0, f"{snippet.place}: {shlex.join(words)}\n{done.stderr}"


def _small(words: list[str], world: Path) -> list[str]:
    """Return a command with the sizes of a test, and with a folder of its own where the world has it already."""
    if words[0] == "scenes":
        return ["scenes", f"data/scenes-{time.monotonic_ns()}", "--images", "60", "--size", "32"]
    out = words.index("--out") + 1
    if (world / words[out]).exists():
        words[out] += f"-{time.monotonic_ns()}"
    return [*words[:3], *shlex.split(SMALLER), *words[3:]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The website, built as ``make docs`` builds it: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", ROOT / "mkdocs.yml", "-d", folder]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()
    return folder


class _Links(HTMLParser):
    """Collects what a page links to, what it loads, and the anchors that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("link", "script", "img", "iframe"):
            self.loads += [values[name] for name in ("href", "src") if name in values]


def test_no_link_of_the_site_is_dead_and_nothing_comes_from_the_net(site):
    pages = {page: _Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 40
    for page, content in pages.items():
        for link in (*content.links, *content.loads):
            if re.match(r"[a-z]+:", link):
                assert link in content.links, f"{page.name} loads {link}"
                continue
            path, _, anchor = link.partition("#")
            base = site if path.startswith("/") else page.parent
            target = (base / unquote(path).lstrip("/")).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.relative_to(site)}: {link}"
            if anchor and anchor != "__top" and target in pages:
                assert unquote(anchor) in pages[target].anchors, f"{page.relative_to(site)}: {link}"


def test_the_reference_has_every_public_name_and_every_setting(site):
    import calligram

    anchors = {anchor for page in (site / "api").glob("*.html") for anchor in _Links(page).anchors}
    for name in dir(calligram):
        value = getattr(calligram, name)
        if isinstance(value, type) or callable(value):
            assert f"{value.__module__}.{value.__qualname__}" in anchors, name
    settings = (site / "settings.html").read_text(encoding="utf-8")
    for key in ("image.backbone", "scan.direction", "offline.share", "region.proposals", "preset-aoq-bfan-paper"):
        assert key in settings


def test_a_page_of_a_paper_has_what_helps(site):
    page = (site / "papers" / "dual-path.html").read_text(encoding="utf-8")
    assert "A text CNN of one block instead of 50 layers" in page
    assert "Does not help" in page
