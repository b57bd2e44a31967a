from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and "calligram." in line
]


def test_the_index_has_rows():
    assert len(ROWS) >= 6


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_every_function_and_test_of_the_index_exists_and_cites_its_paper(row):
    paper, _, function, test, _ = row
    module, _, name = function.strip("`").rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert not paper or paper in (found.__doc__ or ""), f"{function} does not cite {paper}"
    file, _, test_name = test.strip("`").partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test_name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_no_cell_of_departures_is_empty():
    assert [row[:2] for row in ROWS if not row[-1]] == []


def test_papers_cited_in_code_are_those_of_the_index():
    known = set(re.findall(r"\*\*([\w+-]+)\*\* \(", (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")))
    cited = set()
    for file in (ROOT / "src").rglob("*.py"):
        cited |= set(re.findall(r"\(([a-z][\w+-]+), (?:Eq|Sec|Alg|Table)", file.read_text(encoding="utf-8")))
    assert cited <= known


def test_every_preset_of_a_paper_and_every_script_is_in_the_index():
    from calligram.recipes.catalog import PRESETS

    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z0-9-]+)`", text))
    assert {name for name in PRESETS if name.endswith(("-paper", "-release"))} <= named
    for script in re.findall(r"`(examples/\w+\.py)`", text):
        assert (ROOT / script).is_file()
