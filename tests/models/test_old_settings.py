"""Descriptions of matchers that older versions saved, with flat settings."""

from __future__ import annotations

import json

import pytest
import torch

from calligram.errors import UserError
from calligram.models import catalog
from calligram.models.a3vse import A3VSESettings
from calligram.models.bfan import BFANSettings
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.mmca import MMCASettings
from calligram.models.scan import SCANSettings
from calligram.models.two_branch import TwoBranchSettings, TwoBranchSimilaritySettings
from calligram.models.vse import VSESettings
from calligram.models.vsrn import VSRNSettings

TOWERS = {
    "vocabulary": 30, "dim": 12, "image": "features", "backbone": "", "feature_dim": 5, "text": "gru", "encoder": "",
    "state_dim": 0, "word_dim": 6, "hidden": 10, "bidirectional": True, "dropout": 0.1,
}  # fmt: skip
BRANCHES = {
    "image_dim": 5, "text_dim": 7, "hidden": 9, "dim": 12, "layers": 2, "text_layers": 1, "dropout": 0.3,
    "statistics": "batch", "image": "features", "backbone": "", "text": "vectors", "encoder": "", "vocabulary": 0,
    "word_dim": 300, "bidirectional": False, "pooling": "mean",
}  # fmt: skip
FEATURES = ImageArchitecture("features", 5)
GRU = TextArchitecture("gru", 30, 6, 10, True, "mean", 0.1)
LAST = TextArchitecture("gru", 30, 6, 10, True, "last", 0.1)
OLD = {
    "vse": (
        {**TOWERS, "channels": [4, 8], "image": "cnn", "head": "paper", "cnn": "", "pooling": "last"},
        VSESettings(ImageArchitecture("cnn", 5, "", (4, 8)), LAST, 12, "paper"),
    ),
    "scan": (
        {**TOWERS, "direction": "i2t", "norm": "l2norm", "temperature": 4.0, "aggregation": "mean", "sharpness": 5.0},
        SCANSettings(FEATURES, GRU, 12, "i2t", "l2norm", 4.0, "mean", 5.0),
    ),
    "bfan": (
        {**TOWERS, "focal": "prob", "norm": "clipped_l2norm", "temperature": 10.0},
        BFANSettings(FEATURES, GRU, 12, "prob", "clipped_l2norm", 10.0),
    ),
    "vsrn": (
        {**TOWERS, "layers": 2, "norm": "features", "norm_before": False, "batch_norm": True, "reader": "mean"},
        VSRNSettings(FEATURES, LAST, 12, 2, "features", False, True, "mean"),
    ),
    "a3vse": (
        {
            **TOWERS, "cell": "lstm", "attention": "context", "heads": 2, "context": 7, "temperature": None,
            "merge": "mean",
        },
        A3VSESettings(
            FEATURES, TextArchitecture("lstm", 30, 6, 10, True, "mean", 0.1), 12, "context", 2, 7, None, "mean"
        ),
    ),
    "mmca": (
        {**TOWERS, "heads": 3, "filters": 4, "alpha": 0.5, "hide": 0.25},
        MMCASettings(FEATURES, GRU, 12, 3, 4, 0.5, 0.25),
    ),
    "two-branch": (
        BRANCHES,
        TwoBranchSettings(FEATURES, TextArchitecture("vectors", state_dim=7), 12, 9, 2, 1, 0.3, "batch"),
    ),
    "two-branch-similarity": (
        {**BRANCHES, "text": "gru", "text_dim": 8, "vocabulary": 30, "heads": 2},
        TwoBranchSimilaritySettings(
            FEATURES, TextArchitecture("gru", vocabulary=30, hidden=8), 12, 9, 2, 1, 0.3, "batch", 2
        ),
    ),
}  # fmt: skip
DEFAULTS = {
    "vse": ({"vocabulary": 30}, VSESettings(ImageArchitecture("cnn"), TextArchitecture(vocabulary=30, pooling="last"))),
    "scan": ({"vocabulary": 30}, SCANSettings(text=TextArchitecture(vocabulary=30, bidirectional=True))),
    "bfan": ({"vocabulary": 30}, BFANSettings(text=TextArchitecture(vocabulary=30, bidirectional=True))),
    "vsrn": ({"vocabulary": 30}, VSRNSettings(text=TextArchitecture(vocabulary=30, pooling="last"))),
    "a3vse": (
        {"vocabulary": 30},
        A3VSESettings(text=TextArchitecture("lstm", vocabulary=30, hidden=512), dim=512),
    ),
    "mmca": ({"vocabulary": 30}, MMCASettings(text=TextArchitecture(vocabulary=30, bidirectional=True), dim=256)),
    "two-branch": (
        {"image_dim": 5, "text_dim": 7},
        TwoBranchSettings(FEATURES, TextArchitecture("vectors", state_dim=7), 512),
    ),
}
"""descriptions without keys that had a default"""


def settings_of(name: str, flat: dict[str, object]) -> object:
    built = json.loads(json.dumps({"matcher": name, "settings": flat}))
    return catalog.build(built).settings


@pytest.mark.parametrize("name", OLD)
def test_flat_settings_build_the_matcher_with_nested_ones(name):
    flat, expected = OLD[name]
    assert settings_of(name, flat) == expected


@pytest.mark.parametrize("name", DEFAULTS)
def test_missing_keys_have_the_defaults_of_that_version(name):
    flat, expected = DEFAULTS[name]
    assert settings_of(name, flat) == expected


def test_a3vse_with_an_encoder_ignores_its_cell_and_vsrn_takes_the_mean():
    states = {**TOWERS, "text": "states", "state_dim": 7}
    assert settings_of("a3vse", {**states, "cell": "gru"}).text.kind == "states"
    assert settings_of("vsrn", states).text.pooling == "mean"


def test_an_old_ensemble_is_built_from_flat_members():
    members = [json.dumps({"matcher": name, "settings": OLD[name][0]}) for name in ("scan", "mmca")]
    found = catalog.build({"matcher": "ensemble", "settings": {"members": members, "backbone": "", "encoder": ""}})
    assert [member.settings for member in found.members] == [OLD[name][1] for name in ("scan", "mmca")]


def test_weights_have_the_names_that_older_versions_saved():
    torch.manual_seed(0)
    names = {name: [*catalog.build({"matcher": name, "settings": OLD[name][0]}).state_dict()] for name in OLD}
    assert names["vse"][0] == "image.stem.0.weight"
    assert {"project.weight", "text.words.weight", "text.gru.weight_hh_l0", "text.project.bias"} <= set(names["scan"])
    assert {"text.lstm.weight_hh_l0_reverse", "image_attention.whole.weight"} <= set(names["a3vse"])
    assert {"text.gru.weight_ih_l0", "image_branch.layers.0.weight", "head.1.bias"} <= {*names["two-branch-similarity"]}
    assert [name.partition(".")[0] for name in names["two-branch"]] == ["image_branch"] * 9 + ["text_branch"] * 2


def test_an_unknown_setting_of_a_tower_is_refused():
    content = {"image": {"kinds": "cnn"}}
    with pytest.raises(UserError, match="unknown setting of matcher vse 'kinds'; did you mean 'kind'"):
        catalog.build({"matcher": "vse", "settings": content})
