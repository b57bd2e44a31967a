from __future__ import annotations

import numpy as np
import pytest
import torch

from calligram.errors import UserError
from calligram.features.images.backbones import Backbone
from calligram.features.pseudo.image_words import ImageWords, LabelClassifier, WordClassifier


def test_the_classifier_gives_the_probabilities_of_the_model(tiny_classifier):
    from transformers import AutoModelForImageClassification

    backbone = Backbone.load(str(tiny_classifier)).eval()
    found = LabelClassifier.load(str(tiny_classifier), backbone)
    model = AutoModelForImageClassification.from_pretrained(tiny_classifier).eval()
    pixels = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        expected = torch.softmax(model(pixels).logits, dim=1)
        torch.testing.assert_close(found.probabilities(backbone(pixels).vectors), expected, rtol=1e-4, atol=1e-5)
    assert found.labels == ("background", "whippet", "unicycle, monocycle", "disc", "gizmo")


def test_a_backbone_without_a_classifier_is_refused(tiny_classifier, tmp_path):
    backbone = Backbone.load(str(tiny_classifier))
    backbone.save(tmp_path)
    with pytest.raises(UserError, match=r"classifier .* lacks weights: classifier.bias, classifier.weight"):
        LabelClassifier.load(str(tmp_path), backbone)


def test_names_of_classes_may_come_from_another_model(tiny_classifier, tmp_path):
    """Without the class "background", which is too many."""
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(tiny_classifier, num_labels=4, ignore_mismatched_sizes=True)
    model.save_pretrained(tmp_path)  # its classes are LABEL_0, ...
    backbone = Backbone.load(str(tmp_path)).eval()
    with pytest.raises(UserError, match=r"classes of .* have no names \(LABEL_0, .* give pseudo.class_names="):
        LabelClassifier.load(str(tmp_path), backbone)
    found = LabelClassifier.load(str(tmp_path), backbone, names=str(tiny_classifier))
    assert found.labels == ("whippet", "unicycle, monocycle", "disc", "gizmo")
    with pytest.raises(UserError, match="has names of 4 classes, and the classifier has 5 classes"):
        LabelClassifier.load(str(tiny_classifier), Backbone.load(str(tiny_classifier)).eval(), names=str(tmp_path))
    with pytest.raises(UserError, match=r"model with class names .* could not be loaded"):
        LabelClassifier.load(str(tmp_path), backbone, names=str(tmp_path / "none"))


def test_labels_of_an_image_are_those_with_high_probability(tiny, tiny_classifier, tiny_wordnet, tmp_path, monkeypatch):
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "wordnet").symlink_to(tiny_wordnet)
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    words, visuals = ImageWords.load(str(tiny_classifier)), tiny.sentences("train").visuals
    classifier = LabelClassifier.load(str(tiny_classifier), words.images.backbone)
    chances = classifier.probabilities(words.vectors(visuals)).numpy()
    least = float(np.median(chances))
    names = ["", "dog", "monocycle", "disc", ""]
    for said, row in zip(words.labels(visuals, least, "known", {"dog", "disc", "monocycle"}), chances, strict=True):
        order = sorted(range(5), key=lambda label: -row[label])
        assert said.split() == [names[label] for label in order if row[label] >= least and names[label]]
    own = words.labels(visuals, 0.0, "own", set())[0].split()
    assert sorted(own) == ["disc", "gizmo", "unicycle", "whippet"]


def test_the_word_classifier_equals_a_plain_ridge_regression():
    rng = np.random.default_rng(0)
    vectors, new = rng.normal(size=(12, 5)), rng.normal(size=(4, 5))
    words = ["dog", "cat", "snow", "rare", "the"]
    said = [{w for w in words[:3] if rng.random() < 0.5} | {"the"} for _ in range(12)]
    said[0].add("rare")
    found = WordClassifier.fit(vectors, said, ridge=0.7, min_images=3)
    assert found.words == ("cat", "dog", "snow")
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    other = new / np.linalg.norm(new, axis=1, keepdims=True)
    centre = unit.mean(0)
    covariance = (unit - centre).T @ (unit - centre) + 0.7 * np.eye(5)
    for place, word in enumerate(found.words):
        target = np.array([float(word in s) for s in said])
        weights = np.linalg.solve(covariance, (unit - centre).T @ (target - target.mean()))
        np.testing.assert_allclose((other - centre) @ weights, (other - centre) @ found.weights[:, place], atol=1e-10)
    for row, best in enumerate(found.predict(new, 2)):
        more = dict(zip(found.words, (other[row] - centre) @ found.weights, strict=True))
        assert best == [word for word in sorted(more, key=lambda w: -more[w])[:2] if more[word] > 0]


def test_predicted_words_depend_on_the_image(tiny, tiny_classifier):
    words = ImageWords.load(str(tiny_classifier))
    train = tiny.sentences("train")
    said = words.predicted_words(train.visuals, train, max_words=3, ridge=1e-6, min_images=2)
    assert {"warm", "colour"} <= set(said[0].split()) & set(said[3].split())
    assert "snow" not in " ".join(said)  # occurs in the captions of one image only
    with pytest.raises(UserError, match="there are none; remove 'learnt'"):
        words.predicted_words(train.visuals, tiny.sparse(0.0).sentences("train"), 3, 1.0)
