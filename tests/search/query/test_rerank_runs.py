"""Matchers that compare pairs behind vectors of another, or of their own, from run folders to the command line."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from calligram.cli.main import app
from calligram.errors import UserError
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models import catalog
from calligram.models.bfan import BFAN, BFANSettings
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE, load_matcher
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.mmca import MMCA, MMCASettings
from calligram.models.scan import SCAN, SCANSettings
from calligram.search.library.library import Library
from calligram.search.library.matchers import load_encoders
from calligram.search.query.cutoff import measure_scales, stored_scales
from calligram.search.query.query import ItemId
from calligram.search.query.rerank import RerankCosts, TimeBudget
from calligram.search.query.searcher import Searcher


def sides(words):
    text = TextArchitecture(vocabulary=words, word_dim=6, hidden=8, bidirectional=True)
    return {"image": ImageArchitecture(feature_dim=4), "text": text, "dim": 8}


SECOND = {
    "scan": lambda words: SCAN(SCANSettings(**sides(words))),
    "bfan": lambda words: BFAN(BFANSettings(**sides(words))),
    "mmca": lambda words: MMCA(MMCASettings(**sides(words), heads=2, filters=4, alpha=1.5)),
}
ALL = 18
"""images of the collection"""


def command(*arguments: object) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.fixture(scope="module", params=["scan behind vse", "bfan behind vse", "mmca by itself"])
def library(request, stored_tiny, write_run, tmp_path_factory):
    """A library as the verb makes it, and the run whose score puts things in order."""
    folder = tmp_path_factory.mktemp("second")
    name, _, how = request.param.partition(" ")
    words = Vocabulary.build(stored_tiny.sentences("train").texts.strings, min_count=1)
    torch.manual_seed(0)
    run = folder / name
    run.mkdir()
    (run / RUN_FILE).write_text("{}\n")
    catalog.save(SECOND[name](len(words)), run / MATCHER_FILE, run / WEIGHTS_FILE)
    Inputs(StoredInput("colour"), words).save(run / INPUTS_FOLDER)
    first = run if how == "by itself" else write_run(folder / "vse")
    more = () if first == run else ("--reranker", run)
    command("index", first, stored_tiny.folder, "--out", folder / "library", "--device", "cpu", *more)
    return folder / "library", load_matcher(run)


@torch.no_grad()
def exhaustive(library, second, text: str) -> dict[str, float]:
    opened = Library.open(library)
    query = second.matcher.encode_texts(*second.inputs.texts.texts([text]))
    ids = opened.sample(ALL)
    return {id: float(second.matcher.score_pairs(opened.parts([id]), query)) for id in ids}


def test_the_verbs_order_images_by_the_second_matchers_score(library):
    folder, second = library
    truth = exhaustive(folder, second, "a red disc")
    assert len(truth) == ALL
    for how in (("--depth", "0"), ("--budget-ms", "60000"), ("--depth", "500")):
        found = json.loads(command("search", folder, "a red disc", "-k", "18", "--all", "--no-words", "--json", *how))
        assert found["depth"] == ALL
        assert found["took"] > 0
        scores = [hit["score"] for hit in found["hits"]]
        assert scores == pytest.approx(sorted(truth.values(), reverse=True), abs=1e-4)
        assert [truth[hit["id"]] for hit in found["hits"]] == pytest.approx(scores, abs=1e-4)


def test_a_budget_chooses_the_depth_between_k_and_all(library):
    searcher = Searcher.open(library[0])
    short = searcher.images("a red disc", 3, all=True, hybrid=False, depth=TimeBudget(1e-9))
    assert (short.depth, len(short.hits)) == (3, 3)
    assert searcher.images("a red disc", 3, all=True, hybrid=False, depth=TimeBudget(60.0)).depth == ALL
    costs = searcher._reranker.costs["image"]
    costs.other, costs.setup, costs.candidate = 1.0, 1.0, 1.0
    assert searcher.images("a red disc", 3, all=True, hybrid=False, depth=TimeBudget(9.99)).depth == 7
    assert costs.candidate < 1  # it took less
    assert searcher.images("a red disc", 3, all=True, hybrid=False).depth == ALL  # without one, the first hundred
    found = searcher.texts(ItemId(searcher.library.sample(1)[0]), 4, all=True, depth=TimeBudget(60.0))
    assert found.depth == len(searcher.library.captions)
    assert found.seconds >= sum(found.stage_seconds.values())


def test_the_pace_is_measured_only_where_a_budget_may_ask_for_it(library, monkeypatch):
    measured, real = [], RerankCosts.measure.__func__
    monkeypatch.setattr(RerankCosts, "measure", classmethod(lambda *given: (measured.append(1), real(*given))[1]))
    command("search", library[0], "a red disc")
    assert not measured
    command("search", library[0], "a red disc", "--budget-ms", "60000")
    assert len(measured) == 2  # of images and of captions
    unpaced = Searcher.open(library[0], measure_costs=False)
    (library[0] / "library.json").touch()
    for searcher in (unpaced, unpaced.refreshed()):
        assert searcher.images("a red disc", 3, all=True, hybrid=False).depth == ALL
        with pytest.raises(ValueError, match="a time budget needs measured costs"):
            searcher.images("a red disc", 3, depth=TimeBudget(1.0))
    assert len(measured) == 2


def test_images_that_words_found_take_places_of_the_budgets(library):
    searcher = Searcher.open(library[0])
    costs = searcher._reranker.costs["image"]
    costs.other, costs.setup, costs.candidate = 1.0, 1.0, 1.0
    found = searcher.images("a red disc", 2, all=True, depth=TimeBudget(8.99))
    named = [hit for hit in found.hits if "a red disc" in searcher.library.item(hit.id).captions]
    assert named
    assert found.depth == 6
    assert searcher.images("a red disc", 2, all=True, depth=6).depth == 6


def test_the_query_is_encoded_once_where_one_matcher_does_both(library, monkeypatch):
    searcher = Searcher.open(library[0])
    first, second = searcher._encoders
    count, texts = [], type(first).texts
    monkeypatch.setattr(type(first), "texts", lambda self, strings: (count.append(self), texts(self, strings))[1])
    searcher.images("a red disc", 2)
    assert count == ([first] if second is first else [first, second])


def test_measured_costs_stay_when_the_library_is_opened_again(library):
    searcher = Searcher.open(library[0])
    (library[0] / "library.json").touch()
    again = searcher.refreshed()
    assert again is not searcher
    assert again._reranker.costs["image"] is searcher._reranker.costs["image"]


def test_a_rebuild_can_leave_the_second_stage_out(library, stored_tiny, tmp_path):
    folder, second = library
    out, first = tmp_path / "library", Library.open(folder).manifest.matcher.source
    index = ("index", first, stored_tiny.folder, "--out", out, "--device", "cpu")
    command(*index, "--reranker", second.source)
    assert Library.open(out).manifest.reranker is not None
    with pytest.raises(UserError, match=r"this is no reranker; rebuild it with .*--rebuild"):
        command(*index, "--reranker", "none")
    command(*index, "--reranker", "none", "--rebuild")
    assert Library.open(out).manifest.reranker is None
    assert f"{ALL} unchanged" in command(*index)  # it stays so
    found = json.loads(command("search", out, "a red disc", "-k", "18", "--all", "--no-words", "--json"))
    assert (len(found["hits"]), found["depth"]) == (ALL, 0)


def test_impossible_requests_are_errors(library):
    with pytest.raises(UserError, match=re.escape("--depth and --budget-ms cannot be combined")):
        command("search", library[0], "a red disc", "--depth", "5", "--budget-ms", "100")
    with pytest.raises(UserError, match="a number of milliseconds above 0, got 0"):
        command("search", library[0], "a red disc", "--budget-ms", "0")


def test_the_table_shows_the_number_of_reranked_candidates(library):
    told = command("search", library[0], "a red disc", "-k", "2", "--all", "--budget-ms", "60000")
    assert re.search(r"18 of 18 reranked, \d+ ms", told)


def test_parts_come_in_the_order_that_is_asked_for(library):
    found = Library.open(library[0])
    ids = found.sample(4)
    together, apart = found.parts(ids), [found.parts([id]) for id in ids]
    assert together.parts.dtype == torch.float32
    np.testing.assert_array_equal(together.parts, torch.cat([one.parts for one in apart]))
    np.testing.assert_array_equal(together.vectors, torch.cat([one.vectors for one in apart]))
    twice = found.parts([ids[1], ids[0], ids[1]])
    np.testing.assert_array_equal(twice.parts[2], apart[1].parts[0])


def test_scales_are_stored_for_the_reranker(library):
    folder, stored = library
    opened = Library.open(folder)
    assert opened.manifest.scales["reranker"] == stored.fingerprint
    assert Searcher.open(folder).scales == measure_scales(opened, *load_encoders(folder, opened.manifest))
    assert stored_scales(opened.manifest, opened.manifest.matcher.fingerprint, None) is None
