"""Data flows one way: a layer imports only from its left."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import calligram

ROOT = Path(calligram.__file__).parent
LAYERS = (
    "data", "scenes", "features", "models", "losses", "training", "evaluation", "recipes", "studies", "search", "serve",
    "cli", "__main__",
)  # fmt: skip
BELOW_ALL = (
    "errors",
    "progress",
    "checksums",
    "records",
    "files",
    "text",
    "vectors",
    "extras",
    "picture_formats",
    "device",
    "memory",
    "hub",
    "lazy",
    "notebook",
    "__init__",
)
FORBIDDEN = {
    "losses": {"data", "features", "models"},
    "evaluation": {"training"},
    "search": {"scenes", "training", "losses", "recipes", "studies"},
}
"""layers to the left that a layer must not know all the same"""


def imported(file: Path) -> set[str]:
    """Layers of ours that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("calligram.")}
    return found


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda f: str(f.relative_to(ROOT)))
def test_a_module_imports_only_from_its_left(file):
    layer = file.relative_to(ROOT).parts[0].removesuffix(".py")
    allowed = set(BELOW_ALL)
    if layer in LAYERS:
        allowed |= set(LAYERS[: LAYERS.index(layer) + 1]) - FORBIDDEN.get(layer, set())
    elif layer == "__init__":
        allowed |= set(LAYERS)
    else:
        assert layer in BELOW_ALL, f"{layer} is not a layer"
    assert imported(file) <= allowed


def test_no_module_has_a_name_that_says_nothing():
    vague = {"utils", "util", "common", "helpers", "helper", "misc", "base"}
    assert not [f for f in ROOT.rglob("*.py") if f.stem in vague]
