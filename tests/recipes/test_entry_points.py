"""Terms and presets of an installed package are found by name, on the command line and from Python."""

from __future__ import annotations

import pytest

import calligram as cg
from calligram.recipes.catalog import PRESETS, find_preset
from calligram.recipes.parts.config import resolve

CODE = '''
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from calligram.recipes.parts.terms import Ranking

PRESET = Path(__file__).parent / "other.toml"


@dataclass(frozen=True)
class Wide(Ranking):
    """Ranking with a margin that is scaled."""

    scale: Annotated[float, "factor on the margin", (0, 100)] = 2.0
'''
PRESET = """
description = "a preset of another package"
terms = ["wide"]
wide = { scale = 3 }
image = { size = 16, channels = [4] }
text = { word_dim = 8, hidden = 8, min_count = 1 }
dim = 8
batch = 6
epochs = 1
ema_decay = 0
"""
ENTRY_POINTS = """
[calligram.terms]
wide = installed_terms:Wide
[calligram.presets]
installed = installed_terms:PRESET
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package on the path, with the files that an installer writes."""
    about = tmp_path / "installed_terms-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-terms\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    (tmp_path / "installed_terms.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "other.toml").write_text(PRESET, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_term_and_a_preset_of_an_installed_package_are_used_by_name(installed, tiny, tmp_path, calligram):
    assert "installed" in PRESETS
    assert find_preset("installed").description == "a preset of another package"
    settings = resolve(find_preset("vse").defaults, ["terms=infonce,wide", "wide.scale=5"])
    assert settings.terms[1].scale == 5
    run = cg.fit("installed", tiny, out=tmp_path / "run", changes={"wide.scale": 4})
    assert run.about["preset"] == "installed"
    assert run.about["settings"]["wide"]["scale"] == 4
    listed = calligram("list")
    assert "a preset of another package" in listed.stdout
    shown = calligram("show", "installed")
    assert "factor on the margin" in shown.stdout


def test_without_the_package_the_names_are_unknown():
    with pytest.raises(cg.UserError, match="unknown preset 'installed'"):
        find_preset("installed")
    with pytest.raises(cg.UserError, match="unknown term 'wide'"):
        resolve(find_preset("vse").defaults, ["terms=wide"])
