from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, is_dataclass

import pytest
import torch
from torch import nn

from calligram.errors import UserError
from calligram.models import catalog
from calligram.models.matcher import EmbeddingMatcher, Encoded, Matcher


@dataclass(frozen=True)
class LinearSettings:
    dim: int = 3


class Linear(EmbeddingMatcher):
    def __init__(self, settings: LinearSettings) -> None:
        super().__init__()
        self.settings = settings
        self.project = nn.Linear(2, settings.dim)

    def encode_images(self, images, mask=None):
        return Encoded(self.project(images))


@pytest.fixture
def table(monkeypatch):
    """A copy of the table of matchers, so that a test can add to it."""
    found = catalog.MatcherCatalog(catalog.MATCHERS.references)
    monkeypatch.setattr(catalog, "MATCHERS", found)
    return found


@pytest.mark.parametrize("name", catalog.MATCHERS)
def test_every_entry_is_a_matcher_with_a_settings_dataclass(name):
    entry = catalog.MATCHERS[name]
    assert issubclass(entry.matcher, Matcher)
    assert is_dataclass(entry.settings)


def modules_after(code: str) -> set[str]:
    """Modules of the models package that a fresh process has imported after running the code."""
    script = (
        f"import json, sys\n{code}\nprint(json.dumps([m for m in sys.modules if m.startswith('calligram.models.')]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.removeprefix("calligram.models.") for name in json.loads(done.stdout)}


def test_a_matcher_is_imported_when_its_entry_is_read_and_no_other_is():
    before = modules_after("from calligram.models import catalog; list(catalog.MATCHERS)")
    assert before == {"catalog", "matcher"}
    built = "from calligram.models import catalog\n"
    built += "found = catalog.build({'matcher': 'vse', 'settings': {'vocabulary': 9, 'dim': 4, 'channels': [4]}})\n"
    found = modules_after(f"{built}assert catalog.describe(found)['matcher'] == 'vse'")
    assert "vse" in found
    others = {catalog.MATCHERS.references[name].partition(":")[0] for name in catalog.MATCHERS if name != "vse"}
    assert not found & {module.removeprefix("calligram.models.") for module in others}


def test_a_registered_matcher_is_described_saved_and_loaded(table, tmp_path):
    table.register("linear", Linear, LinearSettings)
    matcher = Linear(LinearSettings(4))
    catalog.save(matcher, tmp_path / "matcher.json", tmp_path / "best.safetensors")
    again = catalog.load(tmp_path / "matcher.json", tmp_path / "best.safetensors")
    assert isinstance(again, Linear)
    images = torch.randn(2, 2)
    assert torch.equal(again.encode_images(images).vectors, matcher.encode_images(images).vectors)


def test_a_matcher_that_is_not_registered_is_refused_with_advice(table):
    with pytest.raises(UserError, match=r"Linear is not in the table of matchers; add it with .*MATCHERS\.register"):
        catalog.describe(Linear(LinearSettings()))


def test_a_name_in_use_is_refused(table):
    table.register("linear", Linear, LinearSettings)
    table.register("linear", Linear, LinearSettings)  # registering the same class again is accepted, for notebooks
    with pytest.raises(UserError, match="the matcher name 'vse' is in use already; choose another name"):
        table.register("vse", Linear, LinearSettings)
