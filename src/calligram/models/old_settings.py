"""Settings of older versions and of earlier calls: descriptions of matchers, renamed keys of runs, and differences.

Older descriptions of matchers have towers and score as one flat list. For an old key of a run, users get an error that
names the present key. When a run is resumed, its settings are compared with the present ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

IMAGE_KEYS = ("feature_dim", "backbone", "channels")
"""flat settings of an image tower that keep their name"""
TEXT_KEYS = (
    "vocabulary", "word_dim", "hidden", "bidirectional", "pooling", "dropout", "encoder", "state_dim", "cnn",
)  # fmt: skip
"""flat settings of a text tower that keep their name"""
RENAMED_KEYS = {"hide": "region_dropout"}
"""flat settings of a score that have another name now"""
FLAT_DEFAULTS: dict[str, dict[str, Any]] = {
    "vse": {"image": "cnn", "pooling": "last"},
    "scan": {"bidirectional": True},
    "bfan": {"bidirectional": True},
    "vsrn": {},
    "a3vse": {"dim": 512, "hidden": 512, "cell": "lstm"},
    "mmca": {"dim": 256, "bidirectional": True},
    "two-branch": {"dim": 512, "text": "vectors"},
    "two-branch-similarity": {"dim": 512, "text": "vectors"},
}
"""defaults of flat settings, by matcher, where they differ from those of the nested settings"""
_STAGED = "a stage: stages.NUMBER.KEY=VALUE"

RENAMED_SETTINGS: Mapping[str, str] = {
    "average": "ema_decay", "text.blank": "text.word_dropout", "image.hide": "image.region_dropout",
    "mmca.hide": "mmca.region_dropout", "optim.parts": "optim.lr_scale", "pseudo.said": "pseudo.sources",
    "pseudo.of": "pseudo.images", "pseudo.most": "pseudo.max_regions", "pseudo.least": "pseudo.min_score",
    "pseudo.label_least": "pseudo.min_label_score", "pseudo.learnt_least": "pseudo.min_word_images",
    "pseudo.found": "pseudo.retrieved", "pseudo.source": "pseudo.region_source", "least": "min_probability",
    "chunks": "chunker_captions", "region.finder": "region.proposer", "members": "matcher, with several names",
    "ensemble_members": "matcher, with several names", "preset": "a preset of its own, such as dual-path-paper",
    "loss": "terms, such as terms=ranking", "margin": "ranking.margin, offline.margin or neighbourhood.margin",
    "top_k": "ranking.top_k or neighbourhood.top_k", "negatives": "ranking.random or offline.negatives",
    "temperature": "infonce.temperature",
    "instance": "instance.weight, with instance among the terms", "classifier.start": "instance.init",
    "classifier.dropout": "instance.dropout", "classifier.scale": "instance.scale",
    "classifier.clusters": "instance.clusters", "classifier.init": "instance.init", "hard.texts": "offline.texts",
    "hard.images": "offline.images", "hard.spread": "offline.spread", "mined.texts": "offline.texts",
    "mined.images": "offline.images", "mined.spread": "offline.spread", "offline_margin": "offline.offline_margin",
    "alpha": "offline.alpha", "online": "offline.online", "derive": "offline.derive", "weigh_by": "offline.weigh_by",
    "squared": "offline.squared", "beta": "offline.beta or pseudo.beta", "pseudo_margin": "pseudo.margin",
    "pseudo_batch": "batch", "adversary.weight": "adversarial.weight", "adversary.intra": "adversarial.intra",
    "adversary.cross": "adversarial.cross", "adversary.trans": "adversarial.trans",
    "adversary.steepness": "adversarial.steepness", "adversary.hidden": "adversarial.hidden",
    "first_epochs": "stages.1.epochs", "fine_tune": "stages.2.on_start=mine", "first.epochs": "stages.1.epochs",
    "second.epochs": "stages.2.epochs", "first.lr": "stages.1.lr", "second.lr": "stages.2.lr",
    "first.weights": "stages.1.instance.weights", "second.weights": "stages.2.instance.weights",
    "offline.epochs": _STAGED, "offline.mined.texts": "offline.texts", "offline.mined.images": "offline.images",
    "offline.lr": _STAGED, "offline.batch": _STAGED, "constraint_epochs": _STAGED,
    "constraint_weights": "neighbourhood.weights", "constraint_lr": _STAGED, "weights": "neighbourhood.weights",
    "extra": "extra_pairs", "head": "vse.head", "hidden": "two-branch.hidden or two-branch-similarity.hidden",
    "layers": "two-branch.layers or two-branch-similarity.layers", "text_layers": "two-branch.layers",
    "dropout": "two-branch.dropout or two-branch-similarity.dropout", "statistics": "two-branch.statistics",
    "heads": "two-branch-similarity.heads", "network": "matcher", "teacher": "distillation.teacher",
    "teacher_temperature": "distillation.teacher_temperature", "follow": "distillation.weight",
    "distillation_weight": "distillation.weight", "pairs": "infonce.weight", "infonce_weight": "infonce.weight",
    "model": "pretrained.model", "max_pieces": "text.max_words", "word_dropout": "text.word_dropout",
    "a3vse.cell": "text.network", "vsrn.caption_weight": "caption.weight, with caption among the terms",
    "vsrn.decoder_dim": "caption.hidden", "text.words": "text.vectors", "text.source": "text.network",
    "text.vectors.kind": "text.fitted.kind", "text.vectors.centres": "text.fitted.centres",
    "text.vectors.pca": "text.fitted.pca", "text.vectors.tfidf_words": "text.fitted.tfidf_words",
    "text.vectors.seed": "seed", "text.fitted.seed": "seed",
}  # fmt: skip

_STAGE_PREFIXES: Mapping[str, str] = {"first.": "stages.1.", "second.": "stages.2."}
"""groups of settings that were the two stages of dual-path"""


def nested_settings(matcher: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert flat settings to those of ``ImageArchitecture``, ``TextArchitecture`` and of the score.

    Settings of matchers without towers stay as they are.
    """
    if matcher not in FLAT_DEFAULTS:
        return dict(settings)
    flat = {**FLAT_DEFAULTS[matcher], **settings}
    image: dict[str, Any] = {"kind": flat.pop("image", "features")}
    text: dict[str, Any] = {"kind": flat.pop("text", "gru")}
    own: dict[str, Any] = {}
    if matcher.startswith("two-branch"):
        # The names hidden and dropout belong to the branches. The GRU's state has the input size of its branch.
        own = {key: flat.pop(key) for key in ("hidden", "dropout") if key in flat}
        image["feature_dim"] = flat.pop("image_dim")
        text["hidden" if text["kind"] == "gru" else "state_dim"] = flat.pop("text_dim")
    if matcher == "vsrn":
        text["pooling"] = "last" if text["kind"] == "gru" else "mean"
    cell = flat.pop("cell", "gru")
    text["kind"] = cell if text["kind"] == "gru" else text["kind"]
    image |= {key: flat.pop(key) for key in IMAGE_KEYS if key in flat}
    text |= {key: flat.pop(key) for key in TEXT_KEYS if key in flat}
    return {"image": image, "text": text, **own, **{RENAMED_KEYS.get(key, key): flat[key] for key in flat}}


def present_key(key: str) -> str:
    """Return the present key of a renamed setting; empty where the key was not renamed."""
    if key in RENAMED_SETTINGS:
        return RENAMED_SETTINGS[key]
    for old, new in _STAGE_PREFIXES.items():
        if key.startswith(old):
            rest = key.removeprefix(old)
            return new + RENAMED_SETTINGS.get(rest, rest)
    return ""


def merge_settings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested settings; the values of ``above`` win."""
    nested = {
        k: merge_settings(below[k], v)
        for k, v in above.items()
        if isinstance(v, dict) and isinstance(below.get(k), dict)
    }
    return {**below, **above, **nested}


def changed_settings(before: object, now: object) -> str:
    """Name the settings that differ, with both values, for a message."""
    if isinstance(before, dict) and isinstance(now, dict):
        old, new = _flatten_settings(before), _flatten_settings(json.loads(json.dumps(now)))
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        return ", ".join(f"{key} was {old.get(key)!r}, now {new.get(key)!r}" for key in keys)
    return f"{before!r}, now {now!r}"


def _flatten_settings(settings: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted keys, such as ``text.hidden``."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flatten_settings(value, f"{inside}{key}.") if isinstance(value, dict) else {f"{inside}{key}": value}
    return found
