from __future__ import annotations

import json

import pytest
import torch

from calligram.features.pseudo.concepts import ConceptInput, concept_names
from calligram.features.pseudo.wordnet import WordNet

LABELS = ("background", "whippet", "unicycle", "shuttlecock", "hunting dog, chaser")


@pytest.fixture(scope="module")
def wordnet(tiny_wordnet):
    return WordNet.open(tiny_wordnet)


@pytest.mark.parametrize(
    ("label", "expansion", "words"),
    [
        ("unicycle", "none", {"unicycle"}),
        ("unicycle", "synonyms", {"unicycle", "monocycle"}),
        ("whippet", "kinds", {"whippet", "hound", "hunting dog", "dog", "animal"}),  # "thing" is five steps away
        ("hunting dog, chaser", "synonyms", {"hunting dog", "chaser"}),
        ("background", "kinds", set()),
    ],
)
def test_names_of_a_label_follow_the_expansion(wordnet, label, expansion, words):
    assert set(concept_names(label, expansion, wordnet)) == words


def test_without_wordnet_a_label_has_only_its_own_names():
    assert concept_names("unicycle, one-wheeler", "synonyms", None) == ("unicycle", "one wheeler")


@pytest.mark.parametrize(
    ("text", "expansion", "concepts"),
    [
        ("Two whippets ride a monocycle.", "none", [1]),
        ("Two whippets ride a monocycle.", "synonyms", [1, 2]),
        ("a hunting dog", "none", [4]),
        ("a dog, hunting", "none", []),
        ("hunting dogs", "none", [4]),
        ("a dog", "kinds", [1, 4]),
        ("background", "kinds", []),
        ("", "kinds", []),
    ],
)
def test_a_text_contains_the_concepts_that_it_names(wordnet, text, expansion, concepts):
    found = ConceptInput.from_labels(LABELS, expansion, wordnet)
    assert found.named_concepts(text) == concepts
    queries, mask = found.texts([text, "a whippet"])
    expected = torch.zeros(2, 5)
    expected[0, concepts] = 1
    expected[1, 1] = 1
    assert torch.equal(queries, expected)
    assert mask.shape == (2, 1)


def test_a_saved_input_needs_no_wordnet(wordnet, tmp_path):
    made = ConceptInput.from_labels(("child", "man"), "synonyms", wordnet)
    again = ConceptInput.read(tmp_path, json.loads(json.dumps(made.save(tmp_path))))
    assert again == made
    assert again.named_concepts("children and men") == [0, 1]
    assert again.named_concepts("some kids") == [0]
