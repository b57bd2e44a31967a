"""The weight of words over HTTP."""

from __future__ import annotations

import numpy as np
import pytest

from calligram.data.pictures import decode
from calligram.models.catalog import load_matcher
from calligram.search.explain.word_importance import explain
from calligram.search.query.searcher import Searcher
from calligram.serve.settings import MAX_EXPLAINED_WORDS

SENTENCE = "A little girl, in a red hat."


def explained(served, id: str, text: str) -> dict:
    answer = served.client.get("/api/explain", params={"id": id, "text": text})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_weight_of_a_word_is_the_loss_of_score_without_it(served, library_folder, item):
    found = explained(served, item, SENTENCE)
    assert [word["word"] for word in found["words"]] == ["A", "little", "girl", "in", "a", "red", "hat"]
    assert all(SENTENCE[word["start"] : word["end"]] == word["word"] for word in found["words"])
    searcher = Searcher.open(library_folder)

    def score(text: str) -> float:
        return next(hit.score for hit in searcher.images(text, 60, all=True, hybrid=False).hits if hit.id == item)

    assert found["score"] == pytest.approx(score(SENTENCE), abs=1e-3)
    for word in found["words"]:
        without = SENTENCE[: word["start"]] + SENTENCE[word["end"] :]
        assert word["weight"] == pytest.approx(score(SENTENCE) - score(without), abs=1e-3)


@pytest.mark.parametrize(
    ("terms", "status", "reason"),
    [
        ({"text": " "}, 400, "the text has 0 words; give 2 to 64"),
        ({"text": "dog"}, 400, "the text has 1 words; give 2 to 64"),
        ({"text": "a " * (MAX_EXPLAINED_WORDS + 1)}, 400, "the text has 65 words; give 2 to 64"),
        ({}, 422, "text: field required"),
        ({"text": "x" * 1001}, 422, "text: string should have at most 1000 characters"),
        (
            {"text": "a dog", "id": "nothing"},
            404,
            "the library has no item 'nothing'; use an id of a search result",
        ),
    ],
)
def test_invalid_requests_get_a_reason(served, item, terms, status, reason):
    answer = served.client.get("/api/explain", params={"id": item, **terms})
    assert answer.status_code == status
    assert reason in answer.json()["error"]


def test_attention_equals_that_of_the_python_function(attending, attending_folder, served_run):
    hit = attending.hits(q=SENTENCE, all=True)[0]
    found = explained(attending, hit["id"], SENTENCE)
    assert found["score"] == pytest.approx(hit["score"], abs=1e-3)
    stored = load_matcher(served_run / "scan")
    picture = decode(attending.client.get("/api/image", params={"id": hit["id"]}).content)
    expected = explain(stored.matcher, stored.inputs, picture, SENTENCE)
    looks = found["attention"]
    # The library keeps parts in half precision.
    np.testing.assert_allclose(looks["words"], expected.attention.words, atol=5e-3)
    np.testing.assert_allclose(looks["regions"], expected.attention.regions, atol=5e-3)
    np.testing.assert_allclose(looks["rest"], expected.attention.rest, atol=5e-3)
    np.testing.assert_allclose(np.sum(looks["words"], axis=1), 1, atol=1e-4)
    assert looks["boxes"][0] == [0, 0, 0.25, 0.25]
    assert len(looks["boxes"]) == len(looks["regions"]) == 16
    assert looks["scored"] == ["words"]


def test_an_unknown_id_is_reported_with_a_second_stage_too(attending):
    answer = attending.client.get("/api/explain", params={"id": "nothing", "text": "a dog"})
    assert answer.status_code == 404
    assert "has no item 'nothing'; use an id of a search result" in answer.json()["error"]


def test_a_matcher_of_single_vectors_has_no_attention(served, item):
    assert explained(served, item, SENTENCE)["attention"] is None


def test_the_largest_number_of_words_is_explained(served, item):
    assert len(explained(served, item, "a " * MAX_EXPLAINED_WORDS)["words"]) == MAX_EXPLAINED_WORDS
