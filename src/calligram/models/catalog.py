"""The table of matchers, and how a matcher is described, built, saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from calligram.errors import UserError, unknown
from calligram.lazy import Catalog
from calligram.models.matcher import Matcher


class MatcherEntry(NamedTuple):
    """A matcher class and its settings class."""

    matcher: type[Matcher]
    settings: type[Any]


class MatcherCatalog(Catalog[MatcherEntry]):
    """Matchers by name; the module of a matcher is imported when its entry is read.

    A reference is ``"package.module:MatcherClass:SettingsClass"``. Classes that are defined elsewhere join the table
    with ``register``.
    """

    def __init__(self, references: Mapping[str, str]) -> None:
        super().__init__(references)
        self._registered: dict[str, MatcherEntry] = {}

    def register(self, name: str, matcher: type[Matcher], settings: type[Any]) -> None:
        """Add a matcher class and its settings class, a dataclass, under a new name.

        Raises:
            UserError: when another class has the name already.
        """
        reference = f"{_path(matcher)}:{settings.__qualname__}"
        if self.references.setdefault(name, reference) != reference:
            raise UserError(f"the matcher name '{name}' is in use already; choose another name")
        self._registered[name] = MatcherEntry(matcher, settings)

    def __getitem__(self, name: str) -> MatcherEntry:
        if name in self._registered:
            return self._registered[name]
        module, matcher, settings = self.references[name].split(":")
        found = import_module(module)
        return MatcherEntry(getattr(found, matcher), getattr(found, settings))

    def name_of(self, matcher: Matcher) -> str:
        """Return the name of a matcher's class. Imports nothing.

        Raises:
            UserError: when the class is not in the table.
        """
        path = _path(type(matcher))
        for name, reference in self.references.items():
            if reference.rpartition(":")[0] == path:
                return name
        raise UserError(
            f"the matcher class {path.replace(':', '.')} is not in the table of matchers; add it with "
            "calligram.models.catalog.MATCHERS.register(name, matcher_class, settings_class)"
        )


def _path(matcher: type[Matcher]) -> str:
    return f"{matcher.__module__}:{matcher.__qualname__}"


MATCHERS = MatcherCatalog(
    {
        "vse": "calligram.models.vse:VSE:VSESettings",
        "pretrained": "calligram.models.pretrained:Pretrained:PretrainedSettings",
        "cca": "calligram.models.cca:CCA:CCASettings",
        "weighted": "calligram.models.ensemble:SentencePhraseMatcher:SentencePhraseSettings",
        "ensemble": "calligram.models.ensemble:Ensemble:EnsembleSettings",
        "scan": "calligram.models.scan:SCAN:SCANSettings",
        "bfan": "calligram.models.bfan:BFAN:BFANSettings",
        "vsrn": "calligram.models.vsrn:VSRN:VSRNSettings",
        "a3vse": "calligram.models.a3vse:A3VSE:A3VSESettings",
        "mmca": "calligram.models.mmca:MMCA:MMCASettings",
        "tags": "calligram.models.tags:TagMatcher:TagSettings",
        "two-branch": "calligram.models.two_branch:TwoBranchEmbedding:TwoBranchSettings",
        "two-branch-similarity": "calligram.models.two_branch:TwoBranchSimilarity:TwoBranchSimilaritySettings",
    }
)
"""all matchers, by the name in ``matcher.json``"""


def describe(matcher: Matcher) -> dict[str, object]:
    """Return the name and the settings of a matcher, as JSON takes them."""
    return {"matcher": MATCHERS.name_of(matcher), "settings": asdict(matcher.settings)}


def build(description: Mapping[str, Any]) -> Matcher:
    """Build a matcher with random weights from the output of ``describe``."""
    name = str(description.get("matcher"))
    if name not in MATCHERS:
        raise unknown("matcher", name, MATCHERS)
    entry = MATCHERS[name]
    known = {f.name for f in fields(entry.settings)}
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in description["settings"].items()}
    for key in settings:
        if key not in known:
            raise unknown(f"setting of matcher {name}", key, known)
    return entry.matcher(entry.settings(**settings))


def save(matcher: Matcher, description_file: Path, weights_file: Path) -> None:
    """Write the description as JSON and the weights as safetensors."""
    description_file.write_text(json.dumps(describe(matcher), indent=1) + "\n", encoding="utf-8")
    save_file({k: v.detach().cpu().contiguous() for k, v in matcher.state_dict().items()}, weights_file)


def load(description_file: Path, weights_file: Path) -> Matcher:
    """Read a matcher that ``save`` wrote, in evaluation mode."""
    try:
        matcher = build(json.loads(description_file.read_text(encoding="utf-8")))
        matcher.load_state_dict(load_file(weights_file))
    except (OSError, ValueError, KeyError, SafetensorError, RuntimeError) as error:
        raise UserError(f"no matcher could be read from {weights_file} ({error})") from error
    return matcher.eval()
