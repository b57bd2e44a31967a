"""The matchers there are, and how one is saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from calligram.errors import UserError, unknown
from calligram.models.a3vse import A3VSE, A3VSESettings
from calligram.models.bfan import BFAN, BFANSettings
from calligram.models.cca import CCA, CCASettings
from calligram.models.ensemble import Ensemble, EnsembleSettings, SentencePhraseMatcher, SentencePhraseSettings
from calligram.models.matcher import Matcher
from calligram.models.mmca import MMCA, MMCASettings
from calligram.models.pretrained import Pretrained, PretrainedSettings
from calligram.models.scan import SCAN, SCANSettings
from calligram.models.tags import TagMatcher, TagSettings
from calligram.models.two_branch import (
    TwoBranchEmbedding,
    TwoBranchSettings,
    TwoBranchSimilarity,
    TwoBranchSimilaritySettings,
)
from calligram.models.vse import VSE, VSESettings
from calligram.models.vsrn import VSRN, VSRNSettings


class MatcherEntry(NamedTuple):
    """A matcher's class and the settings it is built from."""

    matcher: type[Matcher]
    settings: type[Any]


MATCHERS: Mapping[str, MatcherEntry] = {
    "vse": MatcherEntry(VSE, VSESettings),
    "pretrained": MatcherEntry(Pretrained, PretrainedSettings),
    "cca": MatcherEntry(CCA, CCASettings),
    "weighted": MatcherEntry(SentencePhraseMatcher, SentencePhraseSettings),
    "ensemble": MatcherEntry(Ensemble, EnsembleSettings),
    "scan": MatcherEntry(SCAN, SCANSettings),
    "bfan": MatcherEntry(BFAN, BFANSettings),
    "vsrn": MatcherEntry(VSRN, VSRNSettings),
    "a3vse": MatcherEntry(A3VSE, A3VSESettings),
    "mmca": MatcherEntry(MMCA, MMCASettings),
    "tags": MatcherEntry(TagMatcher, TagSettings),
    "two-branch": MatcherEntry(TwoBranchEmbedding, TwoBranchSettings),
    "two-branch-similarity": MatcherEntry(TwoBranchSimilarity, TwoBranchSimilaritySettings),
}


def describe(matcher: Matcher) -> dict[str, object]:
    """Name and settings, as JSON takes them."""
    name = next(name for name, kind in MATCHERS.items() if type(matcher) is kind.matcher)
    return {"matcher": name, "settings": asdict(matcher.settings)}


def build(description: Mapping[str, Any]) -> Matcher:
    """A fresh matcher from what ``describe`` gave."""
    name = str(description.get("matcher"))
    if name not in MATCHERS:
        raise unknown("matcher", name, MATCHERS)
    kind = MATCHERS[name]
    known = {f.name for f in fields(kind.settings)}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in description["settings"].items()}
    for key in given:
        if key not in known:
            raise unknown(f"setting of matcher {name}", key, known)
    return kind.matcher(kind.settings(**given))


def save(matcher: Matcher, description_file: Path, weights_file: Path) -> None:
    """Write settings as JSON and weights as safetensors."""
    description_file.write_text(json.dumps(describe(matcher), indent=1) + "\n", encoding="utf-8")
    save_file({k: v.detach().cpu().contiguous() for k, v in matcher.state_dict().items()}, weights_file)


def load(description_file: Path, weights_file: Path) -> Matcher:
    """Read what ``save`` wrote, ready for inference."""
    try:
        matcher = build(json.loads(description_file.read_text(encoding="utf-8")))
        matcher.load_state_dict(load_file(weights_file))
    except (OSError, ValueError, KeyError, SafetensorError, RuntimeError) as error:
        raise UserError(f"no matcher could be read from {weights_file} ({error})") from error
    return matcher.eval()
