"""Defaults and presets hold the hyper-parameters of the papers, and each of them reaches the loss it belongs to."""

from __future__ import annotations

import pytest

from calligram.recipes.catalog import RECIPES
from calligram.recipes.parts.config import resolve, settings_fields

PAPERS = {
    # Secs. 3.2, 3.3 and 4.2 of aoq.
    ("aoq", ""): {
        "loss": "adaptive", "margin": 0.2, "offline_margin": 0.0, "alpha": 0.3, "beta": 1.5, "mined.texts": 300,
        "mined.images": 60, "mined.spread": "uniform", "squared": False, "derive": "offline", "weigh_by": "offline",
    },
    # Sec. 4.3 of a3vse.
    ("a3vse", ""): {
        "beta": 0.8, "margin": 0.2, "pseudo_margin": 0.3, "adversary.intra": (0.2, 0.1), "adversary.cross": (0.5, 0.5),
        "adversary.trans": (0.3, 0.3), "adversary.steepness": 10.0, "a3vse.heads": 3, "a3vse.context": 512,
    },
    ("a3vse", "preset=paper"): {
        "loss": "ranking", "top_k": 1, "epochs": 24, "batch": 128, "dim": 512, "text.hidden": 512,
        "text.word_dim": 300, "optim.weight_decay": 1e-6, "pseudo.max_regions": 36, "pseudo.min_label_score": 0.3,
    },
    # Sec. 4.2 of mmca.
    ("best", ""): {"mmca.heads": 16, "mmca.filters": 256, "mmca.alpha": 0.2},
    # Sec. 5 of two-branch, for sentences.
    ("two-branch", ""): {
        "weights": (1.0, 2.0), "margin": 0.1, "top_k": 50, "constraint_weights": (0.0, 0.2), "hidden": 2048, "dim": 512,
        "dropout": 0.5, "batch": 500, "layers": 2, "extra": "neighbours",
    },
    ("two-branch-similarity", ""): {"heads": 3, "layers": 2, "dropout": 0.5},
    # Secs. 4.2 and 4.3 of two-branch, for phrases.
    ("two-branch-phrases", ""): {
        "weights": (1.0, 4.0), "margin": 0.1, "top_k": 30, "constraint_weights": (0.1, 0.1), "match": 0.7,
        "background": 0.3, "set_size": 100, "hidden": 1024, "dim": 512, "heads": 3, "dropout": 0.0,
    },
    # Eq. 8 of two-branch.
    ("combined", ""): {"alpha": 0.2},
    # Secs. V and VI-B of dual-path.
    ("dual-path", ""): {
        "margin": 1.0, "first.weights": (0.0, 1.0, 1.0), "second.weights": (1.0, 1.0, 1.0),
        "text.cnn.blocks": (3, 4, 6, 3),
    },
    ("dual-path", "preset=paper"): {
        "batch": 32, "dim": 2048, "margin": 1.0, "classifier.dropout": 0.75, "first.lr": 0.001, "second.lr": 0.001,
        "first.optim.optimizer": "sgd", "second.optim.optimizer": "sgd", "text.cnn.pooling": "mean",
    },
}  # fmt: skip


@pytest.mark.parametrize(("recipe", "preset"), PAPERS)
def test_the_settings_of_a_paper_are_the_defaults_or_a_preset(recipe, preset):
    settings = resolve(RECIPES[recipe].defaults, [preset] if preset else [])
    found = {setting.key: setting.default for setting in settings_fields(settings)}
    wanted = PAPERS[recipe, preset]
    assert {key: found[key] for key in wanted} == wanted
