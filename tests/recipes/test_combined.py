from __future__ import annotations

import numpy as np
import pytest
import torch

from calligram.data.grounding import box_visuals, grounded_phrases, phrase_texts
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.evaluation.recall import load_pairing
from calligram.features.images.backbones import Backbone, BackboneInput
from calligram.features.images.pixels import PixelInput
from calligram.features.joined_input import JoinedImageInput
from calligram.features.regions.extract import ExtractionTask, add_regions
from calligram.features.regions.proposers import load_proposer
from calligram.features.texts.pca import Covariance
from calligram.models.cca import CCA
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.training.runs import load_run

TFIDF = "text.fitted.kind=tfidf"


def run(preset, collection, out, *changes, resume=False):
    settings = resolve(PRESETS[preset].defaults, changes)
    return run_preset(PRESETS[preset], settings, collection, out, resume=resume, context=RunContext())


def with_features(tiny_draft, folder):
    """The tiny collection with features of whole pictures."""
    (folder / "pictures").mkdir()
    draft = tiny_draft(folder / "pictures")
    values = np.random.default_rng(0).normal(scale=0.1, size=(len(draft.images), 8)).astype(np.float32)
    for row, image in enumerate(draft.images):
        values[row, image.metadata["n"]] += 1
        image.feature_rows["colours"] = row
    np.save(folder / "colours.npy", values)
    draft.features["colours"] = [folder / "colours.npy"]
    return write_draft(draft, folder / "collection")


@pytest.fixture(scope="module")
def looked_at(tiny_draft, tmp_path_factory):
    """The same, and windows as proposals."""
    collection = with_features(tiny_draft, tmp_path_factory.mktemp("combined"))
    for split in ("train", "dev", "test"):
        collection = add_regions(
            collection, ExtractionTask(load_proposer("grid", 12), "grid", 12, None), split
        ).collection
    return collection


@pytest.fixture(scope="module")
def members(looked_at, tmp_path_factory):
    folder = tmp_path_factory.mktemp("members")
    small = ("two-branch.hidden=32", "two-branch.dropout=0", "dim=16", "lr=0.01", TFIDF)
    run("two-branch", looked_at, folder / "sentences", *small, "batch=14", "epochs=10", "image.features=colours")
    regions = ("region.proposals=grid", "region.backbone=", "region.size=32", "chunker_captions=0")
    run("two-branch-phrases", looked_at, folder / "phrases", *small, *regions, "epochs=2", "set_size=4")
    return folder


def named(members, **more: object) -> list[str]:
    return [
        f"sentences={members / 'sentences'}",
        f"phrases={members / 'phrases'}",
        *(f"{k}={v}" for k, v in more.items()),
    ]


def test_two_runs_become_one_that_is_self_contained_and_resumes_to_nothing(looked_at, members, tmp_path):
    best = run("combined", looked_at, tmp_path / "run", *named(members))
    assert best["rsum"] > 100
    assert run("combined", looked_at, tmp_path / "run", *named(members), resume=True) == best
    matcher, inputs = load_run(tmp_path / "run")
    assert matcher.scoring.reranks
    texts = matcher.encode_texts(*inputs.texts.texts(["a red disc", "snow falls"]))
    assert texts.parts is not None
    with pytest.raises(UserError, match="stored features 'colours'"):
        inputs.images.images([looked_at.sentences("test").visuals.open(0)])


def test_regions_of_a_new_picture_are_proposed_on_the_fly(looked_at, members):
    from transformers import MobileNetV2Config, MobileNetV2Model

    backbone = Backbone(MobileNetV2Model(MobileNetV2Config(depth_multiplier=0.35, image_size=32))).eval()
    _, phrases = load_run(members / "phrases")
    joined = JoinedImageInput(BackboneInput(backbone, PixelInput(32), "random"), phrases.images, backbone.dim)
    picture = looked_at.sentences("test").visuals.open(0)
    seen = joined.finish(joined.images([picture, picture]))
    assert seen.shape == (2, 1 + 12, max(backbone.dim, phrases.images.dim))
    torch.testing.assert_close(seen[0], seen[1])
    whole = joined.whole.images([picture])[0]
    torch.testing.assert_close(seen[0, 0, : backbone.dim], whole)


def test_a_share_of_zero_is_the_image_sentence_matcher(looked_at, members, tmp_path):
    alone = run("combined", looked_at, tmp_path / "run", *named(members, alpha=0))
    whole = run("combined", looked_at, tmp_path / "other", *named(members, alpha=1))
    assert alone["rsum"] != whole["rsum"]
    matcher, _ = load_run(members / "sentences")
    _, inputs = load_run(tmp_path / "run")
    dev = load_pairing(inputs, looked_at.sentences("dev"))
    rows = np.arange(3)
    seen = inputs.images.finish(dev.images.take(rows))
    own = looked_at.features["colours"].take(looked_at.sentences("dev").visuals.rows[rows])
    torch.testing.assert_close(seen[:, 0, :8], torch.from_numpy(own))
    assert matcher.image_dim == 8


def test_region_and_phrase_features_follow_those_of_their_image_and_text(looked_at, members, tmp_path):
    run("combined", looked_at, tmp_path / "run", *named(members))
    _, inputs = load_run(tmp_path / "run")
    _, phrases = load_run(members / "phrases")
    assert phrases.chunker is None  # so that it is learnt from the collection
    chunker = inputs.chunker
    pairing = looked_at.sentences("dev")
    loaded = load_pairing(inputs, pairing)
    proposed = phrases.images.proposal_features(looked_at, pairing.visuals.rows)
    mine = np.flatnonzero(proposed.boxes.images == pairing.visuals.rows[2])
    regions = phrases.images.finish(proposed.rows.take(mine))
    seen = inputs.images.finish(loaded.images.take(np.array([2])))[0, 1 : 1 + len(mine), : regions.shape[1]]
    torch.testing.assert_close(seen, regions)
    texts, mask = loaded.texts.take(np.arange(len(pairing.texts)))
    spans = [chunker.spans(s) for s in pairing.texts.strings]
    assert mask.sum(1).tolist() == [1 + len(own) for own in spans]
    first = next(i for i, own in enumerate(spans) if own)
    string, span = pairing.texts.strings[first], spans[first][0]
    expected = phrases.texts.texts([string[span.start : span.end]])[0][0]
    torch.testing.assert_close(texts[first, 1, : len(expected)], expected)


def test_runs_of_other_kinds_are_refused(looked_at, members, tmp_path):
    with pytest.raises(UserError, match="needs --set phrases="):
        run("combined", looked_at, tmp_path / "run", named(members)[0])
    with pytest.raises(UserError, match="does not score image features with text vectors"):
        run("combined", looked_at, tmp_path / "run", f"sentences={members / 'phrases'}", named(members)[1])
    with pytest.raises(UserError, match="does not score regions with phrases"):
        run("combined", looked_at, tmp_path / "run", named(members)[0], f"phrases={members / 'sentences'}")
    assert not (tmp_path / "run").exists()


def test_missing_regions_are_refused_before_a_run_starts(members, tiny_draft, tmp_path):
    with pytest.raises(UserError, match=r"have no proposals 'grid'; find them with .*calligram regions"):
        run("combined", with_features(tiny_draft, tmp_path), tmp_path / "run", *named(members))
    assert not (tmp_path / "run").exists()


def test_an_unknown_proposer_for_new_pictures_is_refused_before_training(looked_at, tmp_path):
    with pytest.raises(UserError, match="unknown proposals 'nothere'"):
        run(
            "two-branch-phrases", looked_at, tmp_path / "run", "region.proposals=grid", "region.proposer=nothere", TFIDF
        )
    assert not (tmp_path / "run").exists()


PHRASES = ("region.proposals=grid", "region.backbone=", "region.size=32", "chunker_captions=0", "set_size=4", TFIDF)


def plan_phrases(collection, *changes):
    preset = PRESETS["two-branch-phrases"]
    return preset.recipe.plan(resolve(preset.defaults, [*PHRASES, *changes]), collection, RunContext())


def test_constraints_of_phrases_are_a_stage_with_their_weights(looked_at):
    """The neighbourhood terms of two-branch, Eq. 6, are in the loss of the second stage and of no other."""
    small = ("two-branch.hidden=16", "dim=8", "lr=0.02", "epochs=2", "stages.1.name=ranking")
    second = ("name=constraints", "epochs=3", "lr=0.01", "neighbourhood.weights=1,4,0.3,0.4", "resets_best=true")
    plan = plan_phrases(looked_at, *small, *(f"stages.2.{change}" for change in second))
    ranking, constraints = plan.stages
    assert (ranking.objective.weights, constraints.objective.weights) == ((1, 4, 0, 0), (1, 4, 0.3, 0.4))
    assert [(stage.name, stage.epochs, stage.lr) for stage in plan.stages] == [
        ("ranking", 2, 0.02),
        ("constraints", 3, 0.01),
    ]
    assert (ranking.resets_best, constraints.resets_best) == (False, True)
    batch = next(iter(constraints.batches.epoch(0)))
    before, after = (set(stage.objective(plan.matcher, batch)) for stage in plan.stages)
    assert len(after - before) == 2, "a term of image neighbourhoods and one of text neighbourhoods"


def test_cca_of_phrases_is_fitted_on_truth_regions_with_their_phrases(looked_at):
    plan = plan_phrases(looked_at, "matcher=cca", "background=0.7", "positives=single", "cca.eta=0.1", "dim=0")
    found = plan.fit(lambda matcher: pytest.fail("one value of eta needs no dev"))
    grounded = grounded_phrases(looked_at, looked_at.images_in("train"))
    strings = phrase_texts(looked_at, grounded.phrases).strings
    pairs = sorted({(int(chain), string) for chain, string in zip(grounded.chains, strings, strict=True)})
    regions = plan.inputs.images.load(box_visuals(looked_at, grounded.chain_boxes))
    chains = np.array([chain for chain, _ in pairs])
    texts = plan.inputs.texts.load([string for _, string in pairs], None)
    covariance = Covariance()
    covariance.add(plan.inputs.images.finish(regions.take(chains)), texts.take(np.arange(len(pairs)))[0])
    expected = CCA.from_covariance(covariance, 0, 0.1)
    torch.testing.assert_close(found.correlations, expected.correlations, rtol=1e-4, atol=1e-5)
    strong = int((expected.correlations > 0.1).sum())
    for name in ("image", "text"):
        one, two = (getattr(matcher, name).weight[:strong] for matcher in (found, expected))
        torch.testing.assert_close(one.abs(), two.abs(), rtol=1e-3, atol=1e-4)


def test_cca_of_phrases_is_also_fitted_on_proposals_that_match(looked_at):
    pairs = {}
    for positives in ("single", "augmented"):
        changes = ("matcher=cca", "match=0.5", "background=0.5", f"positives={positives}")
        pairs[positives] = sum(len(texts) for _, texts in plan_phrases(looked_at, *changes).fit.__self__._positives())
    assert pairs["augmented"] > 1.5 * pairs["single"] > 0


def test_cca_of_phrases_is_fitted_on_all_batches(looked_at):
    plan = plan_phrases(looked_at, "matcher=cca", "match=0.5", "background=0.5", "cca.eta=0.1")
    towers, dev = plan.fit.__self__, lambda matcher: {"r1": 0.0}
    whole = plan.fit(dev)
    ((regions, texts),) = towers._positives()
    halves = [(regions[:9], texts[:9]), (regions[9:], texts[9:])]
    towers._positives = lambda: iter(halves)
    torch.testing.assert_close(plan.fit(dev).correlations, whole.correlations, rtol=1e-4, atol=1e-5)


def test_the_regularization_of_cca_is_selected_on_dev_for_each_modality(looked_at):
    plan = plan_phrases(looked_at, "matcher=cca", "background=0.7", "cca.eta=0.5,0.01")
    asked = []

    def evaluate(matcher):
        asked.append((matcher.settings.eta, matcher.settings.text_eta))
        return {"r1": 1.0 if asked[-1] == (0.01, 0.5) else 0.0}

    found = plan.fit(evaluate)
    assert sorted(asked) == [(0.01, 0.01), (0.01, 0.5), (0.5, 0.01), (0.5, 0.5)]
    assert (found.settings.eta, found.settings.text_eta) == (0.01, 0.5)
