from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.recipes.catalog import RECIPES
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.matchers import fragment_matcher, fragment_towers
from calligram.recipes.parts.run import RunContext, run_recipe
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder
from calligram.search.query.searcher import Searcher
from calligram.studies.results import result_line
from calligram.training.runs import Run

SMALL = (
    "batch=6", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1", "text.dropout=0",
    "text.word_dropout=0",
    "ema_decay=0", "lr=0.01", "epochs=25", "optim.schedule=constant", "vsrn.decoder_dim=12",
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


def run(collection, out, *changes, recipe="fragments"):
    chosen = RECIPES[recipe]
    settings = resolve(chosen.defaults, [*(SMALL if recipe == "fragments" else ()), *changes])
    return run_recipe(chosen, settings, collection, out, context=RunContext(torch.device("cpu")))


@pytest.mark.parametrize(
    "changes",
    [
        ("matcher=scan",),
        ("matcher=scan", "scan.direction=i2t", "scan.aggregation=mean", "loss=ranking", "top_k=none"),
        ("matcher=bfan",),
        ("matcher=bfan", "bfan.focal=prob"),
        ("matcher=vsrn", "vsrn.layers=1", "vsrn.norm=features"),
        ("matcher=mmca", "mmca.heads=4", "mmca.filters=16"),
        ("matcher=mmca", "mmca.heads=4", "mmca.filters=16", "candidates=2"),
        ("matcher=mmca", "mmca.heads=4", "mmca.filters=16", "mmca.alpha=0", "loss=ranking", "top_k=1"),
    ],
)
def test_every_matcher_learns_the_tiny_collection_and_its_run_is_self_contained(stored_tiny, tmp_path, changes):
    run(stored_tiny, tmp_path / "run", STORED, *changes)
    matcher, inputs = Run.open(tmp_path / "run").load()
    report = evaluate_retrieval(matcher, inputs, stored_tiny.sentences("train"))
    assert report.retrieval.t2i.r1 > 40  # chance is 1 in 6; features are random, so train's alone can be told apart


@pytest.mark.parametrize("train", ["false", "true"])
def test_cells_of_mirror_images_lie_where_those_of_pictures_do(tiny, backbone, tmp_path, train):
    changes = (f"image.backbone={backbone}", f"image.train={train}", "image.size=64", "epochs=1")
    run(tiny, tmp_path / "run", *changes, "image.views=flip")
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
    run(tiny, tmp_path / "run", f"image.backbone={copy}", f"image.train={train}", "image.size=64", "epochs=2")
    copy.unlink()
    matcher, inputs = Run.open(tmp_path / "run").load()
    picture = tiny.sentences("test").visuals.open(0)
    found = matcher.encode_images(inputs.images.finish(inputs.images.images([picture])))
    assert found.parts.shape == (1, 4, 16)
    assert evaluate_retrieval(matcher, inputs, tiny.sentences("test")).retrieval.t2i.queries == 14


@pytest.mark.parametrize("matcher", ["bfan", "mmca"])
def test_a_library_reranks_candidates_by_attention(stored_tiny, tmp_path, matcher):
    run(stored_tiny, tmp_path / "run", STORED, f"matcher={matcher}", "epochs=1")
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
    alone = (STORED, "matcher=mmca", "mmca.heads=4", "mmca.filters=8", "mmca.alpha=0", "epochs=1")
    run(stored_tiny, tmp_path / "run", *alone)
    assert LibraryMatchers.load(tmp_path / "run").reranker is None
    matcher, inputs = Run.open(tmp_path / "run").load()
    with pytest.raises(UserError, match="reranking its candidates changes nothing"):
        evaluate_retrieval(matcher, inputs, stored_tiny.sentences("test"), depth=3)
    with pytest.raises(UserError, match="candidates and first_stage are for matchers that score pairs by more"):
        run(stored_tiny, tmp_path / "other", *alone, "candidates=2")


@pytest.mark.parametrize("name", ["scan", "mmca"])
@pytest.mark.parametrize("train", ["false", "true"])
def test_a_text_encoder_provides_the_words(stored_tiny, tiny_bert, tmp_path, train, name):
    encoder = (f"text.encoder={tiny_bert}", f"text.train={train}")
    run(stored_tiny, tmp_path / "run", STORED, f"matcher={name}", *encoder, "epochs=1")
    matcher, inputs = Run.open(tmp_path / "run").load()
    assert matcher.encode_texts(*inputs.texts.texts(["a red disc"])).parts.shape[2] == 16


def test_mmca_learns_with_a_frozen_encoder_and_refuses_heads_that_do_not_fit(stored_tiny, tiny_bert, tmp_path):
    changes = (STORED, "matcher=mmca", "mmca.heads=4", "mmca.filters=16", f"text.encoder={tiny_bert}")
    run(stored_tiny, tmp_path / "run", *changes, "mmca.alpha=0.5", "loss=ranking", "top_k=1")
    matcher, inputs = Run.open(tmp_path / "run").load()
    assert matcher.settings.alpha == 0.5
    assert evaluate_retrieval(matcher, inputs, stored_tiny.sentences("train")).retrieval.t2i.r1 > 40  # chance: 1 in 6
    with pytest.raises(UserError, match=r"dim=16 is not a multiple of mmca\.heads=5"):
        run(stored_tiny, tmp_path / "other", *changes, "mmca.heads=5")


def test_the_caption_decoder_is_used_in_training_only(stored_tiny, tmp_path):
    run(
        stored_tiny,
        tmp_path / "run",
        STORED,
        "matcher=vsrn",
        "vsrn.caption_weight=0.1",
        "text.word_dropout=0.2",
        "epochs=12",
    )
    rows = [row for row in Run.open(tmp_path / "run").metrics() if "captions" in row]
    assert rows
    assert rows[-1]["captions"] < rows[0]["captions"]
    matcher, _ = Run.open(tmp_path / "run").load()
    assert not any("writer" in name for name, _ in matcher.named_parameters())


def test_word_vectors_initialize_the_word_table(stored_tiny, tmp_path):
    (tmp_path / "words.txt").write_text("disc 1 2 3 4 5 6 7 8\n", encoding="utf-8")
    settings = resolve(RECIPES["fragments"].defaults, [*SMALL, STORED, f"text.vectors={tmp_path / 'words.txt'}"])
    plan = RECIPES["fragments"].plan(settings, stored_tiny, RunContext(torch.device("cpu")))
    number = plan.inputs.texts.number_of["disc"]
    row = plan.matcher.text.words.weight[number]
    assert torch.nn.functional.cosine_similarity(row, torch.arange(1.0, 9.0), dim=0) > 0.999


def test_runs_on_the_same_inputs_become_an_ensemble(stored_tiny, tmp_path):
    for name, direction in (("one", "t2i"), ("two", "i2t")):
        run(stored_tiny, tmp_path / name, STORED, f"scan.direction={direction}", "epochs=1")
    both = f"runs={tmp_path / 'one'},{tmp_path / 'two'}"
    run(stored_tiny, tmp_path / "both", both, recipe="ensemble")
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
    run(stored_tiny, tmp_path / "other", STORED, "text.max_words=3", "epochs=1")
    with pytest.raises(UserError, match=r"other has other texts as input than .*one; train both with the same"):
        run(stored_tiny, tmp_path / "no", f"runs={tmp_path / 'one'},{tmp_path / 'other'}", recipe="ensemble")
    inputs = tmp_path / "other" / "inputs" / "inputs.json"
    content = json.loads((tmp_path / "one" / "inputs" / "inputs.json").read_text())
    inputs.write_text(json.dumps({**content, "images": {**content["images"], "parts": "grid"}}))
    with pytest.raises(UserError, match=r"has other images as input than .* one vector, and matchers of regions"):
        run(stored_tiny, tmp_path / "no", f"runs={tmp_path / 'one'},{tmp_path / 'other'}", recipe="ensemble")
    assert evaluate_retrieval(matcher, inputs_of_both, pairing, alone=True, depth=0).alone == report.alone
    assert not evaluate_retrieval(matcher, inputs_of_both, pairing, alone=True, depth=2).alone
    same = f"runs={tmp_path / 'one'},{tmp_path / 'two'},{tmp_path / 'other' / '..' / 'one'}"
    with pytest.raises(UserError, match=r"runs= names .*one twice"):
        run(stored_tiny, tmp_path / "no", same, recipe="ensemble")
    with pytest.raises(UserError, match="two or more run folders"):
        run(stored_tiny, tmp_path / "no", f"runs={tmp_path / 'one'}", recipe="ensemble")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((), "image.backbone= with a vision model, or image.features="),
        ((STORED, "text.network=cnn"), "gives one vector per caption"),
        (("image.backbone=x", "image.views=ten"), "whose cells show different places"),
        ((STORED, "matcher=vsrn", "text.encoder=x"), "stored encoder states have none"),
        (
            (STORED, "text.encoder=x", "text.word_dropout=0.2"),
            r"text\.word_dropout=0\.2 masks words.*give text\.word_dropout=0, or train",
        ),
    ],
)
def test_contradictory_settings_are_refused(stored_tiny, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        run(stored_tiny, tmp_path / "run", *changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", ["fragments", "a3vse"])
def test_word_dropout_applies_only_where_words_can_be_masked(recipe):
    def hidden(*changes: str) -> float:
        return resolve(RECIPES[recipe].defaults, changes).text.effective_word_dropout

    assert hidden() == hidden("text.encoder=x", "text.train=true") == 0.1
    assert hidden("text.encoder=x") == hidden("text.word_dropout=0") == 0
    assert hidden("text.word_dropout=0.3") == 0.3


def test_the_releases_settings_are_a_preset():
    settings = resolve(RECIPES["fragments"].defaults, ["preset=release", "epochs=3"])
    assert (settings.loss, settings.dim, settings.epochs, settings.optim.optimizer) == ("ranking", 1024, 3, "adam")


def test_an_unknown_matcher_suggests_the_nearest(stored_tiny):
    settings = resolve(RECIPES["fragments"].defaults, [*SMALL, STORED])
    train = stored_tiny.sentences("train")
    towers = fragment_towers(settings.image, settings.text, train, RunContext(torch.device("cpu")), 8)
    with pytest.raises(UserError, match="did you mean 'scan'"):
        fragment_matcher("scam", settings, towers)


def test_candidates_and_first_stage_are_refused_for_matchers_of_vectors(stored_tiny, tmp_path):
    for change in ("candidates=2", "first_stage=1"):
        with pytest.raises(UserError, match=r"candidates and first_stage are for matchers .* scan, bfan and mmca"):
            run(stored_tiny, tmp_path / "run", STORED, "matcher=vsrn", change)


@pytest.mark.parametrize("recipe", ["fragments", "aoq", "a3vse"])
def test_candidates_are_a_setting_of_all_recipes_that_train_matchers_of_parts(stored_tiny, recipe):
    chosen = RECIPES[recipe]
    extra = ("negatives=",) if recipe == "aoq" else ("pseudo.images=none",) if recipe == "a3vse" else ()
    settings = resolve(chosen.defaults, [*SMALL, STORED, "matcher=scan", "candidates=3", "first_stage=0.5", *extra])
    stages = chosen.plan(settings, stored_tiny, RunContext()).stages
    assert [(s.objective.candidates, s.objective.weight) for s in stages] == [(3, 0.5)] * len(stages)
