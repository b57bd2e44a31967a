"""The documentation is true: its commands and its Python run, its links, verbs and options exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
GUIDES = tuple(
    page for page in PAGES if page.stem in ("README", "getting-started", "training", "evaluation", "search", "cli")
)
"""pages about how to use the commands"""
README_LINES = 150
SMALLER = "--set batch=8 --set epochs=1 --set dim=8 --set image.channels=4 --set image.size=16 --set text.hidden=8"
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def block_under_test(language: str) -> str:
    """The block of the README that follows the comment about this test."""
    pattern = rf"<!-- tested by tests/test_readme.py -->\n```{language}\n(.*?)```"
    return re.findall(pattern, README, flags=re.DOTALL)[0]


def commands() -> dict[str, typer.core.TyperCommand]:
    """The verbs of the command line, by name."""
    from calligram.cli.main import app

    return dict(typer.main.get_command(app).commands)


def anchors(page: Path) -> set[str]:
    """What a link may name after ``#``: headings in lower case, without punctuation, with hyphens for spaces."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_the_commands_and_the_python_of_the_readme_run(calligram, tmp_path):
    for line in block_under_test("bash").splitlines():
        command = line.replace("--images 2000", "--images 60 --size 32")
        words = shlex.split(command, comments=True)
        if " train " in line:
            words += shlex.split(SMALLER)
        assert words[0] == "calligram"
        done = calligram(*words[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    settings = ", ".join(f'"{word}"' for word in shlex.split(SMALLER) if "=" in word and "epochs" not in word)
    script = block_under_test("python").replace('"seed=1"', f'"seed=1", {settings}')
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"text to image R@1 \d+\.\d, rsum \d+", done.stdout)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= README_LINES


def test_the_readme_names_every_verb():
    assert set(re.findall(r"calligram (\w+)", README)) >= set(commands())


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_verb_that_a_page_names_exists(page):
    named = set(re.findall(r"(?:`|\n *)calligram ([a-z]+)\b", page.read_text(encoding="utf-8")))
    assert named <= set(commands())


@pytest.mark.parametrize("verb", sorted(commands()))
def test_the_command_line_page_lists_exactly_the_options_of_a_verb(verb):
    section = re.findall(rf"^### {verb}\n(.*?)(?=^##|\Z)", CLI, flags=re.DOTALL | re.MULTILINE)
    assert len(section) == 1, f"docs/cli.md must have one section '### {verb}'"
    cells = " ".join(re.findall(r"^\| (`-.*?) \|", section[0], flags=re.MULTILINE))
    listed = set(re.findall(r"`(-[^`]+)`", cells))
    options = [p for p in commands()[verb].params if p.param_type_name == "option" and p.name != "help"]
    accepted = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    assert listed <= accepted
    for option in options:
        assert listed & {*option.opts, *option.secondary_opts}, f"docs/cli.md, {verb}: {option.opts} is missing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_points_to_a_file_and_a_heading_that_exist(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"
