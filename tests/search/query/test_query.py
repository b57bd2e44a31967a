from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from calligram.errors import UserError
from calligram.search.query.query import MAX_TERMS, ItemId, Query, QueryTerm, combine_vectors, parse_content, parse_term

EVEN = {"text": 0.1, "image": 0.1}


def unit_rows(seed: int, count: int, dim: int = 8) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_number_before_a_colon_is_a_weight_and_a_time_of_day_is_not():
    assert parse_term("2:dog") == QueryTerm("dog", 2.0)
    assert parse_term(" .5 : a dog ") == QueryTerm("a dog", 0.5)
    assert parse_term("1.5:cat: a portrait") == QueryTerm("cat: a portrait", 1.5)
    assert parse_term("3:00 in the morning") == QueryTerm("3:00 in the morning")
    assert parse_term("16:9") == QueryTerm("16:9")
    assert parse_term("2 dogs") == QueryTerm("2 dogs")
    assert parse_term("note: a dog") == QueryTerm("note: a dog")


def test_a_path_is_a_picture_and_a_misspelt_one_is_an_error_rather_than_a_text(tmp_path, monkeypatch):
    Image.new("RGB", (4, 3), "red").save(tmp_path / "red.png")
    (tmp_path / "red.png").rename(tmp_path / "unnamed")
    Image.new("RGB", (4, 3), "red").save(tmp_path / "red.png")
    monkeypatch.chdir(tmp_path)
    assert parse_term("2:red.png").content.size == (4, 3)
    assert parse_content("./unnamed") == "./unnamed" or parse_content(str(tmp_path / "unnamed")).size == (4, 3)
    assert parse_content("unnamed") == "unnamed"
    assert parse_content("black/white photograph") == "black/white photograph"
    assert parse_content("dog " * 2000).startswith("dog")
    with pytest.raises(UserError, match=r"reed\.png cannot be used: no such file"):
        parse_content("reed.png")


def test_empty_terms_are_refused():
    with pytest.raises(UserError, match="other than zero, got 0"):
        QueryTerm("dog", 0.0)
    with pytest.raises(UserError, match="got nan"):
        QueryTerm("dog", float("nan"))
    with pytest.raises(UserError, match="is empty"):
        QueryTerm("  ")
    with pytest.raises(UserError, match="the query is empty"):
        Query(())
    with pytest.raises(UserError, match=f"at most {MAX_TERMS}"):
        Query((QueryTerm("dog"),) * (MAX_TERMS + 1))


def test_an_item_counts_as_a_picture_and_a_string_as_a_text():
    query = Query(
        (QueryTerm("dog"), QueryTerm(ItemId("img-7"), 2), QueryTerm(Image.new("RGB", (2, 2)), -1), QueryTerm("cat", -1))
    )
    assert [t.modality for t in query.terms] == ["text", "image", "image", "text"]
    assert query.words == "dog"
    assert Query.of("dog") == Query((QueryTerm("dog"),))
    assert Query.of(query) is query


def test_the_score_of_a_query_is_the_weighted_mean_of_its_terms_scores():
    """Against the literal sum: 2 dog + 1 beach - 1 cat, so shares 0.5, 0.25 and -0.25."""
    terms, items = unit_rows(0, 3), unit_rows(1, 20)
    shares = Query((QueryTerm("dog", 2), QueryTerm("beach"), QueryTerm("cat", -1))).shares(EVEN)
    assert shares == pytest.approx([0.5, 0.25, -0.25])
    vector, length = combine_vectors(terms, shares)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    expected = 0.5 * items @ terms[0] + 0.25 * items @ terms[1] - 0.25 * items @ terms[2]
    np.testing.assert_allclose(items @ vector * length, expected, atol=1e-6)


def test_a_query_of_one_term_is_the_matchers_own_score():
    term = unit_rows(0, 1)
    vector, length = combine_vectors(term, Query.of("dog").shares({"text": 0.03, "image": 0.2}))
    np.testing.assert_allclose(vector, term[0], atol=1e-6)
    assert length == pytest.approx(1, abs=1e-6)


def test_spreads_count_only_where_texts_and_pictures_meet():
    spreads = {"text": 0.05, "image": 0.15}
    assert Query((QueryTerm("dog", 3), QueryTerm("cat"))).shares(spreads) == pytest.approx([0.75, 0.25])
    mixed = Query((QueryTerm("dog"), QueryTerm(ItemId("a")))).shares(spreads)
    assert mixed == pytest.approx([0.75, 0.25])  # the picture's scores vary three times as much, so it gets a third


def test_terms_that_cancel_are_refused():
    term = unit_rows(0, 1)
    with pytest.raises(UserError, match="cancel each other"):
        combine_vectors(np.concatenate([term, term]), Query((QueryTerm("dog"), QueryTerm("dog", -1))).shares(EVEN))
