from __future__ import annotations

import json
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
    found = catalog.MatcherCatalog(catalog.MATCHERS.references, catalog.MATCHERS.group)
    monkeypatch.setattr(catalog, "MATCHERS", found)
    return found


@pytest.mark.parametrize("name", catalog.MATCHERS)
def test_every_entry_is_a_matcher_with_a_settings_dataclass(name):
    entry = catalog.MATCHERS[name]
    assert issubclass(entry.matcher, Matcher)
    assert is_dataclass(entry.settings)


def modules_after(preloaded, code: str) -> set[str]:
    """Modules of the models package that a process without any of our code has imported after running the code."""
    script = (
        f"import json, sys\n{code}\nprint(json.dumps([m for m in sys.modules if m.startswith('calligram.models.')]))"
    )
    done = preloaded.run(script)
    assert done.returncode == 0, done.stderr
    return {name.removeprefix("calligram.models.") for name in json.loads(done.stdout)}


def test_a_matcher_is_imported_when_its_entry_is_read_and_no_other_is(preloaded):
    before = modules_after(preloaded, "from calligram.models import catalog; list(catalog.MATCHERS)")
    assert before == {"catalog", "matcher"}
    built = "from calligram.models import catalog\n"
    built += "found = catalog.build({'matcher': 'vse', 'settings': {'vocabulary': 9, 'dim': 4, 'channels': [4]}})\n"
    found = modules_after(preloaded, f"{built}assert catalog.describe(found)['matcher'] == 'vse'")
    assert "vse" in found
    others = {catalog.MATCHERS.references[name].partition(":")[0] for name in catalog.MATCHERS if name != "vse"}
    assert not found & {module.removeprefix("calligram.models.") for module in others}


def test_a_registered_matcher_is_described_saved_and_loaded(table, tmp_path):
    catalog.matcher("linear")(Linear)
    matcher = Linear(LinearSettings(4))
    assert catalog.describe(matcher) == {"matcher": "linear", "class": f"{__name__}:Linear", "settings": {"dim": 4}}
    catalog.save(matcher, tmp_path / "matcher.json", tmp_path / "best.safetensors")
    again = catalog.load(tmp_path / "matcher.json", tmp_path / "best.safetensors")
    assert isinstance(again, Linear)
    images = torch.randn(2, 2)
    assert torch.equal(again.encode_images(images).vectors, matcher.encode_images(images).vectors)


def test_a_matcher_of_the_package_is_described_without_its_class():
    assert "class" not in catalog.describe(
        catalog.build({"matcher": "tags", "settings": {"image_dim": 4, "text_dim": 3}})
    )


def test_a_matcher_that_is_not_registered_is_refused_with_advice(table):
    with pytest.raises(UserError, match=r'Linear has no name, .*; write @calligram\.matcher\("NAME"\) above the class'):
        catalog.describe(Linear(LinearSettings()))


def test_a_name_in_use_is_refused(table):
    catalog.matcher("linear")(Linear)
    catalog.matcher("linear")(Linear)  # registering the same class again is accepted, for notebooks
    with pytest.raises(UserError, match="the name 'vse' is in use already; choose another name"):
        catalog.matcher("vse")(Linear)
    with pytest.raises(UserError, match="the name 'linear' is in use already; choose another name"):
        catalog.matcher("linear")(Plain)


class Annotated(Linear):
    settings: LinearSettings


class Plain(EmbeddingMatcher):
    """A matcher without settings and without parameters."""

    def encode_images(self, images, mask=None):
        return Encoded(images)


class Undescribed(EmbeddingMatcher):
    def __init__(self, size):
        super().__init__()


def test_the_settings_class_is_found_by_an_annotation():
    assert catalog.settings_class(Annotated) is LinearSettings
    assert catalog.settings_class(Linear) is LinearSettings
    assert catalog.settings_class(Plain) is None
    with pytest.raises(UserError, match="the settings class of Undescribed is not known"):
        catalog.settings_class(Undescribed)


def test_a_matcher_without_settings_and_parameters_is_saved_and_loaded(table, tmp_path):
    catalog.matcher("plain")(Plain)
    catalog.save(Plain(), tmp_path / "matcher.json", tmp_path / "best.safetensors")
    assert isinstance(catalog.load(tmp_path / "matcher.json", tmp_path / "best.safetensors"), Plain)


def test_a_description_never_imports_the_class_that_it_names(table, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    allowed = r'matcher \'own\' is the class evil:Own.*"import evil" before loading.*"calligram --import evil VERB'
    with pytest.raises(UserError, match=allowed):
        catalog.build({"matcher": "own", "class": "evil:Own", "settings": {}})


def test_a_matcher_of_an_installed_package_is_built_and_described(table, tmp_path, monkeypatch):
    about = tmp_path / "others-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[calligram.matchers]\ntheirs = others_matcher:Theirs\n")
    (tmp_path / "others_matcher.py").write_text("""
from dataclasses import dataclass
from calligram import EmbeddingMatcher

@dataclass(frozen=True)
class Settings:
    dim: int = 3

class Theirs(EmbeddingMatcher):
    settings: Settings

    def __init__(self, settings):
        super().__init__()
        self.settings = settings
""")
    monkeypatch.syspath_prepend(tmp_path)
    found = catalog.build({"matcher": "theirs", "settings": {"dim": 5}})
    assert found.settings.dim == 5
    assert catalog.describe(found) == {"matcher": "theirs", "class": "others_matcher:Theirs", "settings": {"dim": 5}}
