"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import calligram

SOURCES = Path(calligram.__file__).parent
WITH_EXAMPLES = [file for file in sorted(SOURCES.rglob("*.py")) if ">>> " in file.read_text(encoding="utf-8")]


@pytest.mark.parametrize("file", WITH_EXAMPLES, ids=lambda file: str(file.relative_to(SOURCES)))
def test_examples_give_what_they_show(file):
    module = import_module(".".join(("calligram", *file.relative_to(SOURCES).with_suffix("").parts)))
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
