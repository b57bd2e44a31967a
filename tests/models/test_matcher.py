"""Properties that every matcher must have; add a new matcher to the list."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from calligram.errors import UserError
from calligram.features.transformers_models import describe_architecture
from calligram.models import catalog
from calligram.models.a3vse import A3VSESettings
from calligram.models.bfan import BFAN, BFANSettings
from calligram.models.cca import CCA, CCASettings
from calligram.models.ensemble import Ensemble, EnsembleSettings
from calligram.models.layers.text_cnn import TextCNNSettings
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import EmbeddingMatcher, Encoded, Matcher, Scoring, cosines, stack
from calligram.models.mmca import MMCASettings
from calligram.models.pretrained import Pretrained, PretrainedSettings
from calligram.models.scan import SCAN, SCANSettings
from calligram.models.tags import TagMatcher, TagSettings
from calligram.models.two_branch import TwoBranchSettings, TwoBranchSimilaritySettings
from calligram.models.vse import VSESettings
from calligram.models.vsrn import VSRN, VSRNSettings
from calligram.vectors import unit_length

FEATURES, PIXELS = ImageArchitecture(feature_dim=5), ImageArchitecture("cnn", channels=(4, 8))
GRU = TextArchitecture(vocabulary=30, word_dim=6, hidden=12)
VECTORS = TextArchitecture("vectors", state_dim=7)
CNN = TextArchitecture("cnn", cnn=TextCNNSettings(30, 6, (1, 1), width=2, length=8).description)
CNN_RELEASE = TextCNNSettings(30, 6, (1,), width=2, length=10, shifts=0, pooling="mean").description
BOTH_WAYS = replace(GRU, bidirectional=True)
LSTM = replace(GRU, kind="lstm")
LAST = replace(GRU, pooling="last")
MEMBERS = (
    SCAN(SCANSettings(FEATURES, BOTH_WAYS, 12)),
    BFAN(BFANSettings(FEATURES, BOTH_WAYS, 12)),
    VSRN(VSRNSettings(FEATURES, LAST, 12, layers=1)),
)
SMALL = {
    "vse": VSESettings(PIXELS, replace(LAST, hidden=10), 12),
    "vse, both ways": VSESettings(FEATURES, replace(BOTH_WAYS, pooling="max"), 12),
    "vse, mean": VSESettings(replace(PIXELS, channels=(4,)), GRU, 12),
    "vse, text CNN": VSESettings(FEATURES, CNN, 12, head="paper"),
    "vse, text CNN, release": VSESettings(PIXELS, TextArchitecture("cnn", cnn=CNN_RELEASE), 12, head="release"),
    "vse, vectors": VSESettings(PIXELS, VECTORS, 12),
    "two-branch": TwoBranchSettings(FEATURES, VECTORS, 12, hidden=9),
    "two-branch, linear": TwoBranchSettings(FEATURES, VECTORS, 12, layers=1),
    "two-branch, GRU": TwoBranchSettings(FEATURES, replace(GRU, hidden=8), 12, hidden=9, layers=3, text_layers=2),
    "two-branch, CNNs": TwoBranchSettings(PIXELS, CNN, 12, hidden=9),
    "cca": CCASettings(image_dim=5, text_dim=7, dim=4),
    "tags": TagSettings(image_dim=5, text_dim=7),
    "two-branch, similarity": TwoBranchSimilaritySettings(FEATURES, VECTORS, 12, hidden=9),
    "scan, t2i": SCANSettings(FEATURES, BOTH_WAYS, 12),
    "scan, i2t": SCANSettings(
        FEATURES, replace(BOTH_WAYS, hidden=7), 12, direction="i2t", aggregation="mean", temperature=4.0
    ),
    "scan, CNNs": SCANSettings(PIXELS, CNN, 12),
    "bfan, equal": BFANSettings(FEATURES, BOTH_WAYS, 12),
    "bfan, prob": BFANSettings(FEATURES, BOTH_WAYS, 12, focal="prob"),
    "bfan, vectors": BFANSettings(PIXELS, VECTORS, 12),
    "vsrn": VSRNSettings(FEATURES, LAST, 12, layers=2),
    "vsrn, mean": VSRNSettings(FEATURES, LAST, 12, layers=2, norm="features", reader="mean"),
    "vsrn, batch norm": VSRNSettings(FEATURES, LAST, 12, layers=1, norm="features", norm_before=False, batch_norm=True),
    "vsrn, CNNs": VSRNSettings(PIXELS, CNN, 12, layers=1),
    "a3vse": A3VSESettings(FEATURES, LSTM, 12, context=7),
    "a3vse, GRU both ways": A3VSESettings(FEATURES, BOTH_WAYS, 12, heads=1, merge="mean"),
    "a3vse, mean": A3VSESettings(FEATURES, replace(LSTM, hidden=9), 12, attention="mean"),
    "a3vse, vectors": A3VSESettings(PIXELS, VECTORS, 12, context=7),
    "mmca": MMCASettings(FEATURES, BOTH_WAYS, 12, heads=3, filters=8),
    "mmca, CNNs": MMCASettings(PIXELS, CNN, 12, heads=3, filters=8),
    "mmca, vectors": MMCASettings(PIXELS, VECTORS, 12, heads=3, filters=8),
    "ensemble": EnsembleSettings(tuple(json.dumps(catalog.describe(member)) for member in MEMBERS)),
}
DUAL = ("pretrained CLIP", "pretrained Siglip")


def dual_encoder(kind: str) -> Pretrained:
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 30, "max_position_embeddings": 9, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config={**sizes, "image_size": 16, "patch_size": 8}
    )
    return Pretrained(PretrainedSettings(describe_architecture(config), text_length=9 if kind == "Siglip" else 0))


def build(name: str) -> Matcher:
    torch.manual_seed(0)
    if name not in SMALL:
        return dual_encoder(name.rpartition(" ")[2]).eval()
    kind = next(k for k in catalog.MATCHERS.values() if k.settings is type(SMALL[name]))
    return kind.matcher(SMALL[name]).eval()


def images(matcher: Matcher, count: int) -> torch.Tensor:
    stored = isinstance(matcher, CCA | Ensemble | TagMatcher) or getattr(matcher.settings, "image", None) == FEATURES
    return torch.randn(count, 3, 5) if stored else torch.randn(count, 3, 16, 16)


def texts(matcher: Matcher, count: int, longest: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(matcher, TagMatcher):  # concepts of the texts
        return (torch.rand(count, 7) < 0.5).float(), torch.ones(count, 1, dtype=torch.bool)
    if isinstance(matcher, CCA) or getattr(matcher.settings, "text", None) == VECTORS:
        return torch.randn(count, 7), torch.ones(count, 1, dtype=torch.bool)
    lengths = torch.randint(2, longest + 1, (count,))
    lengths[0] = longest
    mask = torch.arange(longest) < lengths[:, None]
    return torch.randint(4, 30, (count, longest)) * mask, mask


@pytest.fixture(params=[*SMALL, *DUAL])
def matcher(request: pytest.FixtureRequest) -> Matcher:
    return build(request.param)


def test_score_pairs_is_the_diagonal_of_score_and_tiles_do_not_matter(matcher, monkeypatch):
    one, two = matcher.encode_images(images(matcher, 4)), matcher.encode_texts(*texts(matcher, 4))
    grid = matcher.score(one, two)
    assert grid.shape == (4, 4)
    torch.testing.assert_close(matcher.score_pairs(one, two), grid.diagonal())
    monkeypatch.setattr(type(matcher), "tile", 3)
    torch.testing.assert_close(Matcher.score(matcher, one, two), grid)


def test_a_text_alone_equals_the_text_padded_in_a_batch(matcher):
    words, mask = texts(matcher, 5)
    together = matcher.encode_texts(words, mask).vectors
    for i in range(5):
        length = int(mask[i].sum())
        own = words[i : i + 1] if words.is_floating_point() else words[i : i + 1, :length]
        alone = matcher.encode_texts(own, mask[i : i + 1, :length]).vectors
        torch.testing.assert_close(alone[0], together[i])


def test_permuting_images_permutes_rows(matcher):
    pictures = images(matcher, 5)
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(
        matcher.encode_images(pictures[order]).vectors, matcher.encode_images(pictures).vectors[order]
    )


def test_a_saved_and_loaded_matcher_scores_the_same(matcher, tmp_path):
    catalog.save(matcher, tmp_path / "matcher.json", tmp_path / "best.safetensors")
    again = catalog.load(tmp_path / "matcher.json", tmp_path / "best.safetensors")
    words = texts(matcher, 3)
    assert torch.equal(again.encode_texts(*words).vectors, matcher.encode_texts(*words).vectors)
    assert again.settings == matcher.settings


def test_gradients_reach_every_weight(matcher):
    matcher.train()
    one, two = matcher.encode_images(images(matcher, 4)), matcher.encode_texts(*texts(matcher, 4))
    matcher.score(one, two).square().sum().backward()
    missing = [n for n, p in matcher.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert not missing


def test_padding_of_stored_features_does_not_change_scores():
    matcher = build("vse, both ways")
    features = torch.randn(2, 4, 5)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    shorter = matcher.encode_images(features[:1, :2]).vectors
    torch.testing.assert_close(matcher.encode_images(features, mask).vectors[:1], shorter)


def test_stacking_pads_parts_and_keeps_masks():
    pieces = [Encoded(torch.ones(2, 3), torch.ones(2, k, 3), torch.ones(2, k, dtype=torch.bool)) for k in (1, 4)]
    joined = stack(pieces)
    assert joined.parts is not None
    assert joined.mask is not None
    assert joined.parts.shape == (4, 4, 3)
    assert joined.mask.sum(1).tolist() == [1, 1, 4, 4]


def test_unit_vectors_of_zero_stay_zero():
    assert torch.equal(unit_length(torch.zeros(1, 3)), torch.zeros(1, 3))


def test_unknown_matchers_and_settings_are_refused():
    with pytest.raises(UserError, match="unknown matcher 'vsa'; did you mean 'vse'"):
        catalog.build({"matcher": "vsa", "settings": {}})
    with pytest.raises(UserError, match="unknown setting of matcher vse 'dims'; did you mean 'dim'"):
        catalog.build({"matcher": "vse", "settings": {"dims": 3}})


def test_cosines_are_not_rounded_in_half_precision():
    rows, columns = torch.randn(5, 16), torch.randn(7, 16)
    expected = torch.nn.functional.cosine_similarity(rows[:, None], columns[None], dim=-1)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(cosines(rows, columns), expected)
        torch.testing.assert_close(EmbeddingMatcher().score(Encoded(rows), Encoded(columns)), expected)


def test_scores_lie_in_the_stated_range_and_depend_on_what_is_stated(matcher):
    scoring = matcher.scoring
    with torch.no_grad():
        one, two = matcher.encode_images(images(matcher, 6)), matcher.encode_texts(*texts(matcher, 6))
        scores = matcher.score(one, two)
        assert scoring.low - 1e-5 <= float(scores.min())
        assert float(scores.max()) <= scoring.high + 1e-5
        assert scoring.bounded == (scoring.high < float("inf"))
        close = cosines(one.vectors, two.vectors)
        if scoring.kind == "cosine":
            torch.testing.assert_close(scores, close)
        if not scoring.reranks:
            assert torch.equal(scores.argsort(1), close.argsort(1))
        if not scoring.parts:
            torch.testing.assert_close(matcher.score(Encoded(one.vectors), Encoded(two.vectors)), scores)
        other = [Encoded(torch.randn_like(side.vectors), side.parts, side.mask) for side in (one, two)]
        assert torch.allclose(matcher.score(*other), scores) != scoring.vectors


KINDS = {
    "vse": Scoring("cosine", -1, 1),
    "vsrn": Scoring("cosine", -1, 1),
    "a3vse": Scoring("cosine", -1, 1),
    "cca": Scoring("cosine", -1, 1),
    "pretrained CLIP": Scoring("cosine", -1, 1),
    "two-branch": Scoring("distance", -2, 0),
    "two-branch, similarity": Scoring("log-odds"),
    "scan, t2i": Scoring("attention", vectors=False, parts=True),
    "scan, i2t": Scoring("attention", -1, 1, vectors=False, parts=True),
    "bfan, equal": Scoring("attention", -2, 2, vectors=False, parts=True),
    "mmca": Scoring("attention", -1.2, 1.2, parts=True),
    "tags": Scoring("other", 0, 1),
    "ensemble": Scoring("mean", parts=True),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_matcher_states_its_score(name):
    assert build(name).scoring == KINDS[name]


def test_only_cosines_and_distances_cannot_rerank():
    kinds = ("cosine", "distance", "log-odds", "attention", "mean", "other")
    assert [kind for kind in kinds if not Scoring(kind).reranks] == ["cosine", "distance"]
    assert (Scoring("other").bounded, Scoring("other", 0, 1).bounded, Scoring("other", 0).bounded) == (0, 1, 0)


def test_the_vector_size_is_measured_where_the_settings_have_no_dim():
    matcher = build("pretrained CLIP")
    with pytest.raises(UserError, match="size of the vectors of Pretrained is not known; add a field dim"):
        _ = matcher.vector_size
    matcher.measure_vectors(*texts(matcher, 2))
    assert matcher.vector_size == matcher.encode_images(images(matcher, 1)).vectors.shape[1]
    assert build("vse").vector_size == 12
