from __future__ import annotations

import pytest
import torch

from calligram.data.negatives import NegativeLists
from calligram.errors import UserError
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.features.texts import vocabulary
from calligram.models.ensemble import Ensemble
from calligram.models.mmca import MMCA
from calligram.models.vse import VSE
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder
from calligram.search.query.searcher import Searcher
from calligram.training.loop import _Trainer
from calligram.training.runs import Run

SMALL = (
    "batch=6", "dim=16", "candidates=3", "dev_depth=100", "ema_decay=0", "lr=0.01", "precision=fp32",
    "optim.schedule=constant", "epochs=1",
)  # fmt: skip
STORED = (
    "image.features=colour", "image.train=false", "image.views=one", "image.region_dropout=0",
    "text.train=false", "text.word_dropout=0",
    "text.word_dim=8", "text.hidden=16", "text.min_count=1",
)  # fmt: skip
INSTANCE = ("instance.weight=0.5", "instance.scale=16", "instance.init=images")
"""classes of cosines: an ensemble keeps the vectors of its members at length one"""
OFFLINE = (
    "terms=infonce,instance,offline", *INSTANCE, "instance.weight=0.1", "offline.by_vectors=true", "offline.texts=6",
    "offline.images=3", "stages.1.without=offline", "stages.1.name=infonce", "stages.2.name=offline",
    "stages.2.on_start=mine", "stages.2.epochs=2", "stages.2.batch=4", "stages.2.texts=1",
)  # fmt: skip
"""a second stage that continues from the best weights, with negatives that they mine"""


@pytest.fixture(scope="module")
def networks(tmp_path_factory, tiny_bert):
    """Settings of a small backbone and a small text encoder, both trained."""
    import transformers

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("backbone")
    config = transformers.MobileNetV2Config(depth_multiplier=0.2, image_size=64)
    transformers.MobileNetV2Model(config).save_pretrained(folder)
    return f"image.backbone={folder}", "image.size=64", f"text.encoder={tiny_bert}"


def settings_of(*changes):
    members = next((c.partition("=")[2] for c in changes if c.startswith("matcher=")), "mmca,vse,vse")
    mmca = ("mmca.heads=4", "mmca.filters=16") if "mmca" in members.split(",") else ()
    return resolve(PRESETS["best-ensemble"].defaults, [*SMALL, f"matcher={members}", *mmca, *changes])


def planned(collection, *changes):
    settings = settings_of(*changes)
    return PRESETS["best-ensemble"].recipe.plan(settings, collection, RunContext(torch.device("cpu")))


def run(collection, out, *changes, resume=False):
    settings = settings_of(*changes)
    context = RunContext(torch.device("cpu"))
    return run_preset(PRESETS["best-ensemble"], settings, collection, out, resume=resume, context=context)


def test_members_that_are_trained_one_after_the_other_know_the_lengths_of_texts(spoken_tiny, monkeypatch):
    found, seen = planned(spoken_tiny, "matcher=vse,vse", *STORED, "candidates=0"), []
    batch = next(iter(found.stages[0].batches.epoch(0)))
    encode = VSE.encode_texts

    def encode_texts(self, *given):
        seen.append(tuple(vocabulary._LENGTHS.get()))
        return encode(self, *given)

    monkeypatch.setattr(VSE, "encode_texts", encode_texts)
    assert len(list(found.stages[0].objective.passes(found.matcher, batch))) == 2
    assert seen == [batch.text_lengths] * 2
    assert len(batch.text_lengths) == len(batch.texts)


@pytest.mark.parametrize("members", ["mmca", "mmca,mmca", "mmca,scan,vse"])
def test_members_are_trained_together_and_the_run_is_self_contained(spoken_tiny, tmp_path, members):
    best = run(spoken_tiny, tmp_path / "run", *STORED, f"matcher={members}", "epochs=10")
    assert best["t2i_r1"] > 25  # chance is 1 in 12, and each colour has two images
    matcher, inputs = Run.open(tmp_path / "run").load()
    assert evaluate_retrieval(matcher, inputs, spoken_tiny.sentences("test")).retrieval.t2i.queries == 26
    if members == "mmca":
        assert isinstance(matcher, MMCA)
        return
    assert isinstance(matcher, Ensemble)
    assert len(matcher.members) == members.count(",") + 1
    alike = [torch.equal(p, matcher.members[0].project.weight) for p in (m.project.weight for m in matcher.members[1:])]
    assert not any(alike)


@pytest.mark.parametrize("shared", [False, True])
def test_members_are_trained_one_after_the_other_with_the_same_gradients(tiny, networks, shared):
    plan = planned(
        tiny, *networks, f"shared={str(shared).lower()}", "image.views=one", "text.dropout=0",
        "image.region_dropout=0", "text.word_dropout=0", "terms=infonce",
    )  # fmt: skip
    matcher, stage = plan.matcher.eval(), plan.stages[-1]  # no dropout, whose numbers come in another order
    batch = next(iter(stage.batches.epoch(0)))
    found = []
    for groups in ([stage.objective(matcher, batch)], stage.objective.passes(matcher, batch)):
        matcher.zero_grad()
        terms, count = {}, 0
        for group in groups:
            sum(group.values()).backward()
            terms |= {name: term.detach() for name, term in group.items()}
            count += 1
        gradients = {name: p.grad.clone() for name, p in matcher.named_parameters() if p.grad is not None}
        found.append((terms, gradients, vars(stage.objective.spread)))
    assert count == (1 if shared else len(matcher.members))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_all_members_drop_patches_of_training_images(tiny, tmp_path, tiny_bert, shared):
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    transformers.Dinov2Model(transformers.Dinov2Config(**sizes)).save_pretrained(tmp_path)
    plan = planned(
        tiny, f"image.backbone={tmp_path}", "image.size=32", f"text.encoder={tiny_bert}", "image.region_dropout=0.75",
        "matcher=vse,vse", "candidates=0", "dev_depth=0", f"shared={str(shared).lower()}",
    )  # fmt: skip
    matcher = plan.matcher.train()
    matcher.encode_images(torch.randn(2, 3, 32, 32))
    networks = [matcher.image] if shared else [member.image for member in matcher.members]
    assert [network._kept.shape for network in networks] == [(2, 4)] * len(networks)  # of 16 patches


def test_a_member_is_trained_as_it_would_be_alone(stored_tiny, tmp_path):
    """Gradients of an ensemble's member are those of its own objective: members see nothing of each other."""
    plan = planned(stored_tiny, *STORED, "matcher=mmca,scan", "terms=infonce,instance", *INSTANCE)
    batch = next(plan.stages[0].batches.epoch(0))
    torch.stack(list(plan.stages[0].objective(plan.matcher, batch).values())).sum().backward()
    joint = [
        {name: p.grad.clone() for name, p in m.named_parameters() if p.grad is not None} for m in plan.matcher.members
    ]
    plan.matcher.zero_grad()
    for member, objective, found in zip(plan.matcher.members, plan.stages[0].objective.objectives, joint, strict=True):
        terms = objective(member, batch)
        assert {"info_nce", "first_info_nce", "instance_image", "instance_text"} == set(terms)
        torch.stack(list(terms.values())).sum().backward()
        assert found
        for name, parameter in member.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(parameter.grad, found[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shared", ["false", "true"])
def test_networks_are_trained_end_to_end_one_for_each_member_or_one_for_all(tiny, networks, tmp_path, shared):
    run(
        tiny,
        tmp_path / "run",
        *networks,
        f"shared={shared}",
        "matcher=mmca,vse",
        "image.crop=1",
        "image.jitter=0",
    )
    matcher, inputs = Run.open(tmp_path / "run").load()
    names = [name for name, _ in matcher.named_parameters() if "model." in name]
    one = {name.partition(".model.")[0] for name in names}
    own = {f"members.{number}.{part}" for number in range(2) for part in ("image", "text.encoder")}
    assert one == ({"image", "text.encoder"} if shared == "true" else own)
    found = matcher.encode_images(inputs.images.finish(inputs.images.images([tiny.sentences("test").visuals.open(0)])))
    assert found.parts.shape == (1, 4, 16)
    assert evaluate_retrieval(matcher, inputs, tiny.sentences("test")).retrieval.t2i.queries == 14


@pytest.mark.parametrize("shared", ["false", "true"])
def test_members_start_from_the_same_networks_with_a_lower_learning_rate(tiny, networks, shared):
    plan = planned(tiny, *networks, f"shared={shared}", "matcher=mmca,mmca")
    assert sorted(plan.stages[0].lr_scale.values()) == ([0.03, 0.1] if shared == "true" else [0.03, 0.03, 0.1, 0.1])
    if shared == "false":
        one, two = plan.matcher.members
        assert all(torch.equal(a, b) for a, b in zip(one.image.parameters(), two.image.parameters(), strict=True))
        assert not torch.equal(one.project.weight, two.project.weight)
    pictures = torch.randn(2, 3, 64, 64)
    plan.matcher.eval()
    found = plan.matcher.encode_images(pictures)
    twice = plan.matcher.encode_images(torch.stack([pictures, pictures.flip(-1)], 1))
    assert found.parts.shape == twice.parts.shape == (2, 4, 32)


def test_dev_scores_candidates_or_all_pairs(stored_tiny, tmp_path):
    found = [run(stored_tiny, tmp_path / depth, *STORED, f"dev_depth={depth}") for depth in ("0", "100", "1")]
    assert found[0]["rsum"] == found[1]["rsum"]  # more candidates than there are items
    assert found[2].keys() == found[0].keys()


def test_a_library_searches_by_joined_vectors_and_reranks_by_all_members(stored_tiny, tmp_path):
    run(stored_tiny, tmp_path / "run", *STORED, "matcher=mmca,scan")
    models = LibraryMatchers.load(tmp_path / "run")
    index_source(models, stored_tiny.folder, tmp_path / "library")
    library, encoder = Library.open(tmp_path / "library"), MatcherEncoder(models.matcher)
    hits = Searcher(library, encoder, encoder).images("a red disc", 18, hybrid=False, all=True).hits
    query = encoder.texts(["a red disc"])
    expected = encoder.scores(library.parts([hit.id for hit in hits]), query)[:, 0]
    assert [hit.score for hit in hits] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)


def test_the_last_stage_draws_negatives_that_the_run_mined_and_counts_where_it_is_better(stored_tiny, tmp_path):
    run(
        stored_tiny,
        tmp_path / "run",
        *STORED,
        *OFFLINE,
        "matcher=mmca,vse",
        "stages.2.epochs=5",
    )
    rows = Run.open(tmp_path / "run").metrics()
    assert list(dict.fromkeys(row["stage"] for row in rows)) == ["infonce", "offline"]
    last = [row for row in rows if row["stage"] == "offline" and "loss" in row][-1]
    assert {"1_info_nce", "1_offline", "1_first_derived", "2_online", "2_instance_text"} <= set(last)
    assert NegativeLists.open(tmp_path / "run" / "negatives").texts.shape[1] == 6


@pytest.mark.parametrize("where", [("infonce", 1), ("offline", 0), ("offline", 1)])
def test_a_run_that_was_killed_takes_the_same_steps(stored_tiny, tmp_path, monkeypatch, where):
    changes = (
        *STORED,
        *OFFLINE,
        "matcher=mmca,vse",
        "epochs=2",
        "ema_decay=0.9",
        "save_steps=1",
    )
    run(stored_tiny, tmp_path / "whole", *changes)

    def dies(self, number, epoch, optimizer, real=_Trainer._end_epoch):
        if (self.stages[number].name, epoch) == where:
            raise KeyboardInterrupt
        return real(self, number, epoch, optimizer)

    with monkeypatch.context() as patched:
        patched.setattr(_Trainer, "_end_epoch", dies)
        with pytest.raises(KeyboardInterrupt):
            run(stored_tiny, tmp_path / "killed", *changes)
    run(stored_tiny, tmp_path / "killed", *changes, resume=True)
    numbers = [
        [{k: v for k, v in row.items() if k != "steps_per_second"} for row in Run(tmp_path / name).metrics()]
        for name in ("whole", "killed")
    ]
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((*STORED, "matcher=mmca,scna"), "unknown matcher 'scna'; did you mean 'scan'"),
        ((*STORED, "matcher="), "matcher= names no matcher"),
        ((*STORED, "shared=true"), "shared=true is for networks that are trained"),
        ((), r"text\.train=true needs a text\.encoder: give text\.encoder="),
    ],
)
def test_contradictory_settings_are_refused(stored_tiny, changes, message):
    with pytest.raises(UserError, match=message):
        planned(stored_tiny, *changes)


def test_members_need_neither_a_backbone_nor_an_encoder(tiny, tmp_path):
    """The preset needed both before; a small CNN and a GRU take their places."""
    changes = ("text.train=false", "image.size=16", "image.channels=4", "text.hidden=16", "text.min_count=1")
    best = run(tiny, tmp_path / "run", *changes, "matcher=mmca,vse")
    assert best["rsum"] > 0
    matcher, _ = Run.open(tmp_path / "run").load()
    assert len(matcher.members) == 2


@pytest.mark.parametrize("preset", ["vse", "scan"])
def test_any_preset_trains_several_matchers_together(stored_tiny, tmp_path, preset):
    chosen = PRESETS[preset]
    changes = ("batch=6", "dim=16", "epochs=1", "image.features=colour", "text.word_dropout=0", "matcher=scan,vse")
    settings = resolve(chosen.defaults, [*changes, "terms=ranking"])
    run_preset(chosen, settings, stored_tiny, tmp_path / "run", context=RunContext(torch.device("cpu")))
    matcher, _ = Run.open(tmp_path / "run").load()
    assert isinstance(matcher, Ensemble)
