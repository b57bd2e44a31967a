"""The documentation is true: its commands and its Python run, its links, verbs and options exist."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
RESULT_PAGES = tuple(sorted((ROOT / "docs" / "results").glob("*.md")))
"""pages that ``calligram report`` writes"""
GUIDES = tuple(
    page for page in PAGES if page.stem in ("README", "getting-started", "training", "evaluation", "search", "cli")
)
"""pages about how to use the commands"""
MADE_PAGES = ("settings.md", "api/index.md")
"""pages that exist on the website only"""
README_LINES = 150
SMALLER = "--set batch=8 --set epochs=1 --set dim=8 --set image.channels=4 --set image.size=16 --set text.hidden=8"
SMALLER_PYTHON = {
    "size=96": "size=16, channels=(4,)",
    'network="lstm"': 'network="lstm", word_dim=8, hidden=8',
    "epochs=2": "epochs=1, batch=8, dim=8",
}
TRAINING = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
TRAIN_COMMAND = re.compile(r"^ *(?:`)?calligram train ([a-z0-9-]+) (.*)$", re.MULTILINE)
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


def test_the_commands_and_the_python_of_the_readme_run(calligram, preloaded, tmp_path):
    for line in block_under_test("bash").splitlines():
        command = line.replace("--images 2000", "--images 60 --size 32")
        words = shlex.split(command, comments=True)
        if " train " in line:
            words += shlex.split(SMALLER)
        assert words[0] == "calligram"
        done = calligram(*words[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    script = block_under_test("python")
    for whole, small in SMALLER_PYTHON.items():
        assert whole in script
        script = script.replace(whole, small)
    done = preloaded.run(script, cwd=tmp_path)
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


@pytest.mark.parametrize("page", [*PAGES, *RESULT_PAGES], ids=lambda page: page.name)
def test_every_link_of_a_page_points_to_a_file_and_a_heading_that_exist(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        if path in MADE_PAGES:
            continue  # tests/test_site.py checks them
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_training_command_of_a_page_has_settings_that_its_preset_accepts(page):
    from calligram.recipes.catalog import find_preset
    from calligram.recipes.parts.config import resolve

    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for name, rest in TRAIN_COMMAND.findall(text):
        changes = re.findall(r"--set (\S+=\S+)", rest)
        resolve(find_preset(name).defaults, [change.rstrip("`") for change in changes if "KEY" not in change])


def test_the_training_page_names_every_preset_and_every_term():
    from calligram.models.catalog import MATCHERS
    from calligram.recipes.catalog import PRESETS
    from calligram.recipes.parts.terms import TERMS

    named = set(re.findall(r"`([a-z0-9-]+)`", TRAINING))
    own = {*PRESETS, *TERMS.references, *(name for name in MATCHERS.references if name != "weighted")}
    assert own <= named


def test_the_preset_of_the_training_page_can_be_trained(tmp_path):
    from calligram.recipes.catalog import find_preset

    (content,) = re.findall(r"```toml\n(base = .*?)```", TRAINING, flags=re.DOTALL)
    (tmp_path / "mine.toml").write_text(content, encoding="utf-8")
    settings = find_preset(str(tmp_path / "mine.toml")).defaults
    assert settings.matcher[0].direction == "i2t"
    assert [each.name for each in settings.stages] == ["round 1", "round 2"]


def test_the_term_of_the_training_page_trains(tiny, tmp_path):
    import calligram as cg
    from calligram.recipes.parts.terms import TERMS

    (code,) = re.findall(r"```python\n(from dataclasses .*?)```", TRAINING, flags=re.DOTALL)
    (tmp_path / "own_term.py").write_text(code, encoding="utf-8")
    try:
        runpy.run_path(str(tmp_path / "own_term.py"))
        towers = {
            "image": cg.ImageSettings(size=16, channels=(4,)),
            "text": cg.TextSettings(word_dim=8, hidden=8, min_count=1),
        }
        run = cg.fit(
            cg.models.VSESettings(), tiny, out=tmp_path / "run", terms=["infonce", "scores"], epochs=1, dim=8, **towers
        )
        assert run.about["settings"]["scores"] == {"weight": 1.0, "power": 2.0}
    finally:
        TERMS._registered.pop("scores", None)
