from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder
from calligram.search.query.searcher import Searcher
from calligram.studies.results import result_line
from calligram.training.runs import Run

SMALL = (
    "batch=6", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1", "text.dropout=0",
    "text.word_dropout=0",
    "ema_decay=0", "lr=0.01", "epochs=25", "optim.schedule=constant",
)  # fmt: skip
STORED = "image.features=colour"


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    import transformers

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("backbone")
    config = transformers.MobileNetV2Config(depth_multiplier=0.2, image_size=64)
    transformers.MobileNetV2Model(config).save_pretrained(folder)
    return folder


def run(preset, collection, out, *changes):
    chosen = PRESETS[preset]
    settings = resolve(chosen.defaults, [*(SMALL if preset != "ensemble" else ()), *changes])
    return run_preset(chosen, settings, collection, out, context=RunContext(torch.device("cpu")))


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("scan", ()),
        ("scan", ("scan.direction=i2t", "scan.aggregation=mean", "terms=ranking", "ranking.top_k=none")),
        ("bfan", ()),
        ("bfan", ("bfan.focal=prob",)),
        ("vsrn", ("vsrn.layers=1", "vsrn.norm=features", "text.bidirectional=true", "caption.hidden=12")),
        ("mmca", ("mmca.heads=4", "mmca.filters=16")),
        ("mmca", ("mmca.heads=4", "mmca.filters=16", "candidates=2")),
        ("mmca", ("mmca.heads=4", "mmca.filters=16", "mmca.alpha=0", "terms=ranking", "ranking.top_k=1")),
    ],
)
def test_every_matcher_learns_the_tiny_collection_and_its_run_is_self_contained(stored_tiny, tmp_path, preset, changes):
    run(preset, stored_tiny, tmp_path / "run", STORED, *changes)
    matcher, inputs = Run.open(tmp_path / "run").load()
    report = evaluate_retrieval(matcher, inputs, stored_tiny.sentences("train"))
    assert report.retrieval.t2i.r1 > 40  # chance is 1 in 6; features are random, so train's alone can be told apart


@pytest.mark.parametrize("train", ["false", "true"])
def test_cells_of_mirror_images_lie_where_those_of_pictures_do(tiny, backbone, tmp_path, train):
    changes = (f"image.backbone={backbone}", f"image.train={train}", "image.size=64", "epochs=1")
    run("scan", tiny, tmp_path / "run", *changes, "image.views=flip")
    matcher, inputs = Run.open(tmp_path / "run").load()
    picture = tiny.sentences("test").visuals.open(0)
    whole, mirrored = (
        matcher.encode_images(inputs.images.finish(inputs.images.images([each])))
        for each in (picture, picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    )
    cells = mirrored.parts.unflatten(1, (2, 2)).flip(2).flatten(1, 2)
    torch.testing.assert_close(cells, whole.parts, rtol=1e-2, atol=1e-3)  # stored features have half precision
    torch.testing.assert_close(mirrored.vectors, whole.vectors, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("train", ["false", "true"])
def test_cells_of_a_backbone_serve_frozen_and_trained(tiny, backbone, tmp_path, train):
    copy = tmp_path / "backbone"
    copy.symlink_to(backbone)
    run("scan", tiny, tmp_path / "run", f"image.backbone={copy}", f"image.train={train}", "image.size=64", "epochs=2")
    copy.unlink()
    matcher, inputs = Run.open(tmp_path / "run").load()
    picture = tiny.sentences("test").visuals.open(0)
    found = matcher.encode_images(inputs.images.finish(inputs.images.images([picture])))
    assert found.parts.shape == (1, 4, 16)
    assert evaluate_retrieval(matcher, inputs, tiny.sentences("test")).retrieval.t2i.queries == 14


@pytest.mark.parametrize("preset", ["bfan", "mmca"])
def test_a_library_reranks_candidates_by_attention(stored_tiny, tmp_path, preset):
    run(preset, stored_tiny, tmp_path / "run", STORED, "epochs=1")
    models = LibraryMatchers.load(tmp_path / "run")
    assert models.reranker is not None
    index_source(models, stored_tiny.folder, tmp_path / "library")
    library = Library.open(tmp_path / "library")
    encoder = MatcherEncoder(models.matcher)
    hits = Searcher(library, encoder, encoder).images("a red disc", 18, hybrid=False, all=True).hits
    query = encoder.texts(["a red disc"])
    expected = encoder.scores(library.parts([hit.id for hit in hits]), query)[:, 0]
    assert [hit.score for hit in hits] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)


def test_mmca_without_its_pair_module_is_a_matcher_of_vectors(stored_tiny, tmp_path):
    alone = (STORED, "mmca.heads=4", "mmca.filters=8", "mmca.alpha=0", "epochs=1")
    run("mmca", stored_tiny, tmp_path / "run", *alone)
    assert LibraryMatchers.load(tmp_path / "run").reranker is None
    matcher, inputs = Run.open(tmp_path / "run").load()
    with pytest.raises(UserError, match="reranking its candidates changes nothing"):
        evaluate_retrieval(matcher, inputs, stored_tiny.sentences("test"), depth=3)
    with pytest.raises(UserError, match="candidates and first_stage are for matchers that score pairs by more"):
        run("mmca", stored_tiny, tmp_path / "other", *alone, "candidates=2")


@pytest.mark.parametrize("name", ["scan", "mmca"])
@pytest.mark.parametrize("train", ["false", "true"])
def test_a_text_encoder_provides_the_words(stored_tiny, tiny_bert, tmp_path, train, name):
    encoder = (f"text.encoder={tiny_bert}", f"text.train={train}")
    run(name, stored_tiny, tmp_path / "run", STORED, *encoder, "epochs=1")
    matcher, inputs = Run.open(tmp_path / "run").load()
    assert matcher.encode_texts(*inputs.texts.texts(["a red disc"])).parts.shape[2] == 16


def test_mmca_learns_with_a_frozen_encoder_and_refuses_heads_that_do_not_fit(stored_tiny, tiny_bert, tmp_path):
    changes = (STORED, "mmca.heads=4", "mmca.filters=16", f"text.encoder={tiny_bert}")
    run("mmca", stored_tiny, tmp_path / "run", *changes, "mmca.alpha=0.5", "terms=ranking", "ranking.top_k=1")
    matcher, inputs = Run.open(tmp_path / "run").load()
    assert matcher.settings.alpha == 0.5
    assert evaluate_retrieval(matcher, inputs, stored_tiny.sentences("train")).retrieval.t2i.r1 > 40  # chance: 1 in 6
    with pytest.raises(UserError, match=r"dim=16 is not a multiple of mmca\.heads=5"):
        run("mmca", stored_tiny, tmp_path / "other", *changes, "mmca.heads=5")


def test_the_caption_decoder_is_used_in_training_only(stored_tiny, tmp_path):
    caption = ("caption.weight=0.1", "caption.hidden=12")
    run("vsrn", stored_tiny, tmp_path / "run", STORED, *caption, "text.word_dropout=0.2", "epochs=12")
    rows = [row for row in Run.open(tmp_path / "run").metrics() if "captions" in row]
    assert rows
    assert rows[-1]["captions"] < rows[0]["captions"]
    matcher, _ = Run.open(tmp_path / "run").load()
    assert not any("writer" in name for name, _ in matcher.named_parameters())


def test_word_vectors_initialize_the_word_table(stored_tiny, tmp_path):
    (tmp_path / "words.txt").write_text("disc 1 2 3 4 5 6 7 8\n", encoding="utf-8")
    settings = resolve(PRESETS["scan"].defaults, [*SMALL, STORED, f"text.vectors={tmp_path / 'words.txt'}"])
    plan = PRESETS["scan"].recipe.plan(settings, stored_tiny, RunContext(torch.device("cpu")))
    number = plan.inputs.texts.number_of["disc"]
    row = plan.matcher.text.words.weight[number]
    assert torch.nn.functional.cosine_similarity(row, torch.arange(1.0, 9.0), dim=0) > 0.999


def test_runs_on_the_same_inputs_become_an_ensemble(stored_tiny, tmp_path):
    for name, direction in (("one", "t2i"), ("two", "i2t")):
        run("scan", stored_tiny, tmp_path / name, STORED, f"scan.direction={direction}", "epochs=1")
    both = f"runs={tmp_path / 'one'},{tmp_path / 'two'}"
    run("ensemble", stored_tiny, tmp_path / "both", both)
    matcher, inputs_of_both = Run.open(tmp_path / "both").load()
    assert [member.settings.direction for member in matcher.members] == ["t2i", "i2t"]
    pairing = stored_tiny.sentences("test")
    report = evaluate_retrieval(matcher, inputs_of_both, pairing, alone=True)
    singles = [
        evaluate_retrieval(*Run.open(tmp_path / name).load(), pairing, alone=True).retrieval for name in ("one", "two")
    ]
    assert [member.as_dict() for member in report.alone] == [single.as_dict() for single in singles]
    assert report.as_dict()["alone"][0]["rsum"] == singles[0].rsum
    line = result_line(Run.open(tmp_path / "both"), stored_tiny, "test", report)
    assert line.members == 2
    assert line.alone == [round(single.rsum, 2) for single in singles]
    run("scan", stored_tiny, tmp_path / "other", STORED, "text.max_words=3", "epochs=1")
    with pytest.raises(UserError, match=r"other has other texts as input than .*one; train both with the same"):
        run("ensemble", stored_tiny, tmp_path / "no", f"runs={tmp_path / 'one'},{tmp_path / 'other'}")
    inputs = tmp_path / "other" / "inputs" / "inputs.json"
    content = json.loads((tmp_path / "one" / "inputs" / "inputs.json").read_text())
    inputs.write_text(json.dumps({**content, "images": {**content["images"], "parts": "grid"}}))
    inputs.with_name("checksums.json").unlink()
    with pytest.raises(UserError, match=r"has other images as input than .* one vector, and matchers of regions"):
        run("ensemble", stored_tiny, tmp_path / "no", f"runs={tmp_path / 'one'},{tmp_path / 'other'}")
    assert evaluate_retrieval(matcher, inputs_of_both, pairing, alone=True, depth=0).alone == report.alone
    assert not evaluate_retrieval(matcher, inputs_of_both, pairing, alone=True, depth=2).alone
    same = f"runs={tmp_path / 'one'},{tmp_path / 'two'},{tmp_path / 'other' / '..' / 'one'}"
    with pytest.raises(UserError, match=r"runs= names .*one twice"):
        run("ensemble", stored_tiny, tmp_path / "no", same)
    with pytest.raises(UserError, match="two or more run folders"):
        run("ensemble", stored_tiny, tmp_path / "no", f"runs={tmp_path / 'one'}")


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("scan", ("image.backbone=x", "image.views=ten"), "whose cells show different places"),
        (
            "scan",
            (STORED, "text.encoder=x", "text.word_dropout=0.2"),
            r"text\.word_dropout=0\.2 masks words.*give text\.word_dropout=0, or train",
        ),
        ("scan", (STORED, "text.train=true"), r"text\.train=true needs a text\.encoder"),
    ],
)
def test_contradictory_settings_are_refused(stored_tiny, tmp_path, preset, changes, message):
    with pytest.raises(UserError, match=message):
        run(preset, stored_tiny, tmp_path / "run", *changes)
    assert not (tmp_path / "run").exists()


def test_stored_encoder_states_have_no_words_to_generate(stored_tiny, tiny_bert, tmp_path):
    frozen = (STORED, f"text.encoder={tiny_bert}", "text.pooling=mean")
    with pytest.raises(UserError, match="caption generates words, and stored encoder states or text vectors have none"):
        run("vsrn", stored_tiny, tmp_path / "run", *frozen)
    assert not (tmp_path / "run").exists()
    run("vsrn", stored_tiny, tmp_path / "run", *frozen, "terms=infonce", "epochs=1")


@pytest.mark.parametrize("preset", ["scan", "bfan", "vsrn", "mmca"])
def test_parts_may_come_from_a_small_cnn_and_from_a_text_cnn(tiny, tmp_path, preset):
    """Matchers of regions and words needed image features and a recurrent network or an encoder before."""
    cnn = ("image.size=16", "image.channels=4", "text.network=cnn", "text.cnn.blocks=1,1", "text.cnn.width=4")
    best = run(preset, tiny, tmp_path / "run", *cnn, "text.cnn.length=8", "epochs=1")
    assert best["rsum"] > 0
    matcher, inputs = Run.open(tmp_path / "run").load()
    assert evaluate_retrieval(matcher, inputs, tiny.sentences("test")).retrieval.t2i.queries == 14


@pytest.mark.parametrize("preset", ["scan", "a3vse"])
def test_word_dropout_applies_only_where_words_can_be_masked(preset):
    def hidden(*changes: str) -> float:
        return resolve(PRESETS[preset].defaults, changes).text.effective_word_dropout

    assert hidden() == hidden("text.encoder=x", "text.train=true") == 0.1
    assert hidden("text.encoder=x") == hidden("text.word_dropout=0") == 0
    assert hidden("text.word_dropout=0.3") == 0.3


def test_the_releases_settings_are_a_preset():
    settings = resolve(PRESETS["scan-release"].defaults, ["epochs=3"])
    (term,) = settings.terms
    assert (term.name, settings.dim, settings.epochs, settings.optim.optimizer) == ("ranking", 1024, 3, "adam")


def test_candidates_and_first_stage_are_refused_for_matchers_of_vectors(stored_tiny, tmp_path):
    for change in ("candidates=2", "first_stage=1"):
        with pytest.raises(UserError, match=r"candidates and first_stage are for matchers .* scan, bfan and mmca"):
            run("vsrn", stored_tiny, tmp_path / "run", STORED, change)


@pytest.mark.parametrize("preset", ["scan", "aoq", "a3vse"])
def test_candidates_are_a_setting_of_all_runs_of_matchers_of_parts(stored_tiny, preset):
    chosen = PRESETS[preset]
    extra = ("pseudo.images=none", "terms=infonce") if preset == "a3vse" else ()
    settings = resolve(chosen.defaults, [*SMALL, STORED, "matcher=scan", "candidates=3", "first_stage=0.5", *extra])
    stages = chosen.recipe.plan(settings, stored_tiny, RunContext()).stages
    assert [(s.objective.candidates, s.objective.weight) for s in stages] == [(3, 0.5)] * len(stages)
