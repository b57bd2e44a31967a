"""Optional packages: one form of the error, and extras that pyproject.toml has."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import calligram
from calligram.errors import UserError
from calligram.extras import install_command, missing_modules, opencv, require
from calligram.search.vectors.lance import lancedb


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lancedb", None)
    wanted = f"^a library needs lancedb; install it with: {re.escape(install_command('search'))}$"
    with pytest.raises(UserError, match=wanted):
        lancedb()
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(UserError, match="this proposal method needs opencv-contrib-python-headless; install it with"):
        opencv()


def test_only_the_functions_that_proposals_need_decide_whether_opencv_is_accepted(monkeypatch):
    segmentation = SimpleNamespace(createSelectiveSearchSegmentation=None)
    threads: list[int] = []
    contributed = SimpleNamespace(createEdgeBoxes=None, segmentation=segmentation)
    complete = SimpleNamespace(ximgproc=contributed, setNumThreads=threads.append)
    monkeypatch.setitem(sys.modules, "cv2", complete)
    assert opencv() is complete
    assert threads == [1]
    for broken in (SimpleNamespace(), SimpleNamespace(ximgproc=SimpleNamespace())):
        monkeypatch.setitem(sys.modules, "cv2", broken)
        with pytest.raises(UserError, match="has no EdgeBoxes and no selective search"):
            opencv()


def test_an_installed_package_is_imported():
    assert require("json", extra="search", purpose="this test") is sys.modules["json"]
    assert missing_modules("json", "no_such_module") == ["no_such_module"]


def test_all_extras_that_errors_name_are_in_the_project_file():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    sources = (file.read_text(encoding="utf-8") for file in Path(calligram.__file__).parent.rglob("*.py"))
    pattern = re.compile(r'extra="(\w+)", purpose|install_command\("(\w+)"\)')
    named = {first or second for text in sources for first, second in pattern.findall(text)}
    assert named == set(project["optional-dependencies"]) - {"dev", "docs"}
