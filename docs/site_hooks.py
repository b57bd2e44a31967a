"""What the website has beside the pages in docs/: settings, API, examples, contributing, changes and figures.

MkDocs calls the functions ``on_files`` and ``on_page_markdown`` (see ``mkdocs.yml``). Nothing that they make is written
into the repository.
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "calligram"
COPIED_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""pages of the repository's top folder, with their names on the site"""
MOVED = {**COPIED_PAGES, "README.md": "index.md", "examples": "examples.md", "docs": "index.md"}
WHAT_HELPS = re.compile(r"<!-- what helps: (\S+) -->")
LINK = re.compile(r'(\]\(|href="|src=")(?![a-z]+:|#)([^)\s"#]+)')


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and the figures of results to the files of the site."""
    pages = {
        **{name: (ROOT / source).read_text(encoding="utf-8") for source, name in COPIED_PAGES.items()},
        "examples.md": examples_page(),
        "settings.md": settings_page(),
        **api_pages(),
    }
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    icon = PACKAGE / "serve" / "static" / "favicon.svg"
    files.append(File.generated(config, icon.name, abs_src_path=str(icon)))
    for source in (*(ROOT / "results" / "pictures").glob("*.png"), *(ROOT / "results").glob("*.json")):
        files.append(File.generated(config, site_path(source.relative_to(ROOT)), abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make links that leave docs/ point to their places on the site."""
    name = page.file.src_uri
    sources = {made: source for source, made in COPIED_PAGES.items()}
    source = ROOT / sources[name] if name in sources else ROOT / "docs" / name

    def moved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match[2]))
        if not target.is_relative_to(ROOT):
            return match[0]
        return match[1] + os.path.relpath(site_path(target.relative_to(ROOT)), Path(name).parent)

    markdown = WHAT_HELPS.sub(lambda match: what_helps(match[1]), markdown)
    return LINK.sub(moved, markdown)


def what_helps(study: str) -> str:
    """Return the advice of one study, by verdict, from the page of results that ``calligram report`` writes."""
    advice = json.loads((ROOT / "results" / "advice.json").read_text(encoding="utf-8"))
    own = {each["advice"] for each in advice if each["study"] == study}
    page = (ROOT / "docs" / "results" / "what-helps.md").read_text(encoding="utf-8")
    rows = []
    for section in page.split("\n## ")[1:]:
        verdict = section.splitlines()[0]
        for what, points in re.findall(r"^\| (.+?) \| (.+?) \| \[", section, re.MULTILINE):
            rows += [f"| {what} | {verdict} | {points} |"] if what in own else []
        for item in section.partition("<br>")[2].split("\n")[0].split("<br>"):
            what, _, points = item.strip().partition(" (+" if " (+" in item else " (-")
            sign = "+" if " (+" in item else "-"
            rows += [f"| {what} | {verdict} | {points and sign + points.rstrip(')')} |"] if what in own else []
    heading = "| what | verdict | points of rsum |\n|---|---|---|\n"
    return heading + "\n".join(rows) + "\n\n[How verdicts are made](../results/README.md)."


def site_path(path: Path) -> str:
    """Return the place of a file of the repository on the site.

    >>> site_path(Path("docs/search.md")), site_path(Path("results/pictures/a.png")), site_path(Path("CHANGELOG.md"))
    ('search.md', 'pictures/a.png', 'changelog.md')
    """
    name = path.as_posix()
    if name in MOVED:
        return MOVED[name]
    if name == "docs/results":
        return "results/README.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if name.startswith("results/pictures/"):
        return name.removeprefix("results/")
    if name.startswith("results/"):
        return f"data/{path.name}"
    if name.startswith("examples/"):
        return "examples.md"
    return f"../{name}"


def examples_page() -> str:
    """Return a page with all scripts of examples/."""
    parts = ["# Examples\n\nScripts to copy. `tests/test_examples.py` runs each of them.\n"]
    for script in sorted((ROOT / "examples").glob("*.py")):
        parts.append(f"## {script.name}\n\n```python\n{script.read_text(encoding='utf-8')}```\n")
    return "\n".join(parts)


def settings_page() -> str:
    """Return a page with every setting, and what each preset changes."""
    from calligram.cli.train import setting_row
    from calligram.models.catalog import MATCHERS
    from calligram.recipes.catalog import PRESETS
    from calligram.recipes.parts.config import resolve, settings_fields
    from calligram.recipes.parts.terms import TERMS

    pairs = PRESETS["vse"].recipe.settings_class()
    composed = [resolve(pairs, [f"matcher={name}"]) for name in MATCHERS.references if name in _pair_matchers()]
    composed += [resolve(pairs, [f"terms={name}"]) for name in TERMS.references]
    classes = {preset.recipe.name: preset.recipe.settings_class for preset in PRESETS.values()}
    rows: dict[str, tuple[str, str, str]] = {}
    for settings in (pairs, *composed, *(kind() for kind in classes.values())):
        for setting in settings_fields(settings):
            rows.setdefault(setting.key, setting_row(setting))
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for key, row in rows.items():
        groups.setdefault(key.split(".")[0] if "." in key else "", []).append(row)
    parts = [
        "# Settings\n\nThis page is generated from the code and the presets. `calligram show PRESET` shows the "
        "settings that have an effect in a preset. `--set KEY=VALUE` changes them. [Training](training.md) explains "
        "the parts of a run, and [Stages](training.md#stages) the keys `stages.NUMBER.KEY`.\n"
    ]
    for group in sorted(groups):
        parts.append(f"## {f'Settings {group}.*' if group else 'Settings without a prefix'}\n")
        parts.append(_table(("key", "default", "meaning"), groups[group]))
    parts.append("## Presets\n\nEach preset lists what differs from its base, or from the defaults above.\n")
    for name, preset in PRESETS.items():
        base = f" It changes the preset [{preset.base.name}](#preset-{preset.base.name})." if preset.base else ""
        changes = [(key, str(value)) for key, value in preset.values]
        parts.append(f"### {name} {{#preset-{name}}}\n\n{preset.description.capitalize()}.{base}\n")
        parts.append(_table(("key", "value"), changes))
    return "\n".join(parts)


def _pair_matchers() -> set[str]:
    from calligram.recipes.catalog import PRESETS
    from calligram.recipes.parts.run_settings import declared_settings

    settings = PRESETS["vse"].recipe.settings_class()
    return next({*item.metadata["components"]} for item, _ in declared_settings(settings) if item.name == "matcher")


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    for key, *others in rows:
        shown = [f"`{others[0]}`", *others[1:]]
        cells.append("| " + " | ".join([f"`{key}`", *(each.replace("|", "\\|") for each in shown)]) + " |")
    return "\n".join(cells) + "\n"


def api_pages() -> dict[str, str]:
    """Return the pages of the API: one for ``calligram`` itself, and one for each package with public names."""
    top = public_names(PACKAGE / "__init__.pyi")
    packages = [name for name, path in top.items() if path == f"calligram.{name}"]
    shown = {path for name, path in top.items() if name not in packages}
    parts = [
        "# calligram\n\n`import calligram as cg`. Names are imported when they are first used. "
        "Packages: " + ", ".join(f"[{name}]({name}.md)" for name in packages) + ".\n",
        *(f"::: {path}\n" for name, path in top.items() if name not in packages),
    ]
    pages = {"api/index.md": "\n".join(parts)}
    for package in packages:
        names = public_names(PACKAGE / package / "__init__.pyi")
        own = {name: path for name, path in names.items() if path != f"calligram.{package}.{name}"}
        elsewhere = [path for path in own.values() if path in shown]
        text = [f"# calligram.{package}\n"]
        if elsewhere:
            links = ", ".join(f"[{path.rpartition('.')[2]}][{path}]" for path in elsewhere)
            text.append(f"Described on another page: {links}.\n")
        text += [f"::: {path}\n" for path in own.values() if path not in shown]
        shown |= set(own.values())
        pages[f"api/{package}.md"] = "\n".join(text)
    return pages


def public_names(stub: Path) -> dict[str, str]:
    """Return the public names of a package and where they are defined, in the order of its ``__init__.pyi``."""
    found: dict[str, str] = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found
