"""Defaults of settings classes are the hyper-parameters of the papers, or of the releases where a comment says so."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Annotated, get_origin, get_type_hints

import pytest

from calligram.models.a3vse import A3VSESettings
from calligram.models.bfan import BFANSettings
from calligram.models.cca import CCASettings
from calligram.models.ensemble import SentencePhraseSettings
from calligram.models.layers.cross_attention import LEAKY_SLOPE
from calligram.models.layers.text_cnn import TextCNNSettings
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture, TwoTowerSettings
from calligram.models.mmca import MMCASettings
from calligram.models.scan import SCANSettings
from calligram.models.two_branch import TwoBranchSettings, TwoBranchSimilaritySettings
from calligram.models.vse import VSESettings
from calligram.models.vsrn import VSRNSettings
from calligram.training.batches.phrase_pairs import NEGATIVE_IOU, POSITIVE_IOU
from calligram.training.batches.phrases import PhraseBatches
from calligram.training.objectives.caption import CaptionObjective
from calligram.training.objectives.objective import RankingObjective
from calligram.training.objectives.offline import OfflineTerms
from calligram.training.objectives.pseudo_pairs import AdversaryTerms, PseudoPairObjective
from calligram.training.objectives.two_branch import NeighbourhoodObjective

DEFAULTS = {
    ImageArchitecture: {"kind": "features", "feature_dim": 2048},
    TextArchitecture: {"kind": "gru", "word_dim": 300, "hidden": 1024, "bidirectional": False, "pooling": "mean"},
    VSESettings: {"dim": 1024, "head": "linear"},
    SCANSettings: {
        "direction": "t2i", "norm": "clipped_l2norm", "temperature": 9.0, "aggregation": "lse", "sharpness": 6.0,
    },
    BFANSettings: {"focal": "equal", "norm": "clipped_l2norm", "temperature": 20.0},
    # "regions" is the axis of the release's l2norm.
    VSRNSettings: {"layers": 4, "norm": "regions", "norm_before": True, "batch_norm": False, "reader": "gru"},
    A3VSESettings: {"heads": 3, "context": 512, "attention": "context", "temperature": None, "merge": "concat"},
    MMCASettings: {"heads": 16, "filters": 256, "alpha": 0.2, "region_dropout": 0.0},
    TwoBranchSettings: {"hidden": 2048, "layers": 2, "text_layers": 0, "dropout": 0.5, "statistics": "training"},
    TwoBranchSimilaritySettings: {"hidden": 2048, "heads": 3},
    SentencePhraseSettings: {"alpha": 0.2},
    CCASettings: {"eta": 1e-4, "text_eta": 1e-4},
    TextCNNSettings: {
        "word_dim": 300, "blocks": (3, 4, 6, 3), "width": 64, "length": 32, "align": "shift", "pooling": "max",
    },
    AdversaryTerms: {"intra": (0.2, 0.1), "cross": (0.5, 0.5), "trans": (0.3, 0.3), "steepness": 10.0},
    OfflineTerms: {
        "kind": "adaptive", "margin": 0.2, "offline_margin": 0.0, "alpha": 0.3, "beta": 1.5, "online": True,
        "derive": "offline", "against": "offline", "squared": False,
    },
}  # fmt: skip

ARGUMENTS = {
    RankingObjective: {"margin": 0.2, "top_k": None},
    NeighbourhoodObjective: {"weights": (1.0, 2.0, 0.0, 0.2), "margin": 0.1, "top_k": 50},
    PseudoPairObjective: {"beta": 0.8},
    CaptionObjective: {"hidden": 512, "word_dim": 300, "dropout": 0.2},
    PhraseBatches: {"size": 100},
}


@pytest.mark.parametrize("settings", DEFAULTS, ids=lambda kind: kind.__name__)
def test_defaults_of_settings_are_those_of_the_papers(settings):
    found = {field.name: field.default for field in fields(settings)}
    assert {name: found[name] for name in DEFAULTS[settings]} == DEFAULTS[settings]


@pytest.mark.parametrize("settings", [kind for kind in DEFAULTS if issubclass(kind, TwoTowerSettings)])
def test_every_setting_of_a_score_has_a_description(settings):
    own = {field.name for field in fields(settings)} - {field.name for field in fields(TwoTowerSettings)}
    own -= {"text_layers"}  # no setting of a run: both branches have as many layers
    hints = get_type_hints(settings, include_extras=True)
    assert own
    assert not [name for name in own if get_origin(hints[name]) is not Annotated]


@pytest.mark.parametrize("objective", ARGUMENTS, ids=lambda kind: kind.__name__)
def test_default_arguments_are_those_of_the_papers(objective):
    found = inspect.signature(objective).parameters
    assert {name: found[name].default for name in ARGUMENTS[objective]} == ARGUMENTS[objective]


def test_constants_are_those_of_the_papers():
    assert (POSITIVE_IOU, NEGATIVE_IOU) == (0.7, 0.3)  # two-branch
    assert LEAKY_SLOPE == 0.1  # the release of scan
