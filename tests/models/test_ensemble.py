from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from calligram.models import catalog
from calligram.models.a3vse import A3VSESettings
from calligram.models.bfan import BFANSettings
from calligram.models.cca import CCASettings
from calligram.models.ensemble import (
    Ensemble,
    EnsembleSettings,
    SentencePhraseMatcher,
    SentencePhraseSettings,
    mean_scoring,
)
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import EmbeddingMatcher, Encoded, Matcher, Scoring
from calligram.models.mmca import MMCASettings
from calligram.models.scan import SCANSettings
from calligram.models.two_branch import TwoBranchSettings, TwoBranchSimilaritySettings
from calligram.models.vse import VSESettings
from calligram.models.vsrn import VSRNSettings
from calligram.vectors import unit_length

SENTENCES = TwoBranchSettings(ImageArchitecture(feature_dim=5), TextArchitecture("vectors", state_dim=7), 6, hidden=9)
PHRASES = {
    "embedding": TwoBranchSettings(
        ImageArchitecture(feature_dim=4), TextArchitecture("vectors", state_dim=3), 8, hidden=9
    ),
    "similarity": TwoBranchSimilaritySettings(
        ImageArchitecture(feature_dim=4), TextArchitecture("vectors", state_dim=3), 8, hidden=9
    ),
    "cca": CCASettings(image_dim=4, text_dim=3, dim=3),
}


def described(settings) -> str:
    kind = next(kind for kind in catalog.MATCHERS.values() if kind.settings is type(settings))
    return json.dumps(catalog.describe(kind.matcher(settings)))


def weighted(phrases: str = "embedding", alpha: float = 0.2) -> SentencePhraseMatcher:
    torch.manual_seed(0)
    return SentencePhraseMatcher(
        SentencePhraseSettings(described(SENTENCES), described(PHRASES[phrases]), alpha)
    ).eval()


def given(images: int = 3, texts: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images with 4, 3, ... regions; texts with 0, 1, 2, ... phrases."""
    torch.manual_seed(1)
    pictures, strings = torch.randn(images, 5, 5), torch.randn(texts, 4, 7)
    pictures[:, 1:, 4:] = 0
    for image in range(images):
        pictures[image, 5 - image :] = 0
    mask = torch.arange(4) < 1 + torch.arange(texts)[:, None] % 4
    return pictures, strings * mask.unsqueeze(-1), mask


def literal_eq_8(matcher: SentencePhraseMatcher, pictures, strings, mask, alpha: float) -> list[list[float]]:
    """D(x, y) pair by pair, region by region and phrase by phrase; the score is minus D."""

    def score(one: Matcher, image: torch.Tensor, text: torch.Tensor) -> float:
        return float(one.score_pairs(one.encode_images(image[None]), one.encode_texts(text[None]))[0])

    rows = []
    for picture in pictures:
        regions = [r[:4] for r in picture[1:] if (r != 0).any()]
        row = []
        for string, real in zip(strings, mask, strict=True):
            d = -score(matcher.sentences, picture[0], string[0])
            phrases = [p[:3] for p, there in zip(string[1:], real[1:], strict=True) if there]
            if phrases:
                nearest = [min(-score(matcher.phrases, region, phrase) for region in regions) for phrase in phrases]
                d = (1 - alpha) * d + alpha * sum(nearest) / len(nearest)
            row.append(-d)
        rows.append(row)
    return rows


@pytest.mark.parametrize("phrases", PHRASES)
@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
def test_the_score_is_minus_the_distance_of_two_branch_eq_8(phrases, alpha):
    matcher = weighted(phrases, alpha)
    pictures, strings, mask = given()
    with torch.no_grad():
        found = matcher.score(matcher.encode_images(pictures), matcher.encode_texts(strings, mask))
        expected = literal_eq_8(matcher, pictures, strings, mask, alpha)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_eq_8_by_hand():
    """Sentence distance 1; two phrases with nearest regions at sqrt 2 and almost 0: d_rp = .7071; .8 + .2 x .7071."""
    matcher = weighted()
    one, two = torch.eye(2)
    image = Encoded(torch.tensor([[1.0, 0.0]]), torch.stack([one, one])[None], torch.tensor([[True, True]]))
    half = torch.tensor([[0.5, 3**0.5 / 2]])
    text = Encoded(half, torch.stack([one, two])[None], torch.tensor([[True, True]]))
    assert matcher.score(image, text).item() == pytest.approx(-(0.8 + 0.2 * 2**0.5 / 2), abs=1e-4)


@pytest.mark.parametrize("phrases", PHRASES)
def test_pairs_are_the_diagonal_and_batches_do_not_change_scores(phrases):
    matcher = weighted(phrases)
    pictures, strings, mask = given(4, 4)
    one, two = matcher.encode_images(pictures), matcher.encode_texts(strings, mask)
    grid = matcher.score(one, two)
    torch.testing.assert_close(matcher.score_pairs(one, two), grid.diagonal())
    torch.testing.assert_close(Matcher.score(matcher, one, two), grid)
    alone = matcher.encode_texts(strings[2:3, :3], mask[2:3, :3])
    torch.testing.assert_close(matcher.score(one, alone)[:, 0], grid[:, 2])


def test_a_saved_and_loaded_matcher_scores_the_same(tmp_path):
    matcher, (pictures, strings, mask) = weighted(), given()
    catalog.save(matcher, tmp_path / "matcher.json", tmp_path / "best.safetensors")
    again = catalog.load(tmp_path / "matcher.json", tmp_path / "best.safetensors")
    for one in (matcher, again):
        assert one.settings == matcher.settings
    scores = [m.score(m.encode_images(pictures), m.encode_texts(strings, mask)) for m in (matcher, again)]
    assert torch.equal(*scores)


def test_an_image_without_regions_has_the_sentence_distance():
    matcher = weighted()
    pictures, strings, mask = given()
    pictures[:, 1:] = 0
    one, two = matcher.encode_images(pictures), matcher.encode_texts(strings, mask)
    torch.testing.assert_close(
        matcher.score(one, two), matcher.sentences.score(Encoded(one.vectors), Encoded(two.vectors))
    )


def test_alpha_above_one_is_refused():
    with pytest.raises(ValueError, match=r"alpha must be from 0 to 1, got 1\.5"):
        weighted(alpha=1.5)


MEMBERS = {
    "mmca": MMCASettings(
        ImageArchitecture(feature_dim=6),
        TextArchitecture(vocabulary=11, word_dim=5, hidden=7, bidirectional=True),
        8,
        heads=2,
        filters=3,
    ),
    "mmca, larger": MMCASettings(
        ImageArchitecture(feature_dim=6),
        TextArchitecture(vocabulary=11, word_dim=5, hidden=7, bidirectional=True),
        12,
        heads=4,
        filters=3,
    ),
    "scan": SCANSettings(
        ImageArchitecture(feature_dim=6), TextArchitecture(vocabulary=11, word_dim=5, hidden=7, bidirectional=True), 10
    ),
    "bfan": BFANSettings(
        ImageArchitecture(feature_dim=6), TextArchitecture(vocabulary=11, word_dim=5, hidden=7, bidirectional=True), 9
    ),
    "vse": VSESettings(
        ImageArchitecture(feature_dim=6), TextArchitecture(vocabulary=11, word_dim=5, hidden=7, pooling="last"), 7
    ),
    "vsrn": VSRNSettings(
        ImageArchitecture(feature_dim=6),
        TextArchitecture(pooling="last", vocabulary=11, word_dim=5, hidden=7),
        6,
        layers=1,
    ),
    "a3vse": A3VSESettings(
        ImageArchitecture(feature_dim=6),
        TextArchitecture("lstm", vocabulary=11, word_dim=5, hidden=7),
        5,
        heads=3,
        context=4,
    ),
}


def ensemble(*names: str) -> Ensemble:
    torch.manual_seed(0)
    return Ensemble(EnsembleSettings(tuple(described(MEMBERS[name]) for name in names))).eval()


def fed(images: int = 4, texts: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images with 5, 4, ... regions; texts with 1, 2, ... words."""
    torch.manual_seed(1)
    pictures = torch.randn(images, 5, 6)
    for image in range(images):
        pictures[image, 5 - image :] = 0
    mask = torch.arange(6) < 1 + torch.arange(texts)[:, None] % 6
    return pictures, torch.randint(1, 11, (texts, 6)) * mask, mask


@pytest.mark.parametrize(
    "names",
    [
        ("mmca",),
        ("mmca", "mmca, larger"),
        ("mmca", "scan", "vse"),
        ("a3vse", "mmca"),
        ("vsrn", "bfan"),
        ("vse", "a3vse"),
        ("scan", "bfan", "vse"),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_an_ensemble_has_the_mean_score_and_the_mean_cosine_of_its_members(names, training):
    matcher, (pictures, words, mask) = ensemble(*names).train(training), fed()
    one, two = matcher.encode_images(pictures), matcher.encode_texts(words, mask)
    assert matcher.vector_size == one.vectors.shape[1] == two.vectors.shape[1]
    alone = [(m, m.encode_images(pictures), m.encode_texts(words, mask)) for m in matcher.members]
    scores = matcher.score(one, two)
    torch.testing.assert_close(scores, sum(m.score(i, t) for m, i, t in alone) / len(names))
    torch.testing.assert_close(matcher.score_pairs(one, two.rows(slice(0, 4))), scores.diagonal())
    rows, columns = torch.tensor([3, 0, 3, 1]), torch.tensor([5, 2, 0, 1])
    torch.testing.assert_close(matcher.score_some(one, two, rows, columns), scores[rows, columns])
    cosines = sum(unit_length(i.vectors) @ unit_length(t.vectors).T for _, i, t in alone) / len(names)
    torch.testing.assert_close(unit_length(one.vectors) @ unit_length(two.vectors).T, cosines)


def test_an_ensemble_reranks_only_if_its_score_is_not_the_cosine_of_its_vectors():
    assert ensemble("mmca", "vse").scoring.reranks
    matcher, (pictures, words, mask) = ensemble("vse", "a3vse"), fed()
    assert not matcher.scoring.reranks
    one, two = matcher.encode_images(pictures), matcher.encode_texts(words, mask)
    torch.testing.assert_close(matcher.score(one, two), unit_length(one.vectors) @ unit_length(two.vectors).T)
    by_distance = described(SENTENCES)
    assert Ensemble(
        EnsembleSettings((by_distance, by_distance))
    ).scoring.reranks  # the mean of distances is not a cosine


def test_a_saved_ensemble_of_mmca_scores_the_same(tmp_path):
    matcher, (pictures, words, mask) = ensemble("mmca", "mmca, larger", "vse"), fed()
    catalog.save(matcher, tmp_path / "matcher.json", tmp_path / "best.safetensors")
    again = catalog.load(tmp_path / "matcher.json", tmp_path / "best.safetensors")
    with torch.no_grad():
        scores = [m.score(m.encode_images(pictures), m.encode_texts(words, mask)) for m in (matcher, again)]
    assert torch.equal(*scores)


def test_ensemble_members_with_different_numbers_of_parts_are_refused():
    matcher, pictures = ensemble("mmca", "scan"), fed()[0]
    found = [m.encode_images(pictures) for m in matcher.members]
    with pytest.raises(ValueError, match=r"the same number of parts, got \[5, 3\]"):
        matcher._concatenate([found[0], Encoded(found[1].vectors, found[1].parts[:, :3], found[1].mask[:, :3])])


def test_an_ensemble_without_members_is_refused():
    with pytest.raises(ValueError, match="at least one member"):
        Ensemble(EnsembleSettings(()))


def test_an_ensemble_of_members_without_parts_has_no_parts():
    matcher, (pictures, words, mask) = ensemble("vse", "vse"), fed()
    found = matcher.encode_images(pictures)
    assert isinstance(found, Encoded)
    assert found.parts is None
    assert matcher.score(found, matcher.encode_texts(words, mask)).shape == (4, 6)


@dataclass(frozen=True)
class OutsideSettings:
    """Settings of a class from outside, without a ``dim``."""

    width: int = 4


class Outside(EmbeddingMatcher):
    def __init__(self, settings: OutsideSettings) -> None:
        super().__init__()
        self.settings = settings
        self.image, self.text = nn.Linear(6, settings.width), nn.Embedding(11, settings.width)

    def encode_images(self, images, mask=None):
        return Encoded(self.image(images.mean(1)))

    def encode_texts(self, texts, mask=None):
        return Encoded(self.text(texts).mean(1))


class OutsideProduct(Outside):
    """Its score depends on the lengths of vectors, and it states nothing."""

    scoring = Matcher.scoring

    def score_pairs(self, images, texts):
        return (images.vectors * texts.vectors).sum(-1)

    def score(self, images, texts):
        return images.vectors @ texts.vectors.T


@pytest.mark.parametrize("kind", [Outside, OutsideProduct])
def test_a_class_from_outside_without_a_dim_is_a_member(kind, monkeypatch):
    table = catalog.MatcherCatalog(dict(catalog.MATCHERS.references))
    monkeypatch.setattr(catalog, "MATCHERS", table)
    table.register("outside", catalog.MatcherEntry(kind, OutsideSettings))
    torch.manual_seed(0)
    outside = json.dumps(catalog.describe(kind(OutsideSettings())))
    found, (pictures, words, mask) = Ensemble(EnsembleSettings((described(MEMBERS["scan"]), outside))).eval(), fed()
    one, two = found.encode_images(pictures), found.encode_texts(words, mask)
    alone = [m.score(m.encode_images(pictures), m.encode_texts(words, mask)) for m in found.members]
    torch.testing.assert_close(found.score(one, two), sum(alone) / 2)
    assert found.vector_size == 14
    assert found.scoring == Scoring("mean", parts=True)


def test_the_range_of_an_ensemble_is_the_mean_of_the_ranges():
    assert ensemble("mmca", "bfan").scoring == Scoring("mean", -1.6, 1.6, parts=True)
    assert ensemble("vse", "a3vse").scoring == Scoring("cosine", -1, 1)
    assert weighted(alpha=0.25).scoring.kind == "mean"


def test_the_range_of_sentences_with_phrases_is_weighted():
    scorings = Scoring("distance", -2, 0), Scoring("cosine", -1, 1)
    assert mean_scoring(scorings, (0.75, 0.25), parts=True) == Scoring("mean", -1.75, 0.25, parts=True)
    assert mean_scoring((Scoring("cosine", -1, 1), Scoring("log-odds")), (1, 0), parts=True).bounded
