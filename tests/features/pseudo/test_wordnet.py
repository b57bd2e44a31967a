from __future__ import annotations

from pathlib import Path

import pytest

from calligram.features.pseudo.image_words import label_names, label_synset, label_words, nearest_known_word
from calligram.features.pseudo.wordnet import WordNet


@pytest.fixture(scope="module")
def wordnet(tiny_wordnet: Path) -> WordNet:
    return WordNet.open(tiny_wordnet)


def test_words_are_found_in_any_inflected_form(wordnet):
    assert wordnet.base_forms("dogs") == ("dog",)
    assert wordnet.base_forms("children") == ("child",)
    assert wordnet.base_forms("men") == ("man",)
    assert wordnet.base_forms("glass") == ("glass",)
    assert wordnet.base_forms("foxes") == ()
    assert [synset.words[0] for synset in wordnet.synsets("Setters")] == ["setter", "setter"]


def test_hypernyms_are_listed_nearest_first(wordnet):
    whippet = wordnet.synsets("whippet")[0]
    kinds = ["hound", "hunting dog", "dog", "animal", "thing"]
    assert [kind.words[0] for kind in wordnet.hypernyms_of(whippet)] == kinds
    assert [kind.words[0] for kind in wordnet.hypernyms_of(whippet, 2)] == kinds[:2]


def test_the_database_is_found_in_nltk_data(tiny_wordnet, tmp_path, monkeypatch):
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "wordnet").symlink_to(tiny_wordnet)
    monkeypatch.setenv("NLTK_DATA", f"{tmp_path / 'elsewhere'}:{tmp_path}")
    found = WordNet.find()
    assert found is not None
    assert found.folder == tmp_path / "corpora" / "wordnet"


@pytest.mark.parametrize(
    ("label", "known", "word"),
    [
        ("whippet", {"dog", "animal"}, "dog"),
        ("whippet", {"whippet", "dog"}, "whippet"),
        ("all-terrain bike, off-roader", {"bike"}, "bike"),
        ("monocycle", {"unicycle", "thing"}, "unicycle"),  # a synonym
        ("setter", {"person", "dog"}, "dog"),  # the animal, not the person
        ("shuttlecock", {"bird", "toy"}, "toy"),  # WordNet also calls it bird, which usually means the animal
        ("whippet", {"thing"}, None),  # five steps are too many
        ("gizmo", {"dog"}, None),
        ("kid, child", {"person"}, "person"),
    ],
)
def test_a_label_is_expressed_by_the_nearest_known_word(wordnet, label, known, word):
    assert nearest_known_word(label, known, wordnet) == word


def test_without_wordnet_only_words_of_the_label_are_used():
    assert nearest_known_word("whippet", {"dog"}) is None
    assert nearest_known_word("golden retriever, retriever dog", {"dog"}) == "dog"


def test_the_synset_contains_most_names_of_the_label(wordnet):
    assert label_synset("dog, frank", wordnet).category == "food"
    assert label_synset("dog", wordnet).category == "animal"
    assert label_synset("gizmo", wordnet) is None


def test_words_of_a_label_follow_the_naming(wordnet):
    assert label_names("Kid, child, kid") == ["kid", "child"]
    assert label_words("Hunting dog, whippet", "own", set()) == ("hunting", "dog")
    assert label_words("Hunting dog, whippet", "known", {"animal"}, wordnet) == ("animal",)
    assert label_words("whippet", "known", set(), wordnet) == ()
    assert label_words("background", "own", set()) == ()
