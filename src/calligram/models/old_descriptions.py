"""Settings of matchers from descriptions of older versions, which saved towers and score as one flat list."""

from __future__ import annotations

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
