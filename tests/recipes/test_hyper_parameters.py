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
    "aoq-paper": {
        "matcher": ("vsrn",), "terms": ("ranking", "offline", "caption"), "offline.texts": 300, "offline.images": 60,
        "offline.loss": "adaptive", "offline.margin": 0.2, "offline.offline_margin": 0.0, "offline.alpha": 0.3,
        "offline.beta": 1.5, "offline.weight": 1.0, "ranking.margin": 0.2, "ranking.top_k": 1, "ranking.weight": 1.0,
        "batch": 128, "texts": 1, "epoch_of": "pairs", "epochs": 20, "warmup_epochs": 0, "lr": 2e-4, "dim": 2048,
        "ema_decay": 0.0, "text.network": "gru", "text.word_dim": 300, "text.hidden": 2048, "text.pooling": "last",
        "text.bidirectional": False, "text.min_count": 4, "text.max_words": 60, "text.dropout": 0.0,
        "text.word_dropout": 0.0, "vsrn.layers": 4, "vsrn.norm": "regions", "vsrn.norm_before": False,
        "vsrn.batch_norm": True, "vsrn.reader": "gru", "caption.weight": 1 / 128, "caption.hidden": 512,
        "optim.optimizer": "adam", "optim.weight_decay": 0.0, "optim.schedule": "step", "optim.step_epochs": 10,
        "optim.warmup": 0.0, "optim.clip": 2 / 128, "stages.1.without": ("offline",), "stages.2.without": ("ranking",),
        "stages.2.on_start": ("mine", "restart"), "stages.2.resets_best": True,
    },
    "aoq-release": {
        "batch": 124, "epochs": 20, "lr": 2e-4, "caption.weight": 0.008065, "optim.clip": 0.01613, "offline.texts": 300,
    },
    "aoq-scan-paper": {
        "matcher": ("scan",), "terms": ("offline",), "offline.texts": 300, "offline.images": 60, "offline.margin": 0.2,
        "offline.offline_margin": 0.0, "offline.alpha": 0.3, "offline.beta": 1.5, "epochs": 15, "lr": 5e-4,
        "optim.step_epochs": 10, "batch": 128, "warmup_epochs": 0, "dim": 1024, "text.hidden": 1024,
    },
    "aoq-bfan-paper": {
        "matcher": ("bfan",), "terms": ("offline",), "bfan.focal": "equal", "bfan.temperature": 20.0, "epochs": 15,
        "lr": 5e-4, "optim.step_epochs": 10, "offline.texts": 300, "offline.images": 60, "batch": 128, "dim": 1024,
    },
    "scan-release": {
        "scan.direction": "t2i", "scan.temperature": 9.0, "scan.sharpness": 6.0, "scan.aggregation": "lse",
        "scan.norm": "clipped_l2norm", "terms": ("ranking",), "ranking.top_k": 1, "ranking.margin": 0.2, "epochs": 30,
        "lr": 2e-4, "batch": 128, "texts": 1, "epoch_of": "pairs", "warmup_epochs": 0, "ema_decay": 0.0, "dim": 1024,
        "text.hidden": 1024, "text.word_dim": 300, "text.bidirectional": True, "text.min_count": 4,
        "text.dropout": 0.0, "text.word_dropout": 0.0, "optim.optimizer": "adam", "optim.weight_decay": 0.0,
        "optim.schedule": "step", "optim.step_epochs": 15, "optim.warmup": 0.0, "optim.clip": 2 / 128,
    },
    # Sec. 4.3 of a3vse.
    "a3vse": {
        "pseudo.beta": 0.8, "pseudo.margin": 0.3, "adversarial.intra": (0.2, 0.1), "adversarial.cross": (0.5, 0.5),
        "adversarial.trans": (0.3, 0.3), "adversarial.steepness": 10.0, "a3vse.heads": 3, "a3vse.context": 512,
    },
    "a3vse-paper": {
        "terms": ("ranking", "adversarial"), "ranking.top_k": 1, "ranking.margin": 0.2, "epochs": 24, "batch": 128,
        "dim": 512, "text.hidden": 512, "text.word_dim": 300, "optim.weight_decay": 1e-6, "pseudo.max_regions": 36,
        "pseudo.min_label_score": 0.3, "pseudo.min_score": 0.0, "pseudo.sources": ("regions",), "pseudo.repeats": True,
        "pseudo.attributes": "all", "pseudo.beta": 0.8, "pseudo.margin": 0.3, "text.network": "lstm",
        "text.bidirectional": False, "text.min_count": 4, "text.max_words": 82, "text.dropout": 0.0,
        "text.word_dropout": 0.0, "lr": 5e-4, "warmup_epochs": 0, "ema_decay": 0.0, "optim.optimizer": "adam",
        "optim.schedule": "step", "optim.step_epochs": 16, "optim.warmup": 0.0, "optim.clip": 2.0,
        "adversarial.intra": (0.2, 0.1), "adversarial.cross": (0.5, 0.5), "adversarial.trans": (0.3, 0.3),
        "adversarial.steepness": 10.0, "adversarial.weight": 1.0, "a3vse.heads": 3, "a3vse.context": 512,
    },
    # Sec. 4.2 of mmca.
    "mmca": {"mmca.heads": 16, "mmca.filters": 256, "mmca.alpha": 0.2, "dim": 256},
    "mmca-paper": {
        "terms": ("ranking",), "ranking.top_k": 1, "batch": 64, "lr": 2e-4, "optim.optimizer": "adam",
        "optim.step_epochs": 10, "optim.schedule": "step", "epochs": 20, "ranking.margin": 0.2, "dim": 256,
        "mmca.heads": 16, "mmca.filters": 256, "mmca.alpha": 0.2, "mmca.region_dropout": 0.0, "warmup_epochs": 0,
        "ema_decay": 0.0, "optim.weight_decay": 0.0, "optim.warmup": 0.0, "optim.clip": None, "text.dropout": 0.0,
        "text.word_dropout": 0.0, "text.train": False,
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
        "optim.step_epochs": 10, "text.fitted.pca": 6000, "text.fitted.kind": "hglmm", "text.fitted.centres": 30,
        "neighbourhood.margin": 0.1, "neighbourhood.top_k": 50, "batch": 1500, "texts": 1, "extra_pairs": "neighbours",
        "epoch_of": "pairs", "two-branch.hidden": 2048, "two-branch.layers": 2, "two-branch.dropout": 0.5,
        "two-branch.statistics": "batch", "dim": 512, "image.views": "ten", "ema_decay": 0.0, "optim.warmup": 0.0,
        "optim.clip": None, "warmup_epochs": 0,
    },
    "two-branch-similarity-paper": {
        "two-branch-similarity.heads": 3, "two-branch-similarity.hidden": 2048, "two-branch-similarity.dropout": 0.5,
        "two-branch-similarity.statistics": "batch", "terms": ("logistic",), "logistic.weight": 2.0, "batch": 1500,
        "dim": 512, "extra_pairs": "none", "lr": 0.1, "optim.optimizer": "sgd", "optim.step_epochs": 10,
        "optim.weight_decay": 5e-4, "image.views": "ten", "text.fitted.pca": 6000,
    },
    "two-branch-release": {
        "neighbourhood.weights": (1.0, 1.5, 0.0, 0.05), "neighbourhood.margin": 0.05, "neighbourhood.top_k": 10,
        "batch": 500, "extra_pairs": "neighbours", "texts": 1, "epochs": 20, "lr": 1e-4, "optim.optimizer": "adam",
        "optim.schedule": "constant", "two-branch.statistics": "training", "two-branch.dropout": 0.5,
        "text.fitted.pca": 6000,
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
    "two-branch-phrases-paper": {
        "stages.2.neighbourhood.weights": (1.0, 4.0, 0.1, 0.1), "stages.2.epochs": 1, "stages.2.resets_best": True,
        "neighbourhood.weights": (1.0, 4.0, 0.0, 0.0), "neighbourhood.margin": 0.1, "neighbourhood.top_k": 30,
        "epochs": 8, "set_size": 100, "sets": None, "positives": "augmented", "extra_pairs": "neighbours",
        "match": 0.7, "background": 0.3, "region_negatives": None, "region.geometry": 0.0, "lr": 1e-3, "dim": 512,
        "two-branch.hidden": 1024, "two-branch.dropout": 0.0, "ema_decay": 0.0, "optim.optimizer": "adam",
        "optim.weight_decay": 0.005, "optim.schedule": "constant", "optim.warmup": 0.0, "optim.clip": None,
        "text.fitted.kind": "hglmm", "text.fitted.centres": 30, "text.fitted.pca": 6000,
        "region.proposals": "edgeboxes", "region.training": "edgeboxes-dense",
    },
    "two-branch-phrases-similarity-paper": {
        "matcher": ("two-branch-similarity",), "terms": ("logistic",), "logistic.weight": 2138.0,
        "two-branch-similarity.hidden": 1024, "two-branch-similarity.layers": 2, "two-branch-similarity.heads": 3,
        "two-branch-similarity.dropout": 0.0, "stages.1.name": "logistic", "epochs": 8, "set_size": 100, "sets": None,
        "positives": "augmented", "match": 0.7, "background": 0.3, "region.geometry": 0.0, "lr": 1e-3, "dim": 512,
        "region.training": "edgeboxes-dense", "ema_decay": 0.0, "optim.optimizer": "adam",
        "optim.weight_decay": 0.005, "optim.schedule": "constant", "optim.warmup": 0.0, "optim.clip": None,
        "text.fitted.kind": "hglmm", "text.fitted.centres": 30, "text.fitted.pca": 6000,
    },
    # Eq. 8 of two-branch.
    "combined": {"alpha": 0.2},
    # Secs. V and VI-B of dual-path.
    "dual-path": {
        "ranking.margin": 1.0, "ranking.weight": 1.0, "instance.weights": (1.0, 1.0), "stages.1.without": ("ranking",),
        "text.cnn.blocks": (3, 4, 6, 3),
    },
    "dual-path-paper": {
        "batch": 32, "dim": 2048, "ranking.margin": 1.0, "instance.dropout": 0.75, "lr": 0.001,
        "optim.optimizer": "sgd", "text.cnn.pooling": "mean", "stages.1.without": ("ranking",), "epoch_of": "images",
        "texts": 1, "optim.momentum": 0.9, "optim.nesterov": False, "optim.schedule": "constant", "optim.clip": None,
        "optim.warmup": 0.0, "ema_decay": 0.0, "vse.head": "paper", "instance.scale": 0.0, "instance.init": "random",
        "instance.clusters": 0, "instance.weights": (1.0, 1.0), "ranking.weight": 1.0,
        "image.flip": True, "image.views": "flip", "image.crop": 0.766, "image.jitter": 0.0, "text.network": "cnn",
        "text.word_dim": 300, "text.dropout": 0.0, "text.word_dropout": 0.0, "text.cnn.length": 32,
        "text.cnn.align": "shift", "text.cnn.shifts": 1, "text.cnn.blocks": (3, 4, 6, 3), "text.cnn.width": 64,
        "stages.1.epochs": 240, "stages.2.epochs": 60, "stages.2.image.train": True,
    },
    "dual-path-release": {
        "vse.head": "release", "lr": 0.1, "batch": 32, "epoch_of": "images", "text.cnn.pooling": "max",
        "text.cnn.shifts": 0, "optim.optimizer": "sgd", "optim.nesterov": True, "optim.weight_decay": 1e-4,
        "optim.lr_scale": ("text.words:0.001", "image:0.001"), "instance.dropout": 0.75, "ranking.margin": 1.0,
        "stages.1.epochs": 240, "stages.2.epochs": 60, "stages.2.ranking.weight": 2.0,
        "stages.2.instance.weights": (1.0, 0.1), "stages.2.optim.schedule": "step", "stages.2.optim.step_epochs": 40,
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


def test_the_similarity_network_for_phrases_has_one_stage():
    assert len(PRESETS["two-branch-phrases-similarity-paper"].defaults.stages) == 1


def test_mmca_has_the_rates_of_scan_at_the_size_of_its_paper():
    found, scan = PRESETS["mmca"].defaults, PRESETS["scan"].defaults
    assert (found.lr, found.batch, found.epochs, found.ema_decay) == (scan.lr, scan.batch, scan.epochs, scan.ema_decay)
    assert (found.dim, found.dim % found.matcher[0].heads) == (256, 0)


def test_the_table_has_every_preset_of_a_paper():
    assert {name for name in PRESETS if name.endswith(("-paper", "-release"))} <= set(PAPERS)
