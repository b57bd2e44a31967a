"""Presets hold the hyper-parameters of the papers, and each of them reaches the loss it belongs to."""

from __future__ import annotations

import pytest

from calligram.models.two_branch import TwoBranchSimilaritySettings
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import settings_fields

PAPERS = {
    # Secs. 3.2, 3.3 and 4.2 of aoq.
    "aoq": {
        "offline.loss": "adaptive", "offline.margin": 0.2, "offline.offline_margin": 0.0, "offline.alpha": 0.3,
        "offline.beta": 1.5, "offline.spread": "uniform", "offline.squared": False, "offline.derive": "offline",
        "offline.weigh_by": "offline", "ranking.margin": 0.2, "ranking.top_k": 1, "offline.share": 0.002,
        "stages.2.on_start": ("mine", "restart"),
    },
    "aoq-paper": {"offline.texts": 300, "offline.images": 60, "batch": 128, "optim.optimizer": "adam"},
    # Sec. 4.3 of a3vse.
    "a3vse": {
        "pseudo.beta": 0.8, "pseudo.margin": 0.3, "adversarial.intra": (0.2, 0.1), "adversarial.cross": (0.5, 0.5),
        "adversarial.trans": (0.3, 0.3), "adversarial.steepness": 10.0, "a3vse.heads": 3, "a3vse.context": 512,
    },
    "a3vse-paper": {
        "terms": ("ranking", "adversarial"), "ranking.top_k": 1, "ranking.margin": 0.2, "epochs": 24, "batch": 128,
        "dim": 512, "text.hidden": 512, "text.word_dim": 300, "optim.weight_decay": 1e-6, "pseudo.max_regions": 36,
        "pseudo.min_label_score": 0.3,
    },
    # Sec. 4.2 of mmca.
    "best": {"mmca.heads": 16, "mmca.filters": 256, "mmca.alpha": 0.2},
    "mmca": {"mmca.heads": 16, "mmca.filters": 256, "mmca.alpha": 0.2, "dim": 256},
    "mmca-paper": {
        "terms": ("ranking",), "ranking.top_k": 1, "batch": 64, "lr": 2e-4, "optim.optimizer": "adam",
        "optim.step_epochs": 10, "optim.schedule": "step",
    },
    # Sec. 5 of two-branch, for sentences.
    "two-branch": {
        "neighbourhood.weights": (1.0, 2.0, 0.0, 0.0), "neighbourhood.margin": 0.1, "neighbourhood.top_k": 50,
        "two-branch.hidden": 2048, "dim": 512, "two-branch.dropout": 0.5, "batch": 500, "two-branch.layers": 2,
        "extra_pairs": "neighbours",
    },
    "two-branch-paper": {
        "neighbourhood.weights": (1.0, 2.0, 0.0, 0.2), "optim.optimizer": "sgd", "optim.momentum": 0.9,
        "optim.nesterov": False, "lr": 0.1, "optim.weight_decay": 5e-4, "optim.schedule": "step",
        "optim.step_epochs": 10, "text.fitted.pca": 6000,
    },
    "two-branch-similarity": {
        "two-branch-similarity.heads": 3, "two-branch-similarity.layers": 2, "two-branch-similarity.dropout": 0.5,
        "terms": ("logistic",),
    },
    # Secs. 4.2 and 4.3 of two-branch, for phrases.
    "two-branch-phrases": {
        "neighbourhood.weights": (1.0, 4.0, 0.0, 0.0), "neighbourhood.margin": 0.1, "neighbourhood.top_k": 30,
        "match": 0.7, "background": 0.3, "set_size": 100, "two-branch.hidden": 1024, "dim": 512,
        "two-branch.dropout": 0.0,
    },
    "two-branch-phrases-paper": {"stages.2.neighbourhood.weights": (1.0, 4.0, 0.1, 0.1), "stages.2.epochs": 1},
    # Eq. 8 of two-branch.
    "combined": {"alpha": 0.2},
    # Secs. V and VI-B of dual-path.
    "dual-path": {
        "ranking.margin": 1.0, "ranking.weight": 1.0, "instance.weights": (1.0, 1.0), "stages.1.without": ("ranking",),
        "text.cnn.blocks": (3, 4, 6, 3),
    },
    "dual-path-paper": {
        "batch": 32, "dim": 2048, "ranking.margin": 1.0, "instance.dropout": 0.75, "lr": 0.001,
        "optim.optimizer": "sgd", "text.cnn.pooling": "mean", "stages.1.without": ("ranking",),
    },
}  # fmt: skip


@pytest.mark.parametrize("preset", PAPERS)
def test_the_settings_of_a_paper_are_those_of_a_preset(preset):
    found = {setting.key: setting.default for setting in settings_fields(PRESETS[preset].defaults)}
    wanted = PAPERS[preset]
    assert {key: found.get(key, "missing") for key in wanted} == wanted


def test_no_stage_of_dual_path_changes_the_rate_or_the_optimizer_of_the_paper():
    found = {setting.key for setting in settings_fields(PRESETS["dual-path-paper"].defaults)}
    assert not {"stages.1.lr", "stages.2.lr", "stages.1.optim.optimizer", "stages.2.optim.optimizer"} & found


def test_the_similarity_network_for_phrases_has_the_layers_of_the_paper():
    assert TwoBranchSimilaritySettings().heads == 3


def test_mmca_has_the_rates_of_scan_at_the_size_of_its_paper():
    found, scan = PRESETS["mmca"].defaults, PRESETS["scan"].defaults
    assert (found.lr, found.batch, found.epochs, found.ema_decay) == (scan.lr, scan.batch, scan.epochs, scan.ema_decay)
    assert (found.dim, found.dim % found.matcher[0].heads) == (256, 0)
