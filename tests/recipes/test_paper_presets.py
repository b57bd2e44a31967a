"""Presets of papers train: in miniature on scenes, and with their true sizes they are the networks of the papers."""

from __future__ import annotations

import shutil
import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from calligram.data.collection import Collection
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.evaluation.retrieval import chance_retrieval
from calligram.features.regions.extract import ExtractionTask, add_regions
from calligram.features.regions.proposers import load_proposer
from calligram.models.catalog import MATCHERS
from calligram.models.layers.text_cnn import TextBlock, TextCNNSettings
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.scenes.generate import (
    SceneJob,
    build_draft,
    cast_of_image,
    generate_images,
    sample_collection_cast,
    split_by_block,
)  # fmt: skip
from calligram.training.runs import Run

IMAGES, CAPTIONS, SIZE, REGIONS, FEATURES = 200, 2, 64, 5, 32

STORED = ("image.features=regions", "image.views=one")
WORDS = ("text.word_dim=48", "text.hidden=192", "text.min_count=1", "dim=192", "batch=32")
TFIDF = "text.fitted.kind=tfidf"
TEXT_CNN = ("text.cnn.blocks=1", "text.cnn.width=16", "text.cnn.length=16", "dim=64")
ROUND = (*STORED, *WORDS, "epochs=3", "optim.step_epochs=2")
MINIATURE = {
    "two-branch-paper": (*STORED, TFIDF, "batch=64", "two-branch.hidden=128", "dim=64", "epochs=6"),
    "two-branch-similarity-paper": (
        *STORED, TFIDF, "batch=64", "two-branch-similarity.hidden=64", "dim=32", "epochs=40",
        "optim.step_epochs=40",
    ),
    "two-branch-release": (*STORED, TFIDF, "batch=32", "two-branch.hidden=128", "dim=64", "epochs=20"),
    "dual-path-paper": (*STORED, *TEXT_CNN, "stages.1.epochs=32", "stages.2.epochs=6"),
    "dual-path-release": (*STORED, *TEXT_CNN, "stages.1.epochs=24", "stages.2.epochs=6", "text.cnn.shifts=1"),
    "scan-release": ROUND,
    "a3vse-paper": (
        *STORED, *WORDS, "dim=64", "text.hidden=64", "epochs=8", "sparse.images=0.5", "a3vse.context=64",
        "pseudo.region_source=truth",
    ),
    "mmca-paper": (
        *STORED, *WORDS, "dim=64", "text.hidden=64", "mmca.heads=8", "batch=8", "epochs=2", "dev_depth=10",
    ),
}  # fmt: skip
"""settings of small networks and short schedules; the optimizer, its rate, the losses and the margins stay"""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Scenes with features of their things, as a detector would give them: class, colour and place, with noise."""
    folder = tmp_path_factory.mktemp("scenes")
    cast = sample_collection_cast("scenes", 0, IMAGES)
    jobs = [SceneJob("scenes", 0, i, cast_of_image("scenes", i, cast), SIZE, CAPTIONS) for i in range(IMAGES)]
    (folder / "tars").mkdir()
    draft = build_draft(
        generate_images(jobs, 1), folder / "tars", jobs, split_by_block("scenes", IMAGES, (0.8, 0.2, 0))
    )
    rows = {image.id: row for row, image in enumerate(draft.images)}
    values, used = np.zeros((IMAGES, REGIONS, FEATURES), np.float32), np.zeros(IMAGES, int)
    for region in draft.regions:
        row = rows[region.image]
        if used[row] < REGIONS:
            values[row, used[row]] = look_of(region.label) + look_of(region.attribute)
            used[row] += 1
    values += 0.1 * np.random.default_rng(0).normal(size=values.shape) * (values != 0)
    np.save(folder / "regions.npy", values)
    draft.features["regions"] = [folder / "regions.npy"]
    for row, image in enumerate(draft.images):
        image.feature_rows["regions"] = row
    return write_draft(draft, folder / "collection")


def look_of(word):
    """A random vector for each word."""
    return np.random.default_rng(zlib.crc32(str(word).encode())).normal(size=FEATURES) if word else 0.0


def train(preset, collection, out, *changes):
    chosen = PRESETS[preset]
    settings = resolve(chosen.defaults, changes)

    def plan(*arguments):
        made = chosen.recipe.plan(*arguments)
        return made._replace(loop=replace(made.loop, log_steps=1))

    best = run_preset(chosen, settings, collection, out, context=RunContext(torch.device("cpu")), plan=plan)
    losses = {}
    for row in Run.open(out).metrics():
        if "loss" in row:
            losses.setdefault(row["stage"], []).append(row["loss"])
    return best, losses


def check(collection, best, losses):
    for stage, values in losses.items():
        quarter = len(values) // 4
        assert np.mean(values[-quarter:]) < np.mean(values[:quarter]), (stage, values)
    assert best["rsum"] > 1.1 * chance_retrieval(collection.sentences("dev").matches).rsum


@pytest.mark.parametrize("preset", MINIATURE)
def test_a_preset_of_a_paper_trains(scenes, tmp_path, preset):
    best, losses = train(preset, scenes, tmp_path / "run", *MINIATURE[preset])
    check(scenes, best, losses)
    if preset == "two-branch-similarity-paper":
        # It leaves the loss of a constant score: twice the logarithm of 2, because the weight of the term is 2.
        (values,) = losses.values()
        assert values[0] == pytest.approx(2 * np.log(2), rel=0.01)
        assert np.mean(values[-len(values) // 4 :]) < 0.9 * 2 * np.log(2)


PHRASES = {
    "two-branch-phrases-paper": ("two-branch.hidden=128", "dim=64", "epochs=2"),
    "two-branch-phrases-similarity-paper": ("epochs=5",),
}
"""the similarity network with its true size: a small one takes longer to leave the loss of a constant score"""


@pytest.fixture(scope="module")
def localized(scenes, tmp_path_factory):
    """A copy of the scenes with proposals for dev, and denser ones for training."""
    found = Collection.open(shutil.copytree(scenes.folder, tmp_path_factory.mktemp("localized") / "collection"))
    for method, boxes, split in (("edgeboxes", 10, "all"), ("edgeboxes-dense", 40, "train")):
        found = add_regions(found, ExtractionTask(load_proposer(method, boxes), method, boxes, None), split).collection
    return found


@pytest.mark.parametrize("preset", PHRASES)
def test_a_preset_of_a_paper_localizes_phrases(localized, tmp_path, preset):
    changes = (TFIDF, "region.size=64", "region.bins=6", "chunker_captions=0", *PHRASES[preset])
    _, losses = train(preset, localized, tmp_path / "run", *changes)
    values = next(iter(losses.values()))
    quarter = len(values) // 4
    assert np.mean(values[-quarter:]) < 0.95 * np.mean(values[:quarter]), values
    plan = PRESETS[preset].recipe.plan(resolve(PRESETS[preset].defaults, changes), localized, RunContext())
    pairs = plan.stages[0].batches.pairs
    proposals = len(pairs.chain_of_region) - len(pairs.positives)
    assert proposals > 15 * len(localized.images_in("train"))  # dense ones; the others are at most 10 of an image


def test_the_weight_of_a_term_of_phrases_counts(localized):
    """The sum of Eq. 7 is its mean times the pairs (two-branch), so that weight decay does not outweigh it."""
    settings = (TFIDF, "region.size=64", "region.bins=6", "chunker_captions=0", "dim=16")
    for preset, term in (("two-branch-phrases-paper", "neighbourhood"), ("two-branch-phrases", "neighbourhood"),
                         ("two-branch-phrases-similarity-paper", "logistic")):  # fmt: skip
        chosen, terms = PRESETS[preset], []
        for weight in (1, 3):
            changed = resolve(chosen.defaults, (*settings, f"{term}.weight={weight}"))
            stage = chosen.recipe.plan(changed, localized, RunContext()).stages[-1]
            matcher = chosen.recipe.plan(changed, localized, RunContext()).matcher
            torch.manual_seed(0)
            for weights in matcher.parameters():
                torch.nn.init.normal_(weights, std=0.1)
            terms.append(stage.objective(matcher, next(iter(stage.batches.epoch(0)))))
        for name in terms[0]:
            assert terms[1][name].item() == pytest.approx(3 * terms[0][name].item(), rel=1e-4)
        with pytest.raises(UserError, match=f"{term}.weight is 0, so nothing is trained"):
            chosen.recipe.plan(resolve(chosen.defaults, (*settings, f"{term}.weight=0")), localized, RunContext())


def test_aoq_trains_and_mines_for_scan_and_bfan(scenes, tmp_path):
    check(scenes, *train("aoq-paper", scenes, tmp_path / "teacher", *ROUND, "caption.hidden=32"))
    for preset in ("aoq-scan-paper", "aoq-bfan-paper"):
        mined = f"offline.negatives={tmp_path / 'teacher'}"
        check(scenes, *train(preset, scenes, tmp_path / preset, *ROUND, mined))


BACKBONE_SIZE, DETECTOR_SIZE, FISHER_SIZE, BERT_SIZE, WORDS_OF_FLICKR30K, DICTIONARY = (
    4096,
    2048,
    6000,
    768,
    8481,
    20074,
)


def fc(*sizes):
    """Number of weights and biases of fully connected layers."""
    return sum(before * after + after for before, after in pairwise(sizes))


def recurrent(gates, inputs, state, directions=1):
    """Number of weights of a GRU (three gates) or an LSTM (four), with two biases per gate."""
    return directions * gates * (state * (inputs + state) + 2 * state)


BRANCHES = fc(BACKBONE_SIZE, 2048, 512) + fc(FISHER_SIZE, 2048, 512) + 2 * 2 * 512
PHRASE_BRANCHES = fc(BACKBONE_SIZE, 1024, 512) + fc(FISHER_SIZE, 1024, 512) + 2 * 2 * 512
WORD_TABLE = 300 * WORDS_OF_FLICKR30K
SCAN_SIZE = fc(DETECTOR_SIZE, 1024) + WORD_TABLE + recurrent(3, 300, 1024, 2)
VSRN_SIZE = (
    fc(2048, 2048) + 4 * (4 * fc(2048, 2048) + 2 * 2048) + recurrent(3, 2048, 2048) + 2 * 2048
    + WORD_TABLE + recurrent(3, 300, 2048)
)  # fmt: skip
# Two attention modules of three heads, P and Q of 512 x 512 each.
A3VSE_SIZE = fc(DETECTOR_SIZE, 512) + WORD_TABLE + recurrent(4, 300, 512) + 2 * 2 * 3 * 512 * 512
SIZES = {
    "two-branch-paper": BRANCHES,
    "two-branch-release": BRANCHES,
    "two-branch-similarity-paper": BRANCHES + fc(512, 512, 256, 1),
    "two-branch-phrases-paper": PHRASE_BRANCHES,
    "two-branch-phrases-similarity-paper": PHRASE_BRANCHES + fc(512, 512, 256, 1),
    "aoq-paper": VSRN_SIZE,
    "aoq-release": VSRN_SIZE,
    "aoq-scan-paper": SCAN_SIZE,
    "aoq-bfan-paper": SCAN_SIZE,
    "scan-release": SCAN_SIZE,
    "a3vse-paper": A3VSE_SIZE,
}
"""number of parameters, added up from the sizes that the papers and releases give"""


def built(preset, *changes):
    """The matcher of a preset with the input sizes of its paper, without memory for its weights."""
    settings = resolve(PRESETS[preset].defaults, changes)
    own, text = settings.matcher[0], settings.text
    words = TextArchitecture(
        text.network, WORDS_OF_FLICKR30K, text.word_dim, text.hidden, text.bidirectional, text.pooling, text.dropout
    )
    if preset.startswith("two-branch"):
        image, words = BACKBONE_SIZE, TextArchitecture("vectors", state_dim=settings.text.fitted.pca)
    elif preset.startswith("dual-path"):
        cnn = TextCNNSettings(DICTIONARY, text.word_dim, dropout=text.dropout, **vars(text.cnn))
        image, words = DETECTOR_SIZE, replace(words, kind="cnn", vocabulary=DICTIONARY, cnn=cnn.description)
    elif preset.startswith("mmca"):
        image, words = DETECTOR_SIZE, TextArchitecture("states", state_dim=BERT_SIZE)
    else:
        image = DETECTOR_SIZE
    with torch.device("meta"):
        entry = MATCHERS[MATCHERS.name_of_settings(type(own))]
        return entry.matcher(own.with_towers(ImageArchitecture("features", image), words, settings.dim))


@pytest.mark.parametrize("preset", SIZES)
def test_a_network_has_the_size_of_its_paper(preset):
    assert sum(weights.numel() for weights in built(preset).parameters()) == SIZES[preset]


def test_the_text_cnn_of_dual_path_is_a_resnet_50_with_2048_outputs():
    for preset in ("dual-path-paper", "dual-path-release"):
        matcher = built(preset)
        assert matcher.vector_size == 2048
        assert sum(isinstance(module, TextBlock) for module in matcher.modules()) == 3 + 4 + 6 + 3
        assert matcher.text.words.weight.shape == (DICTIONARY, 300)


def test_mmca_has_256_dimensions_16_heads_and_256_filters_of_three_sizes():
    matcher = built("mmca-paper")
    assert matcher.vector_size == 256
    shapes = [tuple(weights.shape) for weights in matcher.parameters()]
    assert (256, 2048) in shapes
    assert (256, 768) in shapes
    assert {name for name, _ in matcher.named_children()} >= {"image", "text"}
    assert matcher.settings.heads == 16


@pytest.mark.parametrize(("preset", "hidden"), [("two-branch-paper", 2048), ("two-branch-phrases-paper", 1024)])
def test_linear_branches_keep_the_first_layers_and_their_sizes(preset, hidden):
    matcher = built(preset, "two-branch.layers=1")
    assert [tuple(layer.weight.shape) for layer in matcher.image_branch.layers] == [(hidden, BACKBONE_SIZE)]
    assert [tuple(layer.weight.shape) for layer in matcher.text_branch.layers] == [(hidden, FISHER_SIZE)]
    assert matcher.vector_size == hidden


def test_every_preset_of_a_paper_is_trained_or_built_here():
    named = {*MINIATURE, *SIZES, "aoq-paper", "aoq-scan-paper", "aoq-bfan-paper"}
    assert {name for name in PRESETS if name.endswith(("-paper", "-release"))} == named
